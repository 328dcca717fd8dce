"""Differentiable search: a supernet that contains every choice and learns which to keep."""
