"""`plait search`: the Pareto front of a space under limits on this machine.

The terminal shows one row per model, with predicted and measured values.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plait.cli.options import (
    Answer,
    AsJson,
    Batch,
    Cluster,
    Constraints,
    Mixers,
    Mode,
    ProfileFile,
    StoreUrl,
    Tokenizer,
    TokensPerSecond,
    limit_options,
)
from plait.cli.output import console, count, passed, plain, print_json, print_rows, progress_bar, table
from plait.core.units import digits, short
from plait.device.quantities import Setting, in_rows

if TYPE_CHECKING:
    from plait.api.search import FrontResult
    from plait.searching.picking import Row

FRONT = 16  # models returned and measured
LTS = "lts"


@limit_options(after="objectives")
def command(
    space: Annotated[
        str, typer.Option(help="lts-gpt2, lts-xl, lts-opt, lts-proxy, par, hybrid, small-hybrid, or a file.")
    ],
    objectives: Annotated[
        str,
        typer.Option(
            help="Separated by commas, with min: or max:; proxies need --data; your own as my_objective.py. "
            "\\[default: decoder_params,latency,memory]"
        ),
    ] = "",
    *,
    constraint: Constraints = None,
    seq: Annotated[
        int | None, typer.Option("--seq-len", "--seq", min=1, help="Sequence length. \\[default: the space's]")
    ] = None,
    batch: Batch = 1,
    mode: Mode = "prefill",
    answer: Answer = None,
    tokens_per_second: TokensPerSecond = None,
    method: Annotated[
        str | None, typer.Option(help="lts, nsga2, nsga3, random, exhaustive or gumbel. \\[default: lts]")
    ] = None,
    iterations: Annotated[int | None, typer.Option(min=1, help="\\[default: the method's, 30 for lts]")] = None,
    population: Annotated[int | None, typer.Option(min=2, help="\\[default: the method's, 100 for lts]")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
    fix: Annotated[list[str] | None, typer.Option(help="Narrow the space: d=256, layers=6..12.")] = None,
    data: Annotated[str | None, typer.Option(help="Text for gumbel and for proxies; `plait data list`.")] = None,
    tokenizer: Tokenizer = None,
    steps: Annotated[int | None, typer.Option(min=1, help="gumbel: steps per supernet. \\[default: 2000]")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="gumbel: supernets to train. \\[default: 1]")] = None,
    recipe: Annotated[str, typer.Option(help="gumbel: recipe for the weights; `plait list recipes`.")] = "",
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="gumbel: a key of the recipe, such as lr=0.002.")
    ] = None,
    supernet: Annotated[
        list[str] | None, typer.Option(help="gumbel: a setting, such as penalty=latency, strength=0.2.")
    ] = None,
    retrain: Annotated[int | None, typer.Option(min=1, help="gumbel: steps to train the results from scratch.")] = None,
    retrain_seeds: Annotated[
        int, typer.Option(min=1, help="gumbel: seeds for --retrain; 2 or more give the noise.")
    ] = 1,
    profile: ProfileFile = None,
    anywhere: Annotated[
        bool, typer.Option("--anywhere", help="Accept a profile of another machine; nothing is measured.")
    ] = False,
    device: Annotated[str | None, typer.Option(help="\\[default: the profile's, else cpu]")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="\\[default: the profile's, else 1]")] = None,
    front: Annotated[int, typer.Option(min=0, help="Number of models to return and measure; 0: all.")] = FRONT,
    no_validate: Annotated[
        bool, typer.Option("--no-validate", "--no-confirm", help="Predict only; measure nothing.")
    ] = False,
    runs: Annotated[Path, typer.Option(help="Folder of the profile and unfinished searches.")] = Path("runs"),
    mixers: Mixers = None,
    cluster: Cluster = "",
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Worker processes for proxies. \\[default: 1; on a cluster all it has]"),
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
    **limits: str | None,
) -> None:
    """Search a space for the best architectures under limits, and measure those it returns."""
    arguments = dict(locals())
    from plait.api.search import search
    from plait.api.supernets import Supernets
    from plait.core.registry import pairs, read_pairs
    from plait.searching.job import Interrupted
    from plait.supernet.settings import Settings
    from plait.training.recipe import Recipe

    supernets = Supernets(
        steps,
        seeds,
        recipe,
        read_pairs(set_ or [], "--set", Recipe),
        read_pairs(supernet or [], "--supernet", Settings),
        retrain,
        retrain_seeds,
    )
    try:
        with progress_bar(quiet=as_json) as on_progress:
            result = search(
                **passed(
                    arguments, "constraint", "seq", "steps", "seeds", "recipe", "set_", "supernet", "retrain",
                    "retrain_seeds", "no_validate", "limits", "as_json",
                    objectives=[name.strip() for name in objectives.split(",") if name.strip()],
                    constraints=constraint or (), seq_len=seq, method=method or LTS, fix=pairs(fix or [], "--fix"),
                    supernets=supernets, validate=not no_validate, **limits,
                ),
                on_progress=on_progress,
            )  # fmt: skip
    except KeyboardInterrupt as stopped:
        where = f": {stopped.saved}" if isinstance(stopped, Interrupted) else ""
        console(stderr=True).print(f"interrupted{where}. Everything is saved; the same command resumes from there.")
        raise typer.Exit(130) from None
    print_json(result.as_dict()) if as_json else print_front(result)
    if method is not None and result.method != method:
        message = (
            f"the space is small: all of it was compared instead of running {method}; --iterations forces {method}"
        )
        console(stderr=True).print(message, style="dim", markup=False)


LONG = ("n-head", "d-inner", "layers")


COSTS = {"profile": "profile", "search": "search", "measuring": "measure"}


def print_front(result: FrontResult) -> None:
    """Print the front and the seconds of this command or, for a stored search, of all earlier commands."""
    out = console()
    rows = [{**_costs(row, result), **shape} for row, shape in zip(result.front, _shapes_of(result), strict=True)]
    filled = [name for name in rows[0] if any(row[name] for row in rows)]
    if all(row["active"] == row["params"] for row in rows):
        filled.remove("active")
    print_rows({name: "left" if name in ("limits", *LONG) else "right" for name in filled}, rows, LONG)
    setting, cost, spent = result.setting, result.cost, result.spent
    where = f"{setting['device']}, {setting['threads']} thread{'s' * (setting['threads'] > 1)}"
    out.print(
        f"{result.space} by {result.method}: {count(result.evaluated)} candidate{'s' * (result.evaluated != 1)} "
        f"compared, {count(result.on_front)} on the front, {len(result.front)} shown; "
        f"{Setting(**setting).words}, batch {setting['batch']}; {where}{_units(result)}",
        style="dim",
    )
    seconds_by_stage = spent or {name: cost[f"{of}_seconds"] for name, of in COSTS.items()}
    took = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in seconds_by_stage.items())
    out.print(f"{result.measured} measured; {'' if spent else 'in total: '}{took}", style="dim")
    if result.over_limit:
        left_out = [f"{short(row['decoder_params'])} ({'; '.join(row['exceeded'])})" for row in result.over_limit]
        out.print(f"measured above a limit, so left out: {cell(', '.join(left_out))}", style="yellow")
    if any(row["close"] for row in result.front):
        out.print(
            "close: within a limit by less than two measurements on a shared machine may differ, 5 %; limits 5 % lower "
            "leave room",
            style="dim",
        )
    if result.seeds is not None:
        _print_seeds(result, result.seeds)
    out.print(f"key {result.key[:10]}; pick a model to train: plait front pick {result.key[:10]}", style="dim")


def _units(result: FrontResult) -> str:
    """Units of the columns whose names do not state them."""
    shown = {*result.limits, *(objective.partition(":")[2] for objective in result.objectives)}
    units = {"loss": "nats per token", "state": "bytes", "fixed_state": "bytes", "kv_cache": "bytes"}
    return "".join(f"; {name.replace('_', '-')} in {unit}" for name, unit in units.items() if name in shown)


def _print_seeds(result: FrontResult, seeds: Sequence[Row]) -> None:
    """The result of every supernet of a differentiable search."""
    from plait.analysis.placement import letters_of
    from plait.mixers import table as arch

    channel = {name for name in arch.names() if arch.load(name).kind == "channel"}
    letters = letters_of([seed["layers"] for seed in seeds], channel)
    retrained = any("retrained_loss" in seed for seed in seeds)
    anew = {"retrained": "right"} if retrained else {}
    grid = table(seed="right", loss="right", **anew, steps="right", layers="left")
    for seed in seeds:
        losses = [seed["loss"], *([seed.get("retrained_loss")] if retrained else [])]
        layers = "".join(letters[name] for name in seed["layers"])
        cells = [short(loss) if loss is not None else "–" for loss in losses]
        grid.add_row(str(seed["seed"]), *cells, count(seed["steps"]), layers)
    out = console()
    out.print()
    out.print(grid)
    legend = ", ".join(f"{letter} {name}" for name, letter in letters.items() if name != "identity")
    out.print(f"{legend}; what they have in common: plait analyse layers {result.key[:10]}", style="dim")
    if result.retrained is not None:
        out.print(result.retrained["statement"], style="dim")


def _costs(row: Row, result: FrontResult) -> dict[str, str]:
    """A model's columns as text; columns that are empty for all models are not shown."""
    active = row["active_params"] - row["total_params"] + row["decoder_params"]
    cells = {"params": short(row["decoder_params"]), "active": short(active)}
    for name in (objective.partition(":")[2] for objective in result.objectives):
        if name in row and name not in ("decoder_params", "active_decoder_params"):
            cells[name.replace("_", "-")] = short(row[name])
    if "retrained_loss" in row:
        cells["retrained"] = short(row["retrained_loss"])
    for quantity in in_rows(result.front).values():
        measured, predicted = _measured_and_predicted(row.get(quantity.column))
        cells |= {quantity.heading: measured, f"predicted_{quantity.heading}": predicted}
    state = {"state": short(row["state"])} if "state" in result.limits else {}
    return {**cells, **state, "limits": verdict(row) if result.limits else ""}


def _shapes_of(result: FrontResult) -> list[dict[str, str]]:
    from plait.api.search import shapes

    return [
        {name.replace("_", "-"): cell(value) for name, value in shape.items() if name != "n_layer"}
        for shape in shapes([row["spec"] for row in result.front])
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
    noisy = any(row[quantity.column].get("noisy") for quantity in in_rows([row]).values())
    words = ("close" if row["close"] else "within") + (", noisy" if noisy else "")
    return words if words == "within" else f"[yellow]{words}[/]"


def _measured_and_predicted(entry: Row | None) -> tuple[str, str]:
    """The measured value, and the predicted one with its interval."""
    if entry is None:
        return "", ""
    measured = "" if entry["measured"] is None else digits(entry["measured"])
    if entry["predicted"] is None:
        return measured, ""
    return measured, f"{digits(entry['predicted'])} ± {digits(entry['interval'][1] - entry['predicted'])}"
