"""Loggers of a training besides its own `log.jsonl`: TensorBoard, Weights & Biases, MLflow.

    --log tensorboard,wandb,mlflow

Logged by step: `loss/train` (mean nats per token since the previous row), `loss/validation`, `lr`, `gradient_norm` and
`tokens_per_second`; for trainings of `compare` and races, `loss/train` and, at every budget, `loss/validation`. The
full config is logged once at the start, the numbers of the result at the end. Nothing is sent over the network by
default: Weights & Biases runs offline (`wandb sync` uploads; $WANDB_MODE is respected), MLflow writes to a folder
(override: $MLFLOW_TRACKING_URI).

A step is logged once: a training killed between two checkpoints repeats the steps since the last one, with the same
losses, and those already logged are skipped.

If a logger fails (a full disk, an unreachable server), there is one warning and the training continues.
"""

from __future__ import annotations

import math
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from plait.core.errors import UserError
from plait.core.registry import Entry, Table, names

PROJECT = "plait"
FLUSH_SECONDS = 10  # after which TensorBoard writes to disk; checkpoints are less frequent


@dataclass(frozen=True)
class Logged:
    """A training as seen by sinks: `name` is unique, so that an interrupted one is continued; `folder` is its own,
    `root` that of all runs."""

    name: str
    folder: Path
    root: Path
    config: Mapping[str, Any]


class Sink(ABC):
    """One training in one logging program. `package` is the package it needs, and the name of plait's extra."""

    package: str

    @abstractmethod
    def __init__(self, training: Logged) -> None: ...

    @abstractmethod
    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    @abstractmethod
    def close(self, result: Mapping[str, float] | None) -> None:
        """`result` is None if the training was interrupted."""


class TensorBoard(Sink):
    """Event files in the run's folder, `tensorboard/`; `tensorboard --logdir runs` shows all of them."""

    package = "tensorboard"

    def __init__(self, training: Logged) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = str(training.folder / "tensorboard")
        self._logged = self._earlier_steps(folder)
        self._writer = SummaryWriter(folder, flush_secs=FLUSH_SECONDS)
        self._writer.add_text("config", "\n".join(f"    {key}: {value}" for key, value in flat(training.config)))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            if step not in self._logged.get(name, ()):
                self._writer.add_scalar(name, value, step)

    def close(self, result: Mapping[str, float] | None) -> None:
        for name, value in (result or {}).items():
            self._writer.add_scalar(f"result/{name}", value)
        self._writer.close()

    @staticmethod
    def _earlier_steps(folder: str) -> dict[str, set[int]]:
        """The steps already logged by an interrupted training, by metric."""
        if not os.path.isdir(folder):
            return {}
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(folder, size_guidance={"scalars": 0}).Reload()  # 0: all of them
        return {name: {event.step for event in events.Scalars(name)} for name in events.Tags()["scalars"]}


class WeightsAndBiases(Sink):
    """Offline runs of the project `plait` in the run's folder, `wandb/`; `wandb sync` sends them."""

    package = "wandb"

    def __init__(self, training: Logged) -> None:
        import wandb

        # Log only the training: nothing about the machine, its users, or the surrounding code.
        quiet = wandb.Settings(
            silent=True, console="off", disable_git=True, save_code=False, x_disable_stats=True, x_disable_meta=True
        )
        mode: Any = os.environ.get("WANDB_MODE", "offline")
        training.folder.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            mode=mode,
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            dir=str(training.folder),
            id=training.name,
            name=training.name,
            config=dict(flat(training.config)),
            resume="allow",
            reinit="create_new",
            settings=quiet,
        )
        # A step metric of our own: wandb's may never decrease, but the step of a training that branches off does.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def close(self, result: Mapping[str, float] | None) -> None:
        for name, value in (result or {}).items():
            self._run.summary[f"result/{name}"] = value
        self._run.finish(exit_code=0 if result is not None else 1)


class MLflow(Sink):
    """Runs of the experiment `plait` in `mlruns/` next to the runs, or on the server $MLFLOW_TRACKING_URI."""

    package = "mlflow"

    def __init__(self, training: Logged) -> None:
        from mlflow.tracking import MlflowClient

        place = os.environ.get("MLFLOW_TRACKING_URI")
        if place is None:
            place = (training.root.resolve() / "mlruns").as_uri()
            # A folder needs neither a server nor a database, which newer versions prefer.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._client = MlflowClient(tracking_uri=place)
            experiment = self._experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT))
            known = self._found(experiment, training.name)
            self._run = known or str(self._client.create_run(experiment, run_name=training.name).info.run_id)
            self._resumed = known is not None
            self._logged: dict[str, set[int]] = {}
            for key, value in () if known else flat(training.config):
                self._client.log_param(self._run, key, str(value)[:500])
            self._client.update_run(self._run, status="RUNNING")

    def _experiment(self, name: str) -> str:
        from mlflow.exceptions import MlflowException

        known = self._client.get_experiment_by_name(name)
        if known is None:
            try:
                return str(self._client.create_experiment(name))
            except MlflowException:  # another worker was first
                known = self._client.get_experiment_by_name(name)
        assert known is not None
        return str(known.experiment_id)

    def _found(self, experiment: str, name: str) -> str | None:
        """The run of a training that was interrupted."""
        runs = self._client.search_runs([experiment], f"attributes.run_name = '{name}'", max_results=1)
        return str(runs[0].info.run_id) if runs else None

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            if step not in self._earlier_steps(name):
                self._client.log_metric(self._run, name, value, step=step)

    def _earlier_steps(self, metric: str) -> set[int]:
        """The steps of a metric already logged by an interrupted training."""
        if metric not in self._logged:
            history = self._client.get_metric_history(self._run, metric) if self._resumed else ()
            self._logged[metric] = {point.step for point in history}
        return self._logged[metric]

    def close(self, result: Mapping[str, float] | None) -> None:
        for name, value in (result or {}).items():
            self._client.log_metric(self._run, f"result/{name}", value)
        self._client.set_terminated(self._run, "FINISHED" if result is not None else "KILLED")


SINKS: Table[type[Sink]] = Table(
    "sink",
    {
        "tensorboard": Entry("plait.training.sinks:TensorBoard", "TensorBoard event files in the run's folder"),
        "wandb": Entry("plait.training.sinks:WeightsAndBiases", "Weights & Biases, offline, in the run's folder"),
        "mlflow": Entry("plait.training.sinks:MLflow", "MLflow, in the folder mlruns or on a tracking server"),
    },
)


def sink_names(sinks: str | Sequence[str]) -> tuple[str, ...]:
    """`tensorboard,wandb` or a list, each known and installed."""
    asked = tuple(dict.fromkeys(names(sinks)))
    for name in asked:
        package = SINKS.load(name).package
        if find_spec(package) is None:
            raise UserError(f"--log {name} needs the package {package}: pip install 'plait[{name}]'.")
    return asked


@dataclass
class Sinks:
    """All sinks of one training. Non-finite values are left out, because not every sink can show them."""

    opened: list[tuple[str, Sink]]
    say: Callable[[str], object]
    _failed: set[str] = field(default_factory=set)

    def log(self, step: int, values: Mapping[str, float | None]) -> None:
        finite = numbers(values)
        for name, sink in self.opened:
            self._tried(name, lambda sink=sink: sink.log(step, finite))  # type: ignore[misc]

    def close(self, result: Mapping[str, Any] | None) -> None:
        for name, sink in self.opened:
            self._tried(name, lambda sink=sink: sink.close(None if result is None else numbers(result)))  # type: ignore[misc]
        self.opened = []

    def _tried(self, name: str, what: Callable[[], object]) -> None:
        try:
            what()
        except Exception as wrong:  # any exception: a failing log must not end a training
            if name not in self._failed:
                self._failed.add(name)
                self.say(f"{name} cannot be written ({type(wrong).__name__}: {wrong}); training continues.")


def open_sinks(names: Sequence[str], training: Logged, say: Callable[[str], object] = lambda words: None) -> Sinks:
    """Open sinks; `say` is called once for each that cannot be written."""
    sinks = Sinks([], say)
    for name in names:
        sinks._tried(name, lambda name=name: sinks.opened.append((name, SINKS.load(name)(training))))  # type: ignore[misc]
    return sinks


@contextmanager
def opened_sinks(
    names: Sequence[str], training: Logged, say: Callable[[str], object] = lambda words: None
) -> Iterator[Sinks]:
    """A context manager of sinks; at the end they are closed as interrupted, unless already closed with a result."""
    sinks = open_sinks(names, training, say)
    try:
        yield sinks
    finally:
        sinks.close(None)


def flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """A nested config as dotted names and plain values."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    kept = {key: value for key, value in values.items() if isinstance(value, (int, float)) and math.isfinite(value)}
    return {key: float(value) for key, value in kept.items() if not isinstance(values[key], bool)}
