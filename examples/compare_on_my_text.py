"""Which of three architectures learns your text best, how sure that is, and from when on another one would.

Usage: python compare_on_my_text.py [my.txt]; without a file, the source text of Python's own library.
"""

import sys

import plait

text = sys.argv[1] if len(sys.argv) > 1 else "builtin:stdlib"
# A quick look at 8,000 tokens each; time="10m" is what an answer takes on a laptop.
found = plait.compare(
    ["d=32 | (attn[heads=2] swiglu)x2", "d=32 | (gla[heads=2] swiglu)x2", "d=32 | (hyena swiglu)x2"],
    data=text, tokens=8192, seq_len=64, seeds=2, held_out=4096, match="params",
)  # fmt: skip
for row in found.rows():
    print(f"{row['name']:<18} {row['loss']:.3f} nats per token ({row['loss_low']:.3f} to {row['loss_high']:.3f})")
print(found.verdict)
