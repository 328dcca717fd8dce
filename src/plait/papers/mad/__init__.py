"""Mechanistic Architecture Design (Poli et al. 2024, arXiv:2403.17844)."""
