"""How a quantity grows with the length of the sequence: the exponent k of y ~ N^k, a straight line in log-log.

Over the upper half of the lengths, for below them fixed costs hide the growth. Fitted to a sum of powers it is between
them: attention's projections are linear in N and its scores quadratic, so that a whole block has 1 < k < 2 and tends to
2 as N grows. The part that mixes along the sequence is therefore counted by itself, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from plait.analysis.intervals import NORMAL, t_quantile
from plait.arch import MIXING, MixerOptions


@dataclass(frozen=True)
class Exponent:
    """`low` to `high` hold 95 %, from the timings' own errors, or by Student's t from how far they lie from a line
    where that is more. Where three points make the line, as of five lengths, the latter is wide."""

    value: float
    low: float
    high: float

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


@dataclass(frozen=True)
class Growth:
    """Of a block's exact FLOPs. None: there are none of that kind (identity has no FLOPs, an MLP mixes no tokens)."""

    whole: float | None
    mixing: float | None

    def as_dict(self) -> dict[str, float | None]:
        return asdict(self)


def upper_half(lengths: Sequence[int]) -> slice:
    """The lengths that are fitted, of sorted ones; the middle one counts."""
    return slice(-(len(lengths) // 2 + 1), None)


def fit_exponent(lengths: Sequence[int], values: Sequence[float], errors: Sequence[float] | None = None) -> Exponent:
    """Least squares over the upper half of the lengths; `errors` are standard errors as shares of the values."""
    fitted = upper_half(lengths)
    x, y = np.log(np.asarray(lengths[fitted], dtype=float)), np.log(np.asarray(values[fitted], dtype=float))
    weights = (x - x.mean()) / ((x - x.mean()) ** 2).sum()
    slope = float(weights @ y)
    left = y - y.mean() - slope * (x - x.mean())
    scattered = float(left @ left) / (len(x) - 2) if len(x) > 2 else 0.0
    measured = np.zeros(len(x)) if errors is None else np.asarray(errors[fitted], dtype=float) ** 2
    variance, spread = float(weights**2 @ measured), scattered * float(weights @ weights)
    if spread > variance:
        reach = t_quantile(len(x) - 2) * float(np.sqrt(spread))
    else:
        reach = NORMAL * float(np.sqrt(variance))
    return Exponent(slope, slope - reach, slope + reach)


def flop_growth(d: int, options: MixerOptions, lengths: Sequence[int], *, mode: str = "prefill") -> Growth:
    """From the exact costs: of N tokens at once, or of one token after N others."""
    costs = [options.cost(d, *((length, 0) if mode == "prefill" else (1, length))) for length in lengths]
    return Growth(
        _exponent(lengths, [float(cost.total_flops) for cost in costs]),
        _exponent(lengths, [float(cost.flops.get(MIXING, 0)) for cost in costs]),
    )


def _exponent(lengths: Sequence[int], flops: Sequence[float]) -> float | None:
    return fit_exponent(lengths, flops).value if min(flops) > 0 else None
