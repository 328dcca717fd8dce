"""Scaling laws with error bars: `plait.scale.fit`."""

from __future__ import annotations

from plait.api.scale_fit import fit

__all__ = ["fit"]
