"""Forgetting Transformer (Lin et al. 2025, arXiv:2503.02130)."""
