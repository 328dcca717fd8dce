"""A checkable fact: what a paper states, how plait computes it, and the verdict.

pass      ours agrees with the paper
fail      it does not
erratum   the paper contradicts itself here, and plait shows where
not yet   plait has nothing that could answer
not here  the check needs a package that is not installed
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any

Check = Callable[[], tuple[str, str, bool]]  # expected, ours, whether they agree


@dataclass(frozen=True)
class Result:
    id: str
    what: str
    expected: str
    ours: str
    status: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Fact:
    id: str
    what: str
    check: Check | None = None  # None: not yet
    erratum: bool = False
    needs: str = ""  # "package of plait[extra]" without which it cannot be checked

    def result(self) -> Result:
        if self.check is None:
            return Result(self.id, self.what, "", "", "not yet")
        if self.needs and find_spec(self.needs.split()[0]) is None:
            return Result(self.id, self.what, "", f"needs {self.needs}", "not here")
        try:
            expected, ours, agrees = self.check()
        except Exception as wrong:  # a check that breaks has failed; the others still run
            return Result(self.id, self.what, "", f"{type(wrong).__name__}: {wrong}", "fail")
        status = ("erratum" if self.erratum else "pass") if agrees else "fail"
        return Result(self.id, self.what, expected, ours, status)


class FactTable:
    """The facts of one paper, in order; checks are added by decorating a function."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []

    def fact(self, id: str, what: str, *, erratum: bool = False, needs: str = "") -> Callable[[Check], Check]:
        def add(check: Check) -> Check:
            self.facts.append(Fact(id, what, check, erratum, needs))
            return check

        return add

    def not_yet(self, **facts: str) -> None:
        self.facts.extend(Fact(id, what) for id, what in facts.items())


def tally(good: int, of: int) -> str:
    """How many rows of a table hold."""
    return f"{good} of {of} rows"
