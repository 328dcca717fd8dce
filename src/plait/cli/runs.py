"""`plait runs …`: the records of the store."""

from __future__ import annotations

import sys
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO, cast

import typer

from plait.cli.options import AsJson, Runs, StoreUrl
from plait.cli.output import console, plain, print_json, print_rows, table, wrote
from plait.core.errors import UserError
from plait.core.files import finite

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from plait.records import Record

group = typer.Typer(help="List, show, remove, export and verify the records of the store.", no_args_is_help=True)

Kind = Annotated[str | None, typer.Option(help="Only records of this kind.")]
Where = Annotated[list[str] | None, typer.Option(help="Only records whose config matches: field=value.")]

SHORT_KEY = 10  # hex digits: enough for a million records
IN_A_TABLE = 1000  # more records are printed line by line
FIELDS_SHOWN = 4  # fields of a config and of a result; `plait runs show` prints all
#: The most informative fields of a config and of a result.
TELLING_CONFIG = (
    *("spec", "data", "task.name", "space", "method", "mode", "seed"),
    *("recipe.optimizer", "recipe.lr", "length.steps", "length.tokens", "length.seconds", "length.flops"),
)
TELLING_RESULT = ("verdict", "loss", "data", "accuracy", "latency.seconds", "memory.peak", "perplexity", "evaluated")
HASHES = ("fingerprint", "sha256")  # last parts of the names of fields that tell a reader nothing


@group.command("list")
def list_records(
    kind: Kind = None,
    where: Where = None,
    limit: Annotated[int, typer.Option(min=1, max=10**9, help="Maximum number.")] = 50,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """List records, newest first."""
    from plait.api.runs import each, find
    from plait.records.export import write_json_list

    if as_json:
        records = each(kind, where=_conditions(where), limit=limit, store=store)
        write_json_list((finite(record.document()) for record in records), cast("TextIO", sys.stdout))
        return
    if limit > IN_A_TABLE and _print_lines(each(kind, where=_conditions(where), limit=limit, store=store)):
        return
    result = find(kind, where=_conditions(where), limit=min(limit, IN_A_TABLE), store=store)
    _print_table(result.records)
    out = console()
    if not result.records:
        out.print(f"no records in {result.store}", markup=False)
    elif len(result.records) == limit:
        out.print(f"the newest {limit}; more with --limit", markup=False)


@group.command()
def show(
    key: Annotated[str, typer.Argument(help="The key, a prefix of it, or latest.")],
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show one record in full, its result first."""
    from plait.api.runs import show as find_one
    from plait.records.record import flat

    record = find_one(key, store=store)
    if as_json:
        print_json(record.document())
        return
    grid = table(field="left", value="left")
    for name, value in sorted(flat(record.document()).items(), key=lambda field: field[0].startswith("config.")):
        grid.add_row(*map(plain, (name, _text(value, 72))))
    console().print(grid)


@group.command()
def curves(
    given: Annotated[list[str], typer.Argument(metavar="RUN", help="Trainings: folders, prefixes of keys, or latest.")],
    svg: Annotated[Path | None, typer.Option(help="Draw their losses against steps in one figure.")] = None,
    runs: Runs = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Compare the loss curves of trainings."""
    from plait.api.runs import curves as curves_of

    result = curves_of(given, root=runs)
    if as_json:
        print_json(result.as_dict())
    else:
        grid = table(run="left", spec="left", steps="right", first_loss="right", last_loss="right")
        for curve in result.curves:
            (_, first), (step, last) = curve.losses[0], curve.losses[-1]
            grid.add_row(*map(plain, (curve.run, _text(curve.spec, 72), f"{step:,}", f"{first:.4f}", f"{last:.4f}")))
        console().print(grid)
    if svg is not None:
        result.save_svg(svg)
        wrote(svg, as_json=as_json)


@group.command()
def rm(
    keys: Annotated[list[str], typer.Argument(help="Keys, or prefixes of them.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Remove records."""
    from plait.api.runs import named, remove

    doomed = named(keys, store=store)
    if as_json:
        if not yes:
            raise UserError("--json cannot ask for confirmation: also give --yes to remove the records.")
        whole_keys = [record.key for record in doomed.records]
        print_json({"store": doomed.store, "removed": remove(whole_keys, store=store), "keys": whole_keys})
        return
    _print_table(doomed.records)
    if yes or typer.confirm(f"Remove {_number(len(doomed.records))} from {doomed.store}?"):
        print(f"{_number(remove([record.key for record in doomed.records], store=store))} removed")


@group.command()
def export(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Ends with .csv, .parquet or .json.")],
    kind: Kind = None,
    where: Where = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Export records to a file, a column per field."""
    from plait.api.runs import export as write

    written = write(path, kind, where=_conditions(where), overwrite=force, store=store)
    print_json({"file": str(path), "records": written}) if as_json else print(_number(written))
    wrote(path, as_json=as_json)


@group.command()
def verify(store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Check every record for damage; exit code 1 if there is any."""
    from plait.api.runs import verify as look

    result = look(store=store)
    if as_json:
        print_json(result.as_dict())
    else:
        for problem in result.file:
            print(f"{result.store}: {problem}")
        for record in result.damaged:
            print(f"{record.key[:SHORT_KEY]} {record.kind}: {record.wrong}")
        wrong = len(result.damaged) + result.unreadable
        remedy = "" if result.whole else "; `plait runs repair` saves the intact records"
        print(f"{_number(result.records)} whole, {wrong} damaged in {result.store}{remedy}")
    if not result.whole:
        raise typer.Exit(1)


@group.command()
def repair(store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Recover the intact records of a damaged store; the original is kept next to it."""
    from plait.api.runs import repair as save

    done = save(store=store)
    if as_json:
        print_json(done.as_dict())
    elif not done.backup:
        print(f"{done.store} is whole: {_number(done.records)}")
    else:
        lost = len(done.damaged) + done.unreadable
        print(f"{_number(done.records)} kept in {done.store}, {lost} damaged removed; backup: {done.backup}")


def _conditions(where: list[str] | None) -> dict[str, str]:
    conditions = {}
    for condition in where or []:
        field, equals, value = condition.partition("=")
        if not field or not equals:
            raise UserError(f"--where {condition}: should be field=value, such as seed=0 or task.name=compression.")
        conditions[field] = value
    return conditions


def _print_table(result: Sequence[Record]) -> None:
    """One row per record: the fields that distinguish it within its kind, and the first numbers of its result."""
    if not result:
        return
    sides = {"key": "left", "kind": "left", "started": "left", "seconds": "right", "config": "left", "result": "left"}
    same = _common_fields(result)
    rows = [dict(zip(sides, map(plain, _cells(record, same)), strict=True)) for record in result]
    print_rows(sides, rows, ("config", "result"))


def _print_lines(records: Iterator[Record]) -> bool:
    """The same for any number of records, a line each; the fields shown and the column widths are determined by the
    first ones. Returns whether there were any."""
    first = list(islice(records, IN_A_TABLE))
    same = _common_fields(first)
    widths: list[int] = []
    for record in chain(first, records):
        cells = _cells(record, same)
        if not widths:
            widths = [max(len(cell), width) for cell, width in zip(cells, (SHORT_KEY, 8, 16, 8, 40, 0), strict=True)]
        sys.stdout.write("  ".join(map(str.ljust, cells, widths)).rstrip() + "\n")
    return bool(first)


def _common_fields(result: Sequence[Record]) -> dict[str, set[tuple[str, str]]]:
    """Kind → the fields of a config, with their values, that all records have or that all of this kind have."""
    from plait.records.record import flat

    fields: dict[str, list[set[tuple[str, str]]]] = {}
    for record in result:
        fields.setdefault(record.kind, []).append({(name, str(value)) for name, value in flat(record.config).items()})
    everywhere = set.intersection(*chain.from_iterable(fields.values())) if len(result) > 1 else set()
    return {kind: set.intersection(*sets) if len(sets) > 1 else everywhere for kind, sets in fields.items()}


def _cells(record: Record, same: Mapping[str, set[tuple[str, str]]]) -> tuple[str, ...]:
    from plait.records.record import flat

    common = same.get(record.kind, set())
    config = {
        name: value
        for name, value in flat(record.config).items()
        if (name, str(value)) not in common and name.rpartition(".")[2] not in HASHES
    }
    result = {name: value for name, value in flat(record.result).items() if not isinstance(value, (list, dict))}
    started = str(record.provenance.get("started", ""))[:16].replace("T", " ")
    seconds = str(record.provenance.get("seconds", ""))
    summaries = _assignments(config, TELLING_CONFIG), _assignments(result, TELLING_RESULT)
    return record.key[:SHORT_KEY], record.kind, started, seconds, *summaries


def _assignments(fields: Mapping[str, Any], telling: Sequence[str]) -> str:
    """The first few fields as name=value, informative ones first."""
    ordered = [*(name for name in telling if name in fields), *(name for name in fields if name not in telling)]
    shown = [f"{name}={_text(fields[name], 32)}" for name in ordered[:FIELDS_SHOWN]]
    return " ".join([*shown, "…"] if len(ordered) > FIELDS_SHOWN else shown)


def _text(value: Any, room: int) -> str:
    """A value in one line; long ones are shortened in the middle."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    if len(text) <= room:
        return text
    length = f" ({len(value)} values)" if isinstance(value, list) else ""
    return f"{text[: room * 2 // 3]} … {text[-(room // 3) :]}{length}"


def _number(records: int) -> str:
    return "1 record" if records == 1 else f"{records} records"
