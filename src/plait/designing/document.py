"""The document of a design: what `--json` prints, the advice is computed from and the page shows."""

from __future__ import annotations

from typing import Any, TypedDict

from plait.records.record import Provenance

#: A JSON object: an architecture with its quantities by name, or another part of the document.
Row = dict[str, Any]


class _Summary(TypedDict, total=False):
    """The parts that are computed from the rest of the document."""

    commands: list[str]  # that repeat the design, as a whole and stage by stage
    points: list[str]
    advice: str


class DesignDocument(_Summary):
    config: Row
    machine: Provenance
    profile: Row
    search: Row
    predicted_front: list[Row]
    size: str  # the column that says how large a model is
    candidates: list[Row]  # one of each pattern
    probe: Row
    race: Row
    budget: Row
    foresight: list[Row]
    foresight_text: str
    rule: str
    pick: Row
    recommended: str
    best_probed: str
    not_distinguishable: list[str]
    plain: str | None  # the Transformer's pattern
    train: Row
    stages: dict[str, float]  # seconds
    plait: str
