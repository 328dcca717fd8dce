"""`plait show SPEC`: what an architecture is and what it costs, without building it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from plait.cli.options import AsJson, Mixers
from plait.cli.output import console, count, plain, print_json, table
from plait.reporting.page import short


def command(
    spec: Annotated[str, typer.Argument(help="Spec text, a preset's name, or a .plait, .yaml or .json file.")],
    seq: Annotated[int, typer.Option(help="New tokens the cost is for.", min=1)] = 1024,
    memory: Annotated[int, typer.Option(help="Tokens already held before them.", min=0)] = 0,
    vocab: Annotated[int | None, typer.Option(help="Vocabulary instead of the spec's own.", min=2)] = None,
    svg: Annotated[Path | None, typer.Option(help="Draw the architecture into this file, too.")] = None,
    mixers: Mixers = None,
    as_json: AsJson = False,
) -> None:
    """Show an architecture: mixers, parameters, FLOPs, state, and a drawing."""
    from dataclasses import replace

    from plait.model.architecture import Architecture, architecture
    from plait.model.cost import model_cost

    arch = architecture(spec)
    if vocab is not None:
        arch = Architecture(replace(arch.header, vocab=vocab), arch.layers)
    cost = model_cost(arch, seq=seq, memory=memory)
    document = describe(cost) | printed_counts(spec, cost)
    if svg is not None:
        from plait.reporting.diagram import diagram
        from plait.reporting.svg import save

        save(diagram(cost, title=spec), svg)
    if as_json:
        print_json(document)
    else:
        _print(document)


def describe(cost: Any) -> dict[str, Any]:
    """Everything `show` knows, as plain data."""
    arch, per_token = cost.arch, cost.flops / cost.seq
    mixers = [
        {
            "index": index,
            "mixer": options.name,
            "kind": options.kind,
            "spec": str(options.to_layer()),
            "params": int(layer.total_params + norm),
            "active_params": int(layer.active_params + norm),
            "flops": int(layer.total_flops),
            "fixed_state": int(layer.fixed_state),
            "conv_state": int(layer.conv_state),
            "kv_cache": int(layer.kv_cache),
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
            "generation": cost.generation_flops,
            "output_layer": cost.output_flops,
            "output_layer_whole_vocabulary": cost.full_output_flops,
            "conventions": conventions(cost),
        },
        "state": {
            "fixed": cost.fixed_state,
            "conv": cost.conv_state,
            "kv_cache": cost.kv_cache,
            "bytes_fp32": cost.state_bytes(4),
            "bytes_bf16": cost.state_bytes(2),
        },
        "layers": arch.num_layers,
        "mixers": mixers,
    }


def printed_counts(spec: str, cost: Any) -> dict[str, Any]:
    """Where the paper prints other parameter counts for a preset than it has: the counts, by how much, and why."""
    from plait.spec.presets import describe as preset_of
    from plait.spec.presets import lookup

    preset = preset_of(spec) if lookup(spec) is not None else None
    if preset is None or not preset.printed:
        return {}
    ours = {"total": cost.total_params, "active": cost.active_params}
    off = {name: ours[name] / (1e6 * millions) - 1 for name, millions in preset.printed.items()}
    return {"printed": {"source": preset.source, "millions": dict(preset.printed), "off": off, "why": preset.erratum}}


def conventions(cost: Any) -> dict[str, float]:
    """The same model's FLOPs as the papers would count them, where their formulas cover its mixers."""
    from plait.core.errors import UserError
    from plait.papers.conventions import fox_flops_per_token, mad_flops

    found = {}
    with suppress(UserError):
        found["mad_sequence"] = mad_flops(cost.arch, length=cost.seq)
    with suppress(UserError):
        found["fox_per_token"] = fox_flops_per_token(cost.arch, length=cost.seq + cost.memory)
    return found


def _print(shown: dict[str, Any]) -> None:
    out = console()
    out.print(shown["spec"], style="bold", soft_wrap=True, markup=False)
    mixers, layers = shown["mixers"], shown["layers"]
    counts = f"{layers} layer{'s' * (layers != 1)}, {len(mixers)} mixer{'s' * (len(mixers) != 1)}"
    out.print(f"{shown['kind']}, {counts}, hash {shown['hash']}", style="dim")
    out.print()
    out.print(_drawing(mixers))
    out.print()
    out.print(_mixer_table(shown))
    out.print()
    out.print(_totals(shown))


#: Colours of the drawing, by the order in which mixers first occur.
_COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red", "white")


def _drawing(mixers: list[dict[str, Any]]) -> Any:
    """One tile per mixer, input on the left; sequence mixers stand taller than channel mixers."""
    from rich.text import Text

    colour = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(dict.fromkeys(r["mixer"] for r in mixers))}
    picture = Text()
    for start in range(0, len(mixers), 64):
        for one in mixers[start : start + 64]:
            picture.append("█" if one["kind"] == "sequence" else "▄", style=colour[one["mixer"]])
        picture.append("\n")
    for name, style in colour.items():
        tile = "█" if any(r["mixer"] == name and r["kind"] == "sequence" for r in mixers) else "▄"
        picture.append(f"{tile} {name}  ", style=style)
    return picture


def _mixer_table(shown: dict[str, Any]) -> Any:
    """Equal mixers share a row."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for mixer in shown["mixers"]:
        groups.setdefault(mixer["spec"], []).append(mixer)
    made = table(
        mixer="left", at="left", count="right", params_each="right", FLOPs_each="right", fixed_state="right",
        KV_cache="right",
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
            count(one["kv_cache"]),
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
    if "printed" in shown:
        told = shown["printed"]
        counts = ", ".join(
            f"{millions:,}M {name} (here {told['off'][name]:+.1%})" for name, millions in told["millions"].items()
        )
        made.add_row("  printed", "", f"{told['source']}: {counts}. {told['why']}")
    where = f"{shown['seq']:,} new tokens" + (f" after {shown['memory']:,}" if shown["memory"] else "")
    made.add_row("FLOPs", short(flops["forward"]), f"forward, {where}; {short(flops['per_token'])} per token")
    if flops["generation"] != flops["forward"]:
        made.add_row(
            "", short(flops["generation"]), "as generation runs them, from the state, the whole vocabulary scored"
        )
    names = {"mad_sequence": "as MAD C.4 counts", "fox_per_token": "per token, as FoX Table 6 counts"}
    for name, value in flops["conventions"].items():
        made.add_row("", short(value), names[name])
    made.add_row(
        "state",
        count(state["fixed"] + state["conv"] + state["kv_cache"]),
        (
            f"numbers per sequence: fixed {count(state['fixed'])}, conv {count(state['conv'])}, "
            f"KV cache {count(state['kv_cache'])}; {short(state['bytes_bf16'])}B in bf16"
        ),
    )
    return made
