"""Records of the store: `plait.runs.find`, `show`, `remove`, `export`, `verify`, `repair`; loss curves: `curves`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.core.errors import UserError, did_you_mean
from plait.core.result import Result
from plait.records import Record, Store
from plait.records.record import INTERNAL
from plait.records.store import opened_store

if TYPE_CHECKING:
    from plait.records.repair import Repaired, Verified

LIMIT = 50


@dataclass(frozen=True)
class RecordsResult(Result):
    store: str  # its name
    records: tuple[Record, ...]

    def as_dict(self) -> dict[str, Any]:
        return {"store": self.store, "records": [record.document() for record in self.records]}

    def rows(self) -> list[dict[str, Any]]:
        """A column per field: config.seed, result.loss …"""
        from plait.records.record import flat

        return [flat(record.document()) for record in self.records]

    def _repr_html_(self) -> str:
        """One line per record, as in the dashboard; `rows` would have a hundred columns."""
        from plait.core.result import card
        from plait.reporting.summaries import started_text, summary

        lines = [(record, summary(record)) for record in self.records]
        return card(
            [
                {"key": record.key[:10], "kind": record.kind, "of": line.name, "result": line.words,
                 "data or task": line.source, "started": started_text(record)}
                for record, line in lines
            ],
            headline=f"{len(lines):,} records of {self.store}",
        )  # fmt: skip


@dataclass(frozen=True)
class Curve:
    run: str
    spec: str
    losses: tuple[tuple[int, float], ...]  # (step, training loss in nats per token)

    def as_dict(self) -> dict[str, Any]:
        return {"run": self.run, "losses": [list(point) for point in self.losses]}


@dataclass(frozen=True)
class CurvesResult(Result):
    curves: tuple[Curve, ...]

    def rows(self) -> list[dict[str, Any]]:
        return [{"run": curve.run, "step": step, "loss": loss} for curve in self.curves for step, loss in curve.losses]

    def figure(self) -> str:
        """The losses over steps."""
        from plait.reporting.studies import loss_figure

        drawn = {f"{curve.run}  {curve.spec[:40]}": list(curve.losses) for curve in self.curves}
        return loss_figure(drawn, title="Training loss")


def find(
    kind: str | None = None,
    *,
    where: Mapping[str, Any] | None = None,
    limit: int | None = LIMIT,
    store: str | Store | None = None,
) -> RecordsResult:
    """Records of this kind with these values in their config, newest first: `where={"task.name": "recall"}`."""
    with opened_store(store) as opened:
        return RecordsResult(opened.name, tuple(_find(opened, kind, where, limit)))


def show(key: str, *, store: str | Store | None = None) -> Record:
    """One record by its key, a unique prefix of it, or "latest" for the newest."""
    with opened_store(store) as opened:
        records = opened.find(limit=1, without=INTERNAL) if key == "latest" else _named(opened, [key])
    if not records:
        raise UserError(f"there are no records in {opened.name}.")
    return records[0]


def named(keys: Sequence[str], *, store: str | Store | None = None) -> RecordsResult:
    """The records with these key prefixes, without duplicates."""
    with opened_store(store) as opened:
        return RecordsResult(opened.name, tuple(_named(opened, keys)))


def remove(keys: Sequence[str], *, store: str | Store | None = None) -> int:
    """Remove records; returns their number."""
    with opened_store(store) as opened:
        return opened.delete(record.key for record in _named(opened, keys))


def export(
    path: str | Path,
    kind: str | None = None,
    *,
    where: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    store: str | Store | None = None,
) -> int:
    """Write records to a .csv, .parquet or .json file, a column per field; returns their number."""
    from plait.records import export as write

    with opened_store(store) as opened:
        records = _each(opened, kind, where, None, without=())
        first = next(records, None)
        if first is None:
            raise UserError(f"no records to export in {opened.name}.")
        return write(chain([first], records), Path(path), overwrite=overwrite)


def each(
    kind: str | None = None,
    *,
    where: Mapping[str, Any] | None = None,
    limit: int | None = None,
    store: str | Store | None = None,
) -> Iterator[Record]:
    """Like `find`, but an iterator, for any number of records."""
    with opened_store(store) as opened:
        yield from _each(opened, kind, where, limit)


def verify(*, store: str | Store | None = None) -> Verified:
    """Check every record of a store, and its file, for damage."""
    from plait.records.repair import verify as look

    with opened_store(store) as opened:
        return look(opened)


def repair(*, store: str | Store | None = None) -> Repaired:
    """Save the intact records of a damaged store; the old store is kept as a backup."""
    from plait.records.repair import repair as save

    with opened_store(store) as opened:
        return save(opened)


def curves(runs: Sequence[str | Path], *, root: str | Path = "runs") -> CurvesResult:
    """The loss curves of trainings, given as folders, key prefixes or "latest"."""
    from plait.training.run import open_run

    opened = [open_run(str(run), Path(root)) for run in runs]
    names = [run.name for run in opened]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise UserError(f"{twice} is given twice.")
    result = CurvesResult(tuple(Curve(run.name, run.arch.text, tuple(run.losses())) for run in opened))
    if empty := next((curve.run for curve in result.curves if not curve.losses), ""):
        raise UserError(f"{empty} has logged no loss yet.")
    return result


def _find(store: Store, kind: str | None, where: Mapping[str, Any] | None, limit: int | None) -> list[Record]:
    return list(_each(store, kind, where, limit))


def _each(
    store: Store,
    kind: str | None,
    where: Mapping[str, Any] | None,
    limit: int | None,
    without: Sequence[str] = INTERNAL,
) -> Iterator[Record]:
    """Records one by one, of all kinds `without` some if there is no `kind`; an unknown kind is an error that lists the
    known ones."""
    record = None
    for record in store.each(kind, _texts(where), limit, without=without if kind is None else ()):
        yield record
    if record is None and kind is not None and kind not in (known := store.kinds()):
        there = f"It has: {', '.join(known)}." if known else "It is empty."
        raise UserError(f"no records of kind '{kind}' in {store.name}.{did_you_mean(kind, known)} {there}")


def _texts(where: Mapping[str, Any] | None) -> dict[str, str]:
    return {name: str(value) for name, value in (where or {}).items()}


def _named(store: Store, starts: Sequence[str]) -> list[Record]:
    keys = (store.full_key(start.removeprefix("train-")) for start in starts)  # a run's name is as good as its key
    records = [store.get(key) for key in dict.fromkeys(keys)]
    return [record for record in records if record is not None]  # another process may just have removed one
