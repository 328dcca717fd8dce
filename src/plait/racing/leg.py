"""A leg: the unit of work of races and comparisons. It trains replicas of one architecture to one or more budgets and
scores each budget as if the training ended there.

Every (architecture, text, recipe, rate, seed, budget) is one record in the store, so nothing is trained twice, whether
a comparison, a race or a longer race asks for it. The trunk of a training (its weights before any decay) is kept in one
file per replica, written atomically, and the next leg resumes from it. Interruptions do not change the result.
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
PROTOCOL = 1  # raised when the same settings give a different loss
SCREENING = 3  # the same for screenings
FOLDER = "tracks"  # below the folder of runs
SAVE_SECONDS = 30.0
WARMUPS = 3  # trainings shorter than this many warm-ups do not predict which architecture will be best
WARM_SHARE = 0.05  # users are warned when the warm-up is more than this share of a training


@dataclass(frozen=True)
class Course:
    """What all candidates share: the text, the recipe (optimizer, batch, sequence length) and the held-out tokens.

    Workers open the text by `data` and `tokenizer`, and check that its fingerprint is still `fingerprint`.
    """

    data: str
    tokenizer: str | None
    fingerprint: str
    recipe: Recipe  # from `track_recipe`; the learning rate is replaced by each candidate's own
    held_out: int  # tokens
    device: str = "cpu"
    screening: float = 0.0  # for screenings: the fraction of the text's pieces that are repeated

    @property
    def tokens_per_step(self) -> int:
        return self.recipe.batch * self.recipe.seq_len

    def few_steps(self, tokens: float, remedy: str) -> str:
        """A warning for budgets of so few steps that the warm-up is a large part of them; empty for others."""
        steps, warm = self.steps(tokens), round(self.recipe.warmup)
        if warm < WARM_SHARE * steps:
            return ""
        of_them = f"{warm} of them warm-up" if warm < steps else f"no more than the {warm} of its warm-up"
        return (
            f"the longest training has {steps} steps, {of_them}: after so few, learning rate and seed "
            f"matter as much as the architecture, and late learners are missed; {remedy}"
        )

    def starved(self, tokens: float) -> bool:
        """Whether a training of so few tokens hardly gets beyond the warm-up. How well such losses predict later ones
        was not measured, and forecasts from them are overconfident."""
        return self.steps(tokens) < WARMUPS * self.recipe.warmup

    def steps(self, tokens: float) -> int:
        """Optimizer steps of a budget, at least 4: warm-up, stable and decay phases need one each."""
        return max(4, round(tokens / self.tokens_per_step))

    def config(self, arch: Architecture, replica: Replica, steps: int | None) -> dict[str, Any]:
        """Everything that determines a loss; without `steps`, everything that determines a trunk."""
        config = {
            "protocol": PROTOCOL,
            **arch.identity(),
            "data": self.fingerprint,
            "recipe": replace(self.recipe, lr=replica.lr).as_dict(),
            "seed": replica.seed,
            "held_out": self.held_out,
            "device": self.device.split(":")[0],
        }
        if self.screening:
            config |= {"screening": [SCREENING, round(self.screening, 4)]}
        return config if steps is None else {**config, "steps": steps}

    def key(self, arch: Architecture, replica: Replica, steps: int) -> str:
        return record_key(KIND, self.config(arch, replica, steps))

    def trunk(self, arch: Architecture, replica: Replica, runs: Path) -> Path:
        """The file that holds the weights of a training before any decay."""
        return runs / FOLDER / f"{record_key(KIND, self.config(arch, replica, None))}.safetensors"


@dataclass(frozen=True)
class Leg:
    course: Course
    arch: Architecture
    replicas: tuple[Replica, ...]
    budgets: tuple[int, ...]  # steps, ascending
    runs: Path
    after: int = 0  # steps that an earlier leg has trained: this one resumes from there

    @cached_property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        """Keys of the records, by budget and replica."""
        return tuple(
            tuple(self.course.key(self.arch, replica, steps) for replica in self.replicas) for steps in self.budgets
        )

    @property
    def tokens(self) -> int:
        """Tokens that are left to train to the longest budget."""
        return self.tokens_at(self.budgets[-1])

    def tokens_at(self, step: int) -> int:
        """Tokens that the leg itself has trained when it is at this step."""
        return max(0, step - self.after) * self.course.tokens_per_step

    def run(
        self,
        text: Text,
        keep: Callable[[Record], object],
        on_step: Callable[[int], None] = lambda step: None,
        stopping: Callable[[], bool] = lambda: False,
        log: Sequence[str] = (),
    ) -> None:
        """Train to every budget and score there. `keep` receives each record as soon as it exists, `on_step` the
        current step, the sinks named in `log` the losses. Raises `Stopped` between steps once `stopping()` is true."""
        with ExitStack() as opened:
            sinks = [
                opened.enter_context(opened_sinks(log, self._logged(replica), _print_to_stderr))
                for replica in self.replicas
            ]
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
        """Train to `step`, where a decay begins; save every half minute and at the end."""
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
        """Load the saved trunks if all replicas are at the same step and not past `before`, where the decay begins.
        Returns the step of the longest saved training."""
        states = [checkpoint.load_state(self.course.trunk(self.arch, replica, self.runs)) for replica in self.replicas]
        steps = [-1 if state is None else int(state["step"]) for state in states]
        if len(set(steps)) == 1 and 0 <= steps[0] <= before:
            track.restore([state for state in states if state is not None])
        return max(steps)

    def _save(self, track: Track, longest: int) -> None:
        """Save the trunks, unless longer ones have been saved already."""
        if track.step > longest:
            for m, replica in enumerate(self.replicas):
                checkpoint.save_state(self.course.trunk(self.arch, replica, self.runs), track.state(m))


def _result(losses_N: np.ndarray) -> dict[str, Any]:
    """Losses as JSON, which has no infinities: a diverged training has the loss null."""
    if not np.isfinite(losses_N).all():
        return {"loss": None, "windows": []}
    return {"loss": float(losses_N.mean()), "windows": [round(float(loss), 6) for loss in losses_N]}


def loss_of(record: Record) -> float:
    """Held-out nats per token; infinite if the training diverged."""
    loss = record.result["loss"]
    return float("inf") if loss is None else float(loss)


def windows_of(record: Record, count: int) -> Sequence[float]:
    """Losses by held-out window; infinite if the training diverged."""
    return record.result["windows"] or [float("inf")] * count


def _print_to_stderr(words: str) -> None:
    print(words, file=sys.stderr)
