"""What studies methods: many runs at once, comparisons at one budget, the paper's ten figures and their claims.

`privsgp` finds the commands `compare` and `reproduce` through the entry-point group `privsgp.commands`.
"""
