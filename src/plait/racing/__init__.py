"""Which architecture trains best: comparisons at one budget, and races towards a larger one."""
