"""`plait list [KIND]`: what there is to compose with."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from plait.cli.options import Mixers
from plait.cli.output import console, plain, print_json, table
from plait.core.errors import UserError, did_you_mean
from plait.core.registry import Entry, Table

#: Kinds whose rows say a name and what it is, each from its table.
TABLES: Table[Table[Any]] = Table(
    "kind",
    {
        "optimizers": Entry("plait.training.optimizers:OPTIMIZERS", "update rules, for a recipe's optimizer"),
        "spaces": Entry("plait.space.table:SPACES", "spaces of architectures, for --space"),
        "objectives": Entry("plait.space.objective_table:OBJECTIVES", "what a search may optimise"),
        "methods": Entry("plait.searching.methods:METHODS", "search algorithms, for --method"),
        "proxies": Entry("plait.algorithms.proxies:PROXIES", "scores of an untrained model"),
        "evaluations": Entry("plait.evals.evaluation:EVALUATIONS", "what a trained model is asked, for eval --on"),
    },
)
KINDS = ("mixers", "presets", "header", "tasks", "recipes", "corpora", "tokenizers", *TABLES)


def command(
    kind: Annotated[str | None, typer.Argument(help=f"{', '.join(KINDS)}, or one mixer.")] = None,
    match: Annotated[str, typer.Option(help="Only names that contain this text.")] = "",
    names: Annotated[bool, typer.Option("--names", help="Print names only, one per line.")] = False,
    own: Mixers = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list.")] = False,
) -> None:
    """List what there is of a kind, or one mixer's options."""
    from plait.mixers import table as arch

    arch.load_packaged()
    if kind is None:
        rows: list[dict[str, Any]] = [{"name": name, "entries": _count(name)} for name in KINDS]
    elif kind in TABLES:
        table = TABLES.load(kind)
        table.discover()
        rows = [{"name": name} if names else {"name": name, "what": table.what(name)} for name in table]
    elif kind in KINDS:
        rows = _rows(kind)
    elif kind in arch.names():
        rows = [{"name": row["option"], **row} for row in arch.load(kind).describe()]
    else:
        known = [*KINDS, *arch.names()]
        raise UserError(f"nothing called '{kind}' to list.{did_you_mean(kind, known)} Known: {', '.join(known)}.")
    rows = [row for row in rows if match.lower() in row["name"].lower()]
    if as_json:
        print_json([row["name"] for row in rows] if names else rows)
    elif names:
        print("\n".join(row["name"] for row in rows))
    else:
        _print(rows)


def _rows(kind: str) -> list[dict[str, Any]]:
    from plait.data import corpora, tokenizers

    listings = {
        "mixers": mixers,
        "presets": presets,
        "header": header_keys,
        "tasks": tasks,
        "recipes": recipes,
        "corpora": corpora.corpus_listing,
        "tokenizers": tokenizers.tokenizer_listing,
    }
    return listings[kind]()


def _count(kind: str) -> int:
    return len(TABLES.load(kind)) if kind in TABLES else len(_rows(kind))


def mixers() -> list[dict[str, Any]]:
    from plait.mixers import table as arch

    found = []
    for name in arch.names():
        options = arch.load(name)
        doc = (options.__doc__ or "").strip().splitlines()[0]
        found.append({
            "name": name,
            "kind": options.kind,
            "options": [row["option"] for row in options.describe()],
            "what": doc,
            "reference": options.reference,
        })  # fmt: skip
    return found


def presets() -> list[dict[str, Any]]:
    from plait.spec import presets as table_of

    described = (table_of.describe(name) for name in table_of.names())
    return [{"name": p.name, "family": p.family, "source": p.source, "what": p.what} for p in described]


def recipes() -> list[dict[str, Any]]:
    from plait.papers.recipes import RECIPES

    return [
        {
            "name": name,
            "steps": one.steps,
            **{key: getattr(one.recipe, key) for key in ("optimizer", "lr", "schedule", "batch", "length", "memory")},
            "source": one.source,
        }
        for name, one in RECIPES.items()
    ]


def header_keys() -> list[dict[str, Any]]:
    from dataclasses import fields

    from plait.spec import Header

    return [
        {
            "name": f.name,
            "default": f.default,
            "allowed": list(f.metadata["choices"]),
            "what": f.metadata["about"],
        }
        for f in fields(Header)
    ]


def tasks() -> list[dict[str, Any]]:
    from plait import tasks as table_of

    found = []
    for name in table_of.names():
        task = table_of.baseline(name)
        found.append({
            "name": name,
            "vocab": task.vocab,
            "length": task.length,
            "train_size": task.train_size,
            "settings": len(task.grid()),
            "ceiling": round(table_of.mean_ceiling(task), 3),
            "what": task.skill,
        })  # fmt: skip
    return found


def _print(rows: list[dict[str, Any]]) -> None:
    out = console()
    if not rows:
        out.print("nothing matches")
        return
    # `option` repeats the name and `options` is long: both are for --json.
    columns = [key for key in rows[0] if key not in ("option", "options")]
    made = table(**dict.fromkeys(columns, "left"))
    for row in rows:
        made.add_row(*(_cell(row[key]) for key in columns))
    out.print(made)


def _cell(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return plain(str(value))
