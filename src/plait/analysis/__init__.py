"""What tables of results say: fronts, rankings, twins, savings. Plain arrays in, plain figures out; no torch."""

from __future__ import annotations
