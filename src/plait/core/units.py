"""Quantities with units, read and printed: 90s, 1h30m, 40ms, 300MB, 1.5GiB, 2GHz, 40W, 10M, 1e9.

`UNITS` has every unit's size by dimension, in seconds, bytes, hertz, watts, joules and plain counts; `parse` reads a
number with a unit of one dimension, `parse_duration` and `duration` read and print durations, `short` prints any number
with three digits. `TimeLeft` estimates the remaining time of a stage.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence

from plait.core.errors import UserError

COUNTS = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
BYTES = {"B": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
HERTZ = {"Hz": 1.0, "kHz": 1e3, "MHz": 1e6, "GHz": 1e9}
WATTS = {"mW": 1e-3, "W": 1.0}
JOULES = {"uJ": 1e-6, "mJ": 1e-3, "J": 1.0}

#: Dimension → its units and their sizes.
UNITS: dict[str, dict[str, float]] = {
    "count": COUNTS,
    "bytes": BYTES,
    "seconds": SECONDS,
    "hertz": HERTZ,
    "watts": WATTS,
    "joules": JOULES,
}
#: Unit → its size, for all dimensions.
SIZES = {unit: size for units in UNITS.values() for unit, size in units.items()}
#: Dimensions whose units are case-insensitive, `300mb`: no two of them differ only by case.
UNCASED = ("count", "bytes", "seconds")
_EXAMPLES = {"count": "10M", "bytes": "300MB", "seconds": "40ms", "hertz": "2GHz", "watts": "40W", "joules": "5mJ"}
_NUMBER = r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"


def parse(text: str, dimension: str, name: str) -> float:
    """`40ms` as 0.04, with a unit of this dimension (counts need none). `name` is the quantity's, for the message."""
    units = UNITS[dimension]
    read = re.fullmatch(rf"({_NUMBER})\s*([A-Za-z]*)", text.strip())
    known = {**units, "": 1.0} if dimension == "count" else units
    unit = read[2] if read is not None else "?"
    if unit not in known and dimension in UNCASED:
        unit = next((name for name in known if name.lower() == unit.lower()), unit)
    if read is not None and unit in known:
        value = float(read[1]) * known[unit]
        if 0 < value < math.inf:
            return value
    raise UserError(
        f"{name} '{text}' given; write a number above 0 and a unit ({', '.join(units)}), as {_EXAMPLES[dimension]}."
    )


def replace_units(text: str) -> str:
    """The text with every quantity (count, bytes, time, energy) as a plain number: `latency <= 40ms` becomes
    `latency <= 0.04`."""
    return _WITH_UNIT.sub(lambda match: repr(float(match[1]) * _IN_TEXTS[match[2]]), text)


_IN_TEXTS = COUNTS | BYTES | SECONDS | JOULES
_WITH_UNIT = re.compile(
    rf"(?<![\w.])(\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*({'|'.join(sorted(_IN_TEXTS, key=len, reverse=True))})(?!\w)"
)


def parse_duration(text: str | float) -> float:
    """Seconds of 90s, 10m, 1h30m; a plain number is in seconds."""
    if isinstance(text, str):
        parts = re.fullmatch(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?", text.strip().lower())
        numbers = zip(parts.groups(), (3600, 60, 1), strict=True) if parts else ()
        total = sum(float(number) * unit for number, unit in numbers if number)
    else:
        total = float(text)
    if not 0 < total < math.inf:
        raise UserError(f"'{text}' is not a duration; write it as 90s, 10m or 1h30m.")
    return total


def duration(seconds: float) -> str:
    """A duration in at most two units: 45 s, 9 m 58 s, 3 h 20 m, 12 d 4 h."""
    whole = round(seconds)
    for unit, size, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size:,} {unit} {whole % size // part} {smaller}"
    return f"{whole} s"


def percent(fraction: float, places: int = 0, sign: bool = False) -> str:
    """0.534 as `53 %`, with a place as `53.4 %`, with its sign as `+53 %`."""
    return f"{100 * fraction:{'+' if sign else ''}.{places}f} %"


def listed(names: Sequence[str]) -> str:
    """Such as "a", "a and b", "a, b and c"."""
    return ", ".join(names[:-1]) + (" and " if len(names) > 1 else "") + names[-1]


def probability(chance: float) -> str:
    """Like `percent`, for estimates from a finite number of draws, which are never certain: `> 99 %`, not 100 %."""
    rounded = round(100 * chance)
    return "> 99 %" if rounded == 100 else "< 1 %" if rounded == 0 else f"{rounded} %"


def with_unit(value: float, unit: str, digits: int = 3, space: str = " ") -> str:
    """A value, given in its base unit, with this unit: 0.04 as `40 ms`; with `space=""` as `parse` reads it, `40ms`."""
    return f"{value / SIZES[unit]:.{digits}g}{space}{unit}"


#: A thousand and its powers, the largest first.
PREFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def short(number: float, unit: str = "") -> str:
    """Three digits: '12.3 M', '950'; with a unit '12.3 MFLOP', '950 FLOP'."""
    rounded = float(f"{number:.3g}")  # 999,999 is 1 M, not 1000 k
    size, prefix = next(((size, prefix) for size, prefix in PREFIXES if abs(rounded) >= size), (1.0, ""))
    return f"{rounded / size:.3g} {prefix}{unit}".rstrip()


def digits(value: float) -> str:
    """A number with three digits, or all digits before the point: 0.312, 12.3, 1234."""
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def readable(value: float | None) -> str:
    """A count with its prefix, a measure with three digits, `?` if there is none."""
    if value is None:
        return "?"
    return short(value) if isinstance(value, int) else digits(value)


class TimeLeft:
    """Estimates the remaining time of a stage from its progress.

    The start of a stage (processes, compilation, timing) says nothing about its speed, so the clock starts at the first
    advance, and only the later half of the progress since then counts. There is no estimate before it is meaningful: a
    twentieth of the stage and some seconds, or, for a long stage, a minute with many advances.
    """

    ADVANCE, SECONDS = 0.05, 5.0
    LONG_SECONDS, MANY = 60.0, 10
    APART = 0.0005  # smallest advance that is recorded

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told = math.inf  # the last reported progress
        self._at: list[tuple[float, float]] = []  # times and progress, from the first advance on

    def update(self, share: float | None) -> None:
        """Report the progress of the stage, 0 to 1. None, or a value that drops after the end or by more than half,
        starts another stage; if it drops by less, the same stage turned out to be longer."""
        if share is None or share < self._told / 2 or share < self._told >= 1:
            self._at = []
        elif share < self._told:
            self._at = [(when, at * share / self._told) for when, at in self._at]
        elif share > self._told and (not self._at or share - self._at[-1][1] >= self.APART):
            self._at.append((self._clock(), share))
        self._told = math.inf if share is None else share

    @property
    def seconds(self) -> float | None:
        """The remaining seconds; None: too early to tell, or done."""
        if not self._at or self._told >= 1:
            return None
        now, (began, first) = self._clock(), self._at[0]
        advanced, passed = self._told - first, now - began
        long_enough = passed >= self.LONG_SECONDS and len(self._at) >= self.MANY
        if not long_enough and (advanced < self.ADVANCE or passed < self.SECONDS):
            return None
        since, share = next(at for at in reversed(self._at) if at[1] <= first + advanced / 2)
        return (now - since) * (1 - self._told) / (self._told - share)
