"""What tables of results say: fronts, rankings, matched pairs, savings. Plain arrays in, plain figures out; no
torch."""

from __future__ import annotations
