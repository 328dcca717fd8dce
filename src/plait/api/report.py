"""A page of what a store holds: `plait.report`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plait.api.runs import find, named
from plait.core.errors import UserError
from plait.core.result import Result
from plait.records.store import Store

NEWEST = 1000


@dataclass(frozen=True)
class ReportResult(Result):
    page: str  # where it was written
    records: int
    kinds: dict[str, int]

    def rows(self) -> list[dict[str, Any]]:
        return [{"kind": kind, "records": count} for kind, count in self.kinds.items()]


def report(
    keys: Sequence[str] = (),
    *,
    kind: str | None = None,
    out: str | Path = "report.html",
    limit: int = NEWEST,
    store: str | Store | None = None,
) -> ReportResult:
    """Write one self-contained page of the records with these keys, or of the newest `limit` of a kind or of all:
    curves, tables, a paragraph on how they were made, and BibTeX of what was used."""
    from plait.mixers.table import MIXERS
    from plait.reporting.page import check_writable, write
    from plait.reporting.records_page import records_page

    page = Path(out)
    check_writable(page)
    found = named(keys, store=store) if keys else find(kind, limit=limit, store=store)
    records = [record for record in found.records if kind is None or record.kind == kind]
    if not records:
        raise UserError(f"{found.store} holds no such records; `plait runs list` shows what it holds.")
    text = " ".join(str(record.config) + str(record.result.get("spec", "")) for record in records)
    used = [name for name in MIXERS.names() if f" {name} " in text or f" {name}[" in text or f"({name}" in text]
    references = {name: MIXERS.load(name).reference for name in used}
    write(page, records_page(records, found.store, references))
    return ReportResult(str(page), len(records), dict(Counter(record.kind for record in records)))
