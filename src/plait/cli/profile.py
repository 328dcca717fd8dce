"""`plait profile`: characterise this machine, once, so that any architecture's speed can be predicted."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plait.cli.options import AsJson, Mixers
from plait.cli.output import console, plain, print_json, table
from plait.core.errors import UserError
from plait.core.units import parse_duration

if TYPE_CHECKING:
    from plait.device.profile import Point, Profile

group = typer.Typer(help="Characterise this machine; compare machines.")

SPACES = ["lts-gpt2", "hybrid"]
SAVE_EVERY = 20  # points


@group.callback(invoke_without_command=True)
def command(
    context: typer.Context,
    out: Annotated[Path, typer.Option("-o", "--out", help="Written; added to where it exists.")] = Path("box.json"),
    time: Annotated[str, typer.Option(help="For how long, such as 90s or 3m.")] = "3m",
    space: Annotated[list[str] | None, typer.Option(help="Layers of which spaces: names or files.")] = None,
    seq: Annotated[list[int] | None, typer.Option(min=1, help="Lengths; 192 unless given.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Sequences at once.")] = 1,
    mode: Annotated[list[str] | None, typer.Option(help="prefill (unless given) and decode.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, …")] = "cpu",
    dtype: Annotated[str, typer.Option(help="float32, float64; on a GPU bfloat16 and float16, too.")] = "float32",
    threads: Annotated[int, typer.Option(min=1, help="Of the processor.")] = 1,
    mixers: Mixers = None,
    as_json: AsJson = False,
) -> None:
    """Measure layers of every kind on this machine, choosing those that predictions are least sure of."""
    if context.invoked_subcommand is not None:
        return
    from plait.device.components import Components
    from plait.device.setting import Setting
    from plait.space.table import load_space

    seconds = parse_duration(time)
    settings = [
        Setting(mode=each, seq=length, batch=batch, device=device, dtype=dtype, threads=threads)
        for each in mode or ["prefill"]
        for length in seq or [192]
    ]
    if not settings[0].on_cpu:
        import_module("torch")  # a GPU is known, and written down, only once torch is there
    component_sets = [components for name in space or SPACES for components in Components.of(load_space(name))]
    profile = _begun(out, settings[0])
    _extend(profile, component_sets, settings, seconds, out, quiet=as_json)
    if as_json:
        print_json({"path": str(out), **profile.describe()})
    else:
        _print(profile, out)


@group.command()
def show(
    path: Annotated[Path, typer.Argument(help="A file that `plait profile` wrote.")], as_json: AsJson = False
) -> None:
    """Show what a profile holds."""
    from plait.device.profile import Profile

    profile = Profile.load(path, anywhere=True)
    print_json(profile.describe()) if as_json else _print(profile, path)


@group.command("compare")
def compare_profiles(
    first: Annotated[Path, typer.Argument(help="A profile.")],
    second: Annotated[Path, typer.Argument(help="Another.")],
    as_json: AsJson = False,
) -> None:
    """Compare two machines: how long each kind of layer takes on the second, over the first."""
    from plait.device.compare import compare
    from plait.device.profile import Profile

    one, other = (Profile.load(path, anywhere=True) for path in (first, second))
    found = compare(one, other)
    if not found:
        raise UserError(f"{first} and {second} have no kind of layer in common.")
    if as_json:
        both = {"first": one.describe(), "second": other.describe()}
        print_json({**both, "ratios": [ratio.as_dict() for ratio in found]})
        return
    out = console()
    for name, profile in (("first", one), ("second", other)):
        out.print(f"{name}: {_machine(profile)}", style="dim", markup=False)
    made = table(layer="left", mode="left", parts="right", second_over_first="right", range="right")
    for ratio in found:
        cells = (str(ratio.parts), f"{ratio.median:.2f}", f"{ratio.low:.2f} to {ratio.high:.2f}")
        made.add_row(ratio.kind, ratio.mode, *cells)
    out.print(made)


def _begun(path: Path, setting: Any) -> Profile:
    """The profile at `path`, to be added to, or an empty one."""
    from plait.device.profile import Profile

    fresh = Profile.here(setting)
    if not path.exists():
        fresh.save(path)  # what cannot be written is told now, not after minutes of measuring
        path.unlink()
        return fresh
    profile = Profile.load(path)
    if profile.common != fresh.common:
        different = ", ".join(f"{key} {value}" for key, value in profile.common.items() if fresh.common[key] != value)
        raise UserError(f"{path} is a profile of {different}; name another file.")
    return profile


def _extend(profile: Profile, component_sets: Any, settings: Any, seconds: float, path: Path, *, quiet: bool) -> None:
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    from plait.device.profiling import extend_profile

    columns = (TextColumn("{task.description:<40}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console(stderr=True), transient=True, disable=quiet) as bar:
        task = bar.add_task("starting", total=1.0)

        def on_progress(point: Point, over: float) -> None:
            bar.update(task, completed=over, description=plain(f"{point.what} {point.spec}"[:40]))
            if len(profile.points) % SAVE_EVERY == 0:
                profile.save(path)

        try:
            extend_profile(profile, component_sets, settings, seconds=seconds, on_progress=on_progress)
        finally:
            if profile.points:
                profile.save(path)


def _machine(profile: Profile) -> str:
    name = profile.device["gpu"] if profile.common["device"] != "cpu" else profile.device["cpu"]
    count = profile.common["threads"]
    return f"{name}, {profile.common['dtype']}, {count} thread{'s' * (count > 1)}, torch {profile.device['torch']}"


def _print(profile: Profile, path: Path) -> None:
    out = console()
    counts = profile.describe()["points"]
    out.print(f"{path}: {_machine(profile)}", markup=False)
    out.print(
        f"{counts['layer']} layers, {counts['outside']} embeddings and outputs, {counts['model']} whole models "
        f"in {profile.seconds:.0f} s; {counts['noisy']} of them noisy"
    )
