"""Arguments that many verbs take: a store (URL or open), specs, a length of time, limits, where trainings run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from plait.core.progress import OnProgress
from plait.core.units import parse_duration
from plait.model.architecture import Architecture
from plait.records import Store, open_store

if TYPE_CHECKING:
    from plait.device.setting import Setting
    from plait.space.constraints import Limits
    from plait.workers.pool import Place

ANSWER = 64  # tokens, where mode both does not say


@contextmanager
def opened_store(store: str | Store | None) -> Iterator[Store]:
    """The store at a URL (None: $PLAIT_STORE, else runs/plait.db), closed at the end; an open store stays open."""
    if isinstance(store, Store):
        yield store
        return
    with open_store(store) as opened:
        yield opened


@contextmanager
def writable_store(store: str | Store | None) -> Iterator[Store]:
    """The same, for work whose results are to be kept: one that cannot be written to is told of before."""
    with opened_store(store) as opened:
        opened.require_writable()
        yield opened


@contextmanager
def published_store(
    store: str | Store | None, verb: str, title: str, on_progress: OnProgress
) -> Iterator[tuple[Store, OnProgress]]:
    """A store that can be written to, and an `on_progress` that also publishes there how far the command is, so that
    `plait serve` shows it."""
    from plait.records.jobs import published

    with writable_store(store) as opened, published(opened, verb, title) as job:
        yield opened, job.alongside(on_progress)


def read_specs(specs: str | Architecture | Sequence[str | Architecture]) -> list[Architecture]:
    """Architectures, their texts, presets, spec files; a user's mixer file alone means two blocks of it."""
    from plait.model.user_mixers import read_architectures

    given = [specs] if isinstance(specs, (str, Architecture)) else list(specs)
    if all(isinstance(each, str) for each in given):
        return read_architectures([str(each) for each in given])
    return [each if isinstance(each, Architecture) else read_architectures([each])[0] for each in given]


def seconds_of(time: str | float) -> float:
    """A length of time in seconds: 90s, 10m, 1h30m, or a number."""
    return parse_duration(time) if isinstance(time, str) else float(time)


def training_place(
    cluster: str, workers: int | None, device: str, gpus_per_training: float | None, usual: int | None = None
) -> Place:
    """Where trainings run. Unless `workers` says how many at once: on a cluster as many as it has room for, on this
    machine the `usual` number, or one per core."""
    from plait.workers.pool import Place

    here = None if cluster else usual or cores()
    return Place(cluster, workers or here, device, gpus_per_training)


def cores() -> int:
    """How many processor cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def read_setting(mode: str, answer: int | None, **others: Any) -> Setting:
    """The setting of a measurement or prediction; `answer`, the tokens of an answer, needs mode both."""
    from plait.device.setting import BOTH, Setting

    return Setting(mode, **others, answer=answer or (ANSWER if mode == BOTH else 0))


def read_limits(tokens_per_second: float | None = None, /, **limits: str | float | None) -> Limits:
    """Of quantities by name: 40ms, 300MB, or numbers of seconds and bytes. `tokens_per_second`, at least, is one of
    the time per token."""
    from plait.core.errors import UserError
    from plait.space.constraints import Limits

    if tokens_per_second is not None:
        if limits.get("token_time") is not None:
            raise UserError("--tokens-per-second and --token-time mean the same: give one of them.")
        limits["token_time"] = 1 / tokens_per_second

    texts = {name: limit for name, limit in limits.items() if isinstance(limit, str)}
    numbers = {name: float(limit) for name, limit in limits.items() if isinstance(limit, (int, float))}
    return Limits(**{**Limits.read(**texts).as_dict(), **numbers})
