"""What a search may optimise, one file each; `plait.search.objectives.table` finds them by name."""
