"""Answers that are made of many records, kept as one: the verdict of a comparison or a probe, a design. Asked again,
the records behind it are found again and the answer is the same; what was kept stays, unless other code has spoken."""

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
    """Its key. `asked`: all that decides it; `document`: as `--json` prints it. A store that takes nothing more costs
    no answer: the key is empty then."""
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
    """As JSON has it: tuples are lists, numbers that are not finite are null."""
    plain: dict[str, Any] = _finite(json.loads(json.dumps(document, default=str), parse_constant=lambda name: None))
    return plain


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
