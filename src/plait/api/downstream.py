"""Downstream tasks of a trained model: GLUE and SQuAD (`plait.finetune`), and lm-evaluation-harness from local files
(`plait.harness`, `plait.prepare_tasks`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.api.open_run import OpenRun, run_of
from plait.core.errors import UserError
from plait.core.files import writing
from plait.core.progress import OnProgress, ignore
from plait.core.registry import require_known
from plait.core.result import Result
from plait.model.architecture import load_mixers

if TYPE_CHECKING:
    from plait.evals.harness import HarnessRow
    from plait.records import Store


@dataclass(frozen=True)
class FinetuneResult(Result):
    ROWS = "seeds"
    run: str
    task: str
    metrics: dict[str, float]  # mean over the seeds, on the dev files
    spread: dict[str, float | None]  # standard deviation between seeds
    median: dict[str, float]
    seeds: tuple[dict[str, float], ...]  # each seed's metrics
    best_seed: int
    plan: dict[str, Any]
    dev: dict[str, Any]  # predictions of the best seed on the dev files
    files: dict[str, str]  # name → content, in submission format
    written: tuple[str, ...] = ()  # where the files were written


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
    runs: str | Path = "runs",
    on_progress: OnProgress = ignore,
) -> FinetuneResult:
    """Fine-tune a trained model on a GLUE task or on SQuAD v1.1, and score it on the dev files.

    Finished seeds and checkpoints are kept in the run's folder, under `finetune/`: if interrupted in any way, the same
    call resumes.

    task     cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli or squad
    data     the folder of the task's published files (TSV, or SQuAD's JSON)
    max_len  tokens per row; default: 128, squad 384
    seeds    repeat with seeds 0 to N - 1
    out      folder for the predictions, in submission format
    runs     folder of the trained models
    """
    from plait.evals.finetune import finetune as tune
    from plait.evals.finetune_loop import Plan

    load_mixers(mixers)
    opened = run_of(run, runs)
    model = opened.model(device)
    longest = max_len or min(model.arch.header.max_len or 1 << 30, 384 if task == "squad" else 128)
    plan = Plan(epochs=epochs, lr=lr, batch=batch, max_len=longest)
    tuned = tune(
        model,
        opened.tokenizer(),
        task,
        Path(data),
        plan,
        seeds=seeds,
        keep=opened.folder / "finetune",
        progress=lambda what, done, total: on_progress(f"{task}, {what}", done, total),
    )
    written = _write(tuned["files"], Path(out)) if out else ()
    return FinetuneResult(run=opened.name, written=written, **tuned)


def _write(files: dict[str, str], folder: Path) -> tuple[str, ...]:
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_text(content, encoding="utf-8")
    return tuple(str(folder / name) for name in files)


PROTOCOL = 1  # incremented when the same settings mean a different evaluation


@dataclass(frozen=True)
class HarnessResult(Result):
    ROWS = "table"
    run: str
    results: dict[str, dict[str, Any]]  # as returned by the harness
    table: tuple[HarnessRow, ...]  # a row per number: task, metric, filter, value, stderr, items
    shots: dict[str, int]  # by task
    max_length: int
    lm_eval: str  # the harness's version


@dataclass(frozen=True)
class TaskFile:
    task: str
    items: int
    file: str
    source: str


@dataclass(frozen=True)
class TaskFiles(Result):
    ROWS = "tasks"
    tasks: tuple[TaskFile, ...]
    missing: tuple[str, ...]  # tasks whose data was not found


def harness(
    run: str | Path | OpenRun,
    tasks: str | Path | Sequence[str | Path],
    *,
    shots: int | None = None,
    limit: int | None = None,
    max_length: int | None = None,
    trust: bool = False,
    device: str = "cpu",
    mixers: Sequence[str | Path] = (),
    runs: str | Path = "runs",
    store: str | Store | None = None,
    on_progress: OnProgress = ignore,
) -> HarnessResult:
    """Run tasks of lm-evaluation-harness on a trained model, without a network; the table is stored.

    tasks       task files (YAML), folders of them, or LongBench files (JSONL)
    shots       examples before each item; default: the task's own number
    limit       only the first items of each task
    max_length  context in tokens; default: the model's, or 2048
    runs        folder of the trained models
    trust       let task files run code: `!function`, templates without a sandbox, scripts of metrics
    """
    from plait.evals.harness import evaluate
    from plait.records import open_store

    load_mixers(mixers)
    with open_store(store) as records:
        records.require_writable()  # before any long work
    started = time.time()
    opened = run_of(run, runs)
    evaluated = evaluate(
        opened.model(device),
        opened.tokenizer(),
        [tasks] if isinstance(tasks, (str, Path)) else list(tasks),
        shots=shots,
        limit=limit,
        max_length=max_length,
        progress=on_progress,
        trust=trust,
    )
    result = HarnessResult(run=opened.name, **evaluated)
    _keep(result, opened.arch.text, limit, store, started)
    return result


def _keep(result: HarnessResult, spec: str, limit: int | None, store: str | Store | None, started: float) -> None:
    """Store the result as a record that replaces an earlier one of the same run and tasks."""
    from plait.records import Record, open_store, provenance_of

    config = {
        "protocol": PROTOCOL,
        "spec": spec,
        "tasks": sorted(result.results),
        "limit": limit,
        "run": result.run,
        "shots": result.shots,
        "max_length": result.max_length,
        "lm_eval": result.lm_eval,
    }
    provenance = provenance_of(started, time.time() - started)
    record = Record.of("harness", config, {"run": result.run, "table": result.rows()}, provenance)
    with open_store(store) as opened:
        opened.delete([record.key])
        opened.put(record)


def prepare_tasks(folder: str | Path, out: str | Path, *, tasks: Sequence[str] = ()) -> TaskFiles:
    """Write the local files of the ten short-context tasks and WikiText from a folder with the published data sets, for
    `plait.harness`; only these `tasks` if given."""
    from plait.evals.published import BY_NAME, prepare

    for name in tasks:
        require_known(name, BY_NAME, "no task")
    done, missing = prepare(Path(folder), Path(out), list(tasks))
    if not done:
        raise UserError(f"{folder} holds none of: {', '.join(missing)}. A data set is a folder of its name.")
    return TaskFiles(
        tuple(
            TaskFile(prepared.task, prepared.items, str(prepared.file), str(prepared.source[0])) for prepared in done
        ),
        tuple(missing),
    )
