"""PAR Transformer (Mandava et al. 2020, arXiv:2009.04534)."""
