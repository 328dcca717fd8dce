"""The trainings in a store, as the table of runs that scaling laws are fitted to.

If the store has records of `plait scale run`, these are the runs they list, of all studies on the same text as the
newest one. Otherwise all trainings of the store are taken, each architecture named by its pattern of mixers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

from plait.analysis.scaling_runs import PER_BYTE
from plait.analysis.table import Table
from plait.core.errors import UserError
from plait.model.architecture import architecture
from plait.model.cost import model_cost
from plait.records import Record, Store
from plait.scaling.sizes import attention_share, pattern_of

TRAINED = "train"


def stored_runs(store: Store) -> Table:
    studied = _studied(store)
    records: Iterable[Record | None] = map(store.get, studied) if studied else reversed(store.find(TRAINED))
    found = _newest_sources([record for record in records if record is not None], studied)
    rows = [run_row(record, *studied.get(record.key, ())) for record in found]
    if not rows:
        raise UserError(f"{store.name} has no trainings; see `plait scale plan` and `plait scale run`.")
    return Table.of(store.name, rows)


def _studied(store: Store) -> dict[str, tuple[str, float | None]]:
    """Key of a training → the architecture's name and tokens per byte, for all studies on the newest one's text."""
    found = store.find("scale")
    return {
        row["key"]: (row["architecture"], record.result.get(PER_BYTE))
        for record in reversed(found)
        if _text(record) == _text(found[0])
        for row in record.config["runs"]
    }


def _newest_sources(records: list[Record], studied: Mapping[str, tuple[str, float | None]]) -> list[Record]:
    """Leave out runs of a user's own mixer that were trained before its file was last edited."""
    sources = {_name(record, studied): record.config.get("sources") for record in records}  # the last is the newest
    return [record for record in records if record.config.get("sources") == sources[_name(record, studied)]]


def _name(record: Record, studied: Mapping[str, tuple[str, float | None]]) -> str:
    return studied[record.key][0] if record.key in studied else str(record.config["spec"])


def _text(record: Record) -> Any:
    return record.result.get("text") or record.config["data"]


class RunRow(TypedDict):
    """One training as a row of the table that a scaling fit reads."""

    architecture: str
    flops: float
    params: int
    active_params: int
    tokens: int
    loss: float
    state: float | None
    attention: float
    batch: int
    vocab: int
    tokens_per_byte: float | None
    lr: float
    spec: str
    data: str
    key: str


def run_row(record: Record, name: str | None = None, per_byte: float | None = None) -> RunRow:
    config, result = record.config, record.result
    arch = architecture(str(config["spec"]))
    recipe: Mapping[str, Any] = config["recipe"]
    cost = model_cost(arch, seq=int(recipe["seq_len"]))
    return {
        "architecture": name or pattern_of(arch),
        "flops": result["flops"],
        "params": result["params"],
        "active_params": cost.active_params,
        "tokens": result["tokens"],
        "loss": result["loss"],
        "state": (cost.fixed_state + cost.kv_cache) or None,
        "attention": attention_share(arch),
        "batch": recipe["batch"] * recipe["seq_len"],
        "vocab": arch.header.vocab,
        "tokens_per_byte": per_byte,
        "lr": recipe["lr"],
        "spec": arch.text,
        "data": result["data"],
        "key": record.key,
    }
