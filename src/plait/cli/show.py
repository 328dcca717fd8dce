"""`plait show SPEC`: what an architecture is and what it costs, without building it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from plait.cli.options import AsJson, Mixers
from plait.cli.output import console, count, plain, print_json, table
from plait.report.numbers import short


def command(
    spec: Annotated[str, typer.Argument(help="Spec text, a preset's name, or a .plait, .yaml or .json file.")],
    seq: Annotated[int, typer.Option(help="New tokens the cost is for.", min=1)] = 1024,
    memory: Annotated[int, typer.Option(help="Tokens already held before them.", min=0)] = 0,
    vocab: Annotated[int | None, typer.Option(help="Vocabulary instead of the spec's own.", min=2)] = None,
    svg: Annotated[Path | None, typer.Option(help="Draw the architecture into this file, too.")] = None,
    mixers: Mixers = None,
    as_json: AsJson = False,
) -> None:
    """Show an architecture: layers, parameters, FLOPs, state, and a drawing."""
    from dataclasses import replace

    from plait.arch import Architecture, architecture
    from plait.model.cost import model_cost

    arch = architecture(spec)
    if vocab is not None:
        arch = Architecture(replace(arch.header, vocab=vocab), arch.layers)
    cost = model_cost(arch, seq=seq, memory=memory)
    document = describe(cost)
    if svg is not None:
        from plait.report.diagram import diagram
        from plait.report.svg import save

        save(diagram(cost, title=spec), svg)
    if as_json:
        print_json(document)
    else:
        _print(document)


def describe(cost: Any) -> dict[str, Any]:
    """Everything `show` knows, as plain data."""
    arch, per_token = cost.arch, cost.flops / cost.seq
    layers = [
        {
            "index": index,
            "mixer": options.name,
            "kind": options.kind,
            "layer": str(options.to_layer()),
            "params": int(layer.total_params + norm),
            "active_params": int(layer.active_params + norm),
            "flops": int(layer.total_flops),
            "fixed_state": int(layer.fixed_state),
            "tail_state": int(layer.tail_state),
            "dynamic_state": int(layer.dynamic_state),
        }
        for index, (options, layer, norm) in enumerate(zip(arch.layers, cost.layers, cost.norms, strict=True), start=1)
    ]
    return {
        "spec": arch.text,
        "hash": arch.hash,
        "kind": arch.header.kind,
        "d": arch.header.d,
        "vocab": arch.header.vocab,
        "seq": cost.seq,
        "memory": cost.memory,
        "params": {
            "decoder": cost.decoder_params,
            "embedding": cost.embedding_params,
            "total": cost.total_params,
            "active": cost.active_params,
            "without_input_embedding": cost.params_without_input_embedding,
            "parts": {name: number for name, number in (cost.parts | cost.shared).items() if number},
        },
        "flops": {
            "forward": cost.flops,
            "per_token": per_token,
            "output_layer": cost.output_flops,
            "conventions": conventions(cost),
        },
        "state": {
            "fixed": cost.fixed_state,
            "tail": cost.tail_state,
            "dynamic": cost.dynamic_state,
            "bytes_fp32": cost.state_bytes(4),
            "bytes_bf16": cost.state_bytes(2),
        },
        "layers": layers,
    }


def conventions(cost: Any) -> dict[str, float]:
    """The same model's FLOPs as the papers would count them, where their formulas cover its mixers."""
    from plait.errors import UserError
    from plait.model.conventions import fox_flops_per_token, mad_flops

    found = {}
    with suppress(UserError):
        found["mad_sequence"] = mad_flops(cost.arch, length=cost.seq)
    with suppress(UserError):
        found["fox_per_token"] = fox_flops_per_token(cost.arch, length=cost.seq + cost.memory)
    return found


def _print(shown: dict[str, Any]) -> None:
    out = console()
    out.print(shown["spec"], style="bold", soft_wrap=True, markup=False)
    out.print(f"{shown['kind']}, {len(shown['layers'])} layers, hash {shown['hash']}", style="dim")
    out.print()
    out.print(_drawing(shown["layers"]))
    out.print()
    out.print(_layer_table(shown))
    out.print()
    out.print(_totals(shown))


#: Colours of the drawing, by the order in which mixers first occur.
_COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red", "white")


def _drawing(layers: list[dict[str, Any]]) -> Any:
    """One tile a layer, input on the left; sequence mixers stand taller than channel mixers."""
    from rich.text import Text

    colour = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(dict.fromkeys(r["mixer"] for r in layers))}
    picture = Text()
    for start in range(0, len(layers), 64):
        row = layers[start : start + 64]
        for layer in row:
            picture.append("█" if layer["kind"] == "sequence" else "▄", style=colour[layer["mixer"]])
        picture.append("\n")
    for name, style in colour.items():
        tile = "█" if any(r["mixer"] == name and r["kind"] == "sequence" for r in layers) else "▄"
        picture.append(f"{tile} {name}  ", style=style)
    return picture


def _layer_table(shown: dict[str, Any]) -> Any:
    """Equal layers share a row."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for layer in shown["layers"]:
        groups.setdefault(layer["layer"], []).append(layer)
    made = table(
        layer="left", at="left", count="right", params_each="right", FLOPs_each="right", fixed_state="right",
        dynamic_state="right",
    )  # fmt: skip
    for text, members in groups.items():
        one = members[0]
        made.add_row(
            plain(text),
            _places([m["index"] for m in members]),
            str(len(members)),
            count(one["params"]),
            short(one["flops"]),
            count(one["fixed_state"]),
            count(one["dynamic_state"]),
        )
    return made


def _places(indices: list[int]) -> str:
    """1, 3, 5 … 23 in a few characters."""
    if len(indices) <= 4:
        return ", ".join(map(str, indices))
    return f"{indices[0]}, {indices[1]}, {indices[2]} … {indices[-1]}"


def _totals(shown: dict[str, Any]) -> Any:
    params, flops, state = shown["params"], shown["flops"], shown["state"]
    made = table(**{"": "left", " ": "right", "  ": "left"})
    made.add_row(
        "parameters",
        count(params["total"]),
        f"decoder {count(params['decoder'])}, embedding {count(params['embedding'])}",
    )
    if params["active"] != params["total"]:
        made.add_row("  active", count(params["active"]), "met by one token")
    where = f"{shown['seq']:,} new tokens" + (f" after {shown['memory']:,}" if shown["memory"] else "")
    made.add_row("FLOPs", short(flops["forward"]), f"forward, {where}; {short(flops['per_token'])} a token")
    names = {"mad_sequence": "as MAD C.4 counts", "fox_per_token": "a token, as FoX Table 6 counts"}
    for name, value in flops["conventions"].items():
        made.add_row("", short(value), names[name])
    made.add_row(
        "state",
        count(state["fixed"] + state["tail"] + state["dynamic"]),
        (
            f"numbers a sequence: fixed {count(state['fixed'])}, tail {count(state['tail'])}, "
            f"dynamic {count(state['dynamic'])}; {short(state['bytes_bf16'])}B in bf16"
        ),
    )
    return made
