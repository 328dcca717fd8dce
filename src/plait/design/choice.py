"""Which model to take, by a rule that is stated and applied, not felt.

1. It was measured within every limit.
2. In the probe, no other mix is better beyond doubt: its paired difference from the best mean accuracy may be chance,
   all pairs considered (Holm's correction). One seed leaves no doubt out.
3. Of those it has the most parameters at work in its layers, which predict the loss of models of one kind best
   (LiteTransformerSearch, arXiv:2203.02094); of those within 2 % of the most, it is the fastest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plait.probe.verdict import Comparison

RULE = (
    "Of the models measured within every limit, those whose mix no other beats beyond doubt in the probe; of these the "
    "one with the most parameters in its layers; of those within 2 % of the most, the fastest."
)
ALIKE = 0.02  # sizes nearer than this count as equal


@dataclass(frozen=True)
class Choice:
    """Names of mixes. `equals`: those that the probe cannot tell from the best, the pick among them."""

    pick: str
    best: str
    equals: tuple[str, ...]


def choose(rows: Mapping[str, Mapping[str, Any]], comparison: Comparison, size: str) -> Choice:
    best = min(comparison.names, key=comparison.rank)
    ahead = comparison.signs(best, chosen=True).overall
    equals = tuple(name for name in comparison.names if name == best or ahead[name] <= 0)
    most = max(rows[name][size] for name in equals)
    large = [name for name in equals if rows[name][size] >= (1 - ALIKE) * most]
    pick = min(large, key=lambda name: (rows[name]["latency_ms"]["measured"], -rows[name][size]))
    return Choice(pick, best, equals)
