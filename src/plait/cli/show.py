"""`plait show SPEC`: an architecture and its exact costs, without building it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plait.cli.options import AsJson, Mixers
from plait.cli.output import console, count, plain, print_result, table
from plait.core.errors import UserError
from plait.core.units import percent, short

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plait.api.show import MixerRow, ShowResult


def command(
    spec: Annotated[str, typer.Argument(help="Spec text, a preset's name, or a .plait, .yaml or .json file.")],
    seq: Annotated[int, typer.Option("--seq-len", "--seq", help="New tokens to compute the cost for.", min=1)] = 1024,
    memory: Annotated[int, typer.Option(help="Tokens of context before them.", min=0)] = 0,
    vocab: Annotated[int | None, typer.Option(help="Vocabulary size instead of the spec's own.", min=2)] = None,
    svg: Annotated[Path | None, typer.Option(help="Also draw the architecture to this file.")] = None,
    notation: Annotated[
        str, typer.Option("--as", help="Print its layers in another notation instead: megatron, huggingface, fla.")
    ] = "",
    paths: Annotated[
        bool, typer.Option("--paths", help="Run each mixer once and show which code path its ops take.")
    ] = False,
    device: Annotated[
        str | None, typer.Option(help="With --paths: cpu, cuda, … \\[default: a GPU if there is one]")
    ] = None,
    mixers: Mixers = None,
    as_json: AsJson = False,
) -> None:
    """Show an architecture: mixers, parameters, FLOPs, state, and a drawing."""
    from plait.api.show import architecture, show

    own = mixers or ()
    if notation:
        from plait.spec.notations import written

        print(written([options.to_layer() for options in architecture(spec, mixers=own).layers], notation))
        return
    if device and not paths:
        raise UserError("--device works only with --paths: give both.")
    where = (device or True) if paths else False
    result = show(spec, seq_len=seq, memory=memory, vocab=vocab, svg=svg, paths=where, mixers=own)
    print_result(result, _print, svg, as_json=as_json)


def _print(shown: ShowResult) -> None:
    out = console()
    out.print(shown.spec, style="bold", soft_wrap=True, markup=False)
    mixers, layers = shown.mixers, shown.layers
    counts = f"{layers} layer{'s' * (layers != 1)}, {len(mixers)} mixer{'s' * (len(mixers) != 1)}"
    out.print(f"{shown.kind}, {counts}, hash {shown.hash}", style="dim")
    out.print()
    out.print(_drawing(mixers))
    out.print()
    out.print(_mixer_table(shown))
    out.print()
    out.print(_totals(shown))
    if shown.paths is not None:
        grid = table(mixer="left", op="left", path="left")
        for row in shown.paths:
            for op, path in row.paths.items() or [("–", "one way only")]:
                grid.add_row(plain(row.mixer), op, path)
        out.print()
        out.print(grid)


#: Colours of the drawing, by the order in which mixers first occur.
_COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red", "white")


def _drawing(mixers: Sequence[MixerRow]) -> Any:
    """One tile per mixer, input on the left; sequence mixers are taller than channel mixers."""
    from rich.text import Text

    colour = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(dict.fromkeys(r.mixer for r in mixers))}
    picture = Text()
    for start in range(0, len(mixers), 64):
        for row in mixers[start : start + 64]:
            picture.append("█" if row.kind == "sequence" else "▄", style=colour[row.mixer])
        picture.append("\n")
    for name, style in colour.items():
        tile = "█" if any(r.mixer == name and r.kind == "sequence" for r in mixers) else "▄"
        picture.append(f"{tile} {name}  ", style=style)
    return picture


def _mixer_table(shown: ShowResult) -> Any:
    """Equal mixers share a row."""
    groups: dict[str, list[MixerRow]] = {}
    for mixer in shown.mixers:
        groups.setdefault(mixer.spec, []).append(mixer)
    grid = table(
        mixer="left", at="left", count="right", params_each="right", FLOPs_each="right", fixed_state="right",
        KV_cache="right",
    )  # fmt: skip
    for text, members in groups.items():
        first = members[0]
        grid.add_row(
            plain(text),
            _places([m.index for m in members]),
            str(len(members)),
            count(first.params),
            short(first.flops),
            count(first.fixed_state),
            count(first.kv_cache),
        )
    return grid


def _places(indices: list[int]) -> str:
    """Indices in short form: 1, 3, 5 … 23."""
    if len(indices) <= 4:
        return ", ".join(map(str, indices))
    return f"{indices[0]}, {indices[1]}, {indices[2]} … {indices[-1]}"


def _totals(shown: ShowResult) -> Any:
    params, flops, state = shown.params, shown.flops, shown.state
    grid = table(**{"": "left", " ": "right", "  ": "left"})
    grid.show_header = False
    grid.add_row(
        "parameters",
        count(params.total),
        f"decoder {count(params.decoder)}, embedding {count(params.embedding)}",
    )
    if params.shared:
        grid.add_row("  shared", count(params.shared), "of several layers, counted once")
    if params.active != params.total:
        grid.add_row("  active", count(params.active), "used per token")
    if (printed := shown.printed) is not None:
        counts = ", ".join(
            f"{millions:,}M {name} (here {percent(printed.off[name], 1, sign=True)})"
            for name, millions in printed.millions.items()
        )
        grid.add_row("  printed", "", f"{printed.source}: {counts}. {printed.why}")
    where = f"{shown.seq:,} new tokens" + (f" after {shown.memory:,}" if shown.memory else "")
    grid.add_row("FLOPs", short(flops.forward), f"forward, {where}; {short(flops.per_token)} per token")
    if flops.generation != flops.forward:
        grid.add_row("", short(flops.generation), "in generation: from the state, with logits for the whole vocabulary")
    names = {"mad_sequence": "as MAD C.4 counts", "fox_per_token": "per token, as FoX Table 6 counts"}
    for name, value in flops.conventions.items():
        grid.add_row("", short(value), names[name])
    grid.add_row(
        "state",
        count(state.fixed + state.conv + state.kv_cache),
        (
            f"numbers per sequence: fixed {count(state.fixed)}, conv {count(state.conv)}, "
            f"KV cache {count(state.kv_cache)}; {short(state.bytes_bf16, 'B')} in bf16"
        ),
    )
    return grid
