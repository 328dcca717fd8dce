"""How long a trial will take here, from a few timed steps.

A step of a fleet costs a fixed time (every operation is started once, however many replicas it serves) and a time for
each token of each member. Two sizes of fleet and two lengths of sequence are timed for every architecture; a straight
line through them tells the rest. What the paper's protocol needs in one step takes a CPU a minute and its memory, so
there batches are timed that are smaller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from plait.probing.candidates import Candidate
from plait.probing.protocol import Protocol
from plait.probing.trial import Trial

MANY_SEEDS = 3
MOST_TOKENS = 2**13  # in a timed step on a CPU


def to_time(candidates: Sequence[Candidate], protocol: Protocol, device: str) -> list[Trial]:
    """What to time: each architecture on its shortest sequences with one seed, on its longest with one and several."""
    found = []
    for one in candidates:
        trials = [Trial.of(one, setting, (0,), device) for setting in protocol.settings]
        short, long = min(trials, key=tokens), max(trials, key=tokens)
        several = replace(long, seeds=tuple(range(MANY_SEEDS)))
        if tokens(several) <= MOST_TOKENS:
            found += list(dict.fromkeys((short, long, several)))
        elif device == "cpu":
            found += [_smaller(short, MOST_TOKENS // 4), _smaller(long, MOST_TOKENS)]
        else:
            found += [short, long]
    return found


def _smaller(trial: Trial, most: int) -> Trial:
    """The trial with smaller batches, so that a step reads no more tokens than that."""
    per_sequence = tokens(trial) // trial.training.batch
    batch = max(1, min(trial.training.batch, most // per_sequence))
    return replace(trial, training=replace(trial.training, batch=batch))


def tokens(trial: Trial) -> int:
    """Tokens that one step of a trial reads, all replicas together."""
    return len(trial.training.grid) * len(trial.seeds) * trial.training.batch * trial.task.input_length


@dataclass(frozen=True)
class Speed:
    """Predicts a trial's seconds from its architecture's line: seconds of a step, fixed and for each token."""

    lines: Mapping[str, tuple[float, float]]  # by the architecture's name

    @classmethod
    def measured(cls, timed: Sequence[Trial], seconds: Mapping[str, float]) -> Speed:
        """From the seconds of a step of each trial, by key."""
        lines = {}
        for name in dict.fromkeys(trial.candidate for trial in timed):
            mine = [trial for trial in timed if trial.candidate == name]
            lines[name] = _line([tokens(trial) for trial in mine], [seconds[trial.key] for trial in mine])
        return cls(lines)

    def step(self, trial: Trial) -> float:
        fixed, per_token = self.lines[trial.candidate]
        return fixed + per_token * tokens(trial)

    def trial(self, trial: Trial) -> float:
        """All steps and evaluations; evaluating a sequence is about a third of learning from it."""
        t = trial.training
        evaluations = -(-t.steps // t.eval_every) + 1
        return self.step(trial) * (t.steps + evaluations * t.evaluation / t.batch / 3)


def _line(sizes: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """Fixed and proportional part, neither negative. Points count by their relative, not absolute, error."""
    x, y = np.array(sizes, dtype=float), np.array(seconds)
    if len(set(sizes)) > 1:
        fixed, slope = np.linalg.lstsq(np.stack([1 / y, x / y], axis=1), np.ones_like(y), rcond=None)[0]
        if fixed >= 0 and slope >= 0:
            return float(fixed), float(slope)
        if slope < 0:
            return float(y.mean()), 0.0
    return 0.0, float((y / x).mean())
