"""`plait scale plan | run | fit | probe | pitfall`: scaling laws with error bars."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from plait.cli.options import AsJson, Cluster, GpusPerTraining, Log, Mixers, Runs, StoreUrl, Text, TrainingDevice
from plait.cli.output import passed, print_result

group = typer.Typer(help="Scaling laws with error bars: plan runs, train them, fit.", no_args_is_help=True)


@group.command()
def plan(
    arch: Annotated[
        list[str] | None,
        typer.Option(help="A family of presets (mad-transformer) or NAME=SPEC to scale; may be repeated."),
    ] = None,
    budgets: Annotated[str | None, typer.Option(help="FLOPs of the groups, separated by commas.")] = None,
    total: Annotated[str | None, typer.Option(help="FLOPs of all runs together, instead of --budgets.")] = None,
    time: Annotated[str | None, typer.Option(help="Time of all runs here, such as 30m, instead of --budgets.")] = None,
    groups: Annotated[int, typer.Option(min=1, help="With --total or --time: the number of budgets.")] = 5,
    spacing: Annotated[float, typer.Option(help="With --total or --time: the ratio between budgets.")] = 2.5,
    sizes: Annotated[int, typer.Option(help="Sizes in each group.")] = 7,
    span: Annotated[float, typer.Option(help="Sizes span this factor below and above the middle one.")] = 6.0,
    tokens_per_param: Annotated[float, typer.Option(help="Tokens per parameter of the middle size.")] = 20.0,
    params: Annotated[str, typer.Option(help="Explicit sizes for every group, such as 1M,3M,10M.")] = "",
    depth_power: Annotated[
        float, typer.Option(help="Exponent of depth against width for a spec; 0 keeps the depth.")
    ] = 0.5,
    data: Text = "builtin:language",
    tokenizer: Annotated[str | None, typer.Option(help="Tokenizer; see `plait data list`.")] = None,
    seq_len: Annotated[int | None, typer.Option(help="Sequence length. \\[default: 256; MAD's groups: 8192]")] = None,
    batch: Annotated[int | None, typer.Option(help="Sequences per step. \\[default: by the budget]")] = None,
    lr: Annotated[
        str | None,
        typer.Option(
            help="Learning rate, with the width and tokens per step it was tuned at: 4e-3@64@8192. \\[default: by rule]"
        ),
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Any other key of the recipe: key=value.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds per size.")] = 1,
    device: Annotated[str, typer.Option(help="Where models will be trained: cpu or cuda.")] = "cpu",
    priced: Annotated[
        bool, typer.Option("--price/--no-price", help="Time some steps to estimate the duration.")
    ] = True,
    speed: Annotated[str | None, typer.Option(help="FLOPs per second of another device, instead of timing.")] = None,
    devices: Annotated[int, typer.Option(min=1, help="With --speed: the number of devices.")] = 1,
    mixers: Mixers = None,
    out: Annotated[Path | None, typer.Option(help="Write the plan for `plait scale run`.")] = None,
    as_json: AsJson = False,
) -> None:
    """Plan IsoFLOP groups × sizes × architectures under a budget, and print the cost before anything runs.

    Without --budgets, --total and --time: MAD's eight groups over Table C.2.
    """
    arguments = dict(locals())
    from plait.api.scale import plan as verb
    from plait.cli.scale_display import print_plan
    from plait.core.registry import names, read_pairs
    from plait.training.recipe import Recipe

    result = verb(
        arch or ("mad-transformer",),
        recipe_values=read_pairs(set_ or [], "--set", Recipe),
        **passed(arguments, "arch", "set_", "as_json", params=names(params)),
    )
    print_result(result, lambda plan: print_plan(plan, out, mixers or ()), out, as_json=as_json)


@group.command()
def run(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="A file of `plait scale plan --out`.")],
    device: TrainingDevice = "cpu",
    workers: Annotated[
        int | None,
        typer.Option(help="Concurrent trainings; on GPUs one each. \\[default: 1; on a cluster all it has]"),
    ] = None,
    cluster: Cluster = "",
    gpus_per_training: GpusPerTraining = None,
    log: Log = "",
    runs: Runs = Path("runs"),
    mixers: Mixers = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Train the runs of a plan that are not stored yet. The same command resumes; several share the work."""
    arguments = dict(locals())
    from plait.api.scale import run as verb
    from plait.cli.scale_display import print_runs
    from plait.cli.study_display import study_progress

    with study_progress(quiet=as_json) as on_progress:
        result = verb(**passed(arguments, "as_json"), on_progress=on_progress)
    print_result(result, lambda runs: print_runs(runs, store), as_json=as_json)


@group.command()
def fit(
    file: Annotated[
        str | None,
        typer.Argument(help="A .csv, .json, .jsonl or .parquet file, or a store's URL. \\[default: the store's runs]"),
    ] = None,
    *,
    target: Annotated[str, typer.Option(help="FLOPs at which to predict the optimal size, such as 1e20.")],
    where: Annotated[
        list[str] | None,
        typer.Option(help="Only these rows: column=value, or with != < <= > >=; columns as --column names them."),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(help="A column that has another name in the file: loss=val_loss; may be repeated."),
    ] = None,
    draws: Annotated[int, typer.Option(help="Bootstrap samples.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the bootstrap.")] = 0,
    mixers: Mixers = None,
    all_budgets: Annotated[
        bool, typer.Option("--all-budgets", help="Include small budgets that contradict the law of the larger ones.")
    ] = False,
    all_trainings: Annotated[
        bool, typer.Option("--all-trainings", help="Of a store, also the trainings that other commands made.")
    ] = False,
    svg: Annotated[Path | None, typer.Option(help="Draw IsoFLOP curves, frontiers and gaps.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write a self-contained HTML report.")] = None,
    plot: Annotated[bool, typer.Option("--plot", help="Draw the IsoFLOP curves in the terminal.")] = False,
    as_json: AsJson = False,
) -> None:
    """Fit a loss surface, the compute-optimal frontier and IsoFLOP parabolas to runs, with 90 % intervals.

    Required columns: flops, params, tokens, loss (nats per token).

    Optional columns: architecture, active_params, state, attention, batch, vocab.
    """
    arguments = dict(locals())
    from plait.api.scale import fit as verb
    from plait.cli.scale_display import print_fit
    from plait.core.registry import pairs

    columns = pairs(column or [], "--column", "loss=val_loss")
    result = verb(**passed(arguments, "column", "out", "plot", "as_json", columns=columns, page=out))
    print_result(result, lambda fitted: print_fit(fitted.laws, plot=plot), svg, out, as_json=as_json)


@group.command()
def probe(
    file: Annotated[
        str | None,
        typer.Argument(help="Scaling runs: a file, or a store's URL. \\[default: the store's runs]"),
    ] = None,
    *,
    target: Annotated[str, typer.Option(help="FLOPs at which to compare losses, in addition to the groups' budgets.")],
    scores: Annotated[
        str | None,
        typer.Option(help="A table: architecture, and a column of accuracy per task. \\[default: the store's probes]"),
    ] = None,
    svg: Annotated[Path | None, typer.Option(help="Draw scores against losses at the target.")] = None,
    mixers: Mixers = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Correlate probe scores with compute-optimal losses: do small probes predict scale, and which task does?"""
    from plait.api.scale import probe as verb
    from plait.cli.scale_display import print_probe

    result = verb(file, target=target, scores=scores, svg=svg, mixers=mixers or (), store=store)
    print_result(result, print_probe, svg, as_json=as_json)


@group.command()
def pitfall(
    flops: Annotated[str, typer.Option(help="The group's budget.")] = "2e20",
    batch: Annotated[int, typer.Option(help="Tokens per step of the fixed batch.")] = 2**19,
    growth: Annotated[float, typer.Option(help="Above N* the batch grows as N to this power.")] = 1.0,
    svg: Annotated[Path | None, typer.Option(help="Draw both curves.")] = None,
    as_json: AsJson = False,
) -> None:
    """Simulate the effect of a batch size that grows with model size on an IsoFLOP group (MAD, Figure C.1)."""
    from plait.api.scale import pitfall as verb
    from plait.cli.scale_display import print_pitfall

    result = verb(flops=flops, batch=batch, growth=growth, svg=svg)
    print_result(result, print_pitfall, svg, as_json=as_json)
