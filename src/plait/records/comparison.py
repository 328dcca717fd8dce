"""Comparisons and races as results: what `--json` prints, what the store keeps and what pages are made from.

The fields are those of the JSON, in its order. `from_dict` also reads what earlier versions stored.
"""

from __future__ import annotations

from dataclasses import dataclass

from plait.core.result import StoredResult


@dataclass(frozen=True, kw_only=True)
class ComparedArchitecture(StoredResult):
    name: str
    spec: str
    loss: float | None  # validation loss, mean over seeds, nats per token; None: all diverged
    interval: tuple[float, float] | None  # 95 %, of the loss; None from one seed
    seeds: int
    diverged: int  # seeds, whose losses are left out
    tokens: int
    lr: float
    curve: tuple[tuple[int, float | None], ...]  # (tokens, loss)
    p_best: float | None  # probability of the lowest loss; None: the noise is unknown
    params: int
    flops_per_token: float
    rates: dict[str, float | None]  # losses of the learning rates tried
    seconds: float = 0.0  # of all its trainings
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class RacedArchitecture(StoredResult):
    name: str
    spec: str
    loss: float | None  # forecast at `tokens`; None: diverged
    interval: tuple[float, float] | None  # 90 %, of the forecast
    seeds: int
    tokens: float  # its training budget
    trained_tokens: int
    lr: float
    curve: tuple[tuple[int, float | None], ...]  # (tokens, loss)
    p_best: float
    regret: float | None  # expected loss above the best one's
    stopped: bool  # before the end of the race
    screening: float | None = None  # loss of a first, short training


@dataclass(frozen=True, kw_only=True)
class PairedDifference(StoredResult):
    a: str
    b: str
    difference: float | None  # loss of a minus loss of b; None: one of them diverged
    interval: tuple[float, float] | None  # of this pair alone: 95 %; of a race 90 %
    corrected_interval: tuple[float, float] | None = None  # excludes 0 where Holm's correction over all pairs finds a
    # difference; None in a race, from one seed, and in records of earlier versions
    p: float | None = None  # p-value of this pair alone; of a race: the probability that a is better
    verdict: str  # the name of the better one, or "not distinguishable"


@dataclass(frozen=True, kw_only=True)
class BudgetForecast(StoredResult):
    tokens: float
    best: str = ""
    p_best: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class ComparisonCost(StoredResult):
    seconds: float = 0.0  # of this call
    trained_seconds: float  # of all trainings, when they were done
    tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class ComparisonResult(StoredResult):
    ROWS = "architectures"
    data: str
    architectures: tuple[ComparedArchitecture, ...]  # in the order given
    paired: tuple[PairedDifference, ...]
    noise: float | None  # standard deviation between seeds
    verdict: str
    foresight: tuple[BudgetForecast, ...]
    foresight_text: str
    screening_left_out: str = ""  # why its forecasts have none
    cost: ComparisonCost
    equal: str  # tokens, flops or time
    seq_len: int
    batch: int
    notes: tuple[str, ...]

    @property
    def longest(self) -> int:
        """Tokens of the longest training."""
        return max(row.tokens for row in self.architectures)


@dataclass(frozen=True, kw_only=True)
class RaceCost(StoredResult):
    share: float  # of training all candidates to the end
    seconds: float


@dataclass(frozen=True, kw_only=True)
class RaceResult(StoredResult):
    ROWS = "architectures"
    architectures: tuple[RacedArchitecture, ...]  # the lowest forecast first
    paired: tuple[PairedDifference, ...]  # the pick against each of the others
    noise: float | None
    verdict: str
    rungs: tuple[int, ...]  # tokens
    rates_searched: bool = False
    screening_left_out: str = ""  # why there was none
    notes: tuple[str, ...] = ()
    ended: str = ""  # why
    cost: RaceCost

    @property
    def longest(self) -> int:
        """Tokens of the longest training."""
        return max(row.trained_tokens for row in self.architectures)
