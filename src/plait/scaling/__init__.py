"""Scaling-law experiments: planning runs under a budget, estimating their cost, training and storing them."""
