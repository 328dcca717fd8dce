"""What a design says, whole: plain JSON, as `--json` prints it, the advice reads it and the page shows it."""

from __future__ import annotations

from typing import Any, TypedDict

#: An architecture with what is known of it, by the names of quantities; or a part of the document as JSON has it.
Row = dict[str, Any]


class _Said(TypedDict, total=False):
    """What is said of the rest, once that is known."""

    commands: list[str]  # that do the same again, whole and in parts
    points: list[str]
    advice: str


class DesignDocument(_Said):
    config: Row
    machine: Row  # provenance
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
