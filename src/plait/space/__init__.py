"""Spaces of architectures as integer genes, their constraints, and exact costs for millions of candidates."""
