"""The live dashboard over a store: `plait serve`. It reads; nothing that it is asked can write."""
