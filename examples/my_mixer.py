"""A mixer of your own: does it keep the contract, what does it cost, and does it beat attention on your text?

The mixer is moving_average.py beside this file; `plait new mixer mine.py` writes one to start from.
"""

from pathlib import Path

import plait

MIXER = Path(__file__).with_name("moving_average.py")
PAIR = ["d=32 | (moving-average swiglu)x2", "d=32 | (attn[heads=2] swiglu)x2"]

checked = plait.check(MIXER, speed=False)
print("the contract holds" if checked.passed else [verdict.check for verdict in checked.failed])

for spec in PAIR:
    cost = plait.cost(spec, seq_len=1024)
    print(
        f"{spec}: {cost.total_params:,} parameters, a state of {cost.fixed_state} numbers, a cache of {cost.kv_cache}"
    )

# Thousands of tokens tell little: give time="10m" and data="my.txt" for an answer.
found = plait.compare(PAIR, data="builtin:language", tokens=4096, seq_len=64, seeds=2, held_out=2048, mixers=[MIXER])
print(found.verdict)
