"""The papers' checkable facts, by id: what a paper states, how plait computes it, and the verdict.

pass      plait agrees with the paper
fail      it does not
erratum   the paper contradicts itself here, and plait shows where
not here  the check needs a package that is not installed
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from plait.core.errors import UserError, did_you_mean
from plait.model.architecture import Architecture

Check = Callable[[], tuple[str, str, bool]]  # expected, ours, whether they agree


@dataclass(frozen=True)
class FactResult:
    id: str
    what: str
    expected: str
    ours: str
    status: str


@dataclass(frozen=True)
class Fact:
    id: str
    what: str
    check: Check
    erratum: bool = False
    needs: str = ""  # "package of plait[extra]" without which it cannot be checked

    def result(self) -> FactResult:
        if self.needs and find_spec(self.needs.split()[0]) is None:
            return FactResult(self.id, self.what, "", f"needs {self.needs}", "not here")
        try:
            expected, ours, agrees = self.check()
        except Exception as wrong:  # a check that raises has failed; the others still run
            return FactResult(self.id, self.what, "", f"{type(wrong).__name__}: {wrong}", "fail")
        status = ("erratum" if self.erratum else "pass") if agrees else "fail"
        return FactResult(self.id, self.what, expected, ours, status)


class FactTable:
    """The facts of one paper, in order; checks are added by decorating a function."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []

    def fact(self, id: str, what: str, *, erratum: bool = False, needs: str = "") -> Callable[[Check], Check]:
        def add(check: Check) -> Check:
            self.facts.append(Fact(id, what, check, erratum, needs))
            return check

        return add


def first_layer(arch: Architecture, mixer: str) -> Any:
    return next(layer for layer in arch.layers if layer.name == mixer)


def tally(good: int, of: int) -> str:
    """How many rows of a table hold."""
    return f"{good} of {of} rows"


__all__ = ["Fact", "FactResult", "all_facts", "select"]

#: The modules that hold facts; each has them in `facts`.
PARTS = (
    "lts.facts",
    "lts.search_facts",
    "lts.study_facts",
    "reading_facts",
    "par.facts",
    "mad.probe_facts",
    "mad.facts",
    "mad.scaling_facts",
    "fox.facts",
    "training_facts",
    "across_facts",
)


def all_facts() -> list[Fact]:
    """Every fact, paper by paper, in the order of its id; errata at the end."""
    facts = [fact for part in PARTS for fact in import_module(f"plait.papers.{part}").facts.facts]
    return sorted(facts, key=lambda fact: ("LPMFCE".index(fact.id[0]), float(fact.id[1:])))


def select(ids: list[str]) -> list[Fact]:
    """The facts with these ids (a prefix such as L or F0 takes all it begins), or all of them."""
    facts = all_facts()
    known = [fact.id for fact in facts]
    for wanted in ids:
        if not any(id.startswith(wanted.upper()) for id in known):
            raise UserError(
                f"there is no fact '{wanted}'.{did_you_mean(wanted.upper(), known)} `plait verify` lists all."
            )
    return [fact for fact in facts if not ids or any(fact.id.startswith(wanted.upper()) for wanted in ids)]
