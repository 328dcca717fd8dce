"""Scaling-law experiments: planning runs under a budget, pricing them, training them, and their records."""
