"""`plait study proxies | placement | lr | shapes | verdict`: studies that train many small models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plait.api.analyse_table import floats
from plait.cli.options import (
    AsJson,
    Cluster,
    FormerLength,
    GpusPerTraining,
    Mixers,
    PeakRate,
    Runs,
    StoreUrl,
    Text,
    Threads,
    TrainingBatch,
    TrainingDevice,
    read_count,
)
from plait.cli.output import passed, print_result, wrote
from plait.cli.study_display import (
    draw_placement,
    draw_proxies,
    print_lr,
    print_placement,
    print_proxies,
    print_shapes,
    print_verdict,
)
from plait.cli.study_display import study_progress as progress
from plait.core.registry import names

if TYPE_CHECKING:
    from plait.api.study import F, StudyResult

group = typer.Typer(help="Studies that train many small models.", no_args_is_help=True)

StudySpace = Annotated[str, typer.Option(help="study-gpt2, study-hybrid, or another space's name or file.")]
Steps = Annotated[int, typer.Option(min=1, help="Optimizer steps per training.")]
SeqLen = Annotated[int, typer.Option(min=1, help="Sequence length.")]
SampleSeed = Annotated[int, typer.Option(min=0, help="Seed of the sample, the weights and the data order.")]


def output(result: StudyResult[F], show: Callable[[F], object], *, as_json: bool) -> None:
    """A study's document as JSON, or its findings as `show` prints them."""
    print_result(result, lambda study: show(study.findings), as_json=as_json)


@group.command("proxies")
def command(
    space: StudySpace = "study-gpt2",
    models: Annotated[int, typer.Option(help="Models to sample and train.")] = 40,
    data: Text = "builtin:stdlib",
    steps: Steps = 200,
    proxies: Annotated[
        str, typer.Option(help="Only these proxies, separated by commas; none: parameter counts only.")
    ] = "",
    batch: TrainingBatch = 8,
    seq_len: SeqLen = 64,
    length: FormerLength = None,
    lr: PeakRate = 6e-3,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds per model.")] = 2,
    seed: SampleSeed = 0,
    device: TrainingDevice = "cpu",
    svg: Annotated[Path | None, typer.Option(help="Draw rank correlation against each proxy's cost.")] = None,
    runs: Runs = Path("runs"),
    mixers: Mixers = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Train models of a space and measure how well every proxy ranks them. If interrupted, the same command resumes."""
    arguments = dict(locals())
    from plait.api.study import proxies as study

    named = None if not names(proxies) else [] if names(proxies) == ["none"] else names(proxies)
    with progress(quiet=as_json) as on_progress:
        result = study(
            **passed(arguments, "svg", "length", "as_json", proxies=named, seq_len=length or seq_len),
            on_progress=on_progress,
        )
    output(result, print_proxies, as_json=as_json)
    if svg is not None:  # last: a place that cannot be written to costs no results
        draw_proxies(svg, result.findings)
        wrote(svg, as_json=as_json)


@group.command()
def placement(
    p: Annotated[str, typer.Option("--p", help="Layers per attention block in the PAR pattern.")] = "2,3,4,6,8",
    spec: Annotated[list[str] | None, typer.Option(help="Another architecture to compare; may be repeated.")] = None,
    k: Annotated[int | None, typer.Option(min=1, help="Sandwich coefficient. \\[default: 3/8 of its pairs]")] = None,
    layers: Annotated[int, typer.Option(help="Layers of every pattern; even.")] = 12,
    width: Annotated[int, typer.Option(min=2, help="Model width.")] = 48,
    heads: Annotated[int, typer.Option(min=1, help="Heads of an attention block.")] = 4,
    inner: Annotated[int, typer.Option(min=1, help="Inner width of a feed-forward block.")] = 192,
    data: Text = "builtin:stdlib",
    steps: Steps = 150,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds per pattern.")] = 3,
    batch: TrainingBatch = 8,
    seq_len: SeqLen = 64,
    length: FormerLength = None,
    lr: PeakRate = 3e-3,
    svg: Annotated[Path | None, typer.Option(help="Draw perplexity against attention blocks.")] = None,
    device: TrainingDevice = "cpu",
    runs: Runs = Path("runs"),
    mixers: Mixers = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Train patterns with more and less attention and compare them. If interrupted, the same command resumes."""
    arguments = dict(locals())
    from plait.api.study import placement as study

    with progress(quiet=as_json) as on_progress:
        result = study(
            **passed(
                arguments, "spec", "inner", "svg", "length", "as_json", p=floats(p, "--p"), seq_len=length or seq_len
            ),
            specs=spec or (),
            d_ff=inner,
            on_progress=on_progress,
        )
    output(result, print_placement, as_json=as_json)
    if svg is not None:  # last: a place that cannot be written to costs no results
        draw_placement(svg, result.findings)
        wrote(svg, as_json=as_json)


@group.command()
def lr(
    space: StudySpace = "study-gpt2",
    models: Annotated[int, typer.Option(min=0, help="Architectures to sample from it.")] = 6,
    spec: Annotated[list[str] | None, typer.Option(help="Another architecture; may be repeated.")] = None,
    rates: Annotated[str, typer.Option(help="Learning rates, separated by commas.")] = "1e-4,1e-3,1e-2,1e-1",
    seeds: Annotated[int, typer.Option(min=1, help="Seeds per learning rate.")] = 2,
    data: Text = "builtin:stdlib",
    steps: Steps = 60,
    batch: TrainingBatch = 8,
    seq_len: SeqLen = 32,
    length: FormerLength = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sample.")] = 0,
    device: TrainingDevice = "cpu",
    mixers: Mixers = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Train architectures with several learning rates each. If interrupted, the same command resumes."""
    arguments = dict(locals())
    from plait.api.study import lr as study

    with progress(quiet=as_json) as on_progress:
        result = study(
            **passed(arguments, "spec", "length", "as_json", rates=floats(rates, "--rates"), seq_len=length or seq_len),
            specs=spec or (),
            on_progress=on_progress,
        )
    output(result, print_lr, as_json=as_json)


@group.command()
def shapes(
    space: Annotated[str, typer.Option(help="study-gpt2, lts-gpt2, or another space's name or file.")] = "study-gpt2",
    models: Annotated[int, typer.Option(help="Shapes to sample, from deep and narrow to shallow and wide.")] = 8,
    params: Annotated[
        str, typer.Option(help="Decoder parameters of all, such as 20M. \\[default: where shapes differ most]")
    ] = "",
    tolerance: Annotated[float, typer.Option(help="Sizes this close are equal: 0.01 is 1 %.")] = 0.01,
    seq: Annotated[
        int, typer.Option("--seq-len", "--seq", min=1, help="Sequence length for latency and memory.")
    ] = 192,
    threads: Threads = 1,
    steps: Annotated[int, typer.Option(min=0, help="Also train each for this many steps; 0: only measure.")] = 0,
    data: Text = "builtin:stdlib",
    batch: Annotated[int, typer.Option(min=1, help="Sequences per training step.")] = 8,
    train_seq_len: Annotated[int, typer.Option(min=1, help="Sequence length in training.")] = 64,
    length: FormerLength = None,
    lr: PeakRate = 6e-3,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds per shape, with --steps.")] = 2,
    seed: SampleSeed = 0,
    runs: Runs = Path("runs"),
    mixers: Mixers = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Measure and train architectures of one size and many shapes. If interrupted, the same command resumes."""
    arguments = dict(locals())
    from plait.api.study import shapes as study

    with progress(quiet=as_json) as on_progress:
        result = study(
            **passed(arguments, "seq", "length", "train_seq_len", "as_json", params=params or None, seq_len=seq),
            train_seq_len=length or train_seq_len,
            on_progress=on_progress,
        )
    output(result, print_shapes, as_json=as_json)


@group.command()
def verdict(
    architectures: Annotated[
        list[str] | None, typer.Argument(help="Specs, mixers, presets. \\[default: a model of every kind, and hybrids]")
    ] = None,
    data: Text = "builtin:stdlib",
    tokens: Annotated[
        float,
        typer.Option(
            parser=read_count,
            metavar="<count>",
            help="Training tokens per architecture and seed, such as 2M. \\[default: 200K]",
            show_default=False,
        ),
    ] = 2e5,
    seeds: Annotated[int, typer.Option(min=2, help="Seeds per architecture.")] = 2,
    batch: TrainingBatch = 8,
    seq_len: Annotated[int, typer.Option(min=2, help="Sequence length.")] = 128,
    workers: Annotated[
        int, typer.Option(min=0, help="Concurrent trainings. \\[default: one per core]", show_default=False)
    ] = 0,
    cluster: Cluster = "",
    gpus_per_training: GpusPerTraining = None,
    device: TrainingDevice = "cpu",
    runs: Runs = Path("runs"),
    mixers: Mixers = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Train architectures of one size to the end, and measure how well cheaper methods would have ranked them."""
    arguments = dict(locals())
    from plait.api.study import CONTENDERS
    from plait.api.study import verdict as study

    with progress(quiet=as_json) as on_progress:
        result = study(
            **passed(arguments, "as_json", architectures=architectures or CONTENDERS), on_progress=on_progress
        )
    output(result, print_verdict, as_json=as_json)
