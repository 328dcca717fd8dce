"""Sinks: what they are told, what is said where they cannot be had, and each program's own files read back."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from plait.core.errors import UserError
from plait.records import open_store
from plait.training import sinks
from plait.training.distributed import Processes
from plait.training.fit import Interrupted, Options, fit
from plait.training.sinks import SINKS, Logged, Sink, sink_names

sys.path.insert(0, str(Path(__file__).parent))
from small_job import small_job

ALONE = Processes(0, 1, torch.device("cpu"))


class Heard(Sink):
    package = "json"
    all: list[Heard]

    def __init__(self, training: Logged) -> None:
        self.training, self.rows, self.closed = training, [], []
        Heard.all.append(self)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.rows.append((step, dict(values)))

    def close(self, result: Mapping[str, float] | None) -> None:
        self.closed.append(result)


class Broken(Heard):
    def log(self, step: int, values: Mapping[str, float]) -> None:
        raise OSError("no space left on device")


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    Heard.all = []
    SINKS.register("heard", Heard)
    SINKS.register("broken", Broken)
    yield
    SINKS._registered.clear()


def train(tmp_path: Path, *log: str, report: Any = None, steps: int = 4) -> dict[str, Any]:
    """With a checkpoint after every second step."""
    options = Options(tmp_path / "runs", log=log, save_steps=2)
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        return fit(small_job(steps=steps), ALONE, store, options, report=report)


def killed_at(step: int) -> Any:
    """A `report` that ends the training after a step, without saving."""

    def stop(now: Any) -> None:
        if now.step == step:
            raise Interrupted(now.run, now.step)

    return stop


def test_a_sink_hears_losses_rates_and_the_result(tmp_path: Path) -> None:
    found = train(tmp_path, "heard")
    (one,) = Heard.all
    assert one.training.name == found.run
    assert one.training.config["recipe"]["batch"] == small_job().recipe.batch
    losses = {step: values["loss/train"] for step, values in one.rows if "loss/train" in values}
    assert sorted(losses) == [1, 2, 3, 4]
    assert losses[4] == found.train_loss
    assert {"lr", "gradient_norm", "tokens_per_second"} <= one.rows[0][1].keys()
    assert any("loss/validation" in values for _, values in one.rows)
    assert [closed["loss"] for closed in one.closed] == [found.loss]


def test_an_interrupted_training_ends_its_sink_without_a_result_and_goes_on_in_the_same_one(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        train(tmp_path, "heard", report=killed_at(1))
    found = train(tmp_path, "heard")
    first, second = Heard.all
    assert first.closed == [None]
    assert [closed["loss"] for closed in second.closed] == [found.loss]
    assert first.training.name == second.training.name


def test_a_sink_that_cannot_be_written_is_told_of_once_and_the_training_goes_on(tmp_path: Path) -> None:
    said: list[str] = []
    found = train(tmp_path, "broken", "heard", report=lambda now: said.append(now.note))
    assert found.trained_now
    assert sum("no space left on device" in note for note in said) <= 1
    assert any("broken cannot be written" in note for note in said)
    assert Heard.all[1].rows


def test_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sink_names("heard, broken,heard") == ("heard", "broken")
    assert sink_names(["heard"]) == ("heard",)
    assert sink_names("") == ()
    with pytest.raises(UserError, match=r"unknown sink 'tensorbord'\. Did you mean 'tensorboard'"):
        sink_names("tensorbord")
    monkeypatch.setattr(sinks, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs the package wandb: pip install 'plait\[wandb\]'"):
        sink_names("wandb")


def test_what_is_not_a_finite_number_is_not_logged() -> None:
    values = {"a": 1, "b": float("nan"), "c": None, "d": "text", "e": True, "f": float("inf")}
    assert sinks.numbers(values) == {"a": 1.0}


def test_tensorboard_reads_what_was_logged(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = train(tmp_path, "tensorboard")
    events = EventAccumulator(str(Path(found.folder) / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("loss/train")] == [1, 2, 3, 4]
    assert events.Scalars("result/loss")[0].value == pytest.approx(found.loss, rel=1e-6)


def test_tensorboard_shows_a_step_once_that_was_trained_again_after_a_kill(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with pytest.raises(Interrupted):
        train(tmp_path, "tensorboard", report=killed_at(3))
    found = train(tmp_path, "tensorboard")
    events = EventAccumulator(str(Path(found.folder) / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("loss/train")] == [1, 2, 3, 4]
    validated = [event.step for event in events.Scalars("loss/validation")]
    assert len(validated) == len(set(validated))


@pytest.mark.slow
def test_weights_and_biases_keeps_it_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    found = train(tmp_path, "wandb")
    (kept,) = Path(found.folder).glob(f"wandb/offline-run-*-{found.run}/run-{found.run}.wandb")
    written = kept.read_bytes()
    for name in (b"loss/train", b"loss/validation", b"result/loss"):
        assert name in written


@pytest.mark.slow
def test_mlflow_finds_the_run_again_and_goes_on_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")

    with pytest.raises(Interrupted):
        train(tmp_path, "mlflow", report=killed_at(3))
    found = train(tmp_path, "mlflow")
    client = MlflowClient(tracking_uri=(tmp_path / "runs" / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("plait")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.metrics["result/loss"] == pytest.approx(found.loss)
    history = client.get_metric_history(run.info.run_id, "loss/train")
    assert sorted(point.step for point in history) == [1, 2, 3, 4], "step 3, trained twice, is logged once"
