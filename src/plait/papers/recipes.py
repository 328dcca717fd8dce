"""The papers' own recipes by name, each with where it is printed and how long it runs.

A paper's recipes are in its `recipes` module, with its sources; they are imported when a recipe is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from plait.core.errors import UserError, did_you_mean
from plait.core.registry import Entry, Table
from plait.training.recipe import Recipe


@dataclass(frozen=True)
class Published:
    """A recipe with its paper's length of training."""

    recipe: Recipe
    steps: int
    source: str


#: The paper → its recipes by name.
PAPERS: Table[dict[str, Published]] = Table(
    "paper with recipes",
    {
        "lts": Entry("plait.papers.lts.recipes:RECIPES", "LiteTransformerSearch, Table 2"),
        "par": Entry("plait.papers.par.recipes:RECIPES", "PAR Transformer: Transformer-XL, its search, BERT"),
        "mad": Entry("plait.papers.mad.recipes:RECIPES", "Mechanistic Architecture Design: tasks and scaling"),
        "fox": Entry("plait.papers.fox.recipes:RECIPES", "Forgetting Transformer, Tables 4, 5 and 7"),
    },
)


@cache
def recipes() -> dict[str, Published]:
    """All of them, paper by paper."""
    return {name: published for paper in PAPERS for name, published in PAPERS.load(paper).items()}


def recipe(name: str) -> Published:
    known = recipes()
    if name not in known:
        raise UserError(f"'{name}' is not a recipe.{did_you_mean(name, known) or ' Known: ' + ', '.join(known) + '.'}")
    return known[name]
