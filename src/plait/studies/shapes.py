"""Deep and narrow or shallow and wide? Models of equal size are drawn, measured and, if wanted, trained.

LiteTransformerSearch, App. E and Fig. 14 (Javaheripi et al. 2022, arXiv:2203.02094): at equal decoder parameters aspect
ratios d_model / n_layer from 8 to 323 change the latency by 1.3×, the peak memory by 2.0× and the perplexity by less
than 7 %. Every model has a record of kind `shape`, which `plait analyse aspect` reads from the store.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plait.analysis.comparisons import AspectStudy, aspect_study
from plait.analysis.paired import NOT_DISTINGUISHABLE, Compared, compare_losses
from plait.core.errors import UserError
from plait.core.progress import OnProgress, ignore, partial_progress
from plait.core.registry import require_setting
from plait.core.units import percent
from plait.data import Corpus
from plait.device.measurements import Measurements, noisy, values
from plait.device.quantities import Setting, on_device, quantity
from plait.model.architecture import Architecture, architecture
from plait.model.cost import model_cost
from plait.records import Record, Store, provenance_of
from plait.space.space import Genes, Space
from plait.studies.proxies import RECIPE, ROUNDS, SAMPLES
from plait.training.fit import fit_seeds
from plait.training.recipe import Budget, Job, Recipe

KIND = "shape"
PROTOCOL = 1
METRICS = {metric.column: metric.name for metric in on_device().values()} | {"perplexity": "perplexity"}  # column: word
VALIDATION_TOKENS = 2**15


@dataclass(frozen=True)
class Training:
    """How the models are trained; the same for all."""

    corpus: Corpus
    steps: int
    recipe: Recipe = RECIPE
    seeds: int = 1  # trainings of each model; the first has the study's seed


@dataclass(frozen=True)
class ShapeStudy:
    """`params`: the number of decoder parameters that all models have, up to a share of `tolerance`. None takes the
    number at which the space offers the largest range of aspect ratios."""

    space: Space
    setting: Setting
    models: int = 8
    params: float | None = None
    tolerance: float = 0.01
    seed: int = 0
    training: Training | None = None

    def __post_init__(self) -> None:
        if self.models < 2:
            raise UserError("give at least 2 models: shapes are compared with each other.")
        require_setting(self, "tolerance", 0 < self.tolerance < 1, "must be between 0 and 1, such as 0.01")
        if self.training is not None and self.training.corpus.vocab > self.space.headers.vocab:
            raise UserError(f"{self.space.name} has a smaller vocabulary than the data.")

    @cached_property
    def archs(self) -> list[Architecture]:
        """The chosen models, from the deepest to the widest, evenly spaced in the logarithm of the aspect ratio."""
        genes_NG, params_N, aspect_N = self._valid()
        target = self.params if self.params is not None else _most_shapes(params_N, aspect_N, self.tolerance)
        equal = np.flatnonzero(np.abs(params_N / target - 1) <= self.tolerance)
        if len(equal) < self.models:
            raise UserError(
                f"{self.space.name} gave {len(equal)} models of {target:,.0f} decoder parameters ± "
                f"{percent(self.tolerance, 1)}, not {self.models}; allow more with --tolerance, or another --params."
            )
        ratio = np.log(aspect_N[equal])
        chosen: list[int] = []
        for wanted in np.linspace(ratio.min(), ratio.max(), self.models):
            left = [place for place in np.argsort(np.abs(ratio - wanted), kind="stable") if place not in chosen]
            chosen.append(int(left[0]))
        rows = sorted(chosen, key=lambda place: float(ratio[place]))
        return [architecture(self.space.spec(genes_NG[equal[place]])) for place in rows]

    def run(self, store: Store, runs: Path, on_progress: OnProgress = ignore) -> ShapeFindings:
        """Measure and train the models; results in the store are used again."""
        rows = []
        with Measurements(store, self.setting) as known:
            for place, arch in enumerate(self.archs):
                on_progress("measuring", place, self.models)
                rows.append(
                    self._row(arch, known, store, runs, partial_progress(on_progress, "training", place, self.models))
                )
        on_progress("done", self.models, self.models)
        return ShapeFindings(self, rows)

    def _valid(self) -> tuple[Genes, NDArray[np.float64], NDArray[np.float64]]:
        """Candidates that satisfy every constraint, their decoder parameters and aspect ratios."""
        rng = np.random.default_rng(self.seed)
        genes_NG = np.concatenate([self.space.sample(rng, SAMPLES) for _ in range(ROUNDS // 4)])
        genes_NG = np.unique(genes_NG[self.space.valid(genes_NG)], axis=0)
        if not len(genes_NG):
            raise UserError(f"no candidate of {self.space.name} satisfies every constraint.")
        depth_N = np.asarray(self.space.depths, dtype=np.float64)[genes_NG[:, 0]]
        widths = np.array([header.d if header else 1 for header in self.space.headers.all], dtype=np.float64)
        width_N = widths[self.space.parts(genes_NG).header_N]
        params_N = self.space.columns(genes_NG)["decoder_params"].astype(np.float64)
        return genes_NG, params_N, width_N / depth_N

    def _row(
        self, arch: Architecture, known: Measurements, store: Store, runs: Path, on_progress: Callable[[float], None]
    ) -> dict[str, Any]:
        started, clock = time.time(), time.perf_counter()
        measured = known.measure(arch.text)
        cost = model_cost(arch, seq=self.setting.seq)
        depth = sum(layer.kind == "sequence" for layer in arch.layers)
        row: dict[str, Any] = {
            "spec": arch.text,
            "d_model": arch.header.d,
            "n_layer": depth,
            "aspect": arch.header.d / depth,
            "decoder_params": cost.decoder_params,
            "total_params": cost.total_params,
            **{quantity(name).column: quantity(name).scale * value for name, value in values(measured).items()},
            "noisy": noisy(measured),
        }
        keys = {"measurement": measured.key}
        if self.training is not None:
            how, budget = self.training, Budget(steps=self.training.steps)
            job = Job(arch, how.corpus, how.recipe, budget, self.seed, validation_tokens=VALIDATION_TOKENS)
            losses = [result.loss for result in fit_seeds(job, how.seeds, store, runs, on_progress=on_progress)]
            for seed in range(how.seeds):
                keys[f"training {seed}" if seed else "training"] = replace(job, seed=self.seed + seed).key
            loss = float(np.mean(losses))
            row |= {"loss": loss, "perplexity": math.exp(min(loss, 700.0)), "losses": losses}
        config = {"protocol": PROTOCOL, **arch.identity(), **keys}
        store.put(Record.of(KIND, config, row, provenance_of(started, time.perf_counter() - clock)))
        return row


@dataclass(frozen=True)
class ShapeFindings:
    study: ShapeStudy
    rows: list[dict[str, Any]]

    @cached_property
    def aspects(self) -> AspectStudy:
        """The comparison of all models as one group, since they have the same size."""
        share = self.study.tolerance
        columns = {name: [row[name] for row in self.rows] for name in METRICS if name in self.rows[0]}
        width, depth, size = ([row[name] for row in self.rows] for name in ("d_model", "n_layer", "decoder_params"))
        return aspect_study(width, depth, size, columns, (1 + share) / (1 - share) - 1 + 1e-9)

    def statement(self) -> str:
        (group,) = self.aspects.groups
        spreads = ", ".join(f"{METRICS[name]} {ratio:.3g}×" for name, ratio in group.spread.items())
        return (
            f"{len(self.rows)} shapes of {group.size[0]:,.0f} to {group.size[1]:,.0f} decoder parameters, aspect ratio "
            f"{group.aspect[0]:.3g} to {group.aspect[1]:.3g}: largest over smallest {spreads}{self._noise_statement}"
        )

    @cached_property
    def compared(self) -> Compared | None:
        """The losses of all seeds compared in pairs; None without training."""
        if "losses" not in self.rows[0]:
            return None
        return compare_losses({str(place): dict(enumerate(row["losses"])) for place, row in enumerate(self.rows)})

    @property
    def noise(self) -> float | None:
        """The standard deviation of a loss between seeds, in nats; None with one seed or without training."""
        return None if self.compared is None else self.compared.noise

    @property
    def _noise_statement(self) -> str:
        if self.compared is None:
            return ""
        if self.noise is None:
            return "; one seed each: how much of the perplexity's spread is noise is unknown"
        noise = f"; standard deviation between seeds {self.noise:.4f} nats"
        if any(pair.verdict != NOT_DISTINGUISHABLE for pair in self.compared.pairs):
            return noise
        return f"{noise}, so the perplexities are not distinguishable"

    def as_dict(self) -> dict[str, Any]:
        (group,) = self.aspects.groups
        return {
            "space": self.study.space.name,
            "noise": self.noise,
            "size": list(group.size),
            "aspect": list(group.aspect),
            "spread": group.spread,
            "models": self.rows,
            "statement": self.statement(),
        }


def _most_shapes(params_N: NDArray[np.float64], aspect_N: NDArray[np.float64], tolerance: float) -> float:
    """The size at which candidates have the largest range of aspect ratios."""
    order = np.argsort(params_N, kind="stable")
    sizes, ratio = params_N[order], np.log(aspect_N[order])
    ends = np.searchsorted(sizes, sizes * (1 + 2 * tolerance), side="right")
    starts = np.linspace(0, len(sizes) - 1, min(512, len(sizes))).astype(np.int64)
    reach = [float(np.ptp(ratio[start : ends[start]])) for start in starts]
    return float(sizes[starts[int(np.argmax(reach))]] * (1 + tolerance))
