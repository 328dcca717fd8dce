"""The papers, one package each: presets, spaces, counting conventions, and the facts that `plait verify` checks."""
