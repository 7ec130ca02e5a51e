"""What runs many runs, or one run that is not about its model: audits."""
