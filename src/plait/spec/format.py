"""The canonical text: the one way to write a given spec, and its hash, the identity of every result.

Grouped or written out, with options in any order: the same header and layers give the same text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from plait.spec.repeats import Repeat, compress

if TYPE_CHECKING:
    from plait.spec.nodes import Spec


def format_spec(spec: Spec) -> str:
    """`parse(format_spec(spec)) == spec`, and formatting that again changes nothing."""
    return f"{spec.header.text} | {_format(compress([layer.text for layer in spec.layers]))}"


def spec_hash(spec: Spec) -> str:
    """The first 16 hexadecimal digits of the canonical text's SHA-256."""
    return hashlib.sha256(spec.text.encode()).hexdigest()[:16]


def _format(nodes: Iterable[str | Repeat[str]]) -> str:
    return " ".join(f"({_format(node.items)})x{node.count}" if isinstance(node, Repeat) else node for node in nodes)
