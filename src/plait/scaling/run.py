"""Trains the runs of a plan, each once, with the trainer of `plait train` and its own record.

Every run is one task of a worker pool. Several programs on machines that share a store may work on one plan: each
claims a run before training it and skips runs that another one has claimed. After an interruption the same call
resumes.

Also reads the trainings in a store as the table of runs to which scaling laws are fitted.

These are the runs that records of `plait scale run` list. Trainings that other commands made are taken only on request,
each architecture named by its pattern of mixers, and those on other texts than the newest only if `--where` asks for
them. What is left out is said.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

from plait.analysis.scaling_runs import PER_BYTE
from plait.analysis.table import Table
from plait.core.errors import UserError
from plait.core.progress import stop_signals
from plait.core.user_files import MixerSource
from plait.data import Corpus
from plait.mixers.table import version
from plait.model.architecture import Architecture, architecture
from plait.model.cost import model_cost
from plait.records import Record, Store, provenance_of
from plait.scaling.plan import Plan, PlannedRun, tokens_per_byte
from plait.scaling.sizes import attention_share, pattern_of
from plait.workers.pool import Place, Pool, Setup, Task
from plait.workers.worker import Worker

KIND = "scale"
PROTOCOL = 1
DIVERGED = "diverged"

#: Called with how many runs are done (a fraction counts), how many there are, and what is being trained.
OnProgress = Callable[[float, int, str], None]


@dataclass(frozen=True)
class RunOutcome:
    """A planned run and its result; None if it diverged or is being trained elsewhere."""

    run: PlannedRun
    key: str
    result: dict[str, Any] | None
    why: str = ""


def job_of(run: PlannedRun, plan: Plan, corpus: Corpus, batch: int | None = None) -> Any:
    from plait.training.recipe import Budget, Job

    recipe = run.recipe if batch is None else replace(run.recipe, batch=batch)
    validation = min(plan.validation_tokens, len(corpus.tokens("validation")))
    return Job(architecture(run.spec), corpus, recipe, Budget(steps=run.steps), run.seed, plan.precision, validation)


def run_plan(
    plan: Plan,
    corpus: Corpus,
    store: Store,
    runs: Path,
    *,
    place: Place,
    mixers: Sequence[MixerSource] = (),
    log: tuple[str, ...] = (),
    on_progress: OnProgress = lambda *_: None,
) -> list[RunOutcome]:
    """Store a record that lists all runs, and train those that are not in the store yet, the cheapest first."""
    started = time.time()
    jobs = {job_of(run, plan, corpus).key: run for run in sorted(plan.runs, key=lambda run: run.flops)}
    _store_study(plan, corpus, jobs, store, started)
    stored = store.has(jobs)
    shares = {key: float(key in stored) for key in jobs}
    common = (replace(plan, runs=()), corpus.fingerprint, runs.resolve(), place.device, log)
    tasks = [
        Task(key, f"{__name__}:train_planned", (run, *common), (key,), _label(run))
        for key, run in jobs.items()
        if key not in stored
    ]
    diverged: set[str] = set()

    def report(key: str, share: float) -> None:
        shares[key] = share
        where = f", {pool.where}" if pool.where else ""
        on_progress(sum(shares.values()), len(jobs), f"{_label(jobs[key])}{where}")

    if tasks:
        workers = place.workers or 1
        threads = 0 if workers == 1 and not place.cluster else max(1, (os.cpu_count() or 1) // workers)
        setup = Setup.of(store, mixers, 1 if place.cluster else threads)
        with stop_signals() as asked, Pool(place, setup, store, local_workers=min(workers, len(tasks))) as pool:
            report(tasks[0].name, 0.0)
            results = pool.run(
                tasks, report, lambda key: report(key, 1.0), asked=asked, wait_for_others=bool(place.cluster)
            )
            diverged = {key for key, result in results.items() if result == DIVERGED}
    on_progress(len(jobs), len(jobs), "done")
    outcomes = []
    for key, run in jobs.items():
        known = store.get(key)
        why = "" if known else DIVERGED if key in diverged else "another process trains it"
        outcomes.append(RunOutcome(run, key, known.result if known else None, why))
    return outcomes


def _label(run: PlannedRun) -> str:
    return f"{run.architecture} {run.params:,} at {run.budget:.3g}"


def train_planned(
    worker: Worker, run: PlannedRun, plan: Plan, text: str, runs: Path, device: str, log: tuple[str, ...]
) -> str:
    """Train one run in a worker process, on the `text` with this fingerprint. Returns `DIVERGED` if its loss diverged,
    so that the other runs continue; otherwise ""."""
    from plait.data.corpora import reopen_corpus
    from plait.training.fit import fit_alone
    from plait.training.trainer import Diverged

    kept = worker.kept.get("corpus")
    if kept is None or kept[0] != text:
        kept = (text, reopen_corpus(plan.data, plan.tokenizer, text))
        worker.kept["corpus"] = kept
    job = job_of(run, plan, kept[1])
    if worker.store.has([job.key]):  # even if the weights were deleted since
        return ""
    try:
        fit_alone(job, worker.store, runs, device=device, log=log, on_progress=worker.tell, stopping=worker.stopping)
    except Diverged:
        return DIVERGED
    return ""


def _store_study(plan: Plan, corpus: Corpus, jobs: Mapping[str, PlannedRun], store: Store, started: float) -> None:
    """Store which trainings form this study, and each one's architecture and budget: before any is trained, so that an
    interrupted study is told from other trainings too."""
    rows = [{"key": key, "architecture": run.architecture, "budget": run.budget} for key, run in jobs.items()]
    config = {"protocol": PROTOCOL, "data": corpus.as_dict(), "runs": sorted(rows, key=lambda row: str(row["key"]))}
    result = {"text": corpus.name, PER_BYTE: tokens_per_byte(corpus), "tokenizer": plan.tokenizer or ""}
    store.put(Record.of(KIND, config, result, provenance_of(started, time.time() - started)))


TRAINED = "train"


@dataclass(frozen=True)
class StoredRuns:
    """`left_out`: in words, which trainings of the store are not in the table, and how to include them."""

    table: Table
    left_out: tuple[str, ...]


def stored_runs(store: Store, all_trainings: bool = False, all_texts: bool = False) -> StoredRuns:
    """The runs of the store's studies on the text of the newest, or on all texts; or all trainings."""
    studied = _studied(store)
    records = list(reversed(store.find(TRAINED)))
    ours = records if all_trainings else [record for record in records if record.key in studied]
    if not ours:
        other = f" Its {_trainings(len(records))} other commands made: --all-trainings fits them." if records else ""
        raise UserError(
            f"{store.name} has no trainings of a scaling study; see `plait scale plan` and `plait scale run`.{other}"
        )
    text = ours[-1].result["data"]
    same = [record for record in ours if all_texts or record.result["data"] == text]
    others = dict.fromkeys(str(record.result["data"]) for record in ours if record.result["data"] != text)
    edited = _newest(same, lambda record: _text(record, studied), lambda record: record.config["data"]["fingerprint"])
    newest = _newest(edited, lambda record: _name(record, studied), lambda record: record.config.get("sources"))
    reasons = {
        "made by other commands (--all-trainings includes them)": len(records) - len(ours),
        f"on other texts (--where data=NAME fits one: {', '.join(others)})": len(ours) - len(same),
        "on the text as it was before it changed": len(same) - len(edited),
        "of an earlier source of your own mixer": len(edited) - len(newest),
    }
    told = [f"left out: {_trainings(count)} {why}" for why, count in reasons.items() if count]
    planned = [key for key, run in studied.items() if all_texts or run.text == text]
    if waiting := len(set(planned) - {record.key for record in records}):
        told.append(f"{waiting} of {len(planned)} planned runs have no result: not trained yet, diverged, or deleted")
    rows = [run_row(record, *_named(studied.get(record.key))) for record in newest]
    return StoredRuns(Table.of(store.name, rows), tuple(told))


def _trainings(count: int) -> str:
    return "1 training" if count == 1 else f"{count} trainings"


@dataclass(frozen=True)
class Planned:
    """A run as a study lists it."""

    architecture: str
    per_byte: float | None
    text: str
    tokenizer: str | None  # as it was asked for; None: not known


def _studied(store: Store) -> dict[str, Planned]:
    """Key of a training → its place in a study."""
    return {
        row["key"]: Planned(
            row["architecture"],
            record.result.get(PER_BYTE),
            str(record.result.get("text")),
            record.result.get("tokenizer"),
        )
        for record in reversed(store.find(KIND))
        for row in record.config["runs"]
    }


def _named(run: Planned | None) -> tuple[str | None, float | None]:
    return (None, None) if run is None else (run.architecture, run.per_byte)


def _newest(records: list[Record], of: Callable[[Record], Any], version: Callable[[Record], Any]) -> list[Record]:
    """Leave out records of earlier versions of the same thing."""
    newest = {of(record): version(record) for record in records}  # the last is the newest
    return [record for record in records if version(record) == newest[of(record)]]


def _text(record: Record, studied: Mapping[str, Planned]) -> tuple[str, str]:
    """Name and tokenizer. Several fixed tokenizers of one text are no versions of it, but what is learned anew from an
    edited text, such as a BPE, is: the same was asked for."""
    run = studied.get(record.key)
    asked = None if run is None else run.tokenizer
    return str(record.result["data"]), str(record.config["data"]["tokenizer"]) if asked is None else f"asked: {asked}"


def _name(record: Record, studied: Mapping[str, Planned]) -> str:
    return studied[record.key].architecture if record.key in studied else str(record.config["spec"])


class RunRow(TypedDict):
    """One training as a row of the table that a scaling fit reads."""

    architecture: str
    flops: float
    params: int
    active_params: int
    tokens: int
    loss: float
    state: float | None
    attention: float
    batch: int
    seq_len: int
    vocab: int
    tokenizer: str
    tokens_per_byte: float | None
    lr: float
    spec: str
    data: str
    key: str


def run_row(record: Record, name: str | None = None, per_byte: float | None = None) -> RunRow:
    config, result = record.config, record.result
    arch = trained_architecture(record)
    recipe: Mapping[str, Any] = config["recipe"]
    cost = model_cost(arch, seq=int(recipe["seq_len"]))
    return {
        "architecture": name or pattern_of(arch),
        "flops": result["flops"],
        "params": result["params"],
        "active_params": cost.active_params,
        "tokens": result["tokens"],
        "loss": result["loss"],
        "state": (cost.fixed_state + cost.kv_cache) or None,
        "attention": attention_share(arch),
        "batch": recipe["batch"] * recipe["seq_len"],
        "seq_len": int(recipe["seq_len"]),
        "vocab": arch.header.vocab,
        "tokenizer": _tokenizer(config.get("data", {}).get("tokenizer", {})),
        "tokens_per_byte": per_byte,
        "lr": recipe["lr"],
        "spec": arch.text,
        "data": result["data"],
        "key": record.key,
    }


def _tokenizer(identity: Mapping[str, Any]) -> str:
    """Differs for two tokenizers of one kind and size, such as a BPE and the one learned after the text was edited.
    Empty if the record does not say."""
    return "-".join(filter(None, (identity.get("tokenizer", ""), str(identity.get("sha256", ""))[:8])))


def trained_architecture(record: Record) -> Architecture:
    """The architecture of a training or a probe, with users' mixers as they were: those of this process, else the
    copies in a training's folder."""
    spec, sources = str(record.config["spec"]), record.config.get("sources") or {}
    known = {name: version(text_hash) for name, text_hash in sources.items()}
    loaded = {name: options for name, options in known.items() if options is not None}
    if len(loaded) == len(sources):
        return architecture(spec, loaded)
    folder = record.result.get("folder")
    if folder and (Path(folder) / "run.json").exists():
        from plait.training.run import Run

        return Run(Path(folder)).arch
    try:
        return architecture(spec)  # the mixer as it is now
    except UserError:
        missing = ", ".join(name for name in sources if name not in loaded)
        copied = f" Its folder {folder}, which has a copy, is not here." if folder else ""
        raise UserError(
            f"the {record.kind} {record.key[:10]} used your own mixer {missing}: give its file with --mixers "
            f"my_mixer.py.{copied}"
        ) from None
