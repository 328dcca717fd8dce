"""The canonical text: the one way to write a given spec, and its hash, the identity of every result.

Grouped or written out, with options in any order: the same header and layers give the same text.

Repetition: `(a b)x3` as a tree, the tree as a flat list, and a flat list as the tree again.

Knows nothing about layers. A tree's size is known before it is expanded, so a bomb costs nothing to refuse.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from plait.spec.errors import Where

if TYPE_CHECKING:
    from plait.spec.nodes import Spec


def format_spec(spec: Spec) -> str:
    """`parse(format_spec(spec)) == spec`, and formatting that again changes nothing."""
    return f"{spec.header.text} | {_format(compress([layer.text for layer in spec.layers]))}"


def spec_hash(spec: Spec) -> str:
    """The first 16 hexadecimal digits of the canonical text's SHA-256."""
    return hashlib.sha256(spec.text.encode()).hexdigest()[:16]


def _format(nodes: Iterable[str | Repeat[str]]) -> str:
    return " ".join(_format_repeat(node) if isinstance(node, Repeat) else node for node in nodes)


def _format_repeat(node: Repeat[str]) -> str:
    inside = _format(node.items)
    # A parallel layer alone, `(attn | mamba2)`, has its parentheses.
    alone = len(node.items) == 1 and inside.startswith("(") and inside.endswith(")") and not node.nested
    return f"{inside}x{node.count}" if alone else f"({inside})x{node.count}"


T = TypeVar("T")

MAX_PERIOD = 256  # longest repeated stretch that `compress` looks for


@dataclass(frozen=True)
class Repeat(Generic[T]):
    """`items`, `count` times over."""

    items: tuple[T | Repeat[T], ...]
    count: int = 1
    where: Where | None = field(default=None, compare=False, repr=False)
    size: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", self.count * total_size(self.items))

    @property
    def nested(self) -> bool:
        """Whether there are repetitions within."""
        return any(isinstance(item, Repeat) for item in self.items)


def total_size(nodes: Iterable[T | Repeat[T]]) -> int:
    """How many leaves `expand` would give; takes no time however many that is."""
    return sum(node.size if isinstance(node, Repeat) else 1 for node in nodes)


def expand(nodes: Iterable[T | Repeat[T]]) -> list[T]:
    """The leaves in order. The caller has checked `total_size`."""
    flat: list[T] = []
    for node in nodes:
        if isinstance(node, Repeat):
            flat.extend(expand(node.items) * node.count)
        else:
            flat.append(node)
    return flat


def compress(leaves: Sequence[str]) -> list[str | Repeat[str]]:
    """Neighbouring equal periods as `Repeat`s, nested, chosen by the leaves alone: at each place the repetition that
    covers most, of those the one with the shortest period."""
    # One character a distinct leaf: slices of one string compare at C speed.
    letters: dict[str, str] = {}
    for leaf in leaves:
        letters.setdefault(leaf, chr(len(letters)))
    return _compress("".join(letters[leaf] for leaf in leaves), list(letters), MAX_PERIOD)


def _compress(code: str, names: list[str], max_period: int) -> list[str | Repeat[str]]:
    nodes: list[str | Repeat[str]] = []
    at = 0
    while at < len(code):
        period, count = _best_repeat(code, at, max_period)
        if count == 1:
            nodes.append(names[ord(code[at])])
            at += 1
            continue
        # `a b c b c b` may be a (b c)x2 b or a b (c b)x2. After a single leaf the second reads better: the lone layers
        # form a block, and the repeated ones are blocks of the same shape (attn mlp (gla mlp)x3).
        if nodes and isinstance(nodes[-1], str):
            rest = _matching(code, at, at + period * count, period)
            nodes += _compress(code[at : at + rest], names, max_period)
            at += rest
        # The unit has no period that fills it, or the shorter one would have been chosen: the recursion ends.
        nodes.append(Repeat(tuple(_compress(code[at : at + period], names, period // 2)), count))
        at += period * count
    return nodes


def _matching(code: str, at: int, end: int, period: int) -> int:
    """How many leaves from `end` on continue the unit at `at` without completing it."""
    rest = 0
    while rest < period and code[at + rest : at + rest + 1] == code[end + rest : end + rest + 1]:
        rest += 1
    return rest


def _best_repeat(code: str, at: int, max_period: int) -> tuple[int, int]:
    """(period, count) of the repetition starting at `at` that covers most; (1, 1) when nothing repeats there."""
    best_period, best_count = 1, 1
    # A period can only begin where the first letter comes again.
    again = code.find(code[at], at + 1, at + max_period + 1)
    while again != -1:
        period = again - at
        unit = code[at:again]
        end = again
        while code.startswith(unit, end):
            end += period
        count = (end - at) // period
        if count > 1 and count * period > best_count * best_period:
            best_period, best_count = period, count
        again = code.find(code[at], again + 1, at + max_period + 1)
    return best_period, best_count
