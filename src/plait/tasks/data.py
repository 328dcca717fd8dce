"""The data of one task setting and seed (training, validation and test sequences), and the accuracy of answers.

Each split is drawn in blocks, each with its own random stream, keyed by setting, seed, split and block: the first
hundred sequences are the same whether a hundred or a million are drawn, by one process or many. No validation sequence
occurs in training and no test sequence in either; the few that do are drawn again.

N  sequences      T  tokens of a sequence
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from plait.core.errors import UserError
from plait.core.progress import require_memory
from plait.tasks.task import IGNORE, Examples, Task, stream

EVALUATION = 1280  # sequences of the validation and of the test split (Table B.1)
BLOCK = 512  # sequences drawn from one stream
REDRAWS = 100  # rounds after which the setting is assumed to have too few different sequences


@dataclass(frozen=True)
class TaskData:
    """The data on which a model is trained, selected and scored."""

    task: Task
    seed: int
    train: Examples
    validation: Examples
    test: Examples
    ceiling: float  # the best accuracy on `test` that can be expected of any model trained on `train`

    def split(self, name: str) -> Examples:
        examples: Examples = {"train": self.train, "validation": self.validation, "test": self.test}[name]
        return examples


#: Sequences that `mean_ceiling` draws per setting if the ceiling does not depend on the training sequences.
CEILING_SEQUENCES = 100


def make_data(task: Task, seed: int, *, evaluation: int = EVALUATION) -> TaskData:
    """Draw a task's data; the same for the same setting, seed and size."""
    if evaluation < 1:
        raise UserError(f"evaluation={evaluation} given, but at least one sequence is needed.")
    task = task.seeded(seed)
    train = draw(task, seed, "train", task.train_size)
    validation = unseen(task, seed, "validation", evaluation, [train])
    test = unseen(task, seed, "test", evaluation, [train, validation])
    return TaskData(task, seed, train, validation, test, task.ceiling(train, test))


def draw(task: Task, seed: int, split: str, count: int) -> Examples:
    """The first `count` sequences of a split."""
    # Eight-byte numbers: the blocks, their concatenation, and copies for comparing sequences.
    needed = 8.0 * 4 * max(count, BLOCK) * (task.input_length + 1)
    require_memory(needed, f"{count:,} sequences of {task.name}", "Lower train_size or length.")
    training = split == "train"
    blocks = [
        task.generate(stream(task.as_dict(), seed, split, block), BLOCK, training=training)
        for block in range(-(-count // BLOCK))
    ]
    names = ("inputs_NT", "targets_NT", *(("allowed_NTK",) if blocks[0].allowed_NTK is not None else ()))
    return Examples(*(np.concatenate([getattr(block, name) for block in blocks])[:count] for name in names))


def unseen(task: Task, seed: int, split: str, count: int, others: list[Examples]) -> Examples:
    """A split of which no sequence occurs in the others."""
    seen = np.unique(np.concatenate([_rows(other) for other in others]))
    examples = draw(task, seed, split, count)
    for attempt in range(REDRAWS):
        again = np.flatnonzero(np.isin(_rows(examples), seen))
        if not len(again):
            return examples
        fresh = task.generate(stream(task.as_dict(), seed, split, "again", attempt), len(again), training=False)
        examples.inputs_NT[again], examples.targets_NT[again] = fresh.inputs_NT, fresh.targets_NT
        if examples.allowed_NTK is not None:
            examples.allowed_NTK[again] = fresh.allowed_NTK
    raise UserError(
        f"{task.name} ({task.label}) has too few different sequences: after {REDRAWS} tries {len(again)} of "
        f"{count} {split} sequences still occur in training. Raise length or vocab, or lower train_size."
    )


def chance(examples: Examples) -> float:
    """The accuracy of always giving the most frequent answer."""
    scored_NT = examples.targets_NT != IGNORE
    right = (examples.targets_NT if examples.allowed_NTK is None else examples.allowed_NTK)[scored_NT]
    return float(np.unique(right[right != IGNORE], return_counts=True)[1].max() / scored_NT.sum())


def mean_ceiling(task: Task) -> float:
    """The best mean accuracy over the task's grid."""
    if task.always_answerable:
        return 1.0
    if task.ceiling_by_training:
        return float(np.mean([make_data(setting, 0).ceiling for setting in task.grid()]))
    ceilings = []
    for setting in task.grid():
        test = setting.generate(stream(setting.as_dict(), 0, "ceiling"), CEILING_SEQUENCES, training=False)
        ceilings.append(setting.ceiling(test, test))
    return float(np.mean(ceilings))


def _rows(examples: Examples) -> np.ndarray:
    """Each input sequence as one comparable item."""
    inputs_NT = np.ascontiguousarray(examples.inputs_NT)
    return inputs_NT.view(np.dtype((np.void, inputs_NT.dtype.itemsize * inputs_NT.shape[1]))).ravel()


Metric = Callable[[np.ndarray, np.ndarray], float]
BATCH = 128


def token_accuracy(predictions_NT: np.ndarray, targets_NT: np.ndarray) -> float:
    """The share of scored positions that are right (the paper's accuracy)."""
    scored_NT = _scored(predictions_NT, targets_NT)
    return float((predictions_NT == targets_NT)[scored_NT].mean())


def macro_accuracy(predictions_NT: np.ndarray, targets_NT: np.ndarray, *, batch: int = BATCH) -> float:
    """mad-lab's accuracy: for each batch of sequences the mean over tokens of the share of that token's positions that
    are right, then the mean over batches. A token that is predicted but never a target counts as 0."""
    _scored(predictions_NT, targets_NT)
    means = []
    for start in range(0, len(targets_NT), batch):
        predictions, targets = predictions_NT[start : start + batch], targets_NT[start : start + batch]
        asked = targets != IGNORE
        predictions, targets = predictions[asked].astype(np.int64), targets[asked].astype(np.int64)
        if not len(targets):
            continue
        size = int(max(predictions.max(), targets.max())) + 1
        occurs = np.bincount(targets, minlength=size)
        right = np.bincount(targets[predictions == targets], minlength=size)
        counted = (occurs > 0) | (np.bincount(predictions, minlength=size) > 0)
        means.append(float((right[counted] / np.maximum(occurs[counted], 1)).mean()))
    return float(np.mean(means))


def metric(variant: str) -> Metric:
    """The accuracy that goes with a variant of the tasks."""
    return macro_accuracy if variant == "mad-lab" else token_accuracy


def _scored(predictions_NT: np.ndarray, targets_NT: np.ndarray) -> np.ndarray:
    if predictions_NT.shape != targets_NT.shape:
        raise UserError(f"predictions {predictions_NT.shape} and targets {targets_NT.shape} differ in shape.")
    scored_NT: np.ndarray = targets_NT != IGNORE
    if not scored_NT.any():
        raise UserError("no position is scored, so there is no accuracy.")
    return scored_NT
