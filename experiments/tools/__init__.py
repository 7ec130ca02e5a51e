"""What the scripts of this folder share: many runs at once, comparisons, the paper's figures, origins of numbers."""
