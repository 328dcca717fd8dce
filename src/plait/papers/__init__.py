"""The papers, one home each: presets, spaces, counting conventions, and the facts that `plait verify` checks."""
