"""Studies that train many small models: ranking by proxies, learning rates, shapes, placement of attention."""
