"""Defaults that several verbs share, and their commands print."""

TIME = "10m"  # of a comparison and of a probe
HELD_OUT = 2**14  # validation tokens of a comparison and of a race, the same for all candidates
FRONT = 16  # models of a search that are returned and measured
