"""`plait bench kernels | train | fleet | decode`: how fast plait is here, next to every installed peer library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from plait.cli.options import AsJson, Mixers
from plait.cli.output import console, plain, print_result, progress_bar, table
from plait.core.errors import UserError
from plait.core.units import percent

if TYPE_CHECKING:
    from plait.api.bench import DecodeBenchResult, FleetBenchResult, KernelsResult, TrainBenchResult

group = typer.Typer(help="Benchmark plait on this machine, next to every peer library that can be imported.")

Device = Annotated[str | None, typer.Option(help="cpu, cuda, … \\[default: a GPU if there is one]")]
Dtype = Annotated[str | None, typer.Option(help="\\[default: bfloat16 on a GPU, float32 on a CPU]")]
SeqLen = Annotated[
    int | None,
    typer.Option("--seq-len", "--seq", min=1, help="Sequence length. \\[default: 4096, on a CPU 256]"),
]


@group.command("kernels")
def kernels_command(
    ops: Annotated[list[str] | None, typer.Argument(help="Ops such as gla or mamba2; all by default.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Batch size. \\[default: 8, on a CPU 1]")] = None,
    seq: SeqLen = None,
    device: Device = None,
    dtype: Dtype = None,
    repeats: Annotated[int, typer.Option(min=1, help="Calls; the median is reported.")] = 20,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Check and time the kernels of each op at the shapes of 125M models, forward and backward."""
    from plait.api.bench import kernels

    with progress_bar(quiet=as_json) as on_progress:
        result = kernels(
            *ops or [], batch=batch, seq_len=seq, device=device, dtype=dtype, repeats=repeats, on_progress=on_progress
        )
    print_result(result, _print_kernels, as_json=as_json)
    if not all(row.right for row in result.kernels if row.kernel == "plait"):
        raise typer.Exit(1)


Models = Annotated[
    list[str] | None,
    typer.Argument(
        help="transformer, fox-pro, gla, hgrn2, deltanet, gated-deltanet, mamba2, or specs; all by default."
    ),
]
Size = Annotated[str, typer.Option(help="125m or 360m, for models given by name.")]
Vocab = Annotated[int, typer.Option(min=2, help="Vocabulary size.")]
Peers = Annotated[bool, typer.Option(help="Also benchmark peer models of the same kind, if they can be imported.")]


@group.command("train")
def train_command(
    models: Models = None,
    size: Size = "125m",
    batch: Annotated[int | None, typer.Option(min=1, help="Sequences per step. \\[default: 8, on a CPU 1]")] = None,
    seq: SeqLen = None,
    vocab: Vocab = 50257,
    steps: Annotated[int, typer.Option(min=1, help="Steps to time.")] = 10,
    device: Device = None,
    compiled: Annotated[
        bool | None,
        typer.Option("--compile/--no-compile", help="Also benchmark compiled models. \\[default: on a GPU]"),
    ] = None,
    peers: Peers = True,
    mixers: Mixers = None,
    as_json: AsJson = False,
) -> None:
    """Benchmark training: tokens per second, peak memory and MFU, eager, compiled, and of a peer library."""
    from plait.api.bench import train

    with progress_bar(quiet=as_json) as on_progress:
        result = train(
            *models or [], size=size, batch=batch, seq_len=seq, vocab=vocab, steps=steps, device=device,
            compiled=compiled, peers=peers, mixers=mixers or (), on_progress=on_progress,
        )  # fmt: skip
    print_result(result, _print_training, as_json=as_json)
    if any(row.failure for row in result.models if row.trainer.startswith("plait")):
        raise typer.Exit(1)


@group.command("fleet")
def fleet_command(
    models: Annotated[
        list[str] | None, typer.Argument(help="attn, hyena, gla, mamba, mh-hyena or moe; the first four by default.")
    ] = None,
    replicas: Annotated[str, typer.Option("--replicas", "--members", help="Models per fleet, such as 6,24.")] = "24",
    batch: Annotated[int | None, typer.Option(min=1, help="Sequences per step. \\[default: 128, on a CPU 8]")] = None,
    tokens: Annotated[int | None, typer.Option(min=2, help="Sequence length. \\[default: 128, on a CPU 32]")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps to time. \\[default: 200, on a CPU 3]")] = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Benchmark training many small models in one stacked step, next to one in the plain loop."""
    from plait.api.bench import fleet

    with progress_bar(quiet=as_json) as on_progress:
        result = fleet(
            *models or [], replicas=_numbers(replicas, "--replicas"), batch=batch, tokens=tokens, steps=steps,
            device=device, on_progress=on_progress,
        )  # fmt: skip
    print_result(result, _print_fleets, as_json=as_json)


@group.command("decode")
def decode_command(
    models: Models = None,
    size: Size = "360m",
    batch: Annotated[str, typer.Option(help="Batch sizes, such as 1,16,256.")] = "1",
    position: Annotated[str, typer.Option(help="Context lengths, such as 1024,65536.")] = "1024,65536",
    vocab: Vocab = 50257,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens to time.")] = 64,
    device: Device = None,
    dtype: Dtype = None,
    peers: Peers = True,
    mixers: Mixers = None,
    as_json: AsJson = False,
) -> None:
    """Benchmark generation with a long context: tokens per second, next to Hugging Face's generate."""
    from plait.api.bench import decode

    with progress_bar(quiet=as_json) as on_progress:
        result = decode(
            *models or [], size=size, batches=_numbers(batch, "--batch"), positions=_numbers(position, "--position"),
            vocab=vocab, tokens=tokens, device=device, dtype=dtype, peers=peers, mixers=mixers or (),
            on_progress=on_progress,
        )  # fmt: skip
    print_result(result, _print_decoding, as_json=as_json)


def _numbers(text: str, option: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and int(part) for part in parts):
        raise UserError(f"{option} {text}: expected whole numbers above 0, as 1,16.")
    return tuple(int(part) for part in parts)


def _heading(device: str, versions: dict[str, str], what: str) -> str:
    return f"{device}, {', '.join(f'{name} {version}' for name, version in versions.items())}; {what}"


def _print_training(result: TrainBenchResult) -> None:
    out = console()
    what = f"{result.batch} × {result.seq_len} tokens per step, vocabulary {result.vocab}"
    out.print(_heading(result.device, result.versions, what), style="dim")
    columns = {"tokens_per_s": "right", "peak_GiB": "right", "MFU": "right", "compile_s": "right", "ours_is": "right"}
    grid = table(model="left", trainer="left", **columns)
    for row in result.models:
        if row.failure:
            grid.add_row(plain(row.model), row.trainer, plain(row.failure), "", "", "", "")
            continue
        grid.add_row(
            plain(row.model),
            row.trainer,
            f"{row.tokens_per_second:,.0f}",
            "–" if row.peak_gib is None else f"{row.peak_gib:.1f}",
            "unknown" if row.mfu is None else percent(row.mfu),
            "–" if row.compile_seconds is None else f"{row.compile_seconds:.0f}",
            "–" if row.ratio is None else f"{row.ratio:.2f} ×",
        )
    out.print(grid)


def _print_fleets(result: FleetBenchResult) -> None:
    out = console()
    out.print(_heading(result.device, result.versions, "milliseconds"), style="dim")
    numbers = ("replicas", "batch", "tokens", "plain_step", "replica_step", "ratio", "first_s", "loss_gap")
    grid = table(model="left", **dict.fromkeys(numbers, "right"))
    for row in result.fleets:
        times = (f"{row.plain_ms:.2f}", f"{row.replica_step_ms:.3f}", f"{row.ratio:.1f} ×")
        sizes = (str(row.replicas), str(row.batch), str(row.tokens))
        grid.add_row(row.model, *sizes, *times, f"{row.first_step_seconds:.1f}", f"{row.loss_gap:.1e}")
    out.print(grid)


def _print_decoding(result: DecodeBenchResult) -> None:
    out = console()
    out.print(_heading(result.device, result.versions, result.dtype), style="dim")
    columns = {"batch": "right", "position": "right", "tokens_per_s": "right", "ms": "right", "state_MiB": "right"}
    grid = table(model="left", generator="left", **columns)
    for row in result.models:
        held = "–" if row.state_bytes is None else f"{row.state_bytes / 2**20:.1f}"
        speed = f"{row.tokens_per_second:,.0f}"
        grid.add_row(
            plain(row.spec), row.generator, str(row.batch), f"{row.position:,}", speed, f"{row.milliseconds:.2f}", held
        )
    out.print(grid)
    for crossover in result.crossovers:
        rows = f"{crossover.batch} rows" if crossover.batch > 1 else "one row"
        slower = f"{plain(crossover.slower)} from {crossover.tokens:,.0f} tokens on"
        out.print(f"{plain(crossover.faster)} generates {rows} faster than {slower}")


def _print_kernels(result: KernelsResult) -> None:
    out = console()
    what = f"{result.batch} × {result.seq_len} tokens, {result.dtype}"
    out.print(_heading(result.device, result.versions, what), style="dim")
    columns = {"forward_ms": "right", "both_ms": "right", "peak_MiB": "right", "of_ours": "right"}
    grid = table(op="left", shape="left", kernel="left", error="right", **columns)
    for row in result.kernels:
        times = (row.forward_ms, row.both_ms, row.peak_mib, row.ratio)
        grid.add_row(
            row.op,
            row.shape,
            plain(row.kernel),
            f"{row.error:.1e}" if row.right else f"[bold red]wrong ({row.error:.1e})[/]" if not row.note else "refused",
            *("–" if x is None else f"{x:.{digits}f}" for x, digits in zip(times, (2, 2, 0, 2), strict=True)),
        )
    out.print(grid)
    for row in result.kernels:
        if row.note:
            out.print(f"{plain(row.kernel)}, {row.op}: {plain(row.note)}", style="dim")
