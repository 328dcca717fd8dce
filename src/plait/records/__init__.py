"""What a result is, and the store that keeps it: SQLite by default, PostgreSQL by URL."""

from __future__ import annotations

from plait.records.export import export
from plait.records.record import Record, code_hash, provenance_of, record_key
from plait.records.store import Store, open_store, opened_store, writable_store

__all__ = [
    "Record",
    "Store",
    "code_hash",
    "export",
    "open_store",
    "opened_store",
    "provenance_of",
    "record_key",
    "writable_store",
]
