"""Records: a result together with its config and provenance, and the key under which it is stored.

The key is the hash of everything that determines the result: the fully resolved request, and the protocol version of
the code that computes it. The protocol version is a small integer in the config, which the producer raises by hand when
its results change meaning. Source code, library versions and hardware are recorded in `provenance` but are not part of
the key: otherwise every edited comment, new library or other machine would compute everything again, and machines could
not share a store.

Fields of nested JSON have dotted names: `task.name` is the `name` in `task`.

Damage is detected: the key is the hash of kind and config, and a checksum covers the rest. The checksum is the first
field of the stored `about`, so that older stores, and older versions of plait, need no change: a record without a
checksum is accepted if its key is right.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypedDict

import plait
from plait.core.errors import UserError
from plait.core.files import CHECKSUM, DIGITS


class Provenance(TypedDict):
    """The circumstances of a computation."""

    started: str  # ISO 8601, UTC
    seconds: float
    plait: str
    code: str  # `code_hash`
    python: str
    torch: str | None
    system: str
    cpu: str
    threads: int | None
    cores: int | None
    gpu: str | None


def provenance_of(started: float, seconds: float) -> Provenance:
    """The provenance of a result whose computation began at `started` (`time.time()`) and took so many seconds."""
    return {
        "started": datetime.fromtimestamp(started, timezone.utc).isoformat(timespec="seconds"),
        "seconds": round(seconds, 3),
        "plait": plait.__version__,
        "code": code_hash(),
        "python": platform.python_version(),
        "torch": installed_version("torch"),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_model(),
        "threads": _threads(),
        "cores": cores(),
        "gpu": _gpu(),
    }


@cache
def code_hash() -> str:
    """A hash (16 hex digits) of all of plait's source and the data that comes with it, which distinguishes results of
    different versions of the code."""
    root = Path(plait.__file__).parent
    total = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.suffix in (".py", ".txt", ".json")):
        content = path.read_bytes()
        # Name and length come first; otherwise moving a line from one file to the next would go unnoticed.
        total.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode())
        total.update(content)
    return total.hexdigest()[:16]


@cache
def cpu_model() -> str:
    """The processor's model name; an empty string if unknown."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def cores() -> int:
    """How many processor cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def this_machine() -> str:
    """An id of this machine since it was booted. It is a hash, so that it does not reveal the machine's name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except OSError:
        boot = ""
    return hashlib.sha256(f"{platform.node()}{boot}".encode()).hexdigest()[:12]


def installed_version(package: str) -> str | None:
    """The installed version, from the package's metadata: nothing is imported."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _threads() -> int | None:
    """The number of torch's threads, because sums over several threads may differ in the last digits."""
    torch = sys.modules.get("torch")
    return None if torch is None else int(torch.get_num_threads())


def _gpu() -> str | None:
    # A process that has not imported torch has not computed on a GPU either.
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    name: str = torch.cuda.get_device_name()
    return name


PROTOCOL = "protocol"  # the field of every config that holds the producer's protocol version


class Document(TypedDict):
    """A record as one JSON document."""

    key: str
    kind: str
    config: Mapping[str, Any]
    result: Mapping[str, Any]
    about: Mapping[str, Any]


@dataclass(frozen=True)
class Record:
    key: str  # record_key(kind, config)
    kind: str  # what produced it, such as "probe"
    config: dict[str, Any]  # everything that determines the result, resolved
    result: dict[str, Any]  # plain JSON: numbers, curves
    provenance: dict[str, Any]  # a `Provenance` (older records lack fields); stored and exported as `about`

    @classmethod
    def of(
        cls, kind: str, config: Mapping[str, Any], result: Mapping[str, Any], provenance: Mapping[str, Any]
    ) -> Record:
        """A new record, whose key is computed from its kind and config."""
        return cls(record_key(kind, config), kind, dict(config), dict(result), dict(provenance))

    def document(self) -> Document:
        """The record as one JSON document."""
        return {
            "key": self.key,
            "kind": self.kind,
            "config": self.config,
            "result": self.result,
            "about": self.provenance,
        }


def record_key(kind: str, config: Mapping[str, Any]) -> str:
    """The key (32 hex digits) of a kind and a config; the order of the config's fields does not matter."""
    if not kind:
        raise UserError("a record needs a kind, such as 'probe'.")
    protocol = config.get(PROTOCOL)
    if not isinstance(protocol, int) or isinstance(protocol, bool):
        raise UserError(
            f"the config of a '{kind}' record needs the whole number '{PROTOCOL}', the version of what produces it; "
            f"found {protocol!r}."
        )
    return key_of(kind, json_text(config, "config", canonical=True))


def json_text(value: Any, name: str, canonical: bool = False) -> str:
    """`value` as compact JSON in ASCII; floats as Python's repr, which gives the same float back.

    What JSON would silently change (tuples, keys that are not strings) or cannot represent (NaN, infinities) is
    refused; messages call the value `name`. In canonical form fields are sorted.
    """
    _check(value, name)
    return json.dumps(value, sort_keys=canonical, separators=(",", ":"), allow_nan=False)


def _check(value: Any, name: str) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise UserError(f"{name} has the field {key!r}; a field's name is a string.")
            _check(inner, f"{name}.{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            _check(inner, f"{name}.{index}")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise UserError(f"{name} is {value}, which JSON cannot hold; store null, or say in words what happened.")
    elif value is not None and not isinstance(value, (str, int)):
        allowed = "a string, a number, true, false, null, a list or a dict"
        raise UserError(f"{name} is a {type(value).__name__}; it should be {allowed}.")


def flat(document: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Every leaf field by its dotted name. Lists are not flattened.

    A name that contains a dot is quoted, so that no two fields share a name: `models."gpt2-1.5b".loss`.
    """
    fields: dict[str, Any] = {}
    _flatten(document, before, fields)
    return fields


def _flatten(document: Mapping[str, Any], before: str, fields: dict[str, Any]) -> None:
    for plain, value in document.items():
        name = before + (json.dumps(plain) if "." in plain or '"' in plain else plain)
        # isinstance(…, Mapping) is slow, and hardly any value needs it.
        if type(value) not in _LEAVES and isinstance(value, Mapping) and value:
            _flatten(value, f"{name}.", fields)
        else:
            fields[name] = value


_LEAVES = frozenset((str, int, float, bool, list, type(None)))


def matches(document: Mapping[str, Any], where: Mapping[str, Any]) -> bool:
    """Whether the config has each of these fields with this value."""
    fields = flat(document)
    return all(name in fields and _equal(fields[name], wanted) for name, wanted in where.items())


def _equal(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, str) and not isinstance(value, str):
        try:
            wanted = json.loads(wanted)
        except ValueError:
            return False
    # True and 1 are equal in Python, but not in JSON.
    return bool(value == wanted) and isinstance(value, bool) == isinstance(wanted, bool)


KEY_DIGITS = 32
#: Kinds that tell users nothing: lists, reports and the dashboard show them only if asked for by kind or key.
INTERNAL = ("design-clock",)
_SEAL = re.compile(rf'{{"{CHECKSUM}":"([0-9a-f]+)"(,|(?=}}))')
REMEDY = "`plait runs verify` finds all that is damaged, `plait runs repair` takes it out, to be computed again."


def key_of(kind: str, config: str) -> str:
    """The key of a kind and a config that is given as canonical JSON."""
    return hashlib.sha256(f"{kind}\n{config}".encode()).hexdigest()[:KEY_DIGITS]


def seal(key: str, kind: str, config: str, result: str, about: str) -> str:
    """`about`, a JSON object's text, with the checksum of the whole record as its first field."""
    rest = about[1:]
    return f'{{"{CHECKSUM}":"{_checksum(key, kind, config, result, about)}"{"" if rest == "}" else ","}{rest}'


def damage(row: Any) -> str:
    """What is wrong with a stored row; empty if nothing is."""
    key, kind, config, result, about = texts = (row.key, row.kind, row.config, row.result, row.about)
    if set(map(type, texts)) != {str}:
        return "a field is missing"
    if key_of(kind, config) != key:
        return "its key is not the one of its kind and config"
    sealed = _SEAL.match(about)
    if sealed is not None:
        if sealed[1] != _checksum(key, kind, config, result, "{" + about[sealed.end() :]):
            return "its checksum is not the one written down"
        return ""
    for name, text in (("result", result), ("about", about)):  # older records: check at least that it is JSON
        try:
            whole = isinstance(json.loads(text), dict)
        except (ValueError, RecursionError):
            whole = False
        if not whole:
            return f"its {name} is not JSON"
    return ""


def record_of(row: Any, store: str) -> Record:
    """The record of a stored row, after checking that it is undamaged."""
    if wrong := damage(row):
        raise UserError(f"the record {str(row.key)[:KEY_DIGITS]} in {store} is damaged: {wrong}. {REMEDY}")
    # What the checksum covers was written by `put`, so numbers need no further check.
    about = json.loads(row.about)
    about.pop(CHECKSUM, None)
    return Record(row.key, row.kind, json.loads(row.config), json.loads(row.result), about)


def _checksum(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:DIGITS]
