"""Published spaces and our own, one file each; `plait.search.spaces.table` finds them by name."""
