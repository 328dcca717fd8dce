"""Scaling laws measured: which runs to train, what they cost, training them, and the records they leave."""
