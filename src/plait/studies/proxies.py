"""How well do proxies predict the ranking after training? Models drawn from a space are trained and ranked.

LiteTransformerSearch, Sec. 4 (Javaheripi et al. 2022, arXiv:2203.02094) studies spaces of one kind of model, where the
number of decoder parameters predicts best. `study-gpt2` is a small space of that kind; the models of `study-hybrid`
have the same size and differ in the kinds of their layers. All models see the same batches for the same number of
steps. Every training and every score has its own record, so an interrupted study resumes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from plait.algorithms.proxies import PROXIES, Windows, load_proxy
from plait.analysis.best_proxy import BestProxy, best_proxy
from plait.analysis.pareto import Floats
from plait.analysis.rank import common_ratio, spearman, spearman_interval
from plait.analysis.seed_noise import seed_noise
from plait.core.errors import UserError
from plait.core.progress import OnProgress, ignore, partial_progress
from plait.core.units import percent
from plait.data import Corpus
from plait.model.architecture import architecture
from plait.model.cost import model_cost
from plait.model.language_model import build
from plait.records import Store
from plait.space.constraints import failures
from plait.space.space import Genes, Space
from plait.space.table import load_space, read_space
from plait.training.fit import fit_seeds
from plait.training.recipe import Budget, Job, Recipe

SHIPPED = ("study-gpt2", "study-hybrid")
#: Proxies that are known without building a model.
COUNTS = ("decoder_params", "total_params", "flops", "state", "layers", "width")
TOPS = (10, 20, 50)
KIND = "proxy"
PROTOCOL = 1  # incremented when the same settings give a different score
STEPS = 200
RECIPE = Recipe(batch=8, seq_len=64, lr=6e-3)
VALIDATION_TOKENS = 2**15
SAMPLES = 1 << 14  # candidates drawn at once
ROUNDS = 32


@dataclass(frozen=True)
class Study:
    space: Space
    corpus: Corpus
    models: int = 40
    steps: int = STEPS
    proxies: tuple[str, ...] = tuple(PROXIES)
    recipe: Recipe = RECIPE
    seed: int = 0
    device: str = "cpu"  # of the trainings; proxies are always computed on the CPU
    precision: str = "fp32"
    seeds: int = 1  # trainings of each model, from `seed` on

    def __post_init__(self) -> None:
        if self.models < 3:
            raise UserError(f"{self.models} models cannot be ranked; give at least 3, better 40.")
        for name in self.proxies:
            load_proxy(name)

    @cached_property
    def jobs(self) -> list[Job]:
        """The first training of each model; all have the same data, recipe, steps and seed."""
        # The vocabulary is set before drawing, so that the constraints hold for the models that are trained.
        space = self.space.with_vocabulary(self.corpus.vocab)
        archs = [architecture(space.spec(row_G)) for row_G in drawn(space, self.models, self.seed)]
        budget = Budget(steps=self.steps)
        return [
            Job(arch, self.corpus, self.recipe, budget, self.seed, self.precision, VALIDATION_TOKENS) for arch in archs
        ]

    def run(self, store: Store, runs: Path, on_progress: OnProgress = ignore) -> Findings:
        """Train and score the models that are not in the store yet, and rank all of them."""
        rows = []
        for place, job in enumerate(self.jobs):
            row: dict[str, Any] = {"spec": job.arch.text, **counts(job)}
            for name in self.proxies:
                on_progress(name, place, self.models)
                row[name], row[f"{name}_flops"] = self._score(job, name, store)
            report = partial_progress(on_progress, "training", place, self.models)
            trained = fit_seeds(job, self.seeds, store, runs, device=self.device, on_progress=report)
            row["losses"] = [result.loss for result in trained]
            row |= {"loss": float(np.mean(row["losses"])), "train_flops": trained[0].flops}
            rows.append({**row, "seconds": sum(result.seconds for result in trained)})
        on_progress("done", self.models, self.models)
        return Findings(self, rows)

    def _score(self, job: Job, name: str, store: Store) -> tuple[float, int]:
        """A proxy's score of the untrained model, and the FLOPs it took; from the store if it is there."""
        proxy, recipe = load_proxy(name), self.recipe
        config = {
            "protocol": PROTOCOL,
            "proxy": name,
            **job.arch.identity(),
            "data": self.corpus.fingerprint,
            "batch": recipe.batch,
            "length": recipe.seq_len,
            "seed": self.seed,
        }

        def scored() -> dict[str, float | None]:
            data = Windows(self.corpus.tokens("train"), batch=recipe.batch, seq=recipe.seq_len, seed=self.seed)
            score = proxy.score(build(job.arch, seed=self.seed), data)
            forward = recipe.batch * model_cost(job.arch, seq=recipe.seq_len).flops
            # JSON has no infinities: null is "worse than any number".
            return {"score": score if math.isfinite(score) else None, "flops": proxy.flops(forward, recipe.batch)}

        result = store.computed(KIND, config, scored).result
        return -math.inf if result["score"] is None else float(result["score"]), int(result["flops"])


@dataclass(frozen=True)
class Ranking:
    """How well one proxy ranks the models: SRC with its 95 % interval, and CR at each of `TOPS`."""

    proxy: str
    src: float
    interval: tuple[float, float] | None
    common: dict[int, float]
    cost: float  # FLOPs as a share of those of training

    def as_dict(self) -> dict[str, Any]:
        known = not math.isnan(self.src)  # JSON has no NaN
        return {
            "proxy": self.proxy,
            "src": self.src if known else None,
            "interval": list(self.interval) if self.interval else None,
            **{f"cr_{top}": ratio for top, ratio in self.common.items()},
            "cost": self.cost,
        }


@dataclass(frozen=True)
class Findings:
    """One row per model: its spec, its counts, every proxy's score and FLOPs, and the loss that training gave."""

    study: Study
    rows: list[dict[str, Any]]

    @cached_property
    def rankings(self) -> list[Ranking]:
        """All rankings, the best proxy first; proxies that give all models the same score come last."""
        rankings = [self._ranking(name) for name in (*COUNTS, *self.study.proxies)]
        return sorted(rankings, key=lambda ranking: (math.isnan(ranking.src), -ranking.src))

    @cached_property
    def noise(self) -> float | None:
        """The standard deviation of a model's loss between seeds, in nats; None with one seed."""
        return seed_noise(row["losses"] for row in self.rows)

    @property
    def noise_statement(self) -> str:
        if self.noise is None:
            return "one seed per model: the noise between seeds is unknown and affects every rank"
        losses = np.sort([row["loss"] for row in self.rows])
        close = int((np.diff(losses) < self.noise).sum())
        return (
            f"standard deviation between seeds {self.noise:.4f} nats; {close} of {len(losses) - 1} adjacent "
            "pairs in the ranking differ by less, so their order is not significant"
        )

    @property
    def spread(self) -> tuple[float, float]:
        """The lowest and the highest loss."""
        losses = [row["loss"] for row in self.rows]
        return min(losses), max(losses)

    @cached_property
    def best(self) -> BestProxy | None:
        """Indices into `rankings`."""
        return best_proxy([self._scores(ranking.proxy) for ranking in self.rankings], self._scores("loss", -1.0))

    def _scores(self, name: str, sign: float = 1.0) -> Floats:
        return sign * np.array([row[name] for row in self.rows], dtype=np.float64)

    def _ranking(self, name: str) -> Ranking:
        guess, truth = self._scores(name), self._scores("loss", -1.0)
        flops, train = (sum(row.get(key, 0) for row in self.rows) for key in (f"{name}_flops", "train_flops"))
        common = {top: common_ratio(guess, truth, top) for top in TOPS}
        return Ranking(name, spearman(guess, truth), spearman_interval(guess, truth), common, flops / train)

    def as_dict(self) -> dict[str, Any]:
        study = self.study
        rows = [{name: None if value == -math.inf else value for name, value in row.items()} for row in self.rows]
        return {
            "space": study.space.name,
            "data": study.corpus.name,
            "steps": study.steps,
            "seed": study.seed,
            "loss": list(self.spread),
            "seeds": study.seeds,
            "noise": self.noise,
            "rankings": [ranking.as_dict() for ranking in self.rankings],
            "best": None
            if self.best is None
            else {
                "proxy": self.rankings[self.best.best].proxy,
                "related": self.best.related,
                "tied": [self.rankings[at].proxy for at in self.best.tied],
            },
            "models": rows,
            "cost": {name: sum(row[name] for row in self.rows) for name in ("train_flops", "seconds")},
        }


def study_space(name: str) -> Space:
    """One of the two spaces made for studies, or any space that a search takes."""
    if name in SHIPPED:
        return read_space(files("plait.space").joinpath(f"{name}.txt").read_text(encoding="utf-8"), name)
    return load_space(name, SHIPPED)


def drawn(space: Space, models: int, seed: int) -> list[Genes]:
    """`models` different candidates that satisfy every constraint, drawn at random."""
    if late := sorted(space.needs()):
        raise UserError(
            f"{space.name} has constraints about {', '.join(late)}, which a study does not know; leave them out."
        )
    rng = np.random.default_rng(seed)
    distinct: dict[bytes, Genes] = {}
    for _ in range(ROUNDS):
        genes_NG = space.sample(rng, SAMPLES)
        for row_G in genes_NG[space.valid(genes_NG)]:
            distinct.setdefault(row_G.tobytes(), row_G)
            if len(distinct) == models:
                return list(distinct.values())
    why = failures(space.passed(genes_NG, space.columns(genes_NG)), SAMPLES)
    raise UserError(
        f"{space.name} gave {len(distinct)} different models that satisfy every constraint, not {models}:\n{why}"
    )


def counts(job: Job) -> dict[str, int]:
    """The `COUNTS` of a model; FLOPs and state are of one training sequence."""
    cost = model_cost(job.arch, seq=job.recipe.seq_len)
    return {
        "decoder_params": cost.decoder_params,
        "total_params": cost.total_params,
        "flops": cost.flops,
        "state": cost.fixed_state + cost.conv_state + cost.kv_cache,
        "layers": len(job.arch.layers),
        "width": job.arch.header.d,
    }


def best(findings: Findings) -> str:
    """In words: the best proxy and how sure that is, the best free one, and the rank of decoder parameters."""
    rankings = findings.rankings
    ranked = [ranking for ranking in rankings if not math.isnan(ranking.src)]
    if not ranked:
        return "Every proxy gives all of these models the same score, so none ranks them."
    free = [ranking for ranking in ranked if ranking.cost == 0]
    first = ranked[0]
    text = f"{first.proxy} ranks models best (SRC {first.src:.2f}) at {cost_text(first.cost)} of the training FLOPs"
    if first not in free and free:
        text += f"; of the free ones, {free[0].proxy} does (SRC {free[0].src:.2f})"
    text += certainty(findings.best, len(ranked))
    place = next((place for place, ranking in enumerate(ranked, start=1) if ranking.proxy == "decoder_params"), None)
    if place is None:
        return f"{text}. Decoder parameters are the same for all."
    return f"{text}. Decoder parameters are number {place} of {len(rankings)} (SRC {ranked[place - 1].src:.2f})."


def certainty(found: BestProxy | None, proxies: int) -> str:
    """In words: whether the best of so many proxies is better than the best of as many that know nothing, and than the
    others. Proxies that are the same for all models do not count."""
    if found is None:
        return ""
    if not found.related:
        return f". The best of {proxies} proxies that know nothing would often look as good: give more --models"
    others, tied = proxies - 1, len(found.tied)
    if not others:
        return ""
    if others == 1:
        return ". The other one " + ("is not distinguishable from it" if tied else "ranks them worse")
    return f". {tied} of the {others} others {'is' if tied == 1 else 'are'} not distinguishable from it"


def cost_text(cost: float) -> str:
    """A share of the training FLOPs with two digits: 3 %, 0.25 %, 840 %."""
    return f"{100 * cost:.2g} %" if cost < 1 else percent(cost)
