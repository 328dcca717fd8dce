"""Listings of everything that has a name (mixers, tasks, spaces …): `plait.listing`.

Description of a corpus: `plait.corpus`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from plait.core.errors import UserError, did_you_mean
from plait.core.progress import OnProgress, ignore
from plait.core.registry import Entry, Table, first_paragraph, load_attribute
from plait.core.result import Result
from plait.model.architecture import load_mixers

#: Kinds whose rows are a name and a description, each with its table.
TABLES: Table[Table[Any]] = Table(
    "kind",
    {
        "optimizers": Entry("plait.training.recipe:OPTIMIZERS", "update rules, for a recipe's optimizer"),
        "spaces": Entry("plait.space.table:SPACES", "spaces of architectures, for --space"),
        "objectives": Entry("plait.space.objective_table:OBJECTIVES", "what a search may optimise"),
        "quantities": Entry("plait.device.quantities:QUANTITIES", "what a model needs of a device"),
        "methods": Entry("plait.searching.job:METHODS", "search algorithms, for --method"),
        "proxies": Entry("plait.algorithms.proxies:PROXIES", "scores of an untrained model"),
        "evaluations": Entry("plait.evals.evaluation:EVALUATIONS", "evaluations of a trained model, for eval --on"),
        "sinks": Entry("plait.training.sinks:SINKS", "loggers of a training, for --log"),
    },
)


@dataclass(frozen=True)
class Listing(Result):
    ROWS = "entries"
    kind: str
    entries: tuple[dict[str, Any], ...]  # each with `name` and further fields of its kind
    faults: tuple[str, ...] = ()  # of installed packages, whose things of this kind are left out

    @property
    def names(self) -> list[str]:
        return [row["name"] for row in self.entries]


def listing(
    kind: str | None = None, *, match: str = "", describe: bool = True, mixers: Sequence[str | Path] = ()
) -> Listing:
    """List everything of a kind; without a kind, the kinds; with a mixer's name, its options.

    kind      mixers, presets, tasks, corpora, spaces, objectives … or a mixer's name
    match     only names that contain this text
    describe  False: names alone, which is faster
    mixers    files with mixers of your own to list as well

    >>> plait.listing("mixers", match="rwkv").names
    ['rwkv6', 'rwkv7']
    """
    from plait.mixers import table as known_mixers

    load_mixers(mixers)
    faults = known_mixers.load_packaged()
    if kind is None:
        rows: list[dict[str, Any]] = [{"name": name, "entries": _count(name)} for name in KINDS]
    elif kind in TABLES:
        table = TABLES.load(kind)
        faults = table.discover()
        rows = [{"name": name, "what": table.what(name)} if describe else {"name": name} for name in table]
    elif kind in LISTED:
        faults = load_attribute(PACKAGED[kind]).discover() if kind in PACKAGED else []
        alone = kind in WHOSE and not describe
        rows = [{"name": name} for name in _table(kind)] if alone else LISTED[kind]()
    elif kind in known_mixers.names():
        rows = [{"name": row["option"], **row} for row in known_mixers.load(kind).describe()]
    else:
        known_mixers.load_packaged(kind)  # raises its fault, if a package declares it
        known = [*KINDS, *known_mixers.names()]
        raise UserError(f"nothing called '{kind}' to list.{did_you_mean(kind, known)} Known: {', '.join(known)}.")
    if kind is not None and kind in (*TABLES, *WHOSE) and describe:
        rows = [{**row, "from": _table(kind).origin(row["name"])} for row in rows]
    return Listing(kind or "kinds", tuple(row for row in rows if match.lower() in row["name"].lower()), tuple(faults))


def _count(kind: str) -> int:
    return len(_table(kind) if kind in (*TABLES, *WHOSE) else LISTED[kind]())


def _table(kind: str) -> Table[Any]:
    table: Table[Any] = TABLES.load(kind) if kind in TABLES else load_attribute(WHOSE[kind])
    return table


def _mixers() -> list[dict[str, object]]:
    from plait.mixers import table

    rows: list[dict[str, object]] = []
    for name in table.names():
        options = table.load(name)
        rows.append({
            "name": name,
            "kind": options.kind,
            "options": [row["option"] for row in options.describe()],
            "what": first_paragraph(options),
            "reference": options.reference,
        })  # fmt: skip
    return rows


def _presets() -> list[dict[str, object]]:
    from plait.spec import presets

    described = (presets.describe(name) for name in presets.names())
    return [{"name": p.name, "family": p.family, "source": p.source, "what": p.what} for p in described]


def _recipes() -> list[dict[str, object]]:
    from plait.papers.recipes import RECIPES

    return [
        {
            "name": name,
            "steps": published.steps,
            **{
                key: getattr(published.recipe, key)
                for key in ("optimizer", "lr", "schedule", "batch", "seq_len", "memory")
            },
            "source": published.source,
        }
        for name, published in RECIPES.items()
    ]


def _header_keys() -> list[dict[str, object]]:
    from plait.spec import Header

    return [
        {"name": f.name, "default": f.default, "allowed": list(f.metadata["choices"]), "what": f.metadata["about"]}
        for f in fields(Header)
    ]


def _tasks() -> list[dict[str, object]]:
    from plait import tasks
    from plait.tasks.controls import CONTROLS

    rows = []
    for name in tasks.names():
        task = tasks.baseline(name)
        rows.append({
            "name": name,
            "vocab": task.vocab,
            "length": task.length,
            "train_size": task.train_size,
            "settings": len(task.grid()),
            "ceiling": round(tasks.mean_ceiling(task), 3),
            "what": f"{task.skill} (solved by: {CONTROLS[name]})" if name in CONTROLS else task.skill,
        })  # fmt: skip
    return rows


def _corpora() -> list[dict[str, object]]:
    from plait.data.corpora import corpus_listing as rows

    return rows()


def _tokenizers() -> list[dict[str, object]]:
    from plait.data.tokenizer_table import tokenizer_listing as rows

    return rows()


LISTED = {
    "mixers": _mixers,
    "presets": _presets,
    "header": _header_keys,
    "tasks": _tasks,
    "recipes": _recipes,
    "corpora": _corpora,
    "tokenizers": _tokenizers,
}
KINDS = (*LISTED, *TABLES)
#: For kinds with further fields, the table that knows the source of an entry.
WHOSE = {"mixers": "plait.mixers.table:MIXERS", "tasks": "plait.tasks.task:TASKS"}
#: Those that packages add to.
PACKAGED = {**WHOSE, "corpora": "plait.data.corpora:NAMED"}


@dataclass(frozen=True)
class CorpusResult(Result):
    name: str
    vocab: int
    tokenizer: dict[str, Any]
    entropy: float | None  # of its source in nats per token, if known exactly
    fingerprint: str  # of the tokens and the tokenizer
    tokens: dict[str, int]  # by split
    characters: dict[str, int]
    sample: str  # the beginning of the validation split

    def rows(self) -> list[dict[str, Any]]:
        return [{"split": split, "tokens": self.tokens[split], "characters": self.characters[split]}
                for split in self.tokens]  # fmt: skip


def corpus(
    name: str | Path, *, tokenizer: str | None = None, sample: int = 100, on_progress: OnProgress = ignore
) -> CorpusResult:
    """Describe a corpus: its tokenizer, how many tokens each split has, a sample. Text is tokenized on first use.

    name       of a known corpus (`plait.listing("corpora")`), a file or a folder
    tokenizer  such as bytes, words:min_count=3, bpe:size=16384, hf:PATH; default: the corpus's own
    sample     tokens of the validation split to decode

    >>> plait.corpus("builtin:language").vocab
    32
    """
    from plait.data import SPLITS, open_corpus

    opened = open_corpus(str(name), tokenizer, progress=on_progress)
    return CorpusResult(
        name=opened.name,
        vocab=opened.vocab,
        tokenizer=opened.tokenizer.as_dict(),
        entropy=opened.entropy,
        fingerprint=opened.fingerprint,
        tokens={split: len(opened.tokens(split)) for split in SPLITS},
        characters={split: opened.characters(split) for split in SPLITS},
        sample=opened.tokenizer.decode(opened.tokens("validation")[:sample]),
    )
