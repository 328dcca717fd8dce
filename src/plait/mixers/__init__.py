"""The mixers' torch side, one file each. Their options and costs are in `plait.arch`."""
