"""Which architecture wins when trained for real: comparisons at one budget, and races towards one."""
