"""A front in the terminal: one row per model, predicted beside measured."""

from __future__ import annotations

from typing import Any

from plait.cli.output import console, count, plain, table
from plait.device.quantities import in_rows
from plait.reporting.page import digits, short

LONG = ("n-head", "d-inner", "layers")


def print_front(found: dict[str, Any]) -> None:
    """`found` is the document of `plait search --json`."""
    out = console()
    rows = [{**_costs(row, found), **shape} for row, shape in zip(found["front"], _shapes_of(found), strict=True)]
    filled = [name for name in rows[0] if any(row[name] for row in rows)]
    if all(row["active"] == row["params"] for row in rows):
        filled.remove("active")
    made = table(**{name: "left" if name in ("limits", *LONG) else "right" for name in filled})
    for name, column in zip(filled, made.columns, strict=True):
        column.no_wrap = name not in LONG
    for row in rows:
        made.add_row(*(row[name] for name in filled))
    out.print(made)
    setting, cost = found["setting"], found["cost"]
    tokens = f"{setting['seq']} tokens" if setting["mode"] == "prefill" else f"one token after {setting['seq']}"
    where = f"{setting['device']}, {setting['threads']} thread{'s' * (setting['threads'] > 1)}"
    out.print(
        f"{found['space']} by {found['method']}: {count(found['evaluated'])} candidates compared, "
        f"{count(found['on_front'])} on the front, {len(found['front'])} shown; "
        f"{setting['mode']} of {tokens}, batch {setting['batch']}; {where}{_units(found)}",
        style="dim",
    )
    out.print(
        f"{found['measured']} measured; profile {cost['profile_seconds']:.0f} s, "
        f"search {cost['search_seconds']:.1f} s, measuring {cost['measure_seconds']:.0f} s",
        style="dim",
    )
    if found["over_limit"]:
        each = [f"{short(row['decoder_params'])} ({'; '.join(row['exceeded'])})" for row in found["over_limit"]]
        out.print(f"measured above a limit, so left out: {cell(', '.join(each))}", style="yellow")
    if "seeds" in found:
        _print_seeds(found)
    out.print(f"key {found['key'][:10]}; one to train: plait front pick {found['key'][:10]}", style="dim")


def _units(found: dict[str, Any]) -> str:
    """Of columns whose names do not say it."""
    shown = {*found["limits"], *(objective.partition(":")[2] for objective in found["objectives"])}
    units = {"loss": "nats per token", "state": "bytes", "fixed_state": "bytes", "kv_cache": "bytes"}
    return "".join(f"; {name.replace('_', '-')} in {unit}" for name, unit in units.items() if name in shown)


def _print_seeds(found: dict[str, Any]) -> None:
    """What every supernet of a differentiable search came to."""
    from plait.analysis.placement import letters_of
    from plait.mixers import table as arch

    channel = {name for name in arch.names() if arch.load(name).kind == "channel"}
    letters = letters_of([seed["layers"] for seed in found["seeds"]], channel)
    retrained = any("retrained_loss" in seed for seed in found["seeds"])
    anew = {"retrained": "right"} if retrained else {}
    made = table(seed="right", loss="right", **anew, steps="right", layers="left")
    for seed in found["seeds"]:
        losses = [seed["loss"], *([seed.get("retrained_loss")] if retrained else [])]
        layers = "".join(letters[name] for name in seed["layers"])
        cells = [short(loss) if loss is not None else "–" for loss in losses]
        made.add_row(str(seed["seed"]), *cells, count(seed["steps"]), layers)
    out = console()
    out.print()
    out.print(made)
    legend = ", ".join(f"{letter} {name}" for name, letter in letters.items() if name != "identity")
    out.print(f"{legend}; what they have in common: plait analyse layers {found['key'][:10]}", style="dim")


def _costs(row: dict[str, Any], found: dict[str, Any]) -> dict[str, str]:
    """A model's columns as text; what is empty in all of them is not shown."""
    active = row["active_params"] - row["total_params"] + row["decoder_params"]
    cells = {"params": short(row["decoder_params"]), "active": short(active)}
    for name in (objective.partition(":")[2] for objective in found["objectives"]):
        if name in row and name not in ("decoder_params", "active_decoder_params"):
            cells[name.replace("_", "-")] = short(row[name])
    if "retrained_loss" in row:
        cells["retrained"] = short(row["retrained_loss"])
    for each in in_rows(found["front"]).values():
        cells[each.unit], cells[f"predicted_{each.unit}"] = _both(row.get(each.column))
    state = {"state": short(row["state"])} if "state" in found["limits"] else {}
    return {**cells, **state, "limits": verdict(row)}


def _shapes_of(found: dict[str, Any]) -> list[dict[str, str]]:
    from plait.api.front import shapes

    return [
        {name.replace("_", "-"): cell(value) for name, value in shape.items() if name != "n_layer"}
        for shape in shapes([row["spec"] for row in found["front"]])
    ]


def cell(value: Any) -> str:
    """Brackets are markup to the terminal's tables."""
    text = ("[" + ", ".join(map(str, value)) + "]") if isinstance(value, list) else str(value)
    return plain(text)


def verdict(row: dict[str, Any]) -> str:
    if row["within"] is None:
        return "not measured"
    if not row["within"]:
        return "[bold red]above[/]: " + cell("; ".join(row["exceeded"]))
    noisy = any(row[each.column].get("noisy") for each in in_rows([row]).values())
    return "[yellow]within, noisy[/]" if noisy else "within"


def _both(entry: dict[str, Any] | None) -> tuple[str, str]:
    """The measured value, and the predicted one with the reach of its interval."""
    if entry is None:
        return "", ""
    measured = "" if entry["measured"] is None else digits(entry["measured"])
    if entry["predicted"] is None:
        return measured, ""
    return measured, f"{digits(entry['predicted'])} ± {digits(entry['interval'][1] - entry['predicted'])}"
