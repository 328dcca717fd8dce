"""`plait front show | pick | score | table | candidates`: what a search found, and the one model to go on with.

A front in the terminal: one row per model, predicted beside measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plait.cli.options import AsJson, Mixers, StoreUrl, Tokenizer, limit_options
from plait.cli.output import console, count, plain, print_json, print_rows, progress_bar, table
from plait.core.units import digits, readable, short
from plait.device.quantities import in_rows, on_device
from plait.device.setting import Setting

if TYPE_CHECKING:
    from plait.api.front import FrontResult
    from plait.searching.picking import Row
    from plait.space.constraints import Limits


group = typer.Typer(
    help="Show a search's Pareto front, pick a model, score it, print it as a table.", no_args_is_help=True
)

Key = Annotated[str, typer.Argument(help="Key of the search, or a prefix of it.")]
Count = Annotated[int, typer.Option("--front", min=0, help="Number of models; 0: the whole front.")]
LATEST = "latest"
SHOWN = 16


@group.command()
def show(
    key: Key = LATEST,
    front: Count = SHOWN,
    svg: Annotated[Path | None, typer.Option(help="Also draw it to this file.")] = None,
    cube: Annotated[
        Path | None, typer.Option("--3d", help="Draw the first three objectives in 3D to this file.")
    ] = None,
    mixers: Mixers = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show the Pareto front of a search, predicted and measured."""
    from plait.api.front import show as show_front

    found = show_front(key, front=front, svg=svg, cube=cube, mixers=mixers or (), store=store)
    print_json(found.as_dict()) if as_json else print_front(found)


@group.command()
@limit_options(otherwise="the search's")
def pick(
    key: Key = LATEST,
    *,
    limits: Limits,
    by: Annotated[str, typer.Option(help="Column to pick by. \\[default: the search's first objective]")] = "",
    no_validate: Annotated[bool, typer.Option("--no-validate", help="Predict only; measure nothing.")] = False,
    mixers: Mixers = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Print the spec of the best model within the limits, for plait train "$(plait front pick)".

    It is measured first; if it exceeds a limit, the next best is tried."""
    from plait.api.front import pick as best_of
    from plait.searching.picking import value_of
    from plait.space.space import COLUMNS

    with progress_bar(quiet=as_json) as on_progress:
        best = best_of(
            key, by=by, measure=not no_validate, mixers=mixers or (), store=store, on_progress=on_progress,
            **limits.as_dict(),
        )  # fmt: skip
    if as_json:
        print_json(best.as_dict())
        return
    words = [f"{best.by} {readable(value_of(best.row, best.by))}"]
    quantities = [(each, value_of(best.row, of)) for of, each in in_rows([best.row]).items()]
    words += [f"{readable(value)} {each.unit}" for each, value in quantities if value is not None]
    counted = best.by in COLUMNS or best.by.endswith("decoder_params")
    exact = counted and all(value is None for _, value in quantities)  # the search asked for counts alone
    basis = "measured" if best.is_measured else "exact" if exact else "predicted, not measured"
    note = f"{', '.join(words)} ({basis}); the best of {best.among} that meet the limits"
    console(stderr=True).print(note, style="dim")
    print(best.spec)


@group.command()
def score(
    key: Key = LATEST,
    *,
    by: Annotated[str, typer.Option(help="snip, grad_norm, … (`plait list objectives`), short_training or compare.")],
    data: Annotated[str, typer.Option(help="Text to score on; `plait data list`.")] = "builtin:stdlib",
    tokenizer: Tokenizer = None,
    front: Count = SHOWN,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the weights.")] = 0,
    budget: Annotated[str | None, typer.Option("--time", help="Total time of compare. \\[default: 10m]")] = None,
    runs: Annotated[Path, typer.Option(help="Folder of compare's trainings.")] = Path("runs"),
    mixers: Mixers = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Score a front by what is too expensive during a search: a proxy, a short training, or a comparison."""
    from plait.api.front import score as scored

    with progress_bar(quiet=as_json) as on_progress:
        found = scored(
            key, by=by, data=data, tokenizer=tokenizer, front=front, seed=seed, time=budget, mixers=mixers or (),
            runs=runs, store=store, on_progress=on_progress,
        )  # fmt: skip
    if as_json:
        print_json(found.as_dict())
        return
    shown = [name for name in found.models[0] if name not in ("on_front", "spec")]
    made = table(**{"": "left"}, **{name.replace("_", "-"): "right" for name in shown}, spec="left")
    for row in found.models:
        cells = ("–" if row[name] is None else short(row[name]) for name in shown)
        made.add_row("→" if row["on_front"] else "", *cells, plain(row["spec"]))
    console().print(made)
    note = (
        f"{len(found.models)} models by {found.by} on {found.data}, more is better; → no other has a higher score and "
    )
    console().print(f"{note}is as good in the search's other objectives", style="dim", markup=False)


@group.command("table")
def as_table(
    key: Key = LATEST,
    front: Count = SHOWN,
    mixers: Mixers = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Print the front like the papers' tables: widths, heads and inner width layer by layer."""
    from plait.api.front import table as table_of

    found = table_of(key, front=front, mixers=mixers or (), store=store)
    if as_json:
        print_json(found.as_dict())
        return
    shown = [name for name in found.models[0] if name != "measured"]
    right = ("n_layer", "d_model", "decoder_params", *(each.column for each in on_device().values()))
    made = table(**{name.replace("_", "-"): "right" if name in right else "left" for name in shown})
    for entry in found.models:
        made.add_row(*(_cell(name, entry[name], entry["measured"]) for name in shown))
    console().print(made)


@group.command()
def candidates(
    key: Key = LATEST,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", "--output", help="A .csv or .jsonl file. \\[default: print CSV]")
    ] = None,
    mixers: Mixers = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Print every candidate that a search evaluated: objectives, whether it is on the front, spec."""
    from plait.api.front import candidates as compared
    from plait.api.front import check_ending

    if out is not None:
        check_ending(out)
    found = compared(key, mixers=mixers or (), store=store)
    if out is not None:
        found.save(out)
    if as_json:
        print_json(found.as_dict())
    elif out is None:
        print(found.csv(), end="")
    kept = len(found.candidates)
    of = "" if kept == found.evaluated else f" of {found.evaluated:,}; a record keeps the first"
    note = f"{kept:,} candidates of search {found.key[:10]}{of}{f' in {out}' if out else ''}"
    console(stderr=True).print(note, style="dim", markup=False)


def _cell(name: str, value: Any, measured: bool) -> str:
    """`~` marks what is only predicted."""
    if name == "decoder_params":
        return short(value)
    if isinstance(value, str | int | list):
        return cell(value)
    return readable(value) if measured or value is None else f"~{readable(value)}"


LONG = ("n-head", "d-inner", "layers")


COSTS = {"profile": "profile", "search": "search", "measuring": "measure"}


def print_front(found: FrontResult) -> None:
    """With the seconds that this command took or, where it only looks a search up, those of all commands before it."""
    out = console()
    rows = [{**_costs(row, found), **shape} for row, shape in zip(found.front, _shapes_of(found), strict=True)]
    filled = [name for name in rows[0] if any(row[name] for row in rows)]
    if all(row["active"] == row["params"] for row in rows):
        filled.remove("active")
    print_rows({name: "left" if name in ("limits", *LONG) else "right" for name in filled}, rows, LONG)
    setting, cost, spent = found.setting, found.cost, found.spent
    where = f"{setting['device']}, {setting['threads']} thread{'s' * (setting['threads'] > 1)}"
    out.print(
        f"{found.space} by {found.method}: {count(found.evaluated)} candidates compared, "
        f"{count(found.on_front)} on the front, {len(found.front)} shown; "
        f"{Setting(**setting).words}, batch {setting['batch']}; {where}{_units(found)}",
        style="dim",
    )
    seconds_by_stage = spent or {name: cost[f"{of}_seconds"] for name, of in COSTS.items()}
    took = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in seconds_by_stage.items())
    out.print(f"{found.measured} measured; {'' if spent else 'in total: '}{took}", style="dim")
    if found.over_limit:
        each = [f"{short(row['decoder_params'])} ({'; '.join(row['exceeded'])})" for row in found.over_limit]
        out.print(f"measured above a limit, so left out: {cell(', '.join(each))}", style="yellow")
    if found.seeds is not None:
        _print_seeds(found, found.seeds)
    out.print(f"key {found.key[:10]}; pick a model to train: plait front pick {found.key[:10]}", style="dim")


def _units(found: FrontResult) -> str:
    """Units of the columns whose names do not state them."""
    shown = {*found.limits, *(objective.partition(":")[2] for objective in found.objectives)}
    units = {"loss": "nats per token", "state": "bytes", "fixed_state": "bytes", "kv_cache": "bytes"}
    return "".join(f"; {name.replace('_', '-')} in {unit}" for name, unit in units.items() if name in shown)


def _print_seeds(found: FrontResult, seeds: Sequence[Row]) -> None:
    """What every supernet of a differentiable search came to."""
    from plait.analysis.placement import letters_of
    from plait.mixers import table as arch

    channel = {name for name in arch.names() if arch.load(name).kind == "channel"}
    letters = letters_of([seed["layers"] for seed in seeds], channel)
    retrained = any("retrained_loss" in seed for seed in seeds)
    anew = {"retrained": "right"} if retrained else {}
    made = table(seed="right", loss="right", **anew, steps="right", layers="left")
    for seed in seeds:
        losses = [seed["loss"], *([seed.get("retrained_loss")] if retrained else [])]
        layers = "".join(letters[name] for name in seed["layers"])
        cells = [short(loss) if loss is not None else "–" for loss in losses]
        made.add_row(str(seed["seed"]), *cells, count(seed["steps"]), layers)
    out = console()
    out.print()
    out.print(made)
    legend = ", ".join(f"{letter} {name}" for name, letter in letters.items() if name != "identity")
    out.print(f"{legend}; what they have in common: plait analyse layers {found.key[:10]}", style="dim")
    if found.retrained is not None:
        out.print(found.retrained["statement"], style="dim")


def _costs(row: Row, found: FrontResult) -> dict[str, str]:
    """A model's columns as text; what is empty in all of them is not shown."""
    active = row["active_params"] - row["total_params"] + row["decoder_params"]
    cells = {"params": short(row["decoder_params"]), "active": short(active)}
    for name in (objective.partition(":")[2] for objective in found.objectives):
        if name in row and name not in ("decoder_params", "active_decoder_params"):
            cells[name.replace("_", "-")] = short(row[name])
    if "retrained_loss" in row:
        cells["retrained"] = short(row["retrained_loss"])
    for each in in_rows(found.front).values():
        cells[each.heading], cells[f"predicted_{each.heading}"] = _measured_and_predicted(row.get(each.column))
    state = {"state": short(row["state"])} if "state" in found.limits else {}
    return {**cells, **state, "limits": verdict(row) if found.limits else ""}


def _shapes_of(found: FrontResult) -> list[dict[str, str]]:
    from plait.api.front import shapes

    return [
        {name.replace("_", "-"): cell(value) for name, value in shape.items() if name != "n_layer"}
        for shape in shapes([row["spec"] for row in found.front])
    ]


def cell(value: Any) -> str:
    """Text with its brackets escaped, which the terminal's tables would read as markup."""
    text = ("[" + ", ".join(map(str, value)) + "]") if isinstance(value, list) else str(value)
    return plain(text)


def verdict(row: Row) -> str:
    if row["within"] is None:
        return "not measured"
    if not row["within"]:
        return "[bold red]above[/]: " + cell("; ".join(row["exceeded"]))
    noisy = any(row[each.column].get("noisy") for each in in_rows([row]).values())
    return "[yellow]within, noisy[/]" if noisy else "within"


def _measured_and_predicted(entry: Row | None) -> tuple[str, str]:
    """The measured value, and the predicted one with the reach of its interval."""
    if entry is None:
        return "", ""
    measured = "" if entry["measured"] is None else digits(entry["measured"])
    if entry["predicted"] is None:
        return measured, ""
    return measured, f"{digits(entry['predicted'])} ± {digits(entry['interval'][1] - entry['predicted'])}"
