"""Trainings that one process and several must do alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from small_job import small_job

from plait.training import checkpoint
from plait.training.checkpoint import whole_of
from plait.training.distributed import Processes, processes
from plait.training.resume import restore_trainer, save_trainer
from plait.training.trainer import Trainer

Case = list[Any]  # name (and folder of its checkpoints), kind, sharding, last step, values of the recipe


def train_cases(alike: Processes, cases: Sequence[Case], root: Path, *, gradients: bool = False) -> dict[str, Any]:
    """What each came to; a case of a name that was there before goes on from its checkpoint. `gradients`: those of the
    batch after the last, by name."""
    found: dict[str, Any] = {}
    for name, kind, sharding, upto, values in cases:
        trainer = Trainer(small_job(kind, steps=8, **values), 8, replace(alike, sharding=sharding))
        saved = checkpoint.newest_checkpoint(root / name)
        if saved is not None:
            restore_trainer(trainer, saved)
        taken = [trainer.advance() for _ in range(trainer.step, upto)]
        case = found.setdefault(name, {"losses": [], "norms": []})
        case["losses"] += [step.loss for step in taken]
        case["norms"] += [step.norm for step in taken]
        case["validation"] = trainer.validation_loss()
        save_trainer(trainer, root / name, {})
        if gradients:
            trainer._backward(trainer.batches(trainer.step))
            named = trainer.model.named_parameters()
            case["gradients"] = {key: whole_of(p, p.grad).tolist() for key, p in named if p.grad is not None}
    return found


def train_together(cases: Sequence[Case], *, tensor: int = 1) -> dict[str, Any]:
    """The same in each of several processes, in the folder that they were started in."""
    with processes("cpu", tensor=tensor) as alike:
        return train_cases(alike, cases, Path(), gradients=tensor > 1)
