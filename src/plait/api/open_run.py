"""Reopening a trained model from its run folder: `plait.open_run`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.core.result import Result
from plait.model.architecture import Architecture

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plait.api.evaluate import EvaluateResult
    from plait.api.generate import GenerateResult
    from plait.data import Tokenizer
    from plait.model.language_model import Encoder, LanguageModel
    from plait.training.run import Run


@dataclass(frozen=True)
class OpenRun(Result):
    folder: str
    key: str
    spec: str
    steps: int | None  # planned number; None if not known yet
    finished: bool

    @cached_property
    def _run(self) -> Run:
        from plait.training.run import Run

        return Run(Path(self.folder))

    @property
    def name(self) -> str:
        return self._run.name

    @property
    def architecture(self) -> Architecture:
        """The architecture, with users' mixers as they were when it was trained, even if their files have changed."""
        return self._run.arch

    @property
    def config(self) -> dict[str, Any]:
        """Everything that determines the result: data, recipe, seed …"""
        return self._run.config

    @property
    def result(self) -> dict[str, Any] | None:
        """The result of the training; None until it has finished."""
        return self._run.result

    @property
    def curve(self) -> tuple[tuple[int, float], ...]:
        """(step, training loss in nats per token), as logged."""
        return tuple(self._run.losses())

    @property
    def validation_curve(self) -> tuple[tuple[int, float], ...]:
        return tuple(self._run.losses("validation"))

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return self._run.tokenizer()

    def model(self, device: str = "cpu") -> LanguageModel | Encoder:
        """The trained torch module, ready for evaluation; for an unfinished run from its newest checkpoint."""
        return self._run.model(device)

    def evaluate(self, **options: Any) -> EvaluateResult:
        """`plait.evaluate` of this run, with its options."""
        from plait.api.evaluate import evaluate

        return evaluate(self, **options)

    def generate(self, prompts: str | Sequence[str] = "", **options: Any) -> GenerateResult:
        """`plait.generate` from this run, with its options."""
        from plait.api.generate import generate

        return generate(self, prompts, **options)


def open_run(run: str | Path = "latest", *, runs: str | Path = "runs") -> OpenRun:
    """A run by its folder, its name, the beginning of its key, or "latest" of those in `runs`."""
    from plait.training.run import open_run as find

    opened = find(str(run), Path(runs))
    return OpenRun(
        folder=str(opened.folder),
        key=str(opened.about["key"]),
        spec=opened.config["spec"],
        steps=opened.about.get("steps"),
        finished=opened.result is not None,
    )


def run_of(run: str | Path | OpenRun | Run, root: str | Path = "runs") -> Run:
    """The run that an argument refers to: a folder, a name, a prefix of a key, "latest", or an opened run. `root`: the
    folder of runs."""
    from plait.training.run import open_run as find

    return find(run.folder if isinstance(run, OpenRun) else run, Path(root))
