"""Training: the loop for one model, and the fleet (many small models of one shape as one stacked step)."""
