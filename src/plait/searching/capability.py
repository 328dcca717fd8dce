"""Capability: what the probe says a candidate can do, as its mean accuracy over the probe's tasks (MAD; Poli et al.
2024, arXiv:2403.17844), measured where the probe has seen the candidate's pattern and predicted where it has not.

The pattern is the shortest run of mixers that a model repeats: `attn swiglu gla swiglu` for any depth and width, as the
paper builds large models out of what it has probed. A pattern that was never probed is predicted by a ridge regression
for each task on a few features that anyone can read (`plait.space.compositions.features`). The error bar comes from
leaving one probed architecture out at a time, so it says how well patterns are foretold that the regression has not
seen.

Letters: N candidates or probed architectures, L layers, B blocks of S slots, F features, T tasks.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from plait.algorithms.objectives import Batch, Objective
from plait.analysis.intervals import Share, estimate, t_quantile
from plait.core.errors import UserError
from plait.model.architecture import Architecture, architecture
from plait.model.cost import model_cost
from plait.probing.protocol import VERSION
from plait.probing.trial import KIND
from plait.records import Record, Store
from plait.space import compositions
from plait.space.compositions import ABSENT, Floats, Ints, Pattern

FEWEST = 8  # architectures to learn from
PENALTIES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
NUMBER_BYTES = 4  # of a column of the space


@dataclass(frozen=True)
class Probed:
    """One architecture that the probe has seen: its accuracy on every task, and by seed the mean over tasks, of the
    seeds that all tasks have."""

    arch: Architecture
    accuracy_T: Floats
    by_seed: dict[int, float]
    sequences: int  # tested with one seed

    @property
    def pattern(self) -> Pattern:
        return compositions.shortest([options.name for options in self.arch.layers])

    @property
    def state(self) -> float:
        """Fixed state in numbers a unit of width and layer, which can be compared across sizes."""
        cost = model_cost(self.arch, seq=1)
        return cost.fixed_state / (self.arch.header.d * max(1, len(self.arch.layers)))


class Capability(Objective):
    """Gives `capability` and the ends of its 95 % interval, `capability_low` and `capability_high`."""

    name: str = "capability"
    maximise: bool = True
    unit: ClassVar[str] = "accuracy"

    def __init__(self, records: Sequence[Record] = ()) -> None:
        self.tasks, self.probed, used = comparable(records)
        if len(self.probed) < FEWEST:
            raise UserError(
                f"capability is learnt from probe records of at least {FEWEST} architectures on the same tasks; "
                f"{len(self.probed)} found. `plait probe --suite mad21 --seeds 1 --time 1h` gives 21."
            )
        self.records = len(used)
        self._hash = hashlib.sha256("\n".join(sorted(used)).encode()).hexdigest()[:16]
        self.kinds = tuple(sorted({options.name for one in self.probed for options in one.arch.layers}))
        kinds_NL = compositions.padded([[self.kinds.index(o.name) for o in one.arch.layers] for one in self.probed])
        self._ridge = Ridge(
            compositions.features(self.kinds, kinds_NL, np.array([one.state for one in self.probed])),
            np.stack([one.accuracy_T for one in self.probed]),
        )

    @classmethod
    def from_store(cls, store: Store) -> Capability:
        return cls(store.find(KIND))

    def __str__(self) -> str:
        return (
            f"capability: mean accuracy on {', '.join(self.tasks)}; from {self.records} probe records of "
            f"{len(self.probed)} architectures; patterns not probed are predicted to ± {self._ridge.reach:.3f}"
        )

    @property
    def error(self) -> float:
        """Root mean square error of the prediction, each architecture left out in turn."""
        return self._ridge.error

    def columns(self, batch: Batch) -> dict[str, NDArray[Any]]:
        kinds_NL, state_N = self._compositions(batch)
        mean_N, reach_N = self._ridge.predict(compositions.features(self.kinds, kinds_NL, state_N))
        for pattern, (measured, reach) in self._measured().items():
            same_N = compositions.repeats(kinds_NL, [self.kinds.index(name) for name in pattern])
            mean_N[same_N] = measured
            if reach is not None:
                reach_N[same_N] = reach
        ends = {"low": np.clip(mean_N - reach_N, 0, 1), "high": np.clip(mean_N + reach_N, 0, 1)}
        return {self.name: np.clip(mean_N, 0, 1), **{f"{self.name}_{end}": value for end, value in ends.items()}}

    def as_dict(self) -> dict[str, Any]:
        return {**super().as_dict(), "tasks": list(self.tasks), "records": self.records, "hash": self._hash}

    def _measured(self) -> dict[Pattern, tuple[float, float | None]]:
        """Mean and half-width of the interval of every pattern that was probed. From one seed the spread is not known:
        None, for which the prediction's stands, since what it misses holds the seeds' spread, too."""
        patterns: dict[Pattern, list[Probed]] = defaultdict(list)
        for one in self.probed:
            patterns[one.pattern].append(one)
        found: dict[Pattern, tuple[float, float | None]] = {}
        for pattern, same in patterns.items():
            mean = float(np.mean([one.accuracy_T.mean() for one in same]))
            seeds = sorted(set.intersection(*(set(one.by_seed) for one in same)))
            values = [float(np.mean([one.by_seed[seed] for one in same])) for seed in seeds]
            items = [Share(float(one.accuracy_T.mean()), one.sequences * len(seeds), 1 / len(same)) for one in same]
            interval = estimate(values, items, mean).interval if len(seeds) > 1 else None
            found[pattern] = mean, None if interval is None else (interval[1] - interval[0]) / 2
        return found

    def _compositions(self, batch: Batch) -> tuple[Ints, Floats]:
        """Which kind of mixer every layer is, layers that are nothing left out, and the state as in `Probed`."""
        space, parts = batch.space, batch.space.parts(batch.genes_NG)
        codes = [compositions.codes_of(space, s, self.kinds) for s in range(len(space.slots))]
        # The codes' last entry is nothing, which is what place -1 finds.
        kinds_NBS = np.stack([code[parts.options_NBS[:, :, s]] for s, code in enumerate(codes)], axis=2)
        kinds_NL = kinds_NBS.reshape(len(batch), kinds_NBS.shape[1] * kinds_NBS.shape[2])
        kinds_NL = np.take_along_axis(kinds_NL, np.argsort(kinds_NL == ABSENT, axis=1, kind="stable"), axis=1)
        size_N = np.asarray(space.widths)[parts.width_N] * np.maximum(1, (kinds_NL != ABSENT).sum(axis=1))
        return kinds_NL, batch.columns["fixed_state"] / NUMBER_BYTES / size_N


# ---- from records to what can be compared


def comparable(records: Sequence[Record]) -> tuple[tuple[str, ...], list[Probed], set[str]]:
    """Tasks, the architectures that were probed on all of them, and the keys of the records used.

    Accuracies can be compared within one setting, training and precision. Of every task that setting counts in which
    most architectures were probed; with `--seeds` a probe keeps to the protocol's steps, so that probes of different
    days come together. Users' own mixers are left out: their files may not be at hand.
    """
    by_task: dict[str, dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        config = record.config
        if record.kind == KIND and config["protocol"] == VERSION and not config["mixer"]:
            same = json.dumps([config["task"], config["training"], config["precision"]], sort_keys=True)
            by_task[config["task"]["task"]][same].append(record)
    largest = {
        task: max((_by_architecture(found) for found in settings.values()), key=len)
        for task, settings in sorted(by_task.items())
    }
    # A task on which hardly anything was probed must not shut out all the others.
    enough = min(FEWEST, max((len(table) for table in largest.values()), default=0))
    tables = {task: table for task, table in largest.items() if len(table) >= enough}
    whole = [arch for arch in next(iter(tables.values()), {}) if all(arch in table for table in tables.values())]
    probed = [Probed(arch, *_accuracies([table[arch] for table in tables.values()])) for arch in whole]
    return tuple(tables), probed, {r.key for table in tables.values() for arch in whole for r in table[arch]}


def _by_architecture(records: Sequence[Record]) -> dict[Architecture, list[Record]]:
    """By the architecture without what is the task's: its vocabulary and the kind of model."""
    found: dict[Architecture, list[Record]] = defaultdict(list)
    for record in records:
        arch = architecture(record.config["spec"])
        found[Architecture(arch.header.replace({"vocab": 16, "kind": "lm"}), arch.layers)].append(record)
    return found


def _accuracies(by_task: Sequence[Sequence[Record]]) -> tuple[Floats, dict[int, float], int]:
    """On every task the mean accuracy over seeds; by seed the mean over tasks; test sequences of a seed."""
    tasks = [
        {int(one["seed"]): float(one["accuracy"]) for record in records for one in record.result["seeds"]}
        for records in by_task
    ]
    shared = set.intersection(*(set(seeds) for seeds in tasks)) if tasks else set()
    by_seed = {seed: float(np.mean([seeds[seed] for seeds in tasks])) for seed in sorted(shared)}
    sequences = sum(int(records[0].config["training"]["evaluation"]) for records in by_task)
    return np.array([float(np.mean(list(seeds.values()))) for seeds in tasks]), by_seed, sequences


class Ridge:
    """min ‖y − a − Zw‖² + penalty ‖w‖² for every task; Z are the features, each scaled to deviation 1. The penalty is
    the one under which architectures left out are foretold best."""

    def __init__(self, features_NF: Floats, accuracy_NT: Floats) -> None:
        self.centre_F, scale_F = features_NF.mean(axis=0), features_NF.std(axis=0)
        self.scale_F = np.where(scale_F > 0, scale_F, 1.0)
        z_NF = self._scaled(features_NF)
        self._architectures = len(z_NF)
        self.error, self.penalty = min((self._left_out(z_NF, accuracy_NT, penalty), penalty) for penalty in PENALTIES)
        self._inverse_FF = _inverse(z_NF, self.penalty)
        self._weights_FT = self._inverse_FF @ z_NF.T @ accuracy_NT
        self._seen = float(self._leverage(z_NF).mean())

    def predict(self, features_NF: Floats) -> tuple[Floats, Floats]:
        """The mean over tasks, and by how much its 95 % interval reaches to either side: further for mixes that are
        unlike what was probed."""
        z_NF = self._scaled(features_NF)
        wider_N = np.sqrt((1 + self._leverage(z_NF)) / (1 + self._seen))
        return (z_NF @ self._weights_FT).mean(axis=1), self.reach * wider_N

    @property
    def reach(self) -> float:
        """Of a 95 % interval to either side, for a mix like those that were probed."""
        return t_quantile(self._architectures - 1) * self.error

    def _scaled(self, features_NF: Floats) -> Floats:
        """With a column of ones in front, for a."""
        z_NF = (features_NF - self.centre_F) / self.scale_F
        return np.column_stack([np.ones(len(z_NF)), z_NF])

    def _leverage(self, z_NF: Floats) -> Floats:
        return np.asarray(np.einsum("nf,fg,ng->n", z_NF, self._inverse_FF, z_NF))

    @staticmethod
    def _left_out(z_NF: Floats, accuracy_NT: Floats, penalty: float) -> float:
        """Root mean square error on architectures left out; no refitting is needed: e_i / (1 − h_ii)."""
        hat_NN = z_NF @ _inverse(z_NF, penalty) @ z_NF.T
        mean_N = accuracy_NT.mean(axis=1)
        return float(np.sqrt(np.mean(((mean_N - hat_NN @ mean_N) / (1 - np.diag(hat_NN))) ** 2)))


def _inverse(z_NF: Floats, penalty: float) -> Floats:
    """(ZᵀZ + penalty)⁻¹, the constant not penalised."""
    penalties_F = np.full(z_NF.shape[1], penalty)
    penalties_F[0] = 0.0
    return np.linalg.inv(z_NF.T @ z_NF + np.diag(penalties_F))
