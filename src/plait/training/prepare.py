"""Before a training's first step: what is known of it already, its folder, and the claim on it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from plait.core.errors import UserError
from plait.records import Store
from plait.records.claims import held
from plait.training.job import Job
from plait.training.run import Run


def known_result(run: Run, job: Job, store: Store | None) -> dict[str, Any] | None:
    """Stored before, with the weights still there."""
    record = None if store is None else store.get(job.key)
    if record is not None and (run.folder / "weights.safetensors").exists():
        return {**record.result, "trained_now": False}
    return None


def prepare(run: Run, job: Job, tokenizer: str | None) -> None:
    try:
        run.folder.mkdir(parents=True, exist_ok=True)
    except OSError as wrong:
        raise UserError(f"cannot make the run's folder {run.folder}: {wrong.strerror}.") from wrong
    if (run.folder / "run.json").exists():
        if run.about.get("key") != job.key:
            raise UserError(f"{run.folder} holds another training ({run.about.get('key')}); move it away.")
        return
    try:
        job.corpus.tokenizer.save(run.folder / "tokenizer")
        mixers = run.keep_mixers(job.arch)
    except OSError as wrong:
        raise UserError(f"cannot write into {run.folder}: {wrong.strerror}.") from wrong
    about_run = {"key": job.key, "config": job.config(), "data": job.corpus.name, "tokenizer": tokenizer}
    run.write_about({**about_run, "mixers": mixers} if mixers else about_run)


def begun_before_an_edit(run: Run, job: Job) -> str:
    """Says so where the same training was begun with another text of the user's mixers: this one starts from step 0."""
    mine = job.config()
    for other in run.folder.parent.glob("train-*/run.json") if "sources" in mine else ():
        theirs = Run(other.parent).config
        same = {**theirs, "sources": mine["sources"]} == mine
        if same and theirs != mine and not (other.parent / "result.json").exists():
            changed = ", ".join(name for name, h in mine["sources"].items() if theirs.get("sources", {}).get(name) != h)
            return (
                f"{changed} has changed since {other.parent.name} was begun with it, so this is another training and "
                "starts from step 0"
            )
    return ""


def claimed(job: Job, store: Store | None, run: Run) -> AbstractContextManager[None]:
    """Of those who share a store one trains; not where the result is known and only the weights are missing here."""
    if store is None or store.has([job.key]):
        return nullcontext()
    return held(store, job.key, run.name)
