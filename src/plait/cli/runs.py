"""`plait runs …`: what is in the store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plait.cli.options import AsJson, StoreUrl
from plait.cli.output import console, plain, print_json, table
from plait.core.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from plait.records import Record, Store

group = typer.Typer(help="List, show, remove and export what is in the store.", no_args_is_help=True)

Kind = Annotated[str | None, typer.Option(help="Only records of this kind.")]
Where = Annotated[list[str] | None, typer.Option(help="Only records with this in their config: field=value.")]

SHORT_KEY = 10  # hex digits: enough for a million records


@group.command("list")
def list_records(
    kind: Kind = None,
    where: Where = None,
    limit: Annotated[int, typer.Option(min=1, max=10**9, help="At most so many.")] = 50,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """List records, the newest first."""
    from plait.records import open_store

    with open_store(store) as opened:
        found = _find(opened, kind, where, limit)
        if as_json:
            print_json([record.document() for record in found])
            return
        _print_table(found)
        out = console()
        if not found:
            out.print(f"no records in {opened.name}", markup=False)
        elif len(found) == limit:
            out.print(f"the newest {limit}; more with --limit", markup=False)


@group.command()
def show(
    key: Annotated[str, typer.Argument(help="The key, or enough of its beginning.")],
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show all of one record."""
    from plait.records import open_store
    from plait.records.record import flat

    with open_store(store) as opened:
        (record,) = _all_of(opened, [key])
    if as_json:
        print_json(record.document())
        return
    made = table(field="left", value="left")
    for name, value in flat(record.document()).items():
        made.add_row(*map(plain, (name, _text(value, 72))))
    console().print(made)


@group.command()
def curves(
    given: Annotated[list[str], typer.Argument(metavar="RUN", help="Trainings: folders, keys' beginnings, or latest.")],
    svg: Annotated[Path | None, typer.Option(help="Draw their losses over steps, in one picture.")] = None,
    as_json: AsJson = False,
) -> None:
    """Set the loss curves of trainings side by side."""
    from plait.training.run import open_run

    opened = [open_run(one) for one in given]
    called = [run.name for run in opened]
    if twice := next((name for name in called if called.count(name) > 1), ""):
        raise UserError(f"{twice} is given twice.")
    losses = {run.name: run.losses() for run in opened}
    if empty := next((name for name, points in losses.items() if not points), ""):
        raise UserError(f"{empty} has logged no loss yet.")
    if as_json:
        rows = [{"run": name, "losses": [list(point) for point in points]} for name, points in losses.items()]
        print_json({"curves": rows})
    else:
        made = table(run="left", spec="left", steps="right", first_loss="right", last_loss="right")
        for run in opened:
            (_, first), (step, last) = losses[run.name][0], losses[run.name][-1]
            made.add_row(*map(plain, (run.name, _text(run.arch.text, 72), f"{step:,}", f"{first:.4f}", f"{last:.4f}")))
        console().print(made)
    if svg is not None:
        from plait.reporting.studies import loss_figure
        from plait.reporting.svg import save

        drawn = {f"{run.name}  {_text(run.arch.text, 40)}": losses[run.name] for run in opened}
        save(loss_figure(drawn, title="Training loss"), svg)


@group.command()
def rm(
    keys: Annotated[list[str], typer.Argument(help="Keys, or enough of their beginnings.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    store: StoreUrl = None,
) -> None:
    """Remove records."""
    from plait.records import open_store

    with open_store(store) as opened:
        doomed = _all_of(opened, keys)
        _print_table(doomed)
        if yes or typer.confirm(f"Remove {_number(len(doomed))} from {opened.name}?"):
            print(f"{_number(opened.delete(record.key for record in doomed))} removed")


@group.command()
def export(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Ends with .csv, .parquet or .json.")],
    kind: Kind = None,
    where: Where = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    store: StoreUrl = None,
) -> None:
    """Write records to a file, a column a field."""
    from plait.records import export as write
    from plait.records import open_store

    with open_store(store) as opened:
        found = _find(opened, kind, where, None)
        if not found:
            raise UserError(f"no records to export in {opened.name}.")
        print(f"{_number(write(found, path, overwrite=force))} in {path}")


def _find(store: Store, kind: str | None, where: list[str] | None, limit: int | None) -> list[Record]:
    conditions = {}
    for condition in where or []:
        field, equals, value = condition.partition("=")
        if not field or not equals:
            raise UserError(f"--where {condition}: should be field=value, such as seed=0 or task.name=compression.")
        conditions[field] = value
    found = store.find(kind, conditions, limit)
    if not found and kind is not None and kind not in (known := store.kinds()):
        there = f"It has: {', '.join(known)}." if known else "It is empty."
        raise UserError(f"no records of kind '{kind}' in {store.name}.{did_you_mean(kind, known)} {there}")
    return found


def _all_of(store: Store, starts: list[str]) -> list[Record]:
    """The records that these beginnings of keys name, each once."""
    found = [store.get(key) for key in dict.fromkeys(store.full_key(start) for start in starts)]
    return [record for record in found if record is not None]  # another process may have removed one just now


def _print_table(found: list[Record]) -> None:
    """One row a record, with those of its config's fields that are not the same in all."""
    from plait.records.record import flat

    if not found:
        return
    made = table(key="left", kind="left", started="left", seconds="right", config="left", result="left")
    configs = [flat(record.config) for record in found]
    same = set.intersection(*({(name, str(value)) for name, value in config.items()} for config in configs))
    for record, config in zip(found, configs, strict=True):
        told = {name: value for name, value in config.items() if len(found) == 1 or (name, str(value)) not in same}
        numbers = {name: value for name, value in flat(record.result).items() if not isinstance(value, (list, dict))}
        started = str(record.provenance.get("started", ""))[:16].replace("T", " ")
        seconds = str(record.provenance.get("seconds", ""))
        cells = (record.key[:SHORT_KEY], record.kind, started, seconds, _assignments(told), _assignments(numbers))
        made.add_row(*map(plain, cells))
    console().print(made)


def _assignments(fields: dict[str, Any]) -> str:
    return " ".join(f"{name}={_text(value, 32)}" for name, value in fields.items())


def _text(value: Any, room: int) -> str:
    """A value in one line; the middle of a long one is left out."""
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    if len(text) <= room:
        return text
    length = f" ({len(value)} values)" if isinstance(value, list) else ""
    return f"{text[: room * 2 // 3]} … {text[-(room // 3) :]}{length}"


def _number(records: int) -> str:
    return "1 record" if records == 1 else f"{records} records"
