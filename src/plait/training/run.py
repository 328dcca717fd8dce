"""A run: the folder of a training, with its config, log, checkpoints and final weights.

    run.json             the config, and the number of steps once that is known
    tokenizer/           as `plait.data` saves it
    mixers/              copies of the user's mixer files
    log.jsonl            a line for every logged step
    step-…/              checkpoints, while it runs
    weights.safetensors  at the end
    result.json          at the end
    diverged.json        why it ended, if its loss became infinite or NaN

`open_run` opens one; it needs nothing but the folder.
"""

from __future__ import annotations

import fcntl
import json
import math
import operator
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypedDict, cast

import torch
from torch import Tensor

from plait.core.errors import UserError
from plait.core.files import (
    atomic_write,
    parse_json,
    read_object,
    read_text,
    sealed,
    understood,
    unsealed,
    write_text,
    writing,
)
from plait.data import Corpus, Tokenizer, load_tokenizer, open_corpus
from plait.data.corpora import NoCorpus
from plait.data.tokenizer_table import TOKENIZERS
from plait.model import build
from plait.model.architecture import Architecture, architecture
from plait.model.language_model import Encoder, LanguageModel, fill, load_tensors, save_tensors
from plait.model.user_mixers import read_copies, write_copies
from plait.records.store import Busy
from plait.training.checkpoint import FINISHED, UNFINISHED, newest_checkpoint
from plait.training.recipe import Job
from plait.training.sinks import Logged, Sinks, open_sinks

RUNS = Path("runs")
MIXERS = "mixers"
ABOUT, DIVERGED = "run.json", "diverged.json"
WEIGHTS = "weights.safetensors"
NEXT_SENTENCE = "next_sentence."  # the weights of its head
_PREFIX = "train-"
_SHORT_KEY = 10

Curve = list[list[float]]  # of [step, loss]


class _Identity(TypedDict):
    key: str
    config: dict[str, Any]  # the job's


class About(_Identity, total=False):
    """run.json. An imported model has only a key and a config."""

    data: str | None  # as given by the user; so is the tokenizer
    tokenizer: str | None
    mixers: dict[str, dict[str, str]]  # the copies
    steps: int | None  # once known
    compiled: bool


class _Step(TypedDict):
    step: int


class LogRow(_Step, total=False):
    """A line of log.jsonl: of a logged step, or a point of the validation curve."""

    loss: float | None
    lr: float
    norm: float | None
    tokens_per_second: int
    validation: float | None


@dataclass(frozen=True)
class Run:
    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @cached_property
    def about(self) -> About:
        """run.json."""
        return _checked(_read_json(self.folder / ABOUT), self.folder / ABOUT)

    @property
    def config(self) -> dict[str, Any]:
        return self.about["config"]

    @cached_property
    def arch(self) -> Architecture:
        """The architecture, with users' mixers from the copies in the folder rather than the current files."""
        with understood(str(self.folder / "run.json")):
            copies = self.about.get("mixers")
            return architecture(self.config["spec"], read_copies(copies, self.folder / MIXERS) if copies else None)

    def keep_mixers(self, arch: Architecture) -> dict[str, dict[str, str]]:
        """Copy the user's mixers; returns the entry `mixers` of run.json."""
        return write_copies(arch, self.folder / MIXERS) if arch.mixer_sources else {}

    @property
    def seq_len(self) -> int | None:
        """Tokens of a training sequence (older runs say `length`); None for an imported model."""
        with understood(str(self.folder / "run.json")):
            recipe = self.config.get("recipe", {})
            tokens = recipe.get("seq_len", recipe.get("length"))
            return None if tokens is None else operator.index(tokens)

    @property
    def result(self) -> dict[str, Any] | None:
        path = self.folder / "result.json"
        return _read_json(path) if path.exists() else None

    def tokenizer(self) -> Tokenizer:
        return load_tokenizer(self.folder / "tokenizer")

    def _tokenizer_given(self) -> str | None:
        """The tokenizer as given by the user; if that was a file or folder, such as another run's, our copy of it."""
        tokenizer = self.about["tokenizer"]
        named = not tokenizer or tokenizer.partition(":")[0] in TOKENIZERS
        return tokenizer if named else str(self.folder / "tokenizer")

    def corpus(self) -> Corpus:
        """The data it was trained on."""
        data = self.config.get("data")
        if data is None:
            raise UserError(f"{self.name} was not trained here: give the data with --data.")
        # Older runs store the name in the config, and a fingerprint of the files instead of the tokens.
        with understood(str(self.folder / ABOUT)):
            name = self.about.get("data") or data["name"]
            try:
                corpus = open_corpus(name, self._tokenizer_given())
            except NoCorpus as wrong:
                moved = f"{name}, on which {self.name} was trained, is not there any more"
                raise UserError(f"{moved}; give the data with --data.") from wrong
            same = corpus.tokenizer.as_dict() == data["tokenizer"] if "name" in data else corpus.as_dict() == data
        if not same:
            raise UserError(f"{name} has changed since {self.name} was trained on it; give the data with --data.")
        return corpus

    def weights(self) -> dict[str, Tensor]:
        """The final weights, or those of the newest checkpoint of a run that has not ended."""
        final = self.folder / WEIGHTS
        if final.exists():
            return load_tensors(final)[0]
        newest = newest_checkpoint(self.folder)
        if newest is None:
            why = f"it diverged: {self.diverged}" if self.diverged else "it has not reached its first checkpoint."
            raise UserError(f"{self.name} has no weights yet: {why}")
        kept = (name for name in newest.names() if name.startswith("params/"))
        return {name.removeprefix("params/"): newest.rows(name) for name in kept}

    def model(self, device: torch.device | str = "cpu") -> LanguageModel | Encoder:
        """The trained model in evaluation mode, without the head of next-sentence prediction."""
        model = build(self.arch, device=device)
        assert isinstance(model, (LanguageModel, Encoder))
        weights = {name: value for name, value in self.weights().items() if not name.startswith(NEXT_SENTENCE)}
        fill(model, weights, self.name)
        return model.eval()

    def create(self, job: Job, tokenizer: str | None) -> None:
        """The folder of a job, with `run.json`, the tokenizer and copies of the user's mixers; an existing folder is
        not changed. `tokenizer` is as given by the user."""
        with writing(self.folder, "the run's folder "):
            self.folder.mkdir(parents=True, exist_ok=True)
        if (self.folder / ABOUT).exists():
            if self.about.get("key") != job.key:
                raise UserError(f"{self.folder} contains another training ({self.about.get('key')}); move it away.")
            return
        with writing(self.folder):
            job.corpus.tokenizer.save(self.folder / "tokenizer")
            mixers = self.keep_mixers(job.arch)
        about: About = {"key": job.key, "config": job.config(), "data": job.corpus.name, "tokenizer": tokenizer}
        if mixers:
            about["mixers"] = mixers
        self.write_about(about)

    def write_about(self, about: About) -> None:
        write_json(self.folder / ABOUT, about)
        self.__dict__.pop("about", None)

    def save_weights(self, weights: dict[str, Tensor]) -> None:
        with writing(self.folder / WEIGHTS), atomic_write(self.folder / WEIGHTS) as draft:
            save_tensors(draft, weights, {"spec": self.arch.text})

    @property
    def diverged(self) -> str:
        """Why a training whose loss became infinite or NaN ended; empty for all others."""
        path = self.folder / DIVERGED
        return str(_read_json(path).get("reason", "its loss was not finite.")) if path.exists() else ""

    def mark_diverged(self, reason: str) -> None:
        write_json(self.folder / DIVERGED, {"reason": reason})

    def begin(self) -> None:
        """Mark this run as used now. `latest` is the run that was marked last."""
        (self.folder / DIVERGED).unlink(missing_ok=True)
        os.utime(self.folder / ABOUT)

    @property
    def resumable(self) -> bool:
        """Whether there is a checkpoint."""
        return any(self.folder.glob(f"{FINISHED}*"))

    @property
    def usable(self) -> bool:
        """Whether there is a model to evaluate: a training that was refused or has just begun has none."""
        return not (self.folder / DIVERGED).exists() and ((self.folder / WEIGHTS).exists() or self.resumable)

    def remove_checkpoints(self) -> None:
        for prefix in (FINISHED, UNFINISHED):
            for checkpoint in self.folder.glob(f"{prefix}*"):
                shutil.rmtree(checkpoint, ignore_errors=True)

    def truncate_log(self, step: int) -> None:
        """Remove the rows after a checkpoint's step, because they will be logged again."""
        path = self.folder / "log.jsonl"
        rows = [row for row in _log_rows(path) if row["step"] <= step]
        write_text(path, "".join(json.dumps(row) + "\n" for row in rows))

    def log(self, row: LogRow) -> None:
        path = self.folder / "log.jsonl"
        with writing(path), open(path, "a", encoding="utf-8") as opened:
            opened.write(json.dumps(row) + "\n")

    def losses(self, of: Literal["loss", "validation"] = "loss") -> list[tuple[int, float]]:
        """(step, training loss in nats per token) as logged; with `of="validation"` the validation loss."""
        points = ((row["step"], row.get(of)) for row in _log_rows(self.folder / "log.jsonl"))
        return [(step, loss) for step, loss in points if loss is not None]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """A lock held by one process at a time (`Busy` for others). The system frees it when that process dies."""
        with writing(self.folder / ".lock"):
            opened = open(self.folder / ".lock", "w", encoding="utf-8")  # noqa: SIM115 (closed below)
        with opened:
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise Busy(f"{self.name} is being trained by another process now.") from None
            yield


class LogState(TypedDict):
    """The log in a checkpoint."""

    curve: Curve
    validation: Curve
    pending: list[float]


@dataclass
class TrainingLog:
    """The learning curves, the rows of `log.jsonl`, and the requested sinks. Checkpoints and the record contain the
    curves, so they do not depend on the file or the sinks.

    `open` it in the first process only: the others keep the curves and write nothing."""

    run: Run
    warn: Callable[[str], object]  # called with what could not be written
    curve: Curve = field(default_factory=list)  # mean training loss since the last point
    validation: Curve = field(default_factory=list)
    pending: list[float] = field(default_factory=list)  # losses since the last logged step
    sinks: Sinks | None = None
    opened: bool = False

    def open(self, names: tuple[str, ...], config: Mapping[str, Any]) -> None:
        self.opened = True
        if names:
            folder = self.run.folder
            self.sinks = open_sinks(names, Logged(self.run.name, folder, folder.parent, config), self.warn)

    @property
    def newest_loss(self) -> float:
        newest = [*(loss for _, loss in self.curve[-1:]), *self.pending[-1:]]
        return newest[-1] if newest else math.nan

    def add_loss(self, loss: float) -> None:
        if math.isfinite(loss):
            self.pending.append(loss)

    def write_step(self, step: int, lr: float, gradient_norm: float, tokens_per_second: float) -> None:
        """Write a row, with the mean of the losses since the previous one."""
        mean = sum(self.pending) / len(self.pending) if self.pending else None
        self.pending = []
        if mean is not None:
            self.curve.append([step, mean])
        norm = gradient_norm if math.isfinite(gradient_norm) else None
        speed = round(tokens_per_second)
        self._write({"step": step, "loss": mean, "lr": lr, "norm": norm, "tokens_per_second": speed})
        if self.sinks is not None:
            rates = {"lr": lr, "gradient_norm": norm, "tokens_per_second": speed}
            self.sinks.log(step, {"loss/train": mean, **rates})

    def write_validation(self, step: int, loss: float) -> None:
        """Write a point of the validation curve; a non-finite loss becomes null, since JSON cannot represent it."""
        finite = math.isfinite(loss)
        if finite:
            self.validation.append([step, loss])
        self._write({"step": step, "validation": loss if finite else None})
        if self.sinks is not None:
            self.sinks.log(step, {"loss/validation": loss})

    def _write(self, row: LogRow) -> None:
        if not self.opened:
            return
        try:
            self.run.log(row)
        except UserError as wrong:  # such as a full disk
            self.warn(str(wrong))

    def close(self, result: Mapping[str, Any] | None = None) -> None:
        """Close the sinks, with the result, or without one if the training was interrupted."""
        if self.sinks is not None:
            self.sinks.close(result)

    def state(self) -> LogState:
        return {"curve": self.curve, "validation": self.validation, "pending": self.pending}

    def restore(self, state: LogState) -> None:
        self.curve, self.validation, self.pending = state["curve"], state["validation"], state["pending"]


def folder_of(key: str, root: Path = RUNS) -> Path:
    return root / f"{_PREFIX}{key[:_SHORT_KEY]}"


def open_run(run: str | Path | Run, root: Path = RUNS) -> Run:
    """A run by its folder, its name, the beginning of its key, or "latest": the one most recently trained or requested
    that has weights and has not diverged. A `Run` is returned unchanged."""
    if isinstance(run, Run):
        return run
    run, as_path = str(run), Path(run)
    if os.path.exists(as_path / "run.json"):
        return Run(as_path)
    runs = sorted(root.glob(f"{_PREFIX}*/run.json"), key=lambda path: path.stat().st_mtime)
    names = [path.parent.name for path in runs]
    if run == "latest" and runs:
        newest = [Run(path.parent) for path in reversed(runs)]
        return next((candidate for candidate in newest if candidate.usable), newest[0])
    wanted = run.removeprefix(_PREFIX)[:_SHORT_KEY]
    matching = [name for name in names if wanted and name.removeprefix(_PREFIX).startswith(wanted)]
    if len(matching) == 1:
        return Run(root / matching[0])
    known = f" Known here: {', '.join(names[-5:])}." if names else f" There are none in {root}; see `plait train`."
    many = f" It could be {', '.join(matching)}." if matching else known
    raise UserError(f"'{run}' is not a run: give its folder, its name, the beginning of its key, or latest.{many}")


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(sealed(document), indent=1) + "\n")


def _read_json(path: Path) -> dict[str, Any]:
    return unsealed(read_object(path, constants=True), str(path))


def _checked(about: Mapping[str, Any], path: Path) -> About:
    """run.json, if every required field is present with the right type; otherwise a `UserError`."""
    kinds = {
        "key": str,
        "config": dict,
        "data": str | None,
        "tokenizer": str | None,
        "steps": int | None,
        "mixers": dict,
    }
    for name, kind in kinds.items():
        if (name in about or name in ("key", "config")) and not isinstance(about.get(name), kind):
            raise UserError(f"{path} is damaged: its {name} is {str(about.get(name))[:40]!r}.")
    for name, entry in about.get("mixers", {}).items():
        if not isinstance(entry, dict) or not all(isinstance(text, str) for text in entry.values()):
            raise UserError(f"{path} is damaged: its mixer {name} has no file.")
        if Path(entry.get("file", "")).name != entry.get("file", ""):
            raise UserError(f"{path} is damaged: the copy of its mixer {name} is not in its folder.")
    config = about["config"]
    if not isinstance(config.get("spec"), str):
        raise UserError(f"{path} is damaged: its config has no spec.")
    if not all(isinstance(config.get(part, {}), dict | None) for part in ("data", "recipe")):
        raise UserError(f"{path} is damaged: its config says neither data nor recipe.")
    return cast("About", about)


def _log_rows(path: Path) -> Iterator[LogRow]:
    if not path.exists():
        return
    for line in read_text(path).splitlines():
        try:
            row = parse_json(line, str(path), constants=True)
        except UserError:  # the incomplete last line of a process that was killed
            return
        numbers = [row.get(name, 0) for name in ("step", "loss", "validation")] if isinstance(row, dict) else ["none"]
        if "step" not in row or not all(value is None or isinstance(value, int | float) for value in numbers):
            raise UserError(f"{path} is damaged: {line[:60]!r} is not a logged step.")
        yield row
