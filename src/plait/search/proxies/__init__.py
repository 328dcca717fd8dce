"""Zero-cost proxies: what an untrained model and one batch say about how well it would train. One file each.

They need torch; the rest of `plait.search` does not.
"""
