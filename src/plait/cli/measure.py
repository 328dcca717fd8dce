"""How long a model takes on a machine, and how much memory: measured here (`plait measure SPEC…`), or predicted from a
profile, without running anything (`plait predict SPEC…`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plait.cli.options import (
    Answer,
    AsJson,
    Batch,
    Device,
    Mixers,
    Mode,
    ProfileFile,
    StoreUrl,
    Threads,
    needed_options,
)
from plait.cli.output import console, passed, plain, print_result, progress_bar, table, wrote
from plait.core.units import SIZES, percent
from plait.device.quantities import in_rows, on_device

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from plait.api.measure import LengthsResult, MeasuredModel, MeasureResult, PredictResult
    from plait.device.quantities import Quantity, Setting

Specs = Annotated[
    list[str],
    typer.Argument(
        help="Specs, presets or files; a mixer file (my_mixer.py) is loaded for them, or alone means two blocks of it.",
        metavar="SPEC",
    ),
]
Tokens = Annotated[
    int, typer.Option("--seq-len", "--seq", min=1, help="Tokens: new ones in prefill, context in decode.")
]


@needed_options(after="svg")
def command(
    specs: Specs,
    seq: Tokens = 192,
    batch: Batch = 1,
    mode: Mode = "prefill",
    answer: Answer = None,
    device: Device = "cpu",
    dtype: Annotated[str, typer.Option(help="float32, float64; on a GPU also bfloat16 and float16.")] = "float32",
    threads: Threads = 1,
    lengths: Annotated[
        str | None, typer.Option(help="Measure single blocks at these lengths instead: 128,256,512.")
    ] = None,
    svg: Annotated[Path | None, typer.Option(help="With --lengths: draw them to this file.")] = None,
    *,
    archai: Annotated[
        bool, typer.Option("--archai", help="Also show memory as LiteTransformerSearch's code counts it.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Measure again even if it is in the store.")] = False,
    mixers: Mixers = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
    **needed: bool,
) -> None:
    """Measure latency, peak memory and, if available, energy of models on this machine."""
    arguments = dict(locals())
    from plait.api.measure import measure, measure_lengths
    from plait.core.errors import UserError

    if lengths is not None:
        _check_lengths_alone(archai=archai, again=again, store=store, answer=answer)
        with progress_bar(quiet=as_json) as on_progress:
            left_out = ("seq", "answer", "svg", "archai", "again", "store", "needed", "as_json")
            over = measure_lengths(**passed(arguments, *left_out), on_progress=on_progress)
        print_result(over, print_lengths, as_json=as_json)
        if svg is not None:  # last, so that an unwritable path loses no results
            over.save_svg(svg)
            wrote(svg, as_json=as_json)
        return
    if svg is not None:
        raise UserError("--svg draws latency over lengths: also give --lengths, such as 128,256,512.")
    with progress_bar(quiet=as_json) as on_progress:
        changed = {"seq_len": seq, "needed": tuple(name for name, asked in needed.items() if asked)}
        result = measure(**passed(arguments, "seq", "as_json", **changed), on_progress=on_progress)
    print_result(result, lambda measured: _print(measured, archai), as_json=as_json)


def _check_lengths_alone(*, archai: bool, again: bool, store: str | None, answer: int | None) -> None:
    from plait.core.errors import UserError

    options = {"--archai": archai, "--again": again, "--store": store is not None, "--answer": answer is not None}
    for name in (option for option, is_given in options.items() if is_given):
        raise UserError(f"{name} cannot be combined with --lengths, which measures single blocks and stores nothing.")


def _print(result: MeasureResult, archai: bool) -> None:
    out = console()
    _print_setting(out, result.setting)
    rows = [
        {name: cell for quantity in on_device().values() for name, cell in _cells(quantity, model)}
        for model in result.models
    ]
    extra = {"archai_ms": "right", "archai_MB": "right"} if archai else {}
    grid = table(spec="left", **dict.fromkeys(rows[0], "right"), **extra, noise="left")
    for model, row in zip(result.models, rows, strict=True):
        counted = model.result.get("archai")
        grid.add_row(
            plain(model.spec),
            *row.values(),
            *((f"{counted['seconds'] / SIZES['ms']:.2f}", f"{counted['memory'] / SIZES['MB']:.1f}") if counted else ()),
            noise(model.result["latency"]),
        )
    out.print(grid)
    out.print(
        "interval: 95 %, of these repeats; the machine's speed may change until the next measurement", style="dim"
    )
    for model in result.models:
        if model.result.get("token_time"):
            speed = 1 / model.result["token_time"]["seconds"]
            out.print(f"{plain(model.spec)}: {speed:,.0f} tokens per second in each answer", style="dim")


def _print_setting(out: Console, setting: Setting) -> None:
    out.print(f"{setting.words}, batch {setting.batch}; {setting.where}", style="dim")


def _heading(quantity: Quantity) -> str:
    return f"{quantity.name}_{quantity.unit}"


def _cells(quantity: Quantity, model: MeasuredModel) -> Iterator[tuple[str, str]]:
    """The columns of one quantity, if it was measured: value, uncertainty, components."""
    result = model.result.get(quantity.name)
    if result is None:
        return

    def text(entry: str) -> str:
        value, decimals = quantity.scale * result[entry], quantity.decimals
        return f"{value:.{decimals}f}" if not 0 < value < 10**-decimals else f"{value:.1g}"

    yield _heading(quantity), text(quantity.value)
    if "low" in result:
        yield f"{_heading(quantity)}_interval", f"{text('low')} to {text('high')}"
    yield from ((f"{part}_{quantity.unit}", text(part)) for part in quantity.parts)


def noise(latency: Mapping[str, Any]) -> str:
    """The reliability of a latency, in a few words."""
    words = f"{percent(latency['calm'])} calm, spread {percent(latency['spread'], 1)}"
    return f"[bold yellow]noisy[/]: {words}, load {latency['load']:.1f}" if latency["noisy"] else words


def print_lengths(result: LengthsResult) -> None:
    """Print the latency of blocks over sequence length."""
    from plait.device.lengths import upper_half

    out, lengths = console(), result.lengths
    out.print(f"{result.subtitle}; milliseconds of one block (norm, mixer, residual)", style="dim")
    columns = {f"{length:,}": "right" for length in lengths}
    grid = table(
        block="left", **columns, exponent="right", interval="right", of_FLOPs="right", of_mixing="right", noisy="left"
    )  # fmt: skip
    for block in result.blocks:
        noisy = [f"{n:,}" for n, timing in zip(lengths, block.timings, strict=True) if timing.noisy]
        grid.add_row(
            plain(result.name_of(block)),
            *(f"{timing.seconds / SIZES['ms']:.3f}" for timing in block.timings),
            f"{block.exponent.value:.2f}",
            f"{block.exponent.low:.2f} to {block.exponent.high:.2f}",
            _power(block.flops.whole),
            _power(block.flops.mixing),
            f"[bold yellow]{', '.join(noisy)}[/]" if noisy else "",
        )
    out.print(grid)
    if result.crossovers:
        crossed = table(faster="left", than="left", from_tokens="right")
        for crossover in result.crossovers:
            crossed.add_row(plain(crossover.faster), plain(crossover.slower), f"{crossover.tokens:,.0f}")
        out.print(crossed)
    fitted = lengths[upper_half(lengths)]
    out.print(f"exponent k of time ~ N^k, fitted from {fitted[0]:,} to {fitted[-1]:,} tokens; next to it those of the "
              "exact FLOPs, of the whole block and of sequence mixing alone", style="dim")  # fmt: skip


def _power(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def predict_command(
    specs: Specs,
    profile: ProfileFile = None,
    seq: Tokens = 192,
    batch: Batch = 1,
    mode: Mode = "prefill",
    answer: Answer = None,
    anywhere: Annotated[bool, typer.Option("--anywhere", help="Accept a profile of another machine.")] = False,
    mixers: Mixers = None,
    runs: Annotated[Path, typer.Option(help="Folder of the profiles.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Predict latency and peak memory from a profile, with 95 % intervals."""
    arguments = dict(locals())
    from plait.api.measure import predict

    print_result(predict(**passed(arguments, "seq", "as_json", seq_len=seq)), _print_predicted, as_json=as_json)


def _print_predicted(result: PredictResult) -> None:
    shown = in_rows(result.rows()).values()
    headings = [name for of in map(_heading, shown) for name in (of, f"{of}_interval")]
    grid = table(spec="left", **dict.fromkeys(headings, "right"))
    for model in result.models:
        estimates = [model.quantities[of.column] for of in shown]
        cells = [(f"{estimate.mean:.1f}", "{:.1f} to {:.1f}".format(*estimate.interval)) for estimate in estimates]
        grid.add_row(plain(model.spec), *(cell for both in cells for cell in both))
    out = console()
    _print_setting(out, result.setting)
    out.print(grid)
