"""The papers' checkable facts, by id, and the code that checks them."""

from __future__ import annotations

from importlib import import_module

from plait.core.errors import UserError, did_you_mean
from plait.verify.fact import Fact, Result

__all__ = ["Fact", "Result", "all_facts", "select"]

#: The modules that hold facts; each has them in `facts`.
PARTS = ("lts", "searching", "measuring", "reading", "analysis", "par_search", "par", "mad_tasks", "mad_probe", "mad",
         "fox", "training", "workflow", "across", "errata")  # fmt: skip


def all_facts() -> list[Fact]:
    """Every fact, paper by paper, in the order of its id; errata at the end."""
    facts = [fact for part in PARTS for fact in import_module(f"plait.verify.{part}").facts.facts]
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
