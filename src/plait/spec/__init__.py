"""The text language of architectures: `d=512 vocab=50257 | (attn[heads=8] mlp)x12`."""

from __future__ import annotations

from plait.spec.canonical import format_spec, spec_hash
from plait.spec.errors import SpecError
from plait.spec.nodes import Header, Layer, Spec
from plait.spec.parser import has_header, parse
from plait.spec.serial import from_json, from_yaml, load, to_json, to_yaml

__all__ = [
    "Header",
    "Layer",
    "Spec",
    "SpecError",
    "format_spec",
    "from_json",
    "from_yaml",
    "has_header",
    "load",
    "parse",
    "spec_hash",
    "to_json",
    "to_yaml",
]
