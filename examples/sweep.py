"""Learning rates × seeds, with averages and intervals; what was trained before is not trained again.

Several machines share the work when they share a store: PLAIT_STORE=postgresql://… on each of them.
"""

import plait

found = plait.sweep(
    "d=32 | (gla[heads=2] swiglu)x2",
    lr=[1e-3, 4e-3, 1.6e-2], seeds=3, data="builtin:language", steps=60, batch=4, seq_len=64,
)  # fmt: skip
for row in found.rows():
    print(row)
