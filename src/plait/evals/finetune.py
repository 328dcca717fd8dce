"""Fine-tuning on GLUE's nine tasks and on SQuAD v1.1: metrics on the dev files, predictions in submission format.

Each seed has a folder, named by the hash of everything that determines its result: checkpoints while it runs, and at
the end `result.json`, so that no seed is computed twice.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from plait.core.errors import UserError
from plait.core.files import read_object, understood, unsealed, writing
from plait.core.progress import OnProgress
from plait.core.registry import require_known
from plait.data.tokenizers import boundary_token
from plait.evals.evaluation import weights_hash
from plait.evals.finetune_loop import Plan, Row, TunedModel, in_order, tune
from plait.evals.glue import TASKS, Examples, GlueData, Task, read_glue
from plait.evals.losses import require_same_vocabulary
from plait.evals.squad import (
    Question,
    Span,
    Window,
    best_spans,
    find_files,
    read_passage,
    read_squad,
    score,
    windows_of,
)
from plait.model.language_model import Encoder, LanguageModel
from plait.training.run import Run, write_json

if TYPE_CHECKING:
    from plait.data import Tokenizer

KINDS = (*TASKS, "squad")
PROTOCOL = 1  # incremented when the same settings mean another fine-tuning


@dataclass(frozen=True)
class Tuned:
    """The result of one seed."""

    seed: int
    metrics: dict[str, float]
    files: dict[str, str]  # name → content, as the benchmark takes it
    dev: dict[str, Any]  # predictions for the dev files

    @property
    def score(self) -> float:
        return statistics.fmean(self.metrics.values())


class Finetuned(TypedDict):
    """The result of all seeds."""

    task: str
    metrics: dict[str, float]  # mean over the seeds, on the dev files
    spread: dict[str, float | None]  # standard deviation between seeds
    median: dict[str, float]
    seeds: tuple[dict[str, float], ...]  # each seed's metrics
    best_seed: int
    plan: dict[str, Any]
    dev: dict[str, Any]  # predictions of the best seed on the dev files
    files: dict[str, str]  # name → content, as the benchmark takes it


def encode_texts(texts: Sequence[str], tokenizer: Tokenizer, max_len: int) -> Row:
    """One or two texts with a boundary token before, between and after them. If they are too long, tokens are dropped
    from the end of the longer text."""
    parts = [[int(token) for token in tokenizer.encode(text)] for text in texts]
    while sum(map(len, parts)) > max_len - len(parts) - 1:
        max(parts, key=len).pop()
    between = boundary_token(tokenizer)
    tokens, segments = [between], [0]
    for which, part in enumerate(parts):
        tokens += [*part, between]
        segments += [which] * (len(part) + 1)
    return Row(tokens, segments)


def tune_glue(
    model: LanguageModel | Encoder,
    tokenizer: Tokenizer,
    task: Task,
    data: GlueData,
    plan: Plan,
    progress: OnProgress,
    checkpoints: Path,
) -> Tuned:
    """Fine-tune on a GLUE task with one seed. For regression the targets are standardised, so that one learning rate
    suits any scale."""

    def rows(examples: Examples) -> list[Row]:
        return [encode_texts(texts, tokenizer, plan.max_len) for texts in examples.texts]

    labels_N = data.train.labels_N
    assert labels_N is not None
    centre, spread = (0.0, 1.0) if task.labels else (float(labels_N.mean()), float(labels_N.std()) or 1.0)
    items = list(zip(rows(data.train), ((labels_N - centre) / spread).tolist(), strict=True))
    tuned = TunedModel(model, task.outputs, plan)

    def loss(batch: Sequence[tuple[Row, float]]) -> Tensor:
        logits_BC = tuned.classify([row for row, _ in batch])
        labels_B = torch.tensor([label for _, label in batch], device=tuned.device)
        return F.cross_entropy(logits_BC, labels_B.long()) if task.labels else F.mse_loss(logits_BC[:, 0], labels_B)

    def predict(examples: Examples) -> np.ndarray:
        logits_NC = torch.stack(in_order(rows(examples), plan.batch, tuned.classify)).numpy()
        if task.labels:
            return np.asarray(logits_NC.argmax(-1))
        return np.asarray(logits_NC[:, 0] * spread + centre)

    tune(tuned, items, lambda item: len(item[0]), loss, plan, partial(progress, f"seed {plan.seed}"), checkpoints)
    metrics: dict[str, float] = {}
    dev: dict[str, Any] = {}
    for part, examples in data.dev.items():
        predicted_N = predict(examples)
        assert examples.labels_N is not None
        for name, metric in task.metrics.items():
            metrics[f"{name}_{part}" if part else name] = metric(predicted_N, examples.labels_N)
        dev[part or "dev"] = [task.labels[p] for p in predicted_N] if task.labels else predicted_N.tolist()
    files = dict(task.submission(part, predict(examples)) for part, examples in data.test.items())
    return Tuned(plan.seed, metrics, files, dev)


def tune_squad(
    model: LanguageModel | Encoder,
    tokenizer: Tokenizer,
    train: Sequence[Question],
    dev: Sequence[Question],
    plan: Plan,
    progress: OnProgress,
    checkpoints: Path,
) -> Tuned:
    """Fine-tune on SQuAD v1.1 with one seed: two logits per token, for an answer's first and last token."""

    contexts = {question.context for question in (*train, *dev)}
    passages = {context: read_passage(context, tokenizer) for context in contexts}

    def cut(questions: Sequence[Question]) -> list[list[Window]]:
        return [windows_of(q, passages[q.context], tokenizer, plan.max_len) for q in questions]

    tuned = TunedModel(model, 2, plan)

    def loss(batch: Sequence[Window]) -> Tensor:
        logits_BT2 = tuned.tag([window.row for window in batch])
        targets_B2 = torch.tensor([window.target for window in batch], device=tuned.device)
        return F.cross_entropy(logits_BT2, targets_B2)  # softmax over T, for both logits

    windows = [window for cuts in cut(train) for window in cuts]
    tune(tuned, windows, len, loss, plan, partial(progress, f"seed {plan.seed}"), checkpoints)

    cuts = cut(dev)
    logits = iter(in_order([window.row for some in cuts for window in some], plan.batch, tuned.tag))
    ranked: dict[str, list[Span]] = {}
    for question, some in zip(dev, cuts, strict=True):
        scores = [next(logits).numpy() for _ in some]
        ranked[question.id] = best_spans(passages[question.context], some, scores)
    answers = {id: spans[0].text if spans else "" for id, spans in ranked.items()}
    files = {
        "predictions.json": json.dumps(answers, ensure_ascii=False, indent=1) + "\n",
        "nbest.json": json.dumps(
            {id: [span._asdict() for span in spans] for id, spans in ranked.items()}, ensure_ascii=False, indent=1
        )
        + "\n",
    }
    return Tuned(plan.seed, score(dev, answers), files, {"dev": answers})


def finetune(
    model: LanguageModel | Encoder,
    tokenizer: Tokenizer,
    kind: str,
    folder: Path,
    plan: Plan,
    *,
    seeds: int,
    progress: OnProgress,
    keep: Path,
) -> Finetuned:
    """Fine-tune on a GLUE task or on `squad`, once per seed; the predictions are those of the best seed on the dev
    files. `keep`: the folder in which finished seeds and checkpoints are kept."""
    require_same_vocabulary(model.arch, tokenizer)
    if seeds < 1:
        raise UserError(f"seeds={seeds}: must be at least 1.")
    plain = kind.lower().replace("-", "").replace("_", "")
    require_known(plain, KINDS, "no task")
    once = _squad(folder) if plain == "squad" else _glue(TASKS[plain], folder)
    plans = [replace(plan, seed=plan.seed + n) for n in range(seeds)]
    config = {
        "protocol": PROTOCOL,
        **model.arch.identity(),
        "weights": weights_hash(model),
        "tokenizer": tokenizer.as_dict(),
        "task": plain,
        "data": _digest(find_files(folder) if plain == "squad" else sorted(folder.glob("*.tsv"))),
    }
    runs = [
        _kept({**config, "plan": dataclasses.asdict(seeded)}, keep, partial(once, model, tokenizer, seeded, progress))
        for seeded in plans
    ]
    best = max(runs, key=lambda run: run.score)
    return {
        "task": plain,
        "metrics": {name: statistics.fmean(run.metrics[name] for run in runs) for name in best.metrics},
        "spread": {
            name: statistics.stdev([run.metrics[name] for run in runs]) if seeds > 1 else None for name in best.metrics
        },
        "median": {name: statistics.median(run.metrics[name] for run in runs) for name in best.metrics},
        "seeds": tuple({"seed": run.seed, **run.metrics} for run in runs),
        "best_seed": best.seed,
        "plan": {key: value for key, value in dataclasses.asdict(plan).items() if key != "seed"},
        "dev": best.dev,
        "files": best.files,
    }


def _kept(config: dict[str, Any], keep: Path, compute: Callable[[Path], Tuned]) -> Tuned:
    """The result of one seed; computed if it is not kept yet."""
    from plait.records.record import record_key  # this imports SQLAlchemy

    if keep.is_symlink():  # a run may come from someone else, with a link to a folder of yours
        raise UserError(f"{keep} is a link to another folder; remove it.")
    run = Run(keep / f"{config['task']}-{record_key('finetune', config)[:10]}")
    with writing(run.folder):
        run.folder.mkdir(parents=True, exist_ok=True)
    result = run.folder / "result.json"
    with run.locked():
        if not result.exists():
            write_json(result, {"config": config, "tuned": dataclasses.asdict(compute(run.folder))})
        run.remove_checkpoints()
    with understood(str(result)):
        return Tuned(**unsealed(read_object(result, constants=True), str(result))["tuned"])


def _digest(files: Sequence[Path]) -> str:
    total = hashlib.sha256()
    for file in files:
        content = file.read_bytes()
        total.update(f"{file.name} {len(content)}\n".encode() + content)
    return total.hexdigest()


Once = Callable[["LanguageModel | Encoder", "Tokenizer", Plan, OnProgress, Path], Tuned]


def _glue(task: Task, folder: Path) -> Once:
    data = read_glue(task, folder)
    return lambda model, tokenizer, *how: tune_glue(model, tokenizer, task, data, *how)


def _squad(folder: Path) -> Once:
    train, dev = (read_squad(path) for path in find_files(folder))
    return lambda model, tokenizer, *how: tune_squad(model, tokenizer, train, dev, *how)
