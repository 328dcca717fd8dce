"""Does the position and the number of attention layers matter? Patterns are trained from scratch and compared.

PAR (Mandava et al. 2020, arXiv:2009.04534, sections 2.3 and 3) chooses p, the number of layers per attention layer, by
the perplexity of retrained models: as few attention layers as possible without a higher perplexity. This study trains
the PAR rule at several p, the interleaved pattern it replaces, a sandwich with the same amount of attention as that
(Press et al. 2020, arXiv:1911.03864), and any given specs, all on the same batches. All patterns are trained with one
seed before the next seed begins, so that an interrupted study can still compare them. Every training has a record of
its own and is not repeated.

`retrain` does the same for architectures that a supernet search has found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from plait.analysis.paired import Compared, compare_losses
from plait.analysis.placement import letters_of
from plait.analysis.seed_noise import seed_noise
from plait.core.errors import UserError
from plait.core.progress import OnProgress, ignore, partial_progress
from plait.core.units import percent
from plait.data import Corpus
from plait.model.architecture import Architecture, architecture
from plait.model.cost import model_cost
from plait.model.language_model import MOST_NATS, perplexity_of
from plait.records import Store
from plait.supernet.settings import SupernetJob
from plait.training.fit import fit_alone, fit_seeds
from plait.training.recipe import Budget, Job, Recipe, Trained, fitted

INTERLEAVED = "interleaved"
PS = (2.0, 3.0, 4.0, 6.0, 8.0)
STEPS = 150
RECIPE = Recipe(batch=8, seq_len=64, lr=3e-3)
VALIDATION_TOKENS = 2**15
#: k of the published sandwiches is 0.38 to 0.42 of their pairs, except for one with 0.25.
SANDWICHED = 3 / 8


@dataclass(frozen=True)
class Shape:
    """Size of the compared models. Their attention has no segment memory, so sequences are independent."""

    layers: int = 12
    width: int = 48
    heads: int = 4
    inner: int = 192

    def __post_init__(self) -> None:
        if self.layers < 4 or self.layers % 2:
            raise UserError(f"{self.layers} layers: interleaved and sandwich patterns need an even number, 4 or more.")

    def spec(self, pattern: str) -> str:
        blocks = f"s=xl-attn[heads={self.heads}],f=mlp[inner={self.inner},act=relu]"
        return f"d={self.width} tie=true norm=layer | rule[{blocks}]:{pattern}"


@dataclass(frozen=True)
class Pattern:
    name: str
    arch: Architecture

    @property
    def letters(self) -> str:
        names = [layer.name for layer in self.arch.layers]
        letters = letters_of([names], {layer.name for layer in self.arch.layers if layer.kind == "channel"})
        return "".join(letters[name] for name in names)

    @property
    def attention(self) -> int:
        """The number of sequence mixers."""
        return sum(layer.kind == "sequence" for layer in self.arch.layers)

    @property
    def p(self) -> float | None:
        return len(self.arch.layers) / self.attention if self.attention else None


def patterns_of(
    corpus: Corpus, shape: Shape, ps: Sequence[float] = PS, texts: Sequence[str] = (), k: int | None = None
) -> list[Pattern]:
    """The patterns to train: interleaved, a sandwich, the PAR rule at every p, then the given specs."""
    pairs = shape.layers // 2
    k = max(1, round(SANDWICHED * pairs)) if k is None else k
    patterns = {INTERLEAVED: f"sandwich(k=0,n={pairs})", f"sandwich k={k}": f"sandwich(k={k},n={pairs})"}
    patterns |= {f"par p={p:g}": f"par(n={shape.layers},p={p!r})" for p in ps}
    specs = {name: shape.spec(pattern) for name, pattern in patterns.items()}
    specs |= {f"given {number}": text for number, text in enumerate(texts, start=1)}
    return [Pattern(name, fitted(text, corpus)) for name, text in specs.items()]


@dataclass(frozen=True)
class PlacementStudy:
    """The first of `patterns` is the baseline that the others are compared with."""

    patterns: Sequence[Pattern]
    corpus: Corpus
    steps: int = STEPS
    seeds: int = 3
    recipe: Recipe = RECIPE
    device: str = "cpu"
    precision: str = "fp32"

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise UserError(f"{self.seeds} seeds: give at least 1; 3 show how certain the differences are.")

    @cached_property
    def jobs(self) -> list[list[Job]]:
        """For every seed, one training per pattern."""
        return [[self._job(pattern, seed) for pattern in self.patterns] for seed in range(self.seeds)]

    def _job(self, pattern: Pattern, seed: int) -> Job:
        budget = Budget(steps=self.steps)
        return Job(pattern.arch, self.corpus, self.recipe, budget, seed, self.precision, VALIDATION_TOKENS)

    @property
    def models(self) -> int:
        return self.seeds * len(self.patterns)

    def run(self, store: Store, runs: Path, on_progress: OnProgress = ignore) -> PlacementFindings:
        """Train the patterns that are not in the store yet, and compare all of them."""
        results: list[list[Trained]] = [[] for _ in self.patterns]
        for place, (at, job) in enumerate((at, job) for seed in self.jobs for at, job in enumerate(seed)):
            report = partial_progress(on_progress, self.patterns[at].name, place, self.models)
            report(0.0)
            results[at].append(fit_alone(job, store, runs, device=self.device, on_progress=report))
        on_progress("done", self.models, self.models)
        rows = [self._row(pattern, trained) for pattern, trained in zip(self.patterns, results, strict=True)]
        return PlacementFindings(self, rows)

    def _row(self, pattern: Pattern, trained: Sequence[Trained]) -> Row:
        flops = model_cost(pattern.arch, seq=self.recipe.seq_len).flops / self.recipe.seq_len
        return Row(pattern, [result.loss for result in trained], flops, sum(result.seconds for result in trained))


@dataclass(frozen=True)
class Row:
    """The losses of one pattern (nats per token), one per seed. `flops`: of the forward pass of one token."""

    pattern: Pattern
    losses: Sequence[float]
    flops: float
    seconds: float

    @property
    def loss(self) -> float:
        return float(np.mean(self.losses))

    @property
    def perplexity(self) -> float:
        return perplexity_of(self.loss)


def _share(nats: float) -> float:
    return math.expm1(min(nats, MOST_NATS))


@dataclass(frozen=True)
class Change:
    """The relative difference of two perplexities, with its 95 % interval if there are several seeds. `surely_more`:
    whether the interval lies above zero and the difference is not smaller than the noise; or all seeds diverged."""

    value: float
    interval: tuple[float, float] | None
    surely_more: bool = False

    def __str__(self) -> str:
        value = percent(self.value, 1, sign=True)
        return value if self.interval is None else f"{value} ({' … '.join(f'{100 * x:+.1f}' for x in self.interval)})"


@dataclass(frozen=True)
class PlacementFindings:
    study: PlacementStudy
    rows: Sequence[Row]

    @property
    def baseline(self) -> Row:
        return self.rows[0]

    @property
    def noise(self) -> float | None:
        """The standard deviation of a loss between seeds, in nats, pooled over all patterns."""
        return seed_noise(row.losses for row in self.rows)

    @cached_property
    def _compared(self) -> Compared:
        return compare_losses({row.pattern.name: dict(enumerate(row.losses)) for row in self.rows}, draws=2)

    def change(self, row: Row) -> Change:
        """How much higher its perplexity is than the baseline's. The runs of one seed saw the same batches, so they are
        paired, and the noise that is left is pooled over all patterns: on its own, a pattern with two or three seeds is
        hardly ever distinguishable from the baseline, however much worse it is."""
        if row is self.baseline:
            return Change(0.0, None)
        ends = self.baseline.pattern.name, row.pattern.name
        pair = next(pair for pair in self._compared.pairs if (pair.a, pair.b) == ends)
        more, interval = -pair.difference, pair.interval
        if interval is None:
            return Change(_share(more), None, surely_more=more == math.inf)
        low, high = -interval[1], -interval[0]
        return Change(_share(more), (_share(low), _share(high)), surely_more=low > 0 and more >= (self.noise or 0.0))

    @property
    def statement(self) -> str:
        """The result in one sentence: how few attention layers are not surely worse than the baseline's, and how much
        worse they may be."""
        if self.study.seeds < 2:
            return "One seed cannot separate differences from noise; give --seeds 3 or more."
        base = self.baseline
        fewer = [row for row in self.rows if row.pattern.attention < base.pattern.attention]
        good = [row for row in fewer if not self.change(row).surely_more]
        if not good:
            return f"Every pattern with less attention than {base.pattern.name} has a significantly higher perplexity."
        least = min(good, key=lambda row: (row.pattern.attention, row.loss))
        blocks, saved, change = least.pattern.attention, 1 - least.flops / base.flops, self.change(least)
        most = change.interval[1] if change.interval else 0.0
        excluded = f" Up to {percent(most, 1)} more is not excluded." if most > 0 else ""
        return (
            f"With {blocks} attention block{'s' * (blocks != 1)} instead of {base.pattern.attention}, "
            f"{least.pattern.name} is not significantly worse than {base.pattern.name}: "
            f"perplexity {change}, {abs(100 * saved):.0f} % {'fewer' if saved >= 0 else 'more'} FLOPs.{excluded}"
        )

    def as_dict(self) -> dict[str, object]:
        study = self.study
        return {
            "data": study.corpus.name,
            "steps": study.steps,
            "seeds": study.seeds,
            "recipe": study.recipe.as_dict(),
            "baseline": self.baseline.pattern.name,
            "noise": self.noise,
            "patterns": [self._entry(row) for row in self.rows],
            "statement": self.statement,
        }

    def _entry(self, row: Row) -> dict[str, object]:
        change = self.change(row)
        return {
            "pattern": row.pattern.name,
            "letters": row.pattern.letters,
            "spec": row.pattern.arch.text,
            "attention": row.pattern.attention,
            "p": row.pattern.p,
            "losses": list(row.losses),
            "loss": row.loss,
            "perplexity": row.perplexity,
            "against": change.value,
            "interval": None if change.interval is None else list(change.interval),
            "flops_per_token": row.flops,
            "seconds": row.seconds,
        }


@dataclass(frozen=True)
class Retrained:
    """`losses` of every spec, one per seed."""

    losses: dict[str, list[float]]
    compared: Compared

    def as_dict(self) -> dict[str, object]:
        compared = self.compared
        seeds = max((len(losses) for losses in self.losses.values()), default=0)
        return {"seeds": seeds, "noise": compared.noise, "best": compared.best if self.losses else []}

    @property
    def statement(self) -> str:
        if self.compared.noise is None:
            return "retrained once each, so the noise between seeds is unknown; give --retrain-seeds 3"
        ties = len(self.compared.best) - 1
        others = (
            f"{ties} of {len(self.losses) - 1} others are not distinguishable from the lowest loss"
            if ties > 0
            else ("the lowest loss is distinguishable from all others")
        )
        return f"standard deviation between seeds {self.compared.noise:.4f} nats; {others}"


def retrain(
    specs: Sequence[str],
    supernet: SupernetJob,
    steps: int,
    store: Store,
    runs: Path,
    *,
    seeds: int = 1,
    on_progress: OnProgress = ignore,
) -> Retrained:
    """Train every spec from scratch for `steps` steps on the search's data, once per seed; the held-out losses."""
    specs, losses = list(dict.fromkeys(specs)), {}
    for done, spec in enumerate(specs):
        job = Job(architecture(spec), supernet.corpus, supernet.recipe, Budget(steps), 0, supernet.precision)
        report = partial_progress(on_progress, "training from scratch", done, len(specs))
        trained = fit_seeds(job, seeds, store, runs, device=supernet.device, on_progress=report)
        losses[spec] = [result.loss for result in trained]
    on_progress("training from scratch", len(specs), len(specs))
    by_seed = {spec: dict(enumerate(seed_losses)) for spec, seed_losses in losses.items()}
    return Retrained(losses, compare_losses(by_seed))
