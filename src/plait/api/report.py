"""A page of a store's records, and its figures and numbers as files: `plait.report`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.api.runs import find, named
from plait.core.errors import UserError
from plait.core.result import Result
from plait.model.architecture import load_mixers
from plait.records.store import Store, opened_store

if TYPE_CHECKING:
    from plait.records import Record
    from plait.reporting.views import Context

NEWEST = 1000


@dataclass(frozen=True)
class ReportResult(Result):
    page: str  # where it was written
    records: int
    kinds: dict[str, int]
    files: tuple[str, ...] = ()  # further files: figures and tables

    def rows(self) -> list[dict[str, Any]]:
        return [{"kind": kind, "records": count} for kind, count in self.kinds.items()]


def report(
    keys: Sequence[str] = (),
    *,
    kind: str | None = None,
    out: str | Path = "report.html",
    svg: str | Path | None = None,
    png: str | Path | None = None,
    csv: str | Path | None = None,
    limit: int = NEWEST,
    mixers: Sequence[str | Path] = (),
    store: str | Store | None = None,
) -> ReportResult:
    """Write one self-contained HTML page of the records with these keys, or of the newest `limit` of a kind or of all:
    curves, fronts, heat maps, tables, a paragraph for a methods section, and BibTeX.

    svg, png  folders for the figures of the records shown in detail, one file each; PNG needs CairoSVG or Chromium
    csv       folder for their numbers, one file per record
    mixers    files with your own mixers, to draw their architectures and costs
    """
    from plait.reporting.citation import references_of
    from plait.reporting.figure_files import require_png, write_figures, write_tables
    from plait.reporting.page import check_writable, write
    from plait.reporting.records_page import close_records, records_page

    load_mixers(mixers)
    page = Path(out)
    check_writable(page)
    if png is not None:
        require_png()
    selected = named(keys, store=store) if keys else find(kind, limit=limit, store=store)
    records = [record for record in selected.records if kind is None or record.kind == kind]
    if not records and not keys and kind is None:
        raise UserError(f"{selected.store} has no records yet: `plait train`, `probe`, `search` … write them.")
    if not records:
        raise UserError(f"{selected.store} has no such records; `plait runs list` shows what it has.")
    with opened_store(store) as opened:
        context = _context(opened, records)
        write(page, records_page(records, selected.store, references_of(records), named=bool(keys), context=context))
        close = close_records(records, bool(keys))
        files = write_figures(close, context, svg=svg, png=png)
        files += write_tables(close, context, csv)
    kinds = dict(Counter(record.kind for record in records))
    return ReportResult(str(page), len(records), kinds, tuple(map(str, files)))


def _context(store: Store, records: Sequence[Record]) -> Context:
    from plait.reporting.views import Context

    known = {record.key: record for record in records}
    return Context(lambda key: known.get(key) or store.get(key))
