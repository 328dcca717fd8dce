"""The live, read-only dashboard of a store: `plait serve`."""
