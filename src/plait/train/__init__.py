"""Training: the fleet (many small models of one shape as one stacked step)."""
