"""Does a model keep its quality beyond its training length? Measured by the slope of its loss, with an interval.

Sequences are longer than those of training. The positions are grouped by octave, (l/2, l] for l = the trained length,
twice that, and so on; the slope is that of an octave's mean loss L(i) against log2 l, by least squares, from the last
octave inside the trained length on. It is measured on L(i) and not on P(l), which is also shown: P(l) is a
running mean, which still decreases when the loss itself no longer does. The interval is Student's t over sequences.

Figure 2 of Lin et al. 2025, arXiv:2503.02130, shows the two outcomes: the loss of FoX keeps decreasing, that of a
Transformer with rotary positions increases at once.

Letters: N sequences, T positions, K octaves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from plait.analysis.intervals import mean_interval
from plait.core.errors import UserError
from plait.core.progress import OnCount, silent
from plait.evals.evaluation import Evaluation, Results, ResultTable, Subject
from plait.evals.per_token import (
    context_perplexity,
    curves,
    doubling,
    length_table,
    loss_figures,
    losses_by_position,
    perplexity_figures,
    sequences,
)

#: A slope within this many nats per doubling of the length is negligible: one per cent of perplexity.
FLAT = 0.01


@dataclass(frozen=True)
class Trend:
    """The change of the loss, in nats per doubling of the context, beyond the trained length."""

    slope: float
    low: float
    high: float
    octaves: tuple[int, ...]  # the last position of each
    losses: tuple[float, ...]  # mean loss of each

    @property
    def verdict(self) -> str:
        if max(-self.low, self.high) <= FLAT:
            return "flat"
        if self.high < 0:
            return "keeps falling"
        if self.low > 0:
            return "rises"
        return "not distinguishable from flat"


def trend(loss_NT: np.ndarray, trained_length: int) -> Trend:
    """The trend beyond `trained_length` of the losses of N ≥ 2 sequences of at least twice that length."""
    N, T = loss_NT.shape
    if N < 2:
        raise UserError("an interval needs at least 2 sequences, better 30.")
    if trained_length < 2 or 2 * trained_length > T:
        raise UserError(
            f"{T} positions for a trained length of {trained_length}: extrapolation needs at least twice as many; "
            "give a larger --length."
        )
    ends = [trained_length]
    while 2 * ends[-1] <= T:
        ends.append(2 * ends[-1])
    octaves_NK = np.stack([loss_NT[:, end // 2 : end].mean(axis=1) for end in ends], axis=1)
    # The least-squares slope over equally spaced points is linear in the losses, so the slope of the mean is the mean
    # of the sequences' slopes.
    place_K = np.arange(len(ends)) - (len(ends) - 1) / 2
    slope_N = octaves_NK @ (place_K / (place_K**2).sum())
    interval = mean_interval(slope_N)
    assert interval is not None
    return Trend(float(slope_N.mean()), *interval, tuple(ends), tuple(octaves_NK.mean(axis=0).tolist()))


@dataclass(frozen=True)
class ExtrapolationEvaluation(Evaluation):
    name = "extrapolation"
    what = "loss beyond the training length: keeps falling, flat or rises"

    length: int = 0  # of the sequences; 0: eight times the trained length, or what the text allows
    trained: int = 0  # 0: as the run was trained
    documents: int = 32  # maximum number of sequences
    cut: str = "windows"  # or "documents": sequences start where documents do

    def resolved(self, subject: Subject) -> ExtrapolationEvaluation:
        self.require(self.documents >= 2, "documents", "at least 2")
        self.require(self.cut in ("windows", "documents"), "cut", "windows or documents")
        trained = self.trained or subject.trained_length
        length = self.length
        if not length:
            # Halved until two sequences fit into the text.
            length = 8 * trained
            while length > 2 * trained and 2 * length >= len(subject.tokens):
                length //= 2
        return replace(self, length=length, trained=trained)

    def measure(self, subject: Subject, progress: OnCount = silent) -> dict[str, Any]:
        rows = sequences(subject, self.length, self.documents, self.cut)
        loss_NT = losses_by_position(subject.language_model, rows, progress=progress)
        fit, mean_T = trend(loss_NT, self.trained), loss_NT.mean(axis=0)
        lengths = doubling(self.length)
        return {
            "verdict": fit.verdict,
            "slope": fit.slope,
            "interval": [fit.low, fit.high],
            "octaves": list(fit.octaves),
            "octave_loss": list(fit.losses),
            "sequences": len(rows),
            "trained_length": self.trained,
            "lengths": lengths,
            "perplexity": context_perplexity(mean_T, lengths).tolist(),
            **curves(mean_T),
        }

    def table(self, results: Results) -> ResultTable:
        columns, rows = length_table(results)
        columns = {**columns, "nats/doubling": "right", "verdict": "left"}
        for row, result in zip(rows, results.values(), strict=True):
            low, high = result["interval"]
            row += [f"{result['slope']:+.4f} ({low:+.4f} to {high:+.4f})", result["verdict"]]
        return columns, rows

    def figures(self, results: Results) -> dict[str, str]:
        drawn = {**loss_figures(results), **perplexity_figures(results)}
        return {f"extrapolation-{name}": picture for name, picture in drawn.items()}
