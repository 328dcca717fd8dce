"""The best model that answers within a time on this machine: search, then measure what is picked.

The first search of a space here profiles the machine, which takes a few minutes; later ones take seconds.
"""

import plait

front = plait.search("small-hybrid", latency="20ms", memory="200MB", seq_len=128, iterations=3, population=40)
print(f"{len(front.specs)} architectures on the front")

picked = front.pick(latency="10ms")
print(picked.spec)
print(picked.rows()[0])
