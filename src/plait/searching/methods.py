"""The table of search algorithms, `--method`. Adding one adds a file with a subclass of `Search`, and a line here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plait.core.registry import Entry, Table

if TYPE_CHECKING:
    from plait.algorithms.search import Search

METHODS: Table[type[Search]] = Table(
    "method",
    {
        "lts": Entry("plait.algorithms.evolution:LtsSearch", "LiteTransformerSearch's evolutionary loop (the default)"),
        "nsga2": Entry("plait.algorithms.nsga:Nsga2", "NSGA-II: fronts, then the emptier place"),
        "nsga3": Entry(
            "plait.algorithms.nsga:Nsga3", "NSGA-III: fronts, then reference directions; for many objectives"
        ),
        "random": Entry("plait.algorithms.random_search:RandomSearch", "draw, refuse, keep the front: the yardstick"),
        "exhaustive": Entry(
            "plait.algorithms.exhaustive:Exhaustive",
            "every candidate; of small spaces, where no method is told its size",
        ),
        "gumbel": Entry("plait.supernet.search:GumbelSearch", "differentiable search: trains a supernet on --data"),
    },
    group="plait.methods",
)
