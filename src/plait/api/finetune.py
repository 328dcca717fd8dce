"""GLUE and SQuAD on a trained model: `plait.finetune`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.api.describe import load_mixers
from plait.api.open_run import OpenRun, run_of
from plait.core.errors import UserError
from plait.core.progress import OnProgress, ignore
from plait.core.result import Result

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class FinetuneResult(Result):
    run: str
    task: str
    metrics: dict[str, float]  # mean over the seeds, on the dev files
    spread: dict[str, float | None]  # standard deviation from seed to seed
    median: dict[str, float]
    seeds: tuple[dict[str, float], ...]  # each seed's metrics
    best_seed: int
    plan: dict[str, Any]
    dev: dict[str, Any]  # predictions of the best seed on the dev files
    files: dict[str, str]  # name → content, as the benchmark takes it
    written: tuple[str, ...] = ()  # where the files were written

    def rows(self) -> list[dict[str, Any]]:
        return list(self.seeds)


def finetune(
    run: str | Path | OpenRun,
    task: str,
    data: str | Path,
    *,
    epochs: int = 3,
    lr: float = 3e-5,
    batch: int = 32,
    max_len: int | None = None,
    seeds: int = 1,
    out: str | Path | None = None,
    device: str = "cpu",
    mixers: Sequence[str | Path] = (),
    on_progress: OnProgress = ignore,
) -> FinetuneResult:
    """Fine-tune a trained model on a task of GLUE or on SQuAD v1.1, and score it on the dev files.

    task     cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli or squad
    data     the folder of the task's published files (TSV, or SQuAD's JSON)
    max_len  tokens per row; 128, squad 384 unless given
    seeds    repeat with seeds 0 to N - 1
    out      a folder for the predictions, as they are submitted
    """
    from plait.evals.finetune import finetune as tune
    from plait.evals.finetune_loop import Plan

    load_mixers(mixers)
    opened = run_of(run)
    model = opened.model(device)
    longest = max_len or min(model.arch.header.max_len or 1 << 30, 384 if task == "squad" else 128)
    plan = Plan(epochs=epochs, lr=lr, batch=batch, max_len=longest)
    found = tune(
        model,
        opened.tokenizer(),
        task,
        Path(data),
        plan,
        seeds=seeds,
        progress=lambda what, done, total: on_progress(f"{task}, {what}", done, total),
    )
    written = _write(found["files"], Path(out)) if out else ()
    return FinetuneResult(run=opened.name, **{**found, "seeds": tuple(found["seeds"])}, written=written)


def _write(files: dict[str, str], folder: Path) -> tuple[str, ...]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_text(content, encoding="utf-8")
    except OSError as wrong:
        raise UserError(f"cannot write to {folder}: {wrong.strerror}.") from wrong
    return tuple(str(folder / name) for name in files)
