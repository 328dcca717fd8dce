"""Long-running commands (probe, search, compare, design, studies …) in the store: their progress, published for the
dashboard, and their answers (`keep_answer`).

The command only sets its new state; a background thread writes it to the store, at most once per second, and sends
heartbeats when nothing changes. The row is removed when the command ends. A killed command leaves its row: its process
is gone or silent, so it is listed as stopped, until the same command runs again or a day has passed.
"""

from __future__ import annotations

import json
import math
import os
import platform
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from plait.core.errors import UserError
from plait.core.files import finite
from plait.core.progress import OnProgress
from plait.core.units import TimeLeft
from plait.records.record import Record, provenance_of, this_machine
from plait.records.store import Store, has_died, writable_store

UPDATE = 1.0  # seconds between two writes
HEARTBEAT = 15.0  # seconds between two writes while nothing changes
SILENT = 60.0  # seconds without a write after which a job of another machine counts as stopped
END = 2.0  # seconds that an ending command waits for its job to be removed
FORGOTTEN = 86_400.0  # seconds after which a stopped job is no longer listed


@dataclass(frozen=True)
class JobState:
    """What a running command publishes."""

    verb: str
    title: str  # what it works on
    host: str
    process: int
    stage: str = "starting"
    detail: str = ""  # such as "3 of 12 trials"
    share: float | None = None  # progress of the stage, 0 to 1; None: unknown
    seconds: float = 0.0  # since it began
    seconds_left: float | None = None  # of the stage; None: too early to tell


@dataclass(frozen=True)
class Job:
    """A job as a reader of the store sees it."""

    id: str
    state: JobState
    age: float  # seconds since its last update
    running: bool  # False: its process was killed, or has been silent for a minute
    local: bool  # on this machine


class Publisher:
    """Publishes one command. Its methods only set the new state; `write_if_due` is called by a thread of
    `published`."""

    def __init__(self, store: Store, verb: str, title: str) -> None:
        self._store = store
        self._id = uuid.uuid4().hex
        self._state = JobState(verb, title[:300], platform.node(), os.getpid())
        self._began = time.monotonic()
        self._left = TimeLeft()
        self._written: JobState | None = None
        self._written_at = 0.0
        self.updated = False

    def update(self, stage: str, share: float | None, detail: str = "") -> None:
        self._left.update(share)
        self._state = replace(self._state, stage=stage, share=share, detail=detail)
        self.updated = True

    def alongside(self, on_progress: OnProgress) -> OnProgress:
        """An `on_progress` that publishes and then calls the given one."""

        def both(what: str, done: float, total: float | None) -> None:
            counts = total is not None and total > 1  # otherwise it is a fraction
            amount = f"{done:,.0f}" if float(done).is_integer() else f"{done:,.1f}"
            self.update(what, done / total if total else None, f"{amount} of {total:,.0f}" if counts else "")
            on_progress(what, done, total)

        return both

    def write_if_due(self) -> None:
        now = time.monotonic()
        if self._state is self._written and now - self._written_at < HEARTBEAT:
            return
        state = self._state
        timed = replace(state, seconds=now - self._began, seconds_left=self._left.seconds)
        if self._written is None:
            _remove_stopped(self._store, state)
        self._store.put_job(self._id, f"{this_machine()}:{os.getpid()}:{self._id}", json.dumps(asdict(timed)))
        self._written, self._written_at = state, now

    def remove(self) -> None:
        if self._written is not None:
            self._store.remove_jobs([self._id])


@contextmanager
def published(store: Store, verb: str, title: str) -> Iterator[Publisher]:
    """Publish the progress of the block, from the first `update` on. A command that fails before, or ends within a
    second, leaves no trace, not even a store."""
    publisher, ended = Publisher(store, verb, title), threading.Event()

    def write() -> None:
        while not ended.wait(UPDATE):
            if not publisher.updated:
                continue
            with suppress(UserError):  # a store that is temporarily unreachable does not affect the command
                publisher.write_if_due()

    def remove() -> None:
        thread.join()
        with suppress(UserError):
            publisher.remove()

    thread = threading.Thread(target=write, daemon=True, name="plait job progress")
    thread.start()
    try:
        yield publisher
    finally:
        ended.set()
        remover = threading.Thread(target=remove, daemon=True, name="plait job end")
        remover.start()
        remover.join(END)  # a store that does not answer must not block the end of the command


@contextmanager
def published_store(
    store: str | Store | None, verb: str, title: str, on_progress: OnProgress
) -> Iterator[tuple[Store, OnProgress]]:
    """A writable store, and an `on_progress` that also publishes the command's progress there."""
    with writable_store(store) as opened, published(opened, verb, title) as job:
        yield opened, job.alongside(on_progress)


def read_jobs(store: Store) -> list[Job]:
    """All jobs: running ones first, then those that stopped within a day; damaged rows are skipped."""
    here, jobs = this_machine(), []
    for row in store.job_rows():
        with suppress(TypeError, ValueError, RecursionError):
            running = row.age < SILENT and not has_died(row.owner)
            state = _state(json.loads(row.state))
            jobs.append(Job(row.id, state, max(0.0, row.age), running, row.owner.startswith(f"{here}:")))
    return sorted((job for job in jobs if job.running or job.age < FORGOTTEN), key=lambda job: not job.running)


def _state(fields: Mapping[str, Any]) -> JobState:
    """A state that can be displayed; `TypeError` or `ValueError` if the row contains something else."""
    state = JobState(**fields)
    texts = {name: getattr(state, name) for name in ("verb", "title", "host", "stage", "detail")}
    numbers = {name: getattr(state, name) for name in ("share", "seconds", "seconds_left")}
    if not all(isinstance(text, str) for text in texts.values()):
        raise TypeError("not a text")
    for name, value in numbers.items():
        if value is not None:
            if isinstance(value, str) or not math.isfinite(value):
                raise ValueError(f"{name} is not a number")
            numbers[name] = max(0.0, float(value))
    if numbers["seconds"] is None:
        raise TypeError("seconds are missing")
    if numbers["share"] is not None:
        numbers["share"] = min(1.0, numbers["share"])
    # File names that are not UTF-8 contain surrogates, which no page can represent.
    printable = {name: text.encode("utf-8", "replace").decode() for name, text in texts.items()}
    return replace(state, **printable, **numbers)


def _remove_stopped(store: Store, new: JobState) -> None:
    """Remove stopped jobs that the new one resumes, and expired ones."""
    again = (new.verb, new.title)
    gone = [job for job in read_jobs(store) if not job.running and (job.state.verb, job.state.title) == again]
    old = [row.id for row in store.job_rows() if row.age > FORGOTTEN]
    store.remove_jobs([*old, *(job.id for job in gone)])


ANSWER_PROTOCOL = 1


def keep_answer(
    store: Store, kind: str, asked: Mapping[str, Any], document: Mapping[str, Any], started: float, seconds: float
) -> str:
    """Store an answer that was computed from many records (a comparison's verdict, a design) and return its key.

    `asked` is everything that determines the answer, `document` is what `--json` prints. The same question gives the
    same key; a stored answer is replaced only if it was made by another version of the code. If the store cannot be
    written, the key is empty and the answer is not lost.
    """
    config = {"protocol": ANSWER_PROTOCOL, **_plain(asked)}
    record = Record.of(kind, config, _plain(document), provenance_of(started, seconds))
    try:
        known = store.get(record.key)
        if known is not None:
            if known.provenance.get("code") == record.provenance["code"]:
                return record.key
            store.delete([record.key])
        store.put(record)
    except UserError:
        return ""
    return record.key


def _plain(document: Mapping[str, Any]) -> dict[str, object]:
    """The document as JSON represents it: tuples become lists, NaN and infinities null."""
    plain: dict[str, object] = finite(json.loads(json.dumps(document, default=str), parse_constant=lambda name: None))
    return plain
