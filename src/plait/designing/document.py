"""The document of a design: the output of `--json`, from which the recommendation and the page are made."""

from __future__ import annotations

from typing import Any, TypedDict

from plait.probing.verdict import ProbedRow
from plait.records.comparison import BudgetForecast, RaceResult
from plait.records.record import Provenance

#: A JSON object: an architecture with its quantities by name, or another part of the document.
Row = dict[str, Any]


class NextStep(TypedDict):
    to: str  # what it is for: "settle the choice", "use the model", "train it longer"
    command: str


class _Summary(TypedDict, total=False):
    """The parts that are computed from the rest of the document."""

    commands: list[str]  # to repeat the design, as a whole and stage by stage
    next: list[NextStep]  # absent from designs of earlier versions
    points: list[str]  # the headline, then what has a label: `advice.labelled`
    advice: str  # all points as one paragraph


class Ahead(TypedDict):
    """The pick's lead in mean probe accuracy; `sign` is 0 if it is not distinguishable."""

    value: float
    interval: list[float] | None
    sign: int


class ProbedCandidate(ProbedRow):
    spec: str
    params: int
    note: str  # what could not be matched
    pick_ahead_by: Ahead
    better_than_pick_on: list[str]  # tasks


class ProbeDocument(TypedDict):
    protocol: str
    tasks: list[str]
    seeds: dict[str, int]  # by task
    scale: float  # of the protocol's steps
    runs: int
    steps: int
    trained_now: int
    architectures: list[ProbedCandidate]
    left_out: str  # why there was no probe; empty: there was one


class TrainingBudget(TypedDict):
    stated: str
    tokens: float
    spoken_for: float  # the part of them for which the race's forecast is valid


class DesignDocument(_Summary):
    config: Row
    machine: Provenance
    profile: Row
    search: Row
    predicted_front: list[Row]
    size: str  # the column that measures a model's size
    candidates: list[Row]  # one of each pattern
    probe: ProbeDocument
    race: Row  # a `RaceResult`
    budget: TrainingBudget
    foresight: list[Row]  # `BudgetForecast`s
    foresight_text: str
    rule: str
    pick: Row
    recommended: str
    best_probed: str | None  # None: there was no probe
    not_distinguishable: list[str]
    plain: str | None  # the Transformer's pattern
    train: Row
    cut: list[str]  # what was skipped or shortened for lack of time
    stages: dict[str, float]  # seconds
    plait: str


def race_of(document: DesignDocument) -> RaceResult:
    return RaceResult.from_dict(document["race"])


def foresight_of(document: DesignDocument) -> list[BudgetForecast]:
    return [BudgetForecast.from_dict(row) for row in document["foresight"]]
