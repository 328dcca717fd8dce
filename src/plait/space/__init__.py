"""Search spaces: architectures as integer genes, constraints, and exact costs of millions of candidates."""

from __future__ import annotations

from plait.core.registry import lazy

HOMES = {
    "Constraint": "constraints",
    "Declaration": "declaration",
    "Space": "space",
    "load_space": "table",
}
__getattr__ = lazy(__name__, HOMES)
