"""Search: spaces of architectures as integer genes, exact objectives for millions of them, loops that evolve them."""
