"""A leg: some replicas of one architecture trained on to a budget and scored there, as if the training ended.

Every (architecture, text, recipe, rate, seed, budget) is a record, so nothing is trained twice, whoever asks: a
comparison, a race, a longer one later. Between budgets the trunk of a training is kept in one file per replica, written
whole or not at all, and a leg goes on from it; what it gives does not depend on where it was interrupted.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from plait.core.progress import Stopped
from plait.model.architecture import Architecture
from plait.records import Record, provenance_of, record_key
from plait.training import checkpoint
from plait.training.recipe import Recipe, decay_steps
from plait.training.sinks import Logged, Sinks, opened_sinks
from plait.training.track import SLICE, SLICE_SECONDS, Replica, Text, Track

KIND = "track"
PROTOCOL = 1  # raised when the same settings come to give another loss
FOLDER = "tracks"  # below the folder of runs
SAVE_SECONDS = 30.0
WARM_SHARE = 0.05  # of a training, from which on its warm-up is said


@dataclass(frozen=True)
class Course:
    """What all candidates have in common: the text, how long a sequence, batch and held-out text are, the optimizer.

    `data` and `tokenizer` open the text in another process; `fingerprint` is what it must then be.
    """

    data: str
    tokenizer: str | None
    fingerprint: str
    recipe: Recipe  # of `track_recipe`; its rate is each candidate's own
    held_out: int  # tokens
    device: str = "cpu"

    @property
    def tokens_per_step(self) -> int:
        return self.recipe.batch * self.recipe.seq_len

    def few_steps(self, tokens: float) -> str:
        """What to know of a budget of which the warm-up is a large part; empty for others."""
        steps, warm = self.steps(tokens), round(self.recipe.warmup)
        if warm < WARM_SHARE * steps:
            return ""
        return (
            f"the longest training has {steps} steps, {warm} of them warm-up: after so few the rate and the seed weigh "
            "as much as the architecture, and who learns late is not seen; more tokens or a smaller --batch would show"
        )

    def steps(self, tokens: float) -> int:
        """Of a budget, at least 4: warm-up, stable and decay need one each."""
        return max(4, round(tokens / self.tokens_per_step))

    def config(self, arch: Architecture, replica: Replica, steps: int | None) -> dict[str, Any]:
        """All that decides a loss; without `steps`, what decides a trunk."""
        config = {
            "protocol": PROTOCOL,
            **arch.identity(),
            "data": self.fingerprint,
            "recipe": replace(self.recipe, lr=replica.lr).as_dict(),
            "seed": replica.seed,
            "held_out": self.held_out,
            "device": self.device.split(":")[0],
        }
        return config if steps is None else {**config, "steps": steps}

    def key(self, arch: Architecture, replica: Replica, steps: int) -> str:
        return record_key(KIND, self.config(arch, replica, steps))

    def trunk(self, arch: Architecture, replica: Replica, runs: Path) -> Path:
        """Where the weights of a training under way are."""
        return runs / FOLDER / f"{record_key(KIND, self.config(arch, replica, None))}.safetensors"


@dataclass(frozen=True)
class Leg:
    course: Course
    arch: Architecture
    replicas: tuple[Replica, ...]
    budgets: tuple[int, ...]  # steps, rising
    runs: Path

    @cached_property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        """Of the records, by budget and replica."""
        each = (
            tuple(self.course.key(self.arch, replica, steps) for replica in self.replicas) for steps in self.budgets
        )
        return tuple(each)

    @property
    def tokens(self) -> int:
        """Of the longest budget."""
        return self.budgets[-1] * self.course.tokens_per_step

    def run(
        self,
        text: Text,
        keep: Callable[[Record], object],
        on_step: Callable[[int], None] = lambda step: None,
        stopping: Callable[[], bool] = lambda: False,
        log: Sequence[str] = (),
    ) -> None:
        """Train on and score at every budget; `keep` gets the records as they come, `on_step` is told where the
        training is, the sinks called `log` its losses. `Stopped` is raised between steps."""
        with ExitStack() as opened:
            sinks = [opened.enter_context(opened_sinks(log, self._logged(replica), _tell)) for replica in self.replicas]
            self._run(text, keep, on_step, stopping, sinks)

    def _run(
        self,
        text: Text,
        keep: Callable[[Record], object],
        on_step: Callable[[int], None],
        stopping: Callable[[], bool],
        sinks: Sequence[Sinks],
    ) -> None:
        began, clock = time.time(), time.perf_counter()
        track = Track(self.arch, self.replicas, [text], self.course.recipe, device=self.course.device)
        first = self.budgets[0] - decay_steps(self.course.recipe, self.budgets[0])
        longest = self._resume(track, first)

        def decaying(step: int) -> None:
            on_step(step)
            if stopping():
                raise Stopped

        for steps in self.budgets:
            from_step = track.step
            decay = decay_steps(self.course.recipe, steps)
            self._advance(track, steps - decay, longest, on_step, stopping, sinks)
            losses_MN = track.annealed(steps, decay, decaying)
            took = (time.perf_counter() - clock) / len(self.replicas)
            trained = (steps - from_step) * self.course.tokens_per_step
            cost = {"tokens": steps * self.course.tokens_per_step, "tokens_trained": trained, "seconds": round(took, 4)}
            for replica, losses_N, logged in zip(self.replicas, losses_MN, sinks, strict=True):
                logged.log(steps, {"loss/validation": float(losses_N.mean())})
                config = self.course.config(self.arch, replica, steps)
                keep(Record.of(KIND, config, {**_result(losses_N), **cost}, provenance_of(began, took)))
            began, clock = time.time(), time.perf_counter()
        for losses_N, logged in zip(losses_MN, sinks, strict=True):
            logged.close({"loss": float(losses_N.mean()), "steps": self.budgets[-1]})

    def _logged(self, replica: Replica) -> Logged:
        trunk = self.course.trunk(self.arch, replica, self.runs)
        config = {**self.course.config(self.arch, replica, None), "text": self.course.data}
        return Logged(f"track-{trunk.stem[:10]}", self.runs / f"track-{trunk.stem[:10]}", self.runs, config)

    def _advance(
        self,
        track: Track,
        step: int,
        longest: int,
        on_step: Callable[[int], None],
        stopping: Callable[[], bool],
        sinks: Sequence[Sinks],
    ) -> None:
        """To where a decay begins, saving now and then and there."""
        saved, next_log = time.perf_counter(), track.step + SLICE
        while track.step < step:
            losses_M = track.advance_to(min(step, next_log), SLICE_SECONDS)
            if track.step in (step, next_log):
                next_log = track.step + SLICE
                for loss, logged in zip(losses_M, sinks, strict=True):
                    logged.log(track.step, {"loss/train": float(loss)})
            on_step(track.step)
            if (stop := stopping()) or time.perf_counter() - saved > SAVE_SECONDS:
                self._save(track, longest)
                saved = time.perf_counter()
                if stop:
                    raise Stopped
        self._save(track, longest)

    def _resume(self, track: Track, before: int) -> int:
        """From what is kept, where all replicas are at one step and none beyond where the decay begins. Returns the
        step of the longest training that is kept."""
        states = [checkpoint.load_state(self.course.trunk(self.arch, replica, self.runs)) for replica in self.replicas]
        steps = [-1 if state is None else int(state["step"]) for state in states]
        if len(set(steps)) == 1 and 0 <= steps[0] <= before:
            track.restore([state for state in states if state is not None])
        return max(steps)

    def _save(self, track: Track, longest: int) -> None:
        """Unless a longer training is kept there already."""
        if track.step > longest:
            for m, replica in enumerate(self.replicas):
                checkpoint.save_state(self.course.trunk(self.arch, replica, self.runs), track.state(m))


def _result(losses_N: np.ndarray) -> dict[str, Any]:
    """JSON has no infinities: a diverged training has no loss."""
    if not np.isfinite(losses_N).all():
        return {"loss": None, "windows": []}
    return {"loss": float(losses_N.mean()), "windows": [round(float(loss), 6) for loss in losses_N]}


def loss_of(record: Record) -> float:
    """Nats per token; infinite where it diverged."""
    loss = record.result["loss"]
    return float("inf") if loss is None else float(loss)


def windows_of(record: Record, count: int) -> Sequence[float]:
    """By held-out window."""
    return record.result["windows"] or [float("inf")] * count


def _tell(words: str) -> None:
    print(words, file=sys.stderr)
