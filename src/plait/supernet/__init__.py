"""Differentiable search: one network that holds every choice and learns which to keep."""
