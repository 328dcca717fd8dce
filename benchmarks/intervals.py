"""How often does each interval that plait prints hold the truth, and how often do equals look different?

    python benchmarks/intervals.py [--only WORD] [--repetitions 400] [--json FILE]

Every case draws data whose truth is known, at least 400 times, and asks the very functions that the commands call.
95 % intervals should hold it in 93 to 97 of 100 cases; of 400 repetitions, luck moves that by about two either way.
Verdicts: "false alarms" are those that call equal architectures different anywhere, "power" those that find a real
difference. Cases marked "edge" may hold it more often: values there are discrete. Cases marked "limit" show what no
interval from so few seeds can know, and promise nothing.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path

import numpy as np
import scipy
from scipy.stats import spearmanr

from plait.analysis.intervals import median_interval
from plait.analysis.placement import placement
from plait.analysis.rank_interval import spearman_interval
from plait.device.features import Features
from plait.device.lengths import fit_exponent
from plait.device.regression import Surface
from plait.evals.extrapolation import trend
from plait.model.architecture import architecture
from plait.probing.verdict import Comparison, Score
from plait.searching.capability import Ridge
from plait.studies.placement import Pattern, Row

Interval = tuple[float, float] | None
Held = Callable[[np.random.Generator], "bool | np.floating | float"]
TASKS = ("recall", "compression", "copying")
ARCH = architecture("d=8 vocab=16 | attn[heads=1] mlp")


def cases() -> Iterator[tuple[str, str, Held, int]]:
    """(what, kind, one repetition, how many times the usual repetitions)."""
    for seeds in (2, 3, 5):
        for what, spread, sequences in (("seeds", 0.1, 1280), ("both", 0.02, 256), ("items", 0.0, 256)):
            kind = "edge" if seeds == 2 and what != "seeds" else "coverage"  # two of 257 values are often near
            yield f"probe accuracy, {seeds} seeds, spread of {what}", kind, _accuracy(seeds, spread, sequences), 2
            yield f"probe difference, {seeds} seeds, spread of {what}", kind, _gap(seeds, spread, sequences), 2
        yield f"probe mean over 3 tasks, {seeds} seeds", "coverage", _mean(seeds), 2
        yield f"probe accuracy at 0.995, {seeds} seeds", "edge", _accuracy(seeds, 0.0, 256, 0.995), 2
        yield f"probe accuracy, half of {seeds} seeds solve it", "limit", _solved(seeds), 1
    yield "probe mean, 4 seeds on one task and 3 on the others", "edge", _uneven, 2
    for seeds in (2, 3, 5):
        for models in (2, 5):
            for chosen in (False, True):
                how = "the best" if chosen else "the first"
                name = f"verdict on {how} of {models} equal architectures, {seeds} seeds"
                yield name, "false alarms", _verdict(models, seeds, chosen, 0.0), 1
        name = f"verdict on the first of 5, 0.2 ahead at a spread of 0.04, {seeds} seeds"
        yield name, "power", _verdict(5, seeds, False, 0.2), 1
    for sequences in (2, 3, 8, 32):
        yield f"extrapolation slope, {sequences} sequences", "coverage", _slope(sequences), 2
    for seeds in (2, 3, 5):
        yield f"study placement, change of perplexity, {seeds} seeds", "coverage", _placement_study(seeds), 2
    for searches in (3, 5, 10):
        yield f"analyse placement, attention in a third, {searches} searches", "edge", _third(searches), 1
        yield f"analyse placement, early share, {searches} searches", "edge", _early(searches), 1
    for repeats in (2, 5, 6, 12, 40):
        yield f"measured latency, median of {repeats}", "coverage", _latency(repeats), 2
    for lengths in (5, 9):
        yield f"exponent of {lengths} lengths, errors known", "edge", _exponent(lengths, 1.0), 2
        yield f"exponent of {lengths} lengths, errors ten times too small", "coverage", _exponent(lengths, 0.1), 2
    for models in (8, 21, 60):
        yield f"capability of a pattern not probed, from {models}", "coverage", _ridge(models), 2
    for points in (12, 40):
        yield f"predicted latency of a layer, from {points} points", "coverage", _surface(points), 1
    yield "verdict on the best of 21 equal architectures, 3 seeds", "false alarms", _verdict(21, 3, True, 0.0), 1
    for rho in (0.0, 0.9, 0.98, 0.995):
        for models in (6, 20, 100):
            yield f"Spearman {rho:g}, {models} models", "edge" if models < 20 else "coverage", _spearman(rho, models), 1
    for kind in ("heavy tails", "ties"):
        for models in (10, 50):
            edge = "edge" if kind == "ties" or models < 20 else "coverage"
            yield f"Spearman 0.9 with {kind}, {models} models", edge, _spearman(0.9, models, kind), 1


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
    return interval is not None and interval[0] <= truth <= interval[1]


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


def _placement_study(seeds: int) -> Held:
    def held(rng: np.random.Generator) -> bool:
        batches = rng.normal(0, 0.05, seeds)
        rows = [Row(Pattern(name, ARCH), 3 + gap + batches + rng.normal(0, 0.02, seeds), 1.0, 1.0)
                for name, gap in (("a", 0.03), ("b", 0.0))]  # fmt: skip
        return _in(float(np.expm1(0.03)), rows[0].against(rows[1]).interval)

    return held


def _searched(rng: np.random.Generator, searches: int) -> list[list[str]]:
    """Attention is likelier early: 0.6, 0.4 and 0.1 by thirds of 12 layers; never nowhere."""
    chance = np.repeat([0.6, 0.4, 0.1], 4)
    rows = [np.where(rng.random(12) < chance, "attn", "mlp").tolist() for _ in range(searches)]
    return [row if "attn" in row else ["attn", *row[1:]] for row in rows]


def _third(searches: int) -> Held:
    def held(rng: np.random.Generator) -> bool:
        second = placement(_searched(rng, searches), {"mlp"}).thirds[1]
        return second.low is not None and second.high is not None and second.low <= 1.6 <= second.high

    return held


def _early(searches: int) -> Held:
    def held(rng: np.random.Generator) -> bool:
        found = placement(_searched(rng, searches), {"mlp"}).early
        assert found is not None
        return found.low is not None and found.high is not None and found.low <= 4.0 / 4.4 <= found.high

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


def _ridge(models: int) -> Held:
    def held(rng: np.random.Generator) -> float:
        """The share held of 20 patterns like those probed."""
        features = rng.normal(size=(models + 20, 6))
        weights = rng.normal(size=(6, 4)) * 0.05
        found = 0.6 + features @ weights + rng.normal(0, 0.04, (models + 20, 4))
        mean, reach = Ridge(features[:models], found[:models]).predict(features[models:])
        return float(np.mean(np.abs(found[models:].mean(axis=1) - mean) <= reach))

    return held


def _surface(points: int) -> Held:
    """A machine whose speed varies smoothly by 12 % around its roofline, measured to 2 %: the share held of 40."""

    def held(rng: np.random.Generator) -> float:
        place = rng.uniform(5, 11, (points + 40, 2))
        apart = np.sqrt(3 * (((place[:, None] - place[None]) / 2) ** 2).sum(-1))
        covariance = 0.12**2 * (1 + apart) * np.exp(-apart) + 1e-9 * np.eye(len(place))
        wave = np.linalg.cholesky(covariance) @ rng.normal(size=len(place))
        roofline = 1e-6 * 2 ** place.sum(axis=1) + 1e-4
        measured = roofline * np.exp(wave + rng.normal(0, 0.02, len(place)))
        asked = [Features("layer", (float(2 ** p.sum()), 1.0), {"d": p[0], "n": p[1]}, {}) for p in place]
        surface = Surface(asked[:points], measured[:points], np.zeros(points))
        mean, deviation = surface.predict(surface.inputs(asked[points:]))
        return float(np.mean(np.abs(measured[points:] / mean - 1) <= 1.959964 * deviation))

    return held


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--repetitions", type=int, default=400)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = []
    for number, (what, kind, once, times) in enumerate(cases()):
        if given.only in what:
            rng, started = np.random.default_rng(number), time.perf_counter()
            repetitions = times * given.repetitions
            share = float(np.mean([once(rng) for _ in range(repetitions)]))
            rows.append({"case": what, "kind": kind, "repetitions": repetitions, "share": round(share, 4)})
            print(f"{what:75s} {kind:13s} {100 * share:5.1f} %  {time.perf_counter() - started:5.1f} s", flush=True)
            if given.json:
                versions = {"python": platform.python_version(), "numpy": np.__version__, "scipy": scipy.__version__}
                found = {"date": date.today().isoformat(), "versions": versions, "cases": rows}
                given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
