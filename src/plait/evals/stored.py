"""Evaluations as records: what was measured once, of these weights on this text, is found again."""

from __future__ import annotations

import hashlib
import time
from typing import Any

import torch

from plait.evals.evaluation import Evaluation, Progress, Subject, silent
from plait.model.heads import Encoder, LanguageModel
from plait.records import Record, Store, provenance_of, record_key

KIND = "eval"


def weights_hash(model: LanguageModel | Encoder) -> str:
    """32 hex digits that stand for all parameters and buffers: a model that was trained on has others."""
    total = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        total.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()[:32]


def evaluated(
    evaluation: Evaluation,
    subject: Subject,
    *,
    data: dict[str, Any],
    store: Store,
    progress: Progress = silent,
) -> tuple[Record, bool]:
    """The record of an evaluation, measured only if the store does not hold it; and whether it did. `data` says in
    plain JSON which text the subject's tokens are."""
    evaluation = evaluation.resolved(subject)
    config: dict[str, Any] = {
        "protocol": evaluation.protocol,
        "evaluation": evaluation.name,
        "settings": evaluation.settings(),
        **subject.model.arch.identity(),
        "weights": weights_hash(subject.model),
        "trained_length": subject.trained_length,
        "data": data,
    }
    known = store.get(record_key(KIND, config))
    if known is not None:
        return known, True
    started, clock = time.time(), time.perf_counter()
    result = evaluation.measure(subject, progress)
    record = Record.of(KIND, config, result, provenance_of(started, time.perf_counter() - clock))
    store.put(record)
    return record, False
