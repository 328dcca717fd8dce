"""Loss along the context: does a model use the far past?

    L(i) = mean over sequences of −log p(token i + 1 | tokens 1 … i)
    P(l) = exp(mean of L(1) … L(l)),    l = 512, 1024, …

Lin et al. 2025, arXiv:2503.02130, section 4.2 and figures 2 and 7; there, sequences are held-out documents of 65536
tokens and curves are smoothed by a centred mean of 101 or 1001 positions.

`extrapolation` asks whether a model keeps its quality beyond its training length, measured by the slope of its loss,
with an interval. Sequences are longer than those of training. The positions are grouped by octave, (l/2, l] for l = the
trained length, twice that, and so on; the slope is that of an octave's mean loss L(i) against log2 l, by least squares,
from the last octave inside the trained length on. It is measured on L(i) and not on P(l), which is also shown: P(l) is
a running mean, which still decreases when the loss itself no longer does. The interval is Student's t over sequences.

Figure 2 of Lin et al. 2025, arXiv:2503.02130, shows the two outcomes: the loss of FoX keeps decreasing, that of a
Transformer with rotary positions increases at once.

Letters: N sequences, T positions, K octaves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from plait.analysis.serial import mean_interval_in_order
from plait.core.errors import UserError
from plait.core.progress import OnCount, silent
from plait.evals.evaluation import Evaluation, Results, ResultTable, Subject
from plait.evals.losses import rows_at_once, token_losses
from plait.model.language_model import LanguageModel, perplexities
from plait.reporting.axes import Axis
from plait.reporting.charts import Series, xy_chart

WINDOWS = (101, 1001)  # of the paper's figures
CHUNK = 4096  # tokens read at a time from a long sequence
MOST_POINTS = 512  # of a curve that is stored and drawn


def windows(tokens: np.ndarray, length: int, most: int = 0) -> np.ndarray:
    """(N, length + 1) consecutive windows of a text; `most` of them, evenly spread, or all (0)."""
    number = (len(tokens) - 1) // length
    if number < 1:
        raise UserError(f"a window of {length} positions needs {length + 1} tokens; the text has {len(tokens)}.")
    chosen = np.unique(np.linspace(0, number - 1, min(most or number, number)).astype(np.int64))
    return np.stack([tokens[w * length : w * length + length + 1] for w in chosen]).astype(np.int64)


def documents(tokens: np.ndarray, end: int, length: int, most: int = 0) -> np.ndarray:
    """(N, length + 1): the beginnings of the documents that are long enough. `end` is the token between documents."""
    ends = np.flatnonzero(np.asarray(tokens) == end)
    starts = np.concatenate([[0], ends + 1])
    stops = np.concatenate([ends, [len(tokens)]])
    long = np.flatnonzero(stops - starts >= length + 1)
    if not len(long):
        longest = int((stops - starts).max())
        raise UserError(f"no document has {length + 1} tokens; the longest has {longest}. Ask for a shorter length.")
    return np.stack([tokens[starts[d] : starts[d] + length + 1] for d in long[: most or None]]).astype(np.int64)


def losses_by_position(
    model: LanguageModel,
    rows: np.ndarray,
    *,
    batch: int = 0,
    chunk: int = CHUNK,
    progress: OnCount = silent,
) -> np.ndarray:
    """loss_NT in fp64 of (N, T + 1) tokens; each sequence is read `chunk` tokens at a time through the model's state,
    with the same result as one forward pass."""
    losses, batch = [], batch or rows_at_once(min(rows.shape[1] - 1, chunk))
    for first in range(0, len(rows), batch):
        some_BT = torch.from_numpy(rows[first : first + batch])
        losses.append(token_losses(model, some_BT[:, :-1], some_BT[:, 1:], chunk=chunk).numpy())
        progress(min(first + batch, len(rows)), len(rows))
    loss_NT = np.concatenate(losses)
    if not np.isfinite(loss_NT).all():
        raise UserError("the model's loss on this text is not finite; it diverged in training, or beyond its length.")
    return loss_NT


def doubling(longest: int) -> list[int]:
    """From the paper's 512 (or less if that would give fewer than five lengths) each twice the one before, up to
    `longest`, which is always included."""
    first = min(512, max(1, 2 ** int(math.log2(longest)) // 16))
    lengths = []
    while first < longest:
        lengths.append(first)
        first *= 2
    return [*lengths, longest]


def context_perplexity(mean_T: np.ndarray, lengths: Sequence[int]) -> np.ndarray:
    """P(l) for every length l."""
    total_T = np.cumsum(mean_T, dtype=np.float64)
    return perplexities([total_T[length - 1] / length for length in lengths])


def smooth(values_T: np.ndarray, window: int) -> np.ndarray:
    """Centred mean over `window` positions, an odd number. Near the ends, where that many do not fit, the window
    shrinks to the widest that is still centred, so straight lines and the first and last values are unchanged."""
    if window < 1 or window % 2 == 0:
        raise UserError(f"a centred window needs an odd number of positions, got {window}.")
    T = len(values_T)
    place_T = np.arange(T)
    half_T = np.minimum(window // 2, np.minimum(place_T, T - 1 - place_T))
    total = np.concatenate([[0.0], np.cumsum(values_T, dtype=np.float64)])
    smoothed: np.ndarray = (total[place_T + half_T + 1] - total[place_T - half_T]) / (2 * half_T + 1)
    return smoothed


@dataclass(frozen=True)
class PerTokenEvaluation(Evaluation):
    name = "per-token"
    what = "loss L(i) by position, perplexity P(l) up to each length"

    length: int = 0  # positions; 0: as in training
    documents: int = 64  # maximum number of sequences
    cut: str = "windows"  # or "documents": sequences start where documents do

    def resolved(self, subject: Subject) -> PerTokenEvaluation:
        self.require(self.documents >= 1, "documents", "at least 1")
        self.require(self.cut in ("windows", "documents"), "cut", "windows or documents")
        return replace(self, length=self.length or subject.trained_length)

    def measure(self, subject: Subject, progress: OnCount = silent) -> dict[str, Any]:
        rows = sequences(subject, self.length, self.documents, self.cut)
        mean_T = losses_by_position(subject.language_model, rows, progress=progress).mean(axis=0)
        lengths = doubling(self.length)
        return {
            "loss": float(mean_T.mean()),
            "sequences": len(rows),
            "trained_length": subject.trained_length,
            "lengths": lengths,
            "perplexity": context_perplexity(mean_T, lengths).tolist(),
            **curves(mean_T),
        }

    def table(self, results: Results) -> ResultTable:
        return length_table(results)

    def figures(self, results: Results) -> dict[str, str]:
        return {**loss_figures(results), **perplexity_figures(results)}


def sequences(subject: Subject, length: int, most: int, cut: str) -> np.ndarray:
    """The held-out sequences according to the settings."""
    if cut == "windows":
        return windows(subject.tokens, length, most)
    end = subject.tokenizer.end if subject.tokenizer is not None else None
    if end is None:
        raise UserError("cut=documents: the tokenizer has no end-of-text token, so documents cannot be told apart.")
    return documents(subject.tokens, end, length, most)


def curves(mean_T: np.ndarray) -> dict[str, Any]:
    """L(i), raw and smoothed, at up to `MOST_POINTS` positions, counted from 1."""
    shown = np.unique(np.linspace(0, len(mean_T) - 1, min(len(mean_T), MOST_POINTS)).round().astype(np.int64))
    smoothed = {f"smooth_{window}": smooth(mean_T, window)[shown].tolist() for window in WINDOWS}
    return {"positions": (shown + 1).tolist(), "loss_at": mean_T[shown].tolist(), **smoothed}


def length_table(results: Results) -> ResultTable:
    """P(l), one row per run and one column per length."""
    lengths = sorted({length for result in results.values() for length in result["lengths"]})
    columns = {"run": "left", **{f"P({length})": "right" for length in lengths}, "sequences": "right"}
    rows = []
    for run, result in results.items():
        by_length = dict(zip(result["lengths"], result["perplexity"], strict=True))
        cells = [f"{by_length[length]:.4g}" if length in by_length else "" for length in lengths]
        rows.append([run, *cells, str(result["sequences"])])
    return columns, rows


def loss_figures(results: Results) -> dict[str, str]:
    """L(i) smoothed by the widest of the paper's windows that fits the curve. The ends, where the window has shrunk to
    less than half, are not drawn, because their noise would determine the scale."""
    longest = max(result["lengths"][-1] for result in results.values())
    window = WINDOWS[1] if longest >= 20 * WINDOWS[1] else WINDOWS[0] if longest >= 5 * WINDOWS[0] else 1
    key = f"smooth_{window}" if window > 1 else "loss_at"
    drawn = []
    for run, result in results.items():
        inner = range(1 + window // 4, result["lengths"][-1] + 1 - window // 4)
        points = [(x, y) for x, y in zip(result["positions"], result[key], strict=True) if x in inner]
        drawn.append(Series(run, [x for x, _ in points], [y for _, y in points]))
    smoothed = f", mean of {window} positions" if window > 1 else ""
    return {"per-token-loss": _figure(results, drawn, f"Loss by position{smoothed}", "position i", "L(i), nats", False)}


def perplexity_figures(results: Results) -> dict[str, str]:
    drawn = [Series(run, result["lengths"], result["perplexity"]) for run, result in results.items()]
    return {"perplexity-by-length": _figure(results, drawn, "Perplexity by length", "context length l", "P(l)", True)}


def _figure(results: Results, drawn: list[Series], title: str, x_label: str, y_label: str, log_x: bool) -> str:
    trained = {result["trained_length"] for result in results.values()}
    marker = trained.pop() if len(trained) == 1 else None
    x, y = Axis(x_label, log=log_x), Axis(y_label)
    return xy_chart(drawn, title=title, x=x, y=y, marker=marker, marker_label="trained length")


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
    return Trend(
        float(slope_N.mean()), *mean_interval_in_order(slope_N), tuple(ends), tuple(octaves_NK.mean(axis=0).tolist())
    )


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
