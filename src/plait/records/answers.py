"""Storing an answer that was computed from many records (the verdict of a comparison or probe, a design) as a record of
its own. The same question gives the same key; a stored answer is replaced only if another version of the code made
it."""

from __future__ import annotations

import json
import math
from typing import Any

from plait.core.errors import UserError
from plait.records.record import Record, provenance_of
from plait.records.store import Store

PROTOCOL = 1


def keep_answer(
    store: Store, kind: str, asked: dict[str, Any], document: dict[str, Any], started: float, seconds: float
) -> str:
    """Store an answer and return its key. `asked` is everything that decides the answer, `document` is what `--json`
    prints. If the store cannot be written the answer is not lost: the key is then empty."""
    config = {"protocol": PROTOCOL, **_plain(asked)}
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


def _plain(document: dict[str, Any]) -> dict[str, Any]:
    """The document as JSON represents it: tuples become lists, NaN and infinities null."""
    plain: dict[str, Any] = _finite(json.loads(json.dumps(document, default=str), parse_constant=lambda name: None))
    return plain


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
