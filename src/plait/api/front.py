"""The Pareto front of a search: `plait.front.show`, `pick`, `score`, `table`, `candidates`."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from plait.api.search import FrontResult, shapes
from plait.core import defaults
from plait.core.errors import UserError
from plait.core.files import write_text
from plait.core.progress import OnProgress, ignore
from plait.core.registry import require_one_of
from plait.core.result import Result
from plait.device.quantities import in_rows
from plait.model.architecture import load_mixers
from plait.records import Record, Store
from plait.records.store import opened_store
from plait.searching import picking
from plait.searching.picking import Row, value_of
from plait.space.constraints import Limits

if TYPE_CHECKING:
    from plait.device.measurements import Measurements
    from plait.searching.validation import Validated


__all__ = [
    "Candidates",
    "FrontResult",
    "FrontScores",
    "FrontTable",
    "Picked",
    "candidates",
    "check_ending",
    "pick",
    "restored_search",
    "score",
    "shapes",
    "show",
    "table",
]

KIND = "search"
LATEST = "latest"
ENDINGS = (".csv", ".jsonl")


@dataclass(frozen=True)
class Picked(Result):
    spec: str
    row: Row  # its row of the front
    by: str  # the column it is best in
    among: int  # models that meet the limits

    @property
    def is_measured(self) -> bool:
        return self.row["measurement"] is not None

    def as_dict(self) -> dict[str, Any]:
        return self.row


@dataclass(frozen=True)
class FrontTable(Result):
    """The front in the format of LiteTransformerSearch's tables."""

    ROWS = "models"
    key: str
    models: tuple[Row, ...]


@dataclass(frozen=True)
class Candidates(Result):
    """Every architecture that a search evaluated, up to the number that its record stores."""

    ROWS = "candidates"
    key: str
    evaluated: int
    candidates: tuple[Row, ...]

    def csv(self) -> str:
        written = io.StringIO()
        names = list(self.candidates[0]) if self.candidates else ["candidate"]
        writer = csv.DictWriter(written, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {name: json.dumps(value) if isinstance(value, bool) else value for name, value in row.items()}
            for row in self.candidates
        )
        return written.getvalue()

    def save(self, path: str | Path) -> None:
        """Write them as .csv or .jsonl."""
        target = check_ending(Path(path))
        lines = "".join(json.dumps(row) + "\n" for row in self.candidates)
        write_text(target, self.csv() if target.suffix == ".csv" else lines)


def show(
    key: str = LATEST,
    *,
    front: int = defaults.FRONT,
    svg: str | Path | None = None,
    cube: str | Path | None = None,
    mixers: Sequence[str | Path] = (),
    store: str | Store | None = None,
) -> FrontResult:
    """The front of a stored search (by its key or a prefix of it), predicted and measured; `front`: the number of
    models, 0 for all. `svg` and `cube` draw it to these files, in 2D and 3D."""
    from plait.searching.validation import document

    load_mixers(mixers)
    with _opened(key, store) as (record, known, opened):
        shown = document(record, _looked_up(record, known, front))
        result = FrontResult.of(shown, opened)
    if svg is not None:
        result.save_svg(svg)
    if cube is not None:
        from plait.reporting.front import search_cube

        write_text(cube, search_cube(shown))
    return result


def pick(
    key: str = LATEST,
    *,
    by: str = "",
    measure: bool = True,
    mixers: Sequence[str | Path] = (),
    store: str | Store | None = None,
    on_progress: OnProgress = ignore,
    **limits: str | float | None,
) -> Picked:
    """The best model of a search within the limits (default: the search's own). `by`: the column to pick by (default:
    the search's first objective). The pick is measured if it was not yet, unless `measure=False` or the search was for
    another machine; if it exceeds a limit, the next best is tried."""
    from plait.searching.validation import describe

    load_mixers(mixers)
    changed = Limits.read(**limits).as_dict()
    with _opened(key, store) as (record, known, _), known:
        asked = Limits(**{**record.result["limits"], **changed})
        rows = [describe(row, asked, known.find(row["spec"])) for row in record.result["front"]]
        name, maximise = picking.direction(record, by, rows[0])
        if measure and picking.is_here(record, known) and (asked.on_device or record.result["profile"]):
            rows = picking.measured_until_best(record, rows, asked, known, name, maximise, on_progress)
    pool = [row for row in rows if picking.holds(row) or picking.should_hold(row, asked)]
    if not pool:
        raise UserError(picking.nothing_holds(rows, asked))
    best = picking.best(pool, name, maximise)
    return Picked(best["spec"], best, name, len(pool))


def table(
    key: str = LATEST,
    *,
    front: int = defaults.FRONT,
    mixers: Sequence[str | Path] = (),
    store: str | Store | None = None,
) -> FrontTable:
    """Widths, and heads and inner widths layer by layer, sorted by size."""
    load_mixers(mixers)
    with _opened(key, store) as (record, known, _):
        validated = _looked_up(record, known, front)
    rows = sorted(validated.rows, key=lambda row: int(row["decoder_params"]))
    entries: list[Row] = []
    for number, (row, shape) in enumerate(zip(rows, shapes([row["spec"] for row in rows]), strict=True), 1):
        costs = {"decoder_params": row["decoder_params"]}
        costs |= {quantity.column: value_of(row, of) for of, quantity in in_rows(rows).items()}
        entries.append({"model": f"M{number}", **shape, **costs, "measured": row["measurement"] is not None})
    return FrontTable(record.key, tuple(entries))


def candidates(key: str = LATEST, *, mixers: Sequence[str | Path] = (), store: str | Store | None = None) -> Candidates:
    """Every candidate that a search evaluated: its objectives, whether it is on the front, its spec."""
    from plait.algorithms.front import Candidates as Kept

    load_mixers(mixers)
    with opened_store(store) as opened:
        record = restored_search(opened, key)
    kept = Kept.of(record.config, record.result)
    rows = tuple(kept.rows([row["spec"] for row in record.result["front"]]))
    return Candidates(record.key, kept.evaluated, rows)


def check_ending(path: Path) -> Path:
    if path.suffix not in ENDINGS:
        raise UserError(f"cannot write candidates to '{path.name}': known endings: {', '.join(ENDINGS)}.")
    return path


# ---- stored searches


def restored_search(store: Store, key: str, method: str | None = None) -> Record:
    """The search with this key prefix, or the latest (by `method`, if given). Loads its mixers."""
    from plait.model.user_mixers import restore

    if key == LATEST:
        newest = store.find(KIND, {"method": method} if method else None, limit=1)
        record = newest[0] if newest else None
    else:
        record = store.get(store.full_key(key))
    if record is None:
        wanted, option = (f"search by {method}", f" --method {method}") if method else ("search", "")
        raise UserError(f"there is no {wanted} in {store.name}; make one with `plait search{option}`.")
    if record.kind != KIND:
        raise UserError(f"{record.key[:10]} is not a front of `plait search` but a record of kind '{record.kind}'.")
    restore(record.result.get("mixers", []), f"the search {record.key[:10]}")
    return record


@contextmanager
def _opened(key: str, store: str | Store | None) -> Iterator[tuple[Record, Measurements, Store]]:
    """The record of a search, and what has been measured in its setting."""
    from plait.device.measurements import Measurements
    from plait.device.quantities import Setting

    with opened_store(store) as opened:
        record = restored_search(opened, key)
        if "setting" not in record.result:
            raise UserError(f"{record.key[:10]} has no setting of its measurements; search again.")
        yield record, Measurements(opened, Setting(**record.result["setting"])), opened


def _looked_up(record: Record, known: Measurements, count: int) -> Validated:
    """The rows that `plait search` chose, with their stored measurements; nothing is measured."""
    from plait.algorithms.front import Front
    from plait.searching.validation import validate

    limits = Limits(**record.result["limits"])
    return validate(Front.from_dict(record.result), limits, count, lambda spec, again: known.find(spec))


COMPARE = "compare"
DATA = "builtin:stdlib"


class Score(TypedDict):
    score: float


class ComparedScore(Score):
    loss: float | None  # None: it diverged
    p_best: float | None  # None: the noise is unknown


@dataclass(frozen=True)
class FrontScores(Result):
    """`models`: best score first; `on_front`: not dominated by another in the score and the search's other
    objectives. By compare the score is minus the validation loss, with `p_best`."""

    ROWS = "models"
    key: str  # of the search
    by: str
    data: str
    models: tuple[Row, ...]

    @property
    def specs(self) -> list[str]:
        return [row["spec"] for row in self.models]


def score(
    key: str = LATEST,
    *,
    by: str,
    data: str = DATA,
    tokenizer: str | None = None,
    front: int = defaults.FRONT,
    seed: int = 0,
    time: str | float | None = None,
    mixers: Sequence[str | Path] = (),
    runs: str | Path = "runs",
    store: str | Store | None = None,
    on_progress: OnProgress = ignore,
) -> FrontScores:
    """Score models of a stored search (`front` of them, 0 for all) by something too expensive for the search itself:
    a proxy of `plait list objectives` (snip, grad_norm …), short_training, or compare, which trains them on the text
    for a total `time` (default: "10m")."""
    from plait.data import open_corpus
    from plait.records.store import writable_store
    from plait.searching.picking import proxy_scores, still_on_front
    from plait.space.objective_table import PROXIES

    name = by.replace("-", "_")
    require_one_of(name, (*PROXIES, COMPARE), f"--by {by}")
    if time is not None and name != COMPARE:
        raise UserError(f"--time works only with --by {COMPARE}.")
    load_mixers(mixers)
    with writable_store(store) as opened:
        searched = show(key, front=front, store=opened)
        rows = list(searched.front)
        if name == COMPARE:
            scores: Sequence[Score] = _compared(
                [row["spec"] for row in rows], data, tokenizer, time, runs, opened, on_progress
            )
        else:
            corpus = open_corpus(data, tokenizer)
            values = proxy_scores([row["spec"] for row in rows], name, corpus, seed, opened, on_progress)
            scores = [{"score": value} for value in values]
    objectives = [(objective.rpartition(":")[2], objective.startswith("max")) for objective in searched.objectives]
    kept = still_on_front(rows, [scored["score"] for scored in scores], objectives)
    models = [
        {**scored, "on_front": front_, **_columns(row)} for row, scored, front_ in zip(rows, scores, kept, strict=True)
    ]
    return FrontScores(searched.key, name, data, tuple(sorted(models, key=lambda row: -row["score"])))


def _columns(row: Row) -> Row:
    """A row's columns: size, device quantities, spec."""
    taken = {quantity.column: value_of(row, name) for name, quantity in in_rows([row]).items()}
    return {"decoder_params": row["decoder_params"], **taken, "spec": row["spec"]}


def _compared(
    specs: Sequence[str], data: str, tokenizer: str | None, time: str | float | None, runs: str | Path, store: Store,
    on_progress: OnProgress,
) -> list[ComparedScore]:  # fmt: skip
    """Scores in the order of the specs; a diverged training has the lowest possible score."""
    from plait.api.compare import compare

    if len(specs) < 2:
        raise UserError("a comparison needs two models, but this front has one: give --front 0.")
    comparison = compare(
        list(specs), data=data, tokenizer=tokenizer, time=time, runs=runs, store=store, on_progress=on_progress
    )
    # In the given order, with the vocabulary of the text instead of the space's.
    return [
        {"score": -1e300 if row.loss is None else -row.loss, "loss": row.loss, "p_best": row.p_best}
        for row in comparison.architectures
    ]
