"""The text language of architectures: `d=512 vocab=50257 | (attn[heads=8] mlp)x12`."""

from __future__ import annotations

from plait.spec.errors import SpecError
from plait.spec.header import Header
from plait.spec.nodes import Layer, Spec
from plait.spec.parser import has_header, load, parse
from plait.spec.serial import from_json, from_yaml, to_json, to_yaml

__all__ = [
    "Header",
    "Layer",
    "Spec",
    "SpecError",
    "from_json",
    "from_yaml",
    "has_header",
    "load",
    "parse",
    "to_json",
    "to_yaml",
]
