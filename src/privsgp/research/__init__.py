"""The methods that others published, the paper's figures, comparisons and searches: on top of everything else.

Nothing in privsgp imports this package. The command line and the list of methods find it through entry points
(`[project.entry-points]` in pyproject.toml), as they find packages of others.
"""
