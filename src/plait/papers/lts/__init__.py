"""LiteTransformerSearch (Javaheripi et al. 2022, arXiv:2203.02094)."""
