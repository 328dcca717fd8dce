"""What would it cost to find out how two architectures scale, and what would the runs say?

The plan is only made here; `plait.scale.run("plan.json")` or `plait scale run plan.json --workers 2` trains it.
"""

from pathlib import Path

import plait

found = plait.scale.plan(
    ["transformer=d=64 | (attn[heads=4] swiglu)x2", "striped=d=64 | (hyena swiglu)x3 attn[heads=4] swiglu"],
    total=3e12, groups=4, sizes=5, data="builtin:language", seq_len=128, batch=8, out="plan.json",
)  # fmt: skip
rows = found.rows()
print(f"{len(rows)} runs, {sum(row['seconds'] for row in rows) / 60:.1f} minutes here")
for warning in found.warnings:
    print("warning:", warning)
print("written:", Path("plan.json").resolve().name)
