"""Do the papers' own numbers come out? `plait.verify`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from plait.core.progress import OnProgress, ignore
from plait.core.result import Result
from plait.papers.verify import FactResult


@dataclass(frozen=True)
class VerifyResult(Result):
    facts: tuple[FactResult, ...]

    @property
    def failed(self) -> tuple[FactResult, ...]:
        return tuple(fact for fact in self.facts if fact.status == "fail")

    def rows(self) -> list[dict[str, Any]]:
        return [fact.as_dict() for fact in self.facts]


def verify(*ids: str, on_progress: OnProgress = ignore) -> VerifyResult:
    """Check facts of the papers by id (`L03`; a prefix such as `F` takes all it begins); without ids, all of them."""
    from plait.papers.verify import select

    facts = select(list(ids))
    results: list[FactResult] = []
    for fact in facts:
        on_progress(f"checking {fact.id}", len(results), len(facts))
        results.append(fact.result())
    return VerifyResult(tuple(results))
