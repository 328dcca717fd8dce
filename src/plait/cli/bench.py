"""`plait bench kernels`: how fast plait's own parts are on this machine, beside every peer that can be imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from plait.cli.options import AsJson
from plait.cli.output import console, plain, print_json, progress_bar, table

if TYPE_CHECKING:
    from plait.api.bench import KernelsResult

group = typer.Typer(help="Time plait's own parts on this machine, beside every peer that can be imported.")

Device = Annotated[str | None, typer.Option(help="cpu, cuda, … \\[default: a GPU where there is one]")]


@group.callback()
def bench() -> None:
    """Time plait's own parts on this machine, beside every peer that can be imported."""


@group.command("kernels")
def kernels_command(
    ops: Annotated[list[str] | None, typer.Argument(help="Ops such as gla or mamba2; all by default.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Sequences at once.")] = 8,
    seq: Annotated[int, typer.Option("--seq-len", "--seq", min=1, help="Tokens of each.")] = 4096,
    device: Device = None,
    dtype: Annotated[
        str | None, typer.Option(help="\\[default: bfloat16 on a GPU, float32 on a CPU]")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Calls whose median counts.")] = 20,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Check and time the kernels of each op at the shapes of 125M models, forward and backward."""
    from plait.api.bench import kernels

    with progress_bar(quiet=as_json) as on_progress:
        found = kernels(
            *ops or [], batch=batch, seq_len=seq, device=device, dtype=dtype, repeats=repeats, on_progress=on_progress
        )
    print_json(found.as_dict()) if as_json else _print_kernels(found)
    if not all(one.right for one in found.kernels if one.kernel == "plait"):
        raise typer.Exit(1)


def _print_kernels(found: KernelsResult) -> None:
    out = console()
    versions = ", ".join(f"{name} {version}" for name, version in found.versions.items())
    tokens = f"{found.batch} × {found.seq_len} tokens, {found.dtype}"
    out.print(f"{found.device}, {versions}; {tokens}", style="dim")
    columns = {"forward_ms": "right", "both_ms": "right", "peak_MiB": "right", "of_ours": "right"}
    made = table(op="left", shape="left", kernel="left", error="right", **columns)
    for one in found.kernels:
        times = (one.forward_ms, one.both_ms, one.peak_mib, one.ratio)
        made.add_row(
            one.op,
            one.shape,
            plain(one.kernel),
            f"{one.error:.1e}" if one.right else f"[bold red]wrong ({one.error:.1e})[/]" if not one.note else "refused",
            *("–" if x is None else f"{x:.{digits}f}" for x, digits in zip(times, (2, 2, 0, 2), strict=True)),
        )
    out.print(made)
    for one in found.kernels:
        if one.note:
            out.print(f"{plain(one.kernel)}, {one.op}: {plain(one.note)}", style="dim")
