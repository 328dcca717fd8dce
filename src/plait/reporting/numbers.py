"""Numbers as people read them."""

from __future__ import annotations

#: A thousand and its powers, the largest first.
PREFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def short(number: float, unit: str = "") -> str:
    """Three digits: '12.3 M', '950'; with a unit '12.3 MFLOP', '950 FLOP'."""
    rounded = float(f"{number:.3g}")  # 999,999 is 1 M, not 1000 k
    size, prefix = next(((size, prefix) for size, prefix in PREFIXES if abs(rounded) >= size), (1.0, ""))
    return f"{rounded / size:.3g} {prefix}{unit}".rstrip()


def digits(value: float) -> str:
    """Three of them, or all before the point: 0.312, 12.3, 1234."""
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def said(value: float | None) -> str:
    """A count with its prefix, a measure with three digits, `?` where there is none."""
    if value is None:
        return "?"
    return short(value) if isinstance(value, int) else digits(value)
