"""A mixer in one place: `gla.py` has its options and exact cost and needs no torch, `gla_module.py` its module."""
