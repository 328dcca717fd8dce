"""Is one learning rate fair to all architectures? Each is trained at several rates and seeds, as a stacked ensemble.

LiteTransformerSearch, App. B (Javaheripi et al. 2022, arXiv:2203.02094): 100 GPT-2 models, each with 1e-4, 1e-3, 1e-2
and 1e-1; 98 % do best with 1e-2, and ranking by decoder parameters has SRC 0.96 at that rate, 0.93 with each
model's best.

Every replica has its own record, so adding a rate, seed or architecture trains only the new replicas. Those of one
architecture train together: none is finished before all are, so their state is saved.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypedDict, cast

import numpy as np
import torch

from plait.algorithms.proxies import Windows
from plait.analysis.learning_rate import LearningRateStudy, learning_rate_study
from plait.core.errors import UserError
from plait.core.files import finite
from plait.core.progress import OnProgress, ignore, partial_progress, stop_signals
from plait.core.registry import require_setting
from plait.core.units import percent
from plait.data import Corpus
from plait.model.architecture import Architecture
from plait.model.cost import model_cost
from plait.probing.trial import checkpoint_path
from plait.records import Record, Store, provenance_of, record_key
from plait.training.checkpoint import remove_state
from plait.training.ensemble import Fleet, Split
from plait.training.ensemble_plan import Plan, Replica, ReplicaRecord
from plait.training.ensemble_run import resume, run_saved, states_of

KIND = "lr-sweep"
PROTOCOL = 1  # incremented when the same settings give a different loss
RATES = (1e-4, 1e-3, 1e-2, 1e-1)
EVALUATED = 64  # windows of validation text
NEVER = 2.0  # an unreachable accuracy, so that no replica stops early


@dataclass(frozen=True)
class RateSweep:
    archs: Sequence[Architecture]
    corpus: Corpus
    rates: Sequence[float] = RATES
    seeds: int = 2
    steps: int = 60
    batch: int = 8
    seq_len: int = 32
    weight_decay: float = 0.0
    device: str = "cpu"

    def __post_init__(self) -> None:
        if len(set(self.rates)) < 2 or min(self.rates) <= 0:
            raise UserError("a sweep needs at least two learning rates, all above 0, such as 1e-3,1e-2.")
        for name in ("seeds", "steps", "batch", "seq_len"):
            require_setting(self, name, getattr(self, name) >= 1, "must be at least 1")
        different = len({arch.text for arch in self.archs})
        if different < 3:
            raise UserError(f"architectures are ranked: give at least 3 different ones, not {different}.")
        if any(arch.header.kind != "lm" for arch in self.archs):
            raise UserError("a sweep trains language models (kind=lm).")

    def run(self, store: Store, on_progress: OnProgress = ignore) -> SweepFindings:
        """Train the replicas that are not in the store yet, architecture by architecture."""
        rows: list[SweepRow] = []
        for place, arch in enumerate(self.archs):
            wanted = {key: self._config(arch, *key) for key in self._replicas}
            missing = [key for key, config in wanted.items() if store.get(record_key(KIND, config)) is None]
            if missing:
                self._train(arch, missing, store, partial_progress(on_progress, "training", place, len(self.archs)))
            for (rate, seed), config in wanted.items():
                record = store.get(record_key(KIND, config))
                assert record is not None
                result: TrainedReplica = cast("TrainedReplica", record.result)
                rows.append({"spec": arch.text, "lr": rate, "seed": seed, **result})
        on_progress("done", len(self.archs), len(self.archs))
        return SweepFindings(self, rows)

    @property
    def _replicas(self) -> list[tuple[float, int]]:
        return [(float(rate), seed) for rate in dict.fromkeys(self.rates) for seed in range(self.seeds)]

    def _config(self, arch: Architecture, rate: float, seed: int) -> dict[str, object]:
        return {
            "protocol": PROTOCOL,
            **arch.identity(),
            "data": self.corpus.fingerprint,
            "lr": rate,
            "seed": seed,
            "steps": self.steps,
            "batch": self.batch,
            "seq_len": self.seq_len,
            "weight_decay": self.weight_decay,
        }

    def _train(
        self,
        arch: Architecture,
        replicas: Sequence[tuple[float, int]],
        store: Store,
        on_progress: Callable[[float], None],
    ) -> None:
        started = time.time()
        stacked = [Replica(rate, self.weight_decay, seed, data=seed) for rate, seed in replicas]
        plan = Plan(self.steps, self.batch, eval_every=max(1, self.steps // 4), solved=NEVER)
        fleet = Fleet(arch, stacked, plan, *self._splits, device=self.device)
        configs = [self._config(arch, *replica) for replica in replicas]
        path = checkpoint_path(states_of(store), record_key(KIND, {"protocol": PROTOCOL, "replicas": configs}))
        resume(fleet, path)
        with stop_signals() as asked:
            run_saved(fleet, path, lambda now: on_progress(now.step / self.steps), asked.is_set)
        took = fleet.seconds / len(replicas)
        size = model_cost(arch, seq=self.seq_len).decoder_params
        for config, record in zip(configs, fleet.records, strict=True):
            result = {"loss": _loss(record), "stopped": record.stopped, "steps": record.steps, "decoder_params": size}
            store.put(Record.of(KIND, config, result, provenance_of(started, took)))
        remove_state(path)

    @cached_property
    def _splits(self) -> tuple[Split, Split, Split]:
        """Training text of every seed, a few validation windows for evaluation during training, and more at the end."""
        train = [self._windows("train", self.steps * self.batch, seed) for seed in range(self.seeds)]
        some, most = (self._windows("validation", count, 0) for count in (8, EVALUATED))
        return _split(train), _split([some] * self.seeds), _split([most] * self.seeds)

    def _windows(self, part: str, count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        return Windows(self.corpus.tokens(part), batch=count, seq=self.seq_len, seed=seed)(0)


class TrainedReplica(TypedDict):
    """The stored result of one replica."""

    loss: float | None  # nats per token; None if it diverged
    stopped: str
    steps: int
    decoder_params: int


class SweepRow(TrainedReplica):
    """One replica: its architecture, rate and seed, and its result."""

    spec: str
    lr: float
    seed: int


class MeanRow(TypedDict):
    """One architecture at one rate: the mean over seeds; infinite if a replica diverged."""

    spec: str
    lr: float
    loss: float
    decoder_params: int


@dataclass(frozen=True)
class SweepFindings:
    sweep: RateSweep
    rows: list[SweepRow]

    @cached_property
    def means(self) -> list[MeanRow]:
        losses: dict[tuple[str, float], list[float]] = {}
        for row in self.rows:
            loss = math.inf if row["loss"] is None else row["loss"]
            losses.setdefault((row["spec"], row["lr"]), []).append(loss)
        sizes = {row["spec"]: row["decoder_params"] for row in self.rows}
        return [
            {"spec": spec, "lr": rate, "loss": float(np.mean(seed_losses)), "decoder_params": sizes[spec]}
            for (spec, rate), seed_losses in losses.items()
        ]

    @cached_property
    def study(self) -> LearningRateStudy:
        specs, rates = [row["spec"] for row in self.rows], [row["lr"] for row in self.rows]
        losses = [math.inf if row["loss"] is None else row["loss"] for row in self.rows]
        return learning_rate_study(specs, rates, losses, [row["decoder_params"] for row in self.rows])

    @property
    def winner(self) -> float:
        """The rate that is best for the most architectures; the smaller one of ties."""
        return max(self.study.rates, key=lambda row: (row.wins, -row.rate)).rate

    @property
    def clear(self) -> int:
        """For how many architectures the best rate is significantly better than the second best."""
        return sum(row.clear or 0 for row in self.study.rates)

    def statement(self) -> str:
        noise = "one seed: the noise between seeds is unknown, so no rate is significantly better"
        if self.study.noise is not None:
            noise = (
                f"standard deviation between seeds {self.study.noise:.4f} nats; for {self.clear} of them the best rate "
                "is significantly better than the second best (5 % level each)"
            )
        most = next(row for row in self.study.rates if row.rate == self.winner)
        return (
            f"{percent(most.share)} of {len(self.study.models)} architectures do best at a rate of {most.rate:g}; SRC "
            f"of decoder parameters is {most.src:.2f} at that rate and {self.study.src_best:.2f} at each one's best; "
            f"{noise}{self._edge}"
        )

    @property
    def _edge(self) -> str:
        """A warning if some do best at the end of the rates tried."""
        rates = [row.rate for row in self.study.rates]
        ends = {rates[0]: "smallest", rates[-1]: "largest"}
        at = [ends[rate] for rate in self.study.best_rate.tolist() if rate in ends]
        if not at:
            return ""
        which = " and ".join(f"for {at.count(end)} the {end}" for end in ends.values() if end in at)
        return f". The best rate is {which} of those tried, so better ones may lie beyond: add to --rates"

    def as_dict(self) -> dict[str, object]:
        study = self.study
        best = zip(study.models, study.best_rate.tolist(), study.best_quality.tolist(), strict=True)
        return {
            "data": self.sweep.corpus.name,
            "steps": self.sweep.steps,
            "seeds": self.sweep.seeds,
            "rates": [{name: finite(value) for name, value in vars(row).items()} for row in study.rates],
            "src_best": finite(study.src_best),
            "noise": study.noise,
            "clear": self.clear,
            "best": [{"spec": spec, "lr": rate, "loss": finite(loss)} for spec, rate, loss in best],
            "replicas": self.rows,
            "statement": self.statement(),
        }


def _loss(record: ReplicaRecord) -> float | None:
    """None if it diverged: JSON has no infinities."""
    return None if record.test is None else finite(float(record.test[1]))


def _split(parts: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Split:
    return Split(torch.stack([inputs for inputs, _ in parts]), torch.stack([targets for _, targets in parts]))
