"""Capability: a candidate's mean accuracy over the probe's tasks (MAD; Poli et al. 2024, arXiv:2403.17844), measured if
its pattern has been probed and predicted otherwise.

A pattern is the shortest sequence of mixers that a model repeats, such as `attn swiglu gla swiglu`, at any depth and
width: the paper builds its large models from probed patterns in the same way. Other patterns are predicted by ridge
regression, one per task, on a few interpretable features (`plait.space.compositions.features`). The interval comes from
leave-one-out cross-validation over architectures, so it covers patterns that the regression has not seen.

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
from plait.analysis.distributions import t_quantile
from plait.analysis.intervals import Share, estimate
from plait.core.errors import UserError
from plait.model.architecture import Architecture, architecture
from plait.model.cost import model_cost
from plait.probing.protocol import VERSION
from plait.probing.trial import KIND
from plait.records import Record, Store
from plait.space import compositions
from plait.space.compositions import ABSENT, Floats, Ints, Pattern

FEWEST = 8  # probed architectures needed to fit the regression
PENALTIES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
NUMBER_BYTES = 4  # per number in the columns of a space


@dataclass(frozen=True)
class Probed:
    """One probed architecture: accuracy per task, and the mean over tasks for each seed that all tasks have."""

    arch: Architecture
    accuracy_T: Floats
    by_seed: dict[int, float]
    sequences: int  # test sequences per seed

    @property
    def pattern(self) -> Pattern:
        return compositions.shortest([options.name for options in self.arch.layers])

    @property
    def state(self) -> float:
        """Fixed state per unit of width and layer, comparable across model sizes."""
        cost = model_cost(self.arch, seq=1)
        return cost.fixed_state / (self.arch.header.d * max(1, len(self.arch.layers)))


class Capability(Objective):
    """Computes `capability` and the ends of its 95 % interval, `capability_low` and `capability_high`."""

    name: str = "capability"
    maximise: bool = True
    unit: ClassVar[str] = "accuracy"

    def __init__(self, records: Sequence[Record] = ()) -> None:
        self.tasks, self.probed, used = comparable(records)
        if len(self.probed) < FEWEST:
            raise UserError(
                f"capability is learned from probe records of at least {FEWEST} architectures on the same tasks; "
                f"{len(self.probed)} found. `plait probe --suite mad21 --seeds 1 --time 1h` gives 21."
            )
        self.records = len(used)
        self._hash = hashlib.sha256("\n".join(sorted(used)).encode()).hexdigest()[:16]
        self.kinds = tuple(sorted({options.name for probed in self.probed for options in probed.arch.layers}))
        kinds_NL = compositions.padded(
            [[self.kinds.index(o.name) for o in probed.arch.layers] for probed in self.probed]
        )
        self._ridge = Ridge(
            compositions.features(self.kinds, kinds_NL, np.array([probed.state for probed in self.probed])),
            np.stack([probed.accuracy_T for probed in self.probed]),
        )

    @classmethod
    def from_store(cls, store: Store) -> Capability:
        return cls(store.find(KIND))

    def __str__(self) -> str:
        return (
            f"capability: mean accuracy on {', '.join(self.tasks)}; from {self.records} probe records of "
            f"{len(self.probed)} architectures; other patterns are predicted to ± {self._ridge.half_width:.3f}"
        )

    @property
    def error(self) -> float:
        """Leave-one-out root mean square error of the prediction."""
        return self._ridge.error

    def columns(self, batch: Batch) -> dict[str, NDArray[Any]]:
        kinds_NL, state_N = self._compositions(batch)
        mean_N, half_width_N = self._ridge.predict(compositions.features(self.kinds, kinds_NL, state_N))
        for pattern, (measured, half_width) in self._measured().items():
            same_N = compositions.repeats(kinds_NL, [self.kinds.index(name) for name in pattern])
            mean_N[same_N] = measured
            if half_width is not None:
                half_width_N[same_N] = half_width
        ends = {"low": np.clip(mean_N - half_width_N, 0, 1), "high": np.clip(mean_N + half_width_N, 0, 1)}
        return {self.name: np.clip(mean_N, 0, 1), **{f"{self.name}_{end}": value for end, value in ends.items()}}

    def as_dict(self) -> dict[str, object]:
        return {**super().as_dict(), "tasks": list(self.tasks), "records": self.records, "hash": self._hash}

    def _measured(self) -> dict[Pattern, tuple[float, float | None]]:
        """Mean and half-width of the interval of every probed pattern. A single seed gives no spread: None, and the
        half-width of the prediction is used, whose errors include the variation between seeds."""
        patterns: dict[Pattern, list[Probed]] = defaultdict(list)
        for probed in self.probed:
            patterns[probed.pattern].append(probed)
        measured: dict[Pattern, tuple[float, float | None]] = {}
        for pattern, same in patterns.items():
            mean = float(np.mean([probed.accuracy_T.mean() for probed in same]))
            seeds = sorted(set.intersection(*(set(probed.by_seed) for probed in same)))
            values = [float(np.mean([probed.by_seed[seed] for probed in same])) for seed in seeds]
            items = [Share(float(p.accuracy_T.mean()), p.sequences * len(seeds), 1 / len(same)) for p in same]
            interval = estimate(values, items, mean).interval if len(seeds) > 1 else None
            measured[pattern] = mean, None if interval is None else (interval[1] - interval[0]) / 2
        return measured

    def _compositions(self, batch: Batch) -> tuple[Ints, Floats]:
        """The kind of each mixer of each candidate, empty layers last, and the state as in `Probed`."""
        space, parts = batch.space, batch.space.parts(batch.genes_NG)
        codes = [compositions.codes_of(space, s, self.kinds) for s in range(len(space.slots))]
        # The last code is ABSENT, which index -1 selects.
        kinds_NBS = np.stack([code[parts.options_NBS[:, :, s]] for s, code in enumerate(codes)], axis=2)
        kinds_NL = kinds_NBS.reshape(len(batch), kinds_NBS.shape[1] * kinds_NBS.shape[2])
        kinds_NL = np.take_along_axis(kinds_NL, np.argsort(kinds_NL == ABSENT, axis=1, kind="stable"), axis=1)
        size_N = np.asarray(space.widths)[parts.width_N] * np.maximum(1, (kinds_NL != ABSENT).sum(axis=1))
        return kinds_NL, batch.columns["fixed_state"] / NUMBER_BYTES / size_N


# ---- comparable probe records


def comparable(records: Sequence[Record]) -> tuple[tuple[str, ...], list[Probed], set[str]]:
    """Tasks, the architectures that were probed on all of them, and the keys of the records used.

    Accuracies are comparable within one task setting, training and precision. For each task the setting with the most
    architectures is used; with `--seeds` a probe follows the protocol's number of steps, so that probes of different
    days can be combined. Users' own mixers are skipped: their files may be missing.
    """
    by_task: dict[str, dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        config = record.config
        if record.kind == KIND and config["protocol"] == VERSION and not config["mixer"]:
            same = json.dumps([config["task"], config["training"], config["precision"]], sort_keys=True)
            by_task[config["task"]["task"]][same].append(record)
    largest = {
        task: max((_by_architecture(same) for same in settings.values()), key=len)
        for task, settings in sorted(by_task.items())
    }
    # A task with few probed architectures is dropped, so that it does not exclude the others.
    enough = min(FEWEST, max((len(table) for table in largest.values()), default=0))
    tables = {task: table for task, table in largest.items() if len(table) >= enough}
    complete = [arch for arch in next(iter(tables.values()), {}) if all(arch in table for table in tables.values())]
    probed = [Probed(arch, *_accuracies([table[arch] for table in tables.values()])) for arch in complete]
    return tuple(tables), probed, {r.key for table in tables.values() for arch in complete for r in table[arch]}


def _by_architecture(records: Sequence[Record]) -> dict[Architecture, list[Record]]:
    """Records by architecture, ignoring the vocabulary and the kind of model, which depend on the task."""
    grouped: dict[Architecture, list[Record]] = defaultdict(list)
    for record in records:
        arch = architecture(record.config["spec"])
        grouped[Architecture(arch.header.replace({"vocab": 16, "kind": "lm"}), arch.layers)].append(record)
    return grouped


def _accuracies(by_task: Sequence[Sequence[Record]]) -> tuple[Floats, dict[int, float], int]:
    """Mean accuracy over seeds for each task, mean over tasks for each seed, and test sequences per seed."""
    tasks = [
        {int(seed["seed"]): float(seed["accuracy"]) for record in records for seed in record.result["seeds"]}
        for records in by_task
    ]
    shared = set.intersection(*(set(seeds) for seeds in tasks)) if tasks else set()
    by_seed = {seed: float(np.mean([seeds[seed] for seeds in tasks])) for seed in sorted(shared)}
    sequences = sum(int(records[0].config["training"]["evaluation"]) for records in by_task)
    return np.array([float(np.mean(list(seeds.values()))) for seeds in tasks]), by_seed, sequences


class Ridge:
    """Ridge regression: min ‖y − a − Zw‖² + penalty ‖w‖² for every task, with standardised features Z. The penalty
    minimises the leave-one-out error."""

    def __init__(self, features_NF: Floats, accuracy_NT: Floats) -> None:
        self.centre_F, scale_F = features_NF.mean(axis=0), features_NF.std(axis=0)
        self.scale_F = np.where(scale_F > 0, scale_F, 1.0)
        z_NF = self._scaled(features_NF)
        self._architectures = len(z_NF)
        self.error, self.penalty = min((self._left_out(z_NF, accuracy_NT, penalty), penalty) for penalty in PENALTIES)
        self._inverse_FF = _inverse(z_NF, self.penalty)
        self._weights_FT = self._inverse_FF @ z_NF.T @ accuracy_NT
        self._mean_leverage = float(self._leverage(z_NF).mean())

    def predict(self, features_NF: Floats) -> tuple[Floats, Floats]:
        """The mean over tasks and the half-width of its 95 % interval, wider for compositions unlike those probed."""
        z_NF = self._scaled(features_NF)
        wider_N = np.sqrt((1 + self._leverage(z_NF)) / (1 + self._mean_leverage))
        return (z_NF @ self._weights_FT).mean(axis=1), self.half_width * wider_N

    @property
    def half_width(self) -> float:
        """Half-width of the 95 % interval of a composition like those that were probed."""
        return t_quantile(self._architectures - 1) * self.error

    def _scaled(self, features_NF: Floats) -> Floats:
        """Standardised features after a column of ones for the intercept."""
        z_NF = (features_NF - self.centre_F) / self.scale_F
        return np.column_stack([np.ones(len(z_NF)), z_NF])

    def _leverage(self, z_NF: Floats) -> Floats:
        return np.asarray(np.einsum("nf,fg,ng->n", z_NF, self._inverse_FF, z_NF))

    @staticmethod
    def _left_out(z_NF: Floats, accuracy_NT: Floats, penalty: float) -> float:
        """Leave-one-out root mean square error; no refitting is needed: e_i / (1 − h_ii)."""
        hat_NN = z_NF @ _inverse(z_NF, penalty) @ z_NF.T
        mean_N = accuracy_NT.mean(axis=1)
        return float(np.sqrt(np.mean(((mean_N - hat_NN @ mean_N) / (1 - np.diag(hat_NN))) ** 2)))


def _inverse(z_NF: Floats, penalty: float) -> Floats:
    """(ZᵀZ + penalty)⁻¹, without a penalty on the intercept."""
    penalties_F = np.full(z_NF.shape[1], penalty)
    penalties_F[0] = 0.0
    return np.linalg.inv(z_NF.T @ z_NF + np.diag(penalties_F))
