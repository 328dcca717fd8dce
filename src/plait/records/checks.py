"""Whether a stored record is what was put: its key is the hash of its kind and config, and a checksum covers the rest.

The checksum is the first field of what is stored as `about`, so that stores of before, and the plaits that made them,
need no change: a record without one is taken as it is, as far as its key can tell.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from plait.core.errors import UserError
from plait.core.json_files import CHECKSUM, checksum
from plait.records.record import Record

KEY_DIGITS = 32
_SEAL = re.compile(rf'{{"{CHECKSUM}":"([0-9a-f]+)"(,|(?=}}))')
REMEDY = "`plait runs verify` finds all that is damaged, `plait runs repair` takes it out, to be computed again."


def key_of(kind: str, config: str) -> str:
    """Of a kind and a config as canonical JSON."""
    return hashlib.sha256(f"{kind}\n{config}".encode()).hexdigest()[:KEY_DIGITS]


def seal(key: str, kind: str, config: str, result: str, about: str) -> str:
    """`about`, a JSON object's text, with the checksum of all of the record in front."""
    rest = about[1:]
    return f'{{"{CHECKSUM}":"{_checksum(key, kind, config, result, about)}"{"" if rest == "}" else ","}{rest}'


def damage(row: Any) -> str:
    """What is wrong with a stored row; empty where nothing is."""
    key, kind, config, result, about = texts = (row.key, row.kind, row.config, row.result, row.about)
    if set(map(type, texts)) != {str}:
        return "a field is missing"
    if key_of(kind, config) != key:
        return "its key is not the one of its kind and config"
    found = _SEAL.match(about)
    if found is not None:
        if found[1] != _checksum(key, kind, config, result, "{" + about[found.end() :]):
            return "its checksum is not the one written down"
        return ""
    for name, text in (("result", result), ("about", about)):  # of before: at least it is JSON
        try:
            whole = isinstance(json.loads(text), dict)
        except (ValueError, RecursionError):
            whole = False
        if not whole:
            return f"its {name} is no JSON"
    return ""


def record_of(row: Any, store: str) -> Record:
    """The record, once it is known to be whole."""
    if wrong := damage(row):
        raise UserError(f"the record {str(row.key)[:KEY_DIGITS]} in {store} is damaged: {wrong}. {REMEDY}")
    # What the checksum covers was written by `put`: numbers need no second look.
    about = json.loads(row.about)
    about.pop(CHECKSUM, None)
    return Record(row.key, row.kind, json.loads(row.config), json.loads(row.result), about)


def _checksum(*texts: str) -> str:
    return checksum("\n".join(texts))
