"""`plait profile`: measure this machine once, so that the speed of any architecture on it can be predicted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plait.cli.options import AsJson, Device, Mixers, Threads
from plait.cli.output import console, passed, print_result, progress_bar, table, within_time

if TYPE_CHECKING:
    from plait.api.profile import ProfileComparison, ProfileResult
    from plait.device.profile import Profile

group = typer.Typer(help="Characterise this machine; compare machines.")


@group.callback(invoke_without_command=True)
def command(
    context: typer.Context,
    out: Annotated[
        Path, typer.Option("-o", "--out", "--output", help="Profile to write; extended if it exists.")
    ] = Path("box.json"),
    time: Annotated[str, typer.Option(help="Time to spend, such as 90s or 3m.")] = "3m",
    space: Annotated[
        list[str] | None,
        typer.Option(help="Spaces whose layers to measure: names or files. \\[default: lts-gpt2 and hybrid]"),
    ] = None,
    seq: Annotated[
        list[int] | None, typer.Option("--seq-len", "--seq", min=1, help="Sequence lengths. \\[default: 192]")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Batch sizes.")] = 1,
    mode: Annotated[list[str] | None, typer.Option(help="prefill (the default) and decode.")] = None,
    device: Device = "cpu",
    dtype: Annotated[str, typer.Option(help="float32, float64; on a GPU also bfloat16 and float16.")] = "float32",
    threads: Threads = 1,
    mixers: Mixers = None,
    as_json: AsJson = False,
) -> None:
    """Profile this machine: measure layers of every kind, choosing those with the most uncertain predictions."""
    if context.invoked_subcommand is not None:
        return
    arguments = dict(locals())
    from plait.api.profile import SPACES, profile

    with within_time(time), progress_bar(quiet=as_json) as on_progress:
        result = profile(
            **passed(
                arguments, "context", "space", "seq", "mode", "as_json",
                spaces=space or SPACES, seq_lens=seq or (192,), modes=mode or ("prefill",),
            ),
            on_progress=lambda what, done, total: on_progress(f"{what[:40]:<40}", done, total),
        )  # fmt: skip
    print_result(result, _print, result.path, as_json=as_json)


@group.command()
def show(
    path: Annotated[Path, typer.Argument(help="A file that `plait profile` wrote.")], as_json: AsJson = False
) -> None:
    """Show a profile."""
    from plait.api.profile import open_profile

    print_result(open_profile(path), _print, as_json=as_json)


@group.command("compare")
def compare(
    first: Annotated[Path, typer.Argument(help="A profile.")],
    second: Annotated[Path, typer.Argument(help="Another.")],
    as_json: AsJson = False,
) -> None:
    """Compare two machines: the time of each kind of layer on the second relative to the first."""
    from plait.api.profile import compare_profiles

    print_result(compare_profiles(first, second), _print_ratios, as_json=as_json)


def _print_ratios(result: ProfileComparison) -> None:
    from plait.device.features import EMBEDDING_AND_HEAD

    out = console()
    for name, profile in (("first", result.first), ("second", result.second)):
        out.print(f"{name}: {_machine(profile)}", style="dim", markup=False)
    grid = table(layer="left", mode="left", parts="right", second_over_first="right", range="right")
    for ratio in result.ratios:
        cells = (str(ratio.parts), f"{ratio.median:.2f}", f"{ratio.low:.2f} to {ratio.high:.2f}")
        layer = "embedding and head" if ratio.kind == EMBEDDING_AND_HEAD else ratio.kind
        grid.add_row(layer, ratio.mode, *cells)
    out.print(grid)


def _machine(profile: Profile) -> str:
    name = profile.device["gpu"] if profile.common["device"] != "cpu" else profile.device["cpu"]
    count = profile.common["threads"]
    return f"{name}, {profile.common['dtype']}, {count} thread{'s' * (count > 1)}, torch {profile.device['torch']}"


def _print(result: ProfileResult) -> None:
    out, profile = console(), result.profile
    counts = profile.describe()["points"]
    out.print(_machine(profile), markup=False)
    out.print(
        f"{counts['layer']} layers, {counts['outside']} embeddings and outputs, {counts['model']} whole models "
        f"in {profile.seconds:.0f} s; {counts['noisy']} of them noisy"
    )
