"""Coverage of every interval that plait prints, and the rate of false differences between equals.

    python benchmarks/intervals.py [--only WORD] [--repetitions 400] [--out FILE.json]

Every case simulates data with a known truth and calls the same functions as the commands. The required coverage of each
case is fixed in advance (`RULES`); proportions vary by the stated standard error. The table is written next to the JSON
as .md. Under fifteen minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import scipy
from scipy.stats import spearmanr

from plait.analysis.best_proxy import best_proxy
from plait.analysis.intervals import median_interval
from plait.analysis.paired import compare_losses
from plait.analysis.placement import judge_placement
from plait.analysis.rank import spearman_interval
from plait.analysis.scaling_findings import findings
from plait.analysis.scaling_laws import fit_laws
from plait.analysis.scaling_simulation import CHINCHILLA, Design, joined, simulated
from plait.data import open_corpus
from plait.device.features import Features
from plait.device.lengths import fit_exponent
from plait.device.regression import Surface
from plait.evals.per_token import trend
from plait.model.architecture import architecture
from plait.probing.verdict import Comparison, Score
from plait.searching.capability import Ridge
from plait.studies.placement import Pattern, PlacementFindings, PlacementStudy, Row

Interval = tuple[float | None, float | None] | None
Held = Callable[[np.random.Generator], "bool | np.floating | float | tuple[bool, ...]"]
TASKS = ("recall", "compression", "copying")

#: kind: the least and the most that a case may show, and why.
RULES = {
    "coverage": (0.93, 0.97, "95 % intervals hold the truth in 93 to 97 of 100 cases"),
    "conservative": (0.93, 1.0, "at least 93 of 100: few values are possible, or the truth is at the edge of them"),
    "false alarms": (0.0, 0.07, "at most 7 of 100 verdicts call equal architectures different anywhere"),
    "power": (0.0, 1.0, "how often a real difference is found; promises nothing"),
    "known limit": (0.0, 1.0, "too few seeds to know their noise, or chosen as the best of many; promises nothing"),
}
CHEAP = 10  # times the usual repetitions


def cases() -> Iterator[tuple[tuple[str, ...], str, Held, int]]:
    """(what is held, kind, one repetition, how many times the usual repetitions)."""
    for seeds in (2, 3, 5):
        for what, spread, sequences in (("seeds", 0.1, 1280), ("both", 0.02, 256), ("items", 0.0, 256)):
            # The scores of two seeds are often equal or next to each other, of 257 that are possible.
            kind = "conservative" if seeds == 2 and what != "seeds" else "coverage"
            yield (
                (f"probe accuracy, {seeds} seeds, spread of {what}",),
                kind,
                _accuracy(seeds, spread, sequences),
                CHEAP,
            )
            yield (f"probe difference, {seeds} seeds, spread of {what}",), kind, _gap(seeds, spread, sequences), CHEAP
        yield (f"probe mean over 3 tasks, {seeds} seeds",), "coverage", _mean(seeds), CHEAP
        yield (f"probe accuracy at 0.995, {seeds} seeds",), "conservative", _accuracy(seeds, 0.0, 256, 0.995), CHEAP
        yield (f"probe accuracy, half of {seeds} seeds solve it",), "known limit", _solved(seeds), CHEAP
    yield ("probe mean, 4 seeds on one task and 3 on the others",), "coverage", _uneven, CHEAP
    for seeds in (2, 3, 5):
        for models in (2, 5):
            for chosen in (False, True):
                how = "the best" if chosen else "the first"
                name = f"verdict on {how} of {models} equal architectures, {seeds} seeds"
                yield (name,), "false alarms", _verdict(models, seeds, chosen, 0.0), 3
        name = f"verdict on the first of 5, 0.2 ahead at a spread of 0.04, {seeds} seeds"
        yield (name,), "power", _verdict(5, seeds, False, 0.2), 1
    yield ("verdict on the best of 21 equal architectures, 3 seeds",), "false alarms", _verdict(21, 3, True, 0.0), 1
    for models in (2, 3, 8):
        for seeds in (2, 3, 4, 5):
            for shared, batches in ((0.0, "own batches"), (0.6, "the same batches")):
                name = f"{models} architectures, {seeds} seeds, {batches}"
                times = 3 if models < 8 else 1
                yield (f"compare {name}: all equal",), "false alarms", _compare(models, seeds, shared, 0.0), times
                yield (f"compare {name}: one worse by 3 × the noise",), "power", _compare(models, seeds, shared, 3.0), 1
    for models in (2, 3, 8):
        for seeds in (2, 3, 5):
            limit = seeds == 2 and models > 2  # two seeds do not show how much of their noise they share
            names = tuple(f"compare {what}, {models} architectures, {seeds} seeds" for what in ("loss", "difference"))
            yield names[:1], "known limit" if limit else "conservative", _interval(models, seeds, 1.0, 0.02, 0), 3
            yield names[1:], "conservative", _interval(models, seeds, 1.0, 0.02, 1), 3
            # Too few seeds to see that one is noisier; it is judged by the noise of the others.
            name = f"compare difference, {models} architectures, {seeds} seeds, one four times as noisy"
            yield (name,), "known limit", _interval(models, seeds, 4.0, 0.03, 1), 3
    for windows in (2, 4, 8, 16):
        name = f"compare 8 architectures, 5 seeds, {windows} windows that differ more than seeds: all equal"
        yield (name,), "false alarms", _compare(8, 5, 0.0, 0.0, windows, 0.05), 1
    for sequences in (2, 3, 8, 32):
        yield (f"extrapolation slope, {sequences} sequences",), "coverage", _slope(sequences), CHEAP
    for seeds in (2, 3, 5):
        yield (f"study placement, change of perplexity, {seeds} seeds",), "coverage", _placement_study(seeds), CHEAP
        name = f"study placement names a pattern worse by 3 × the noise, {seeds} seeds"
        yield (name,), "power", _sparser(seeds), 1
    for proxies in (2, 14):
        for models in (20, 40):
            name = f"study proxies, the best of {proxies} that know nothing, {models} models"
            names = (f"{name}: its own interval excludes 0", f"{name}: called related")
            yield names[:1], "known limit", _best_proxy(proxies, models, 0), 1
            yield names[1:], "false alarms", _best_proxy(proxies, models, 1), 1
            name = f"study proxies, {proxies} equally good, {models} models: the first is called worse than the best"
            yield (name,), "false alarms", _equal_proxies(proxies, models), 1
    for searches in (3, 5, 10):
        names = tuple(f"analyse placement, {what}, {searches} searches" for what in ("count in a third", "early share"))
        yield names, "conservative", _placed(searches), 3  # of 12 layers, most of them early
    for repeats in (2, 5, 6, 12, 40):
        yield (f"measured latency, median of {repeats}",), "coverage", _latency(repeats), CHEAP
    for lengths in (5, 9):
        for said, how in ((1.0, "known"), (0.1, "ten times too small")):
            yield (f"exponent of {lengths} lengths, errors {how}",), "coverage", _exponent(lengths, said), CHEAP
    for hybrids in (1, 3):
        name = f"findings of scale fit on {hybrids + 2} architectures of one law"
        yield (name,), "false alarms", _findings(hybrids), 1
    for models in (8, 21, 60):
        yield (f"capability of a pattern not probed, from {models}",), "coverage", _ridge(models), 2
    for points in (12, 20, 40):
        yield (f"predicted latency of a layer, from {points} points",), "coverage", _surface(points), 1
    yield ("predicted latency of a layer, from 20 points, noise of 5 %",), "coverage", _surface(20, noise=0.05), 1
    yield ("predicted latency of a layer, from 20 points, half as smooth",), "coverage", _surface(20, length=1.0), 1
    for rho in (0.0, 0.9, 0.98, 0.995):
        for models in (6, 10, 20, 50, 100):
            # Few models have few possible ranks; near 1 hardly a pair is out of order.
            few = models < 20 or (rho >= 0.98 and models <= 50)
            kind = "conservative" if few else "coverage"
            yield (f"Spearman {rho:g}, {models} models",), kind, _spearman(rho, models), 1 if models < 20 else 3
    for rho in (0.9, 0.98):
        for models in (10, 50, 100):
            kind = "conservative" if models < 20 else "coverage"
            yield (f"Spearman {rho:g}, heavy tails, {models} models",), kind, _spearman(rho, models, "heavy tails"), 3
        for models in (6, 10, 20, 50):
            name = f"Spearman {rho:g}, ties, {models} models"
            yield (name,), "conservative", _spearman(rho, models, "ties"), 1 if models < 20 else 3


def _compared(values: dict[str, np.ndarray], sequences: int) -> Comparison:
    """(T, S) accuracies of every architecture."""
    tasks = TASKS[: len(next(iter(values.values())))]
    scores = [
        Score(name, tasks[t], "only", s, float(accuracy), 1.0, sequences)
        for name, table in values.items()
        for (t, s), accuracy in np.ndenumerate(table)
    ]
    return Comparison(list(values), tasks, scores)


def _tested(rng: np.random.Generator, true: np.ndarray, sequences: int) -> np.ndarray:
    return rng.binomial(sequences, np.clip(true, 0, 1)) / sequences


def _in(truth: float, interval: Interval) -> bool:
    low, high = interval or (None, None)
    return low is not None and high is not None and low <= truth <= high


def _accuracy(seeds: int, spread: float, sequences: int, mean: float = 0.6) -> Held:
    def held(rng: np.random.Generator) -> bool:
        values = _tested(rng, rng.normal(mean, spread, (1, seeds)), sequences)
        return _in(mean, _compared({"a": values}, sequences).accuracy("a").interval)

    return held


def _gap(seeds: int, spread: float, sequences: int) -> Held:
    def held(rng: np.random.Generator) -> bool:
        hard = rng.normal(0, spread, seeds)  # for both alike
        a = _tested(rng, 0.7 + hard + rng.normal(0, spread, (1, seeds)), sequences)
        b = _tested(rng, 0.5 + hard + rng.normal(0, 0.3 * spread, (1, seeds)), sequences)
        return _in(0.2, _compared({"a": a, "b": b}, sequences).difference("a", "b").interval)

    return held


def _mean(seeds: int) -> Held:
    def held(rng: np.random.Generator) -> bool:
        spreads = np.array([[0.1], [0.03], [0.0]])
        values = _tested(rng, 0.6 + spreads * (rng.normal(size=(3, seeds)) + 0.5 * rng.normal(size=seeds)), 256)
        return _in(0.6, _compared({"a": values}, 256).accuracy("a").interval)

    return held


def _uneven(rng: np.random.Generator) -> bool:
    scores = [
        Score("a", task, "only", seed, float(_tested(rng, np.array(rng.normal(0.6, 0.05)), 256)), 1.0, 256)
        for task in TASKS
        for seed in range(4 if task == TASKS[0] else 3)
    ]
    return _in(0.6, Comparison(["a"], TASKS, scores).accuracy("a").interval)


def _solved(seeds: int) -> Held:
    def held(rng: np.random.Generator) -> bool:
        values = _tested(rng, rng.choice([0.3, 1.0], (1, seeds)), 256)
        return _in(0.65, _compared({"a": values}, 256).accuracy("a").interval)

    return held


def _verdict(models: int, seeds: int, chosen: bool, ahead: float) -> Held:
    def alarm(rng: np.random.Generator) -> bool:
        table = {str(m): _tested(rng, rng.normal(0.6, 0.04, (3, seeds)), 256) for m in range(models)}
        if ahead:
            table["0"] = _tested(rng, rng.normal(0.6 + ahead, 0.04, (3, seeds)), 256)
        c = _compared(table, 256)
        signs = c.signs(min(c.names, key=c.rank) if chosen else "0", chosen=chosen)
        if ahead:
            return signs.overall["1"] > 0
        return any(signs.overall.values()) or any(any(found.values()) for found in signs.by_task.values())

    return alarm


def _compare(models: int, seeds: int, shared: float, worse: float, windows: int = 32, by_window: float = 0.0) -> Held:
    """`shared`: the part of the variance between seeds that comes from batches, which all architectures see alike.
    `by_window`: how far architectures differ by window. Two losses are told apart anywhere; or the share of the others
    that the worse one is told from."""

    def told(rng: np.random.Generator) -> float:
        hard_W, batches_S = rng.gamma(4, 0.5, windows), rng.normal(0, 0.01 * shared**0.5, seeds)
        own_MW = rng.normal(0, by_window, (models, windows)) if by_window else np.zeros((models, windows))
        losses = {
            str(m): {
                s: hard_W + own_MW[m] + batches_S[s] + rng.normal(0, 0.01 * (1 - shared) ** 0.5)
                + rng.normal(0, 0.02, windows) + (0.01 * worse if m == 0 else 0.0)
                for s in range(seeds)
            }
            for m in range(models)
        }  # fmt: skip
        pairs = compare_losses(losses, draws=2).pairs
        if worse:
            return float(np.mean([pair.verdict == "b" for pair in pairs if pair.a == "0"]))
        return float(any(pair.verdict in ("a", "b") for pair in pairs))

    return told


def _interval(models: int, seeds: int, noisier: float, batches: float, of: int) -> Held:
    """The interval of the last one's loss (`of` 0), or of its difference from the first, which is so many times noisier
    than the others; all are equal, and share batches."""

    def held(rng: np.random.Generator) -> bool:
        noise_M = np.array([0.01 * noisier] + (models - 1) * [0.01])
        loss_MS = rng.normal(0, batches, seeds) + rng.normal(size=(models, seeds)) * noise_M[:, None]
        compared = compare_losses({str(m): dict(enumerate(loss_S)) for m, loss_S in enumerate(loss_MS)}, draws=2)
        last = str(models - 1)
        pair = next(pair for pair in compared.pairs if (pair.a, pair.b) == ("0", last))
        return _in(0.0, pair.interval if of else compared.architectures[-1].interval)

    return held


def _pair(rng: np.random.Generator, rho: float, models: int, kind: str) -> tuple[np.ndarray, np.ndarray]:
    x = rng.normal(size=models)
    y = rho * x + np.sqrt(1 - rho**2) * rng.normal(size=models)
    if kind == "heavy tails":
        wide = np.sqrt(3 / rng.chisquare(3, models))
        x, y = x * wide, y * wide
    return (np.round(1.5 * x), y) if kind == "ties" else (x, y)


def _spearman(rho: float, models: int, kind: str = "") -> Held:
    truth = 6 / np.pi * np.arcsin(rho / 2)
    if kind:
        stream = np.random.default_rng(1)
        truth = float(np.mean([spearmanr(*_pair(stream, rho, 50_000, kind)).statistic for _ in range(8)]))
    return lambda rng: _in(truth, spearman_interval(*_pair(rng, rho, models, kind)))


def _slope(sequences: int) -> Held:
    def held(rng: np.random.Generator) -> bool:
        octave = np.log2(np.maximum(np.arange(1, 129) / 16, 1e-9)).clip(0).round()
        own = rng.gamma(4, 0.25, (sequences, 1)) - 1  # some texts are harder, more so far out
        loss = 3 - 0.1 * octave + own * (1 + 0.3 * octave) + rng.gamma(1, 1, (sequences, 128)) - 1
        found = trend(loss, 16)
        ends = np.array(found.octaves)
        exact = np.array([(3 - 0.1 * octave)[end // 2 : end].mean() for end in ends])
        place = np.arange(len(ends)) - (len(ends) - 1) / 2
        return found.low <= float(exact @ place / (place**2).sum()) <= found.high

    return held


def _best_proxy(proxies: int, models: int, of: int) -> Held:
    """Proxies that know nothing: the interval of the best, as if it were alone (`of` 0), or what is said of it."""

    def alarm(rng: np.random.Generator) -> bool:
        truth, scores = rng.normal(size=models), list(rng.normal(size=(proxies, models)))
        found = best_proxy(scores, truth)
        assert found is not None
        return found.related if of else (spearman_interval(scores[found.best], truth) or (0.0,))[0] > 0

    return alarm


def _equal_proxies(proxies: int, models: int) -> Held:
    def alarm(rng: np.random.Generator) -> bool:
        truth = rng.normal(size=models)
        shared = truth + 0.7 * rng.normal(size=models)
        found = best_proxy([shared + 0.5 * rng.normal(size=models) for _ in range(proxies)], truth)
        assert found is not None
        return 0 not in (found.best, *found.tied)

    return alarm


def _placement_study(seeds: int) -> Held:
    """The change of one of four patterns from the baseline."""

    def held(rng: np.random.Generator) -> bool:
        found = _placement(rng, seeds, [0.0, 0.01, 0.02, 0.03])
        return _in(float(np.expm1(0.03)), found.change(found.rows[-1]).interval)

    return held


def _sparser(seeds: int) -> Held:
    """Every pattern is worse than the one before by the noise between seeds: the study names one that is worse than
    the baseline by three times the noise or more."""

    def named(rng: np.random.Generator) -> bool:
        statement = _placement(rng, seeds, [0.01 * step for step in range(6)]).statement
        return any(f"pattern {step} is not" in statement for step in (3, 4, 5))

    return named


def _placement(rng: np.random.Generator, seeds: int, losses: list[float]) -> PlacementFindings:
    """Patterns of six pairs of layers, each with less attention than the one before. The noise between seeds: 0.01."""
    batches = rng.normal(0, 0.005, seeds)
    rows = []
    for step, loss in enumerate(losses):
        arch = architecture(f"d=8 vocab=16 | (attn[heads=1] mlp)x{6 - step}{' (mlp)x' * (step > 0)}{2 * step or ''}")
        seen = [float(one) for one in 3 + loss + batches + rng.normal(0, 0.01, seeds)]
        rows.append(Row(Pattern(f"pattern {step}", arch), seen, 10.0 - step, 1.0))
    study = PlacementStudy([row.pattern for row in rows], open_corpus("builtin:language"), seeds=seeds)
    return PlacementFindings(study, rows)


def _searched(rng: np.random.Generator, searches: int) -> list[list[str]]:
    """Attention is likelier early: 0.6, 0.4 and 0.1 by thirds of 12 layers; never nowhere."""
    chance = np.repeat([0.6, 0.4, 0.1], 4)
    rows = [np.where(rng.random(12) < chance, "attn", "mlp").tolist() for _ in range(searches)]
    return [row if "attn" in row else ["attn", *row[1:]] for row in rows]


def _placed(searches: int) -> Held:
    def held(rng: np.random.Generator) -> tuple[bool, bool]:
        found = judge_placement(_searched(rng, searches), {"mlp"})
        second, early = found.thirds[1], found.early
        assert early is not None
        return _in(1.6, (second.low, second.high)), _in(4.0 / 4.4, (early.low, early.high))

    return held


def _latency(repeats: int) -> Held:
    truth = float(np.median(_times(np.random.default_rng(2), 10**6)))
    return lambda rng: _in(truth, median_interval(_times(rng, repeats)))


def _times(rng: np.random.Generator, repeats: int) -> np.ndarray:
    return np.exp(rng.normal(0, 0.05, repeats) + rng.exponential(0.02, repeats))


def _exponent(lengths: int, said: float) -> Held:
    def held(rng: np.random.Generator) -> bool:
        sizes = [2**k for k in range(8, 8 + lengths)]
        values = [size**1.5 * float(np.exp(rng.normal(0, 0.03))) for size in sizes]
        found = fit_exponent(sizes, values, [0.03 * said] * lengths)
        return found.low <= 1.5 <= found.high

    return held


def _findings(hybrids: int) -> Held:
    """A Transformer, hybrids and an attention-free model, all of one law: none of findings 5, 6 and 7 is shown or
    contradicted, nor that c is the same for all."""
    shares = {"T": 1.0, "R": 0.0} | {f"H{k}": 0.25 * (k + 1) for k in range(hybrids)}

    def alarm(rng: np.random.Generator) -> bool:
        parts = [simulated(CHINCHILLA, Design(np.logspace(18, 20, 4)), 0.005, rng, name=name) for name in shares]
        parts = [
            replace(part, attention=np.full(len(part), share), state=np.sqrt(part.params))
            for part, share in zip(parts, shares.values(), strict=True)
        ]
        found = findings(fit_laws(joined(parts), 1e21, draws=200))
        told = [one for one in found if one.verdict in ("shown", "contradicted")]
        return any(one.number < 8 or "same for all" in one.statement for one in told)

    return alarm


def _ridge(models: int) -> Held:
    def held(rng: np.random.Generator) -> float:
        """The share held of 20 patterns like those probed."""
        features = rng.normal(size=(models + 20, 6))
        weights = rng.normal(size=(6, 4)) * 0.05
        found = 0.6 + features @ weights + rng.normal(0, 0.04, (models + 20, 4))
        mean, reach = Ridge(features[:models], found[:models]).predict(features[models:])
        return float(np.mean(np.abs(found[models:].mean(axis=1) - mean) <= reach))

    return held


def _surface(points: int, noise: float = 0.02, length: float = 2.0) -> Held:
    """A machine whose speed varies smoothly by 12 % around its roofline, over so many octaves, and is measured to 2 %:
    the share held of 40 measurements."""

    def held(rng: np.random.Generator) -> float:
        place = rng.uniform(5, 11, (points + 40, 2))
        apart = np.sqrt(3 * (((place[:, None] - place[None]) / length) ** 2).sum(-1))
        covariance = 0.12**2 * (1 + apart) * np.exp(-apart) + 1e-9 * np.eye(len(place))
        wave = np.linalg.cholesky(covariance) @ rng.normal(size=len(place))
        roofline = 1e-6 * 2 ** place.sum(axis=1) + 1e-4
        measured = roofline * np.exp(wave + rng.normal(0, noise, len(place)))
        asked = [Features("layer", (float(2 ** p.sum()), 1.0), {"d": p[0], "n": p[1]}, {}) for p in place]
        surface = Surface(asked[:points], measured[:points], np.zeros(points))
        mean, deviation = surface.predict(surface.inputs(asked[points:]))
        return float(np.mean(np.abs(measured[points:] / mean - 1) <= 1.959964 * deviation))

    return held


def simulate(names: tuple[str, ...], kind: str, once: Held, repetitions: int, seed: int) -> list[dict[str, Any]]:
    """A row per name. The stream is the case's own: what other cases draw changes nothing."""
    rng = np.random.default_rng([seed, crc32(names[0].encode())])
    held_RC = np.array([np.atleast_1d(once(rng)) for _ in range(repetitions)], dtype=float)
    least, most, _ = RULES[kind]
    rows = []
    for name, share, spread in zip(names, held_RC.mean(axis=0), held_RC.std(axis=0), strict=True):
        error = float(spread) / repetitions**0.5
        rows.append(
            {"case": name, "kind": kind, "repetitions": repetitions, "share": round(float(share), 4),
             "error": round(error, 4), "met": bool(least <= share <= most)}
        )  # fmt: skip
    return rows


def table(found: dict[str, Any]) -> str:
    """As a page."""
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    rows = found["cases"]
    missed = sum(not row["met"] for row in rows)
    lines = [
        "# How often intervals hold the truth",
        "",
        f"`python benchmarks/intervals.py`, {found['date']}, {versions}, seed {found['seed']}: "
        f"{found['seconds']:.0f} s, {len(rows)} cases, {missed} outside of their bounds. "
        "± is the standard error of the simulation.",
        "",
        *(f"- **{kind}** ({100 * low:.0f} to {100 * high:.0f} %): {why}" for kind, (low, high, why) in RULES.items()),
        "",
        "| case | kind | repetitions | share, % | met |",
        "|---|---|---:|---:|---|",
    ]
    for row in rows:
        share = f"{100 * row['share']:.1f} ± {100 * row['error']:.1f}"
        met = "" if row["kind"] in ("power", "known limit") else "yes" if row["met"] else "**no**"
        lines.append(f"| {row['case']} | {row['kind']} | {row['repetitions']} | {share} | {met} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--repetitions", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="a JSON file; the table goes beside it")
    given = parser.parse_args()
    begun = time.perf_counter()
    rows: list[dict[str, Any]] = []
    for names, kind, once, times in cases():
        if any(given.only in name for name in names):
            started = time.perf_counter()
            rows += simulate(names, kind, once, times * given.repetitions, given.seed)
            took = time.perf_counter() - started
            for row in rows[-len(names) :]:
                met = "" if row["met"] else "OUTSIDE"
                print(f"{row['case']:70s} {kind:13s} {100 * row['share']:5.1f} % {took:6.1f} s {met}", flush=True)
    versions = {"python": platform.python_version(), "numpy": np.__version__, "scipy": scipy.__version__}
    seconds = round(time.perf_counter() - begun, 1)
    found = {
        "date": date.today().isoformat(),
        "versions": versions,
        "seed": given.seed,
        "seconds": seconds,
        "cases": rows,
    }
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        given.out.with_suffix(".md").write_text(table(found), encoding="utf-8")
    raise SystemExit(int(not all(row["met"] for row in rows)))


if __name__ == "__main__":
    main()
