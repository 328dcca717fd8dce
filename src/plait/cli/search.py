"""`plait search`: the architectures that no other beats, under limits that hold on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from plait.cli.options import (
    Answer,
    AsJson,
    Batch,
    Cluster,
    Constraints,
    Mixers,
    Mode,
    StoreUrl,
    Tokenizer,
    TokensPerSecond,
    limit_options,
)
from plait.cli.output import console, print_json, progress_bar

FRONT = 16  # models returned, each measured
LTS = "lts"


@limit_options(after="objectives")
def command(
    space: Annotated[
        str, typer.Option(help="lts-gpt2, lts-xl, lts-opt, lts-proxy, par, hybrid, small-hybrid, or a file.")
    ],
    objectives: Annotated[
        str,
        typer.Option(
            help="Separated by commas, with min: or max:; proxies need --data; your own as my_objective.py. "
            "\\[default: decoder_params,latency,memory]"
        ),
    ] = "",
    *,
    constraint: Constraints = None,
    seq: Annotated[
        int | None, typer.Option("--seq-len", "--seq", min=1, help="Sequence length. \\[default: the space's]")
    ] = None,
    batch: Batch = 1,
    mode: Mode = "prefill",
    answer: Answer = None,
    tokens_per_second: TokensPerSecond = None,
    method: Annotated[
        str | None, typer.Option(help="lts, nsga2, nsga3, random, exhaustive or gumbel. \\[default: lts]")
    ] = None,
    iterations: Annotated[int | None, typer.Option(min=1, help="\\[default: the method's, 30 for lts]")] = None,
    population: Annotated[int | None, typer.Option(min=2, help="\\[default: the method's, 100 for lts]")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
    fix: Annotated[list[str] | None, typer.Option(help="Narrow the space: d=256, layers=6..12.")] = None,
    data: Annotated[str | None, typer.Option(help="Text for gumbel and for proxies; `plait data list`.")] = None,
    tokenizer: Tokenizer = None,
    steps: Annotated[int | None, typer.Option(min=1, help="gumbel: steps per supernet. \\[default: 2000]")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="gumbel: supernets to train. \\[default: 1]")] = None,
    recipe: Annotated[str, typer.Option(help="gumbel: recipe for the weights; `plait list recipes`.")] = "",
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="gumbel: a key of the recipe, such as lr=0.002.")
    ] = None,
    supernet: Annotated[
        list[str] | None, typer.Option(help="gumbel: a setting, such as penalty=latency, strength=0.2.")
    ] = None,
    retrain: Annotated[int | None, typer.Option(min=1, help="gumbel: steps to train the results from scratch.")] = None,
    retrain_seeds: Annotated[
        int, typer.Option(min=1, help="gumbel: seeds for --retrain; 2 or more give the noise.")
    ] = 1,
    profile: Annotated[
        Path | None, typer.Option(help="A file of `plait profile`. \\[default: this machine's, stored with the runs]")
    ] = None,
    anywhere: Annotated[
        bool, typer.Option("--anywhere", help="Accept a profile of another machine; nothing is measured.")
    ] = False,
    device: Annotated[str | None, typer.Option(help="\\[default: the profile's, else cpu]")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="\\[default: the profile's, else 1]")] = None,
    front: Annotated[int, typer.Option(min=0, help="Number of models to return and measure; 0: all.")] = FRONT,
    no_validate: Annotated[
        bool, typer.Option("--no-validate", "--no-confirm", help="Predict only; measure nothing.")
    ] = False,
    runs: Annotated[Path, typer.Option(help="Folder of the profile and unfinished searches.")] = Path("runs"),
    mixers: Mixers = None,
    cluster: Cluster = "",
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Worker processes for proxies. \\[default: 1; on a cluster all it has]"),
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
    **limits: str | None,
) -> None:
    """Search a space for the best architectures under limits, and measure those it returns."""
    from plait.api.search import Supernets, search
    from plait.cli.front import print_front
    from plait.core.registry import pairs, read_pairs
    from plait.searching.job import Interrupted
    from plait.supernet.settings import Settings
    from plait.training.fit import Interrupted as TrainingInterrupted
    from plait.training.recipe import Recipe

    supernets = Supernets(
        steps,
        seeds,
        recipe,
        read_pairs(set_ or [], "--set", Recipe),
        read_pairs(supernet or [], "--supernet", Settings),
        retrain,
        retrain_seeds,
    )
    try:
        with progress_bar(quiet=as_json) as on_progress:
            found = search(
                space,
                objectives=[name.strip() for name in objectives.split(",") if name.strip()],
                constraints=constraint or (),
                seq_len=seq,
                batch=batch,
                mode=mode,
                answer=answer,
                tokens_per_second=tokens_per_second,
                method=method or LTS,
                iterations=iterations,
                population=population,
                seed=seed,
                fix=pairs(fix or [], "--fix"),
                data=data,
                tokenizer=tokenizer,
                supernets=supernets,
                profile=profile,
                anywhere=anywhere,
                device=device,
                threads=threads,
                front=front,
                validate=not no_validate,
                mixers=mixers or (),
                cluster=cluster,
                workers=workers,
                runs=runs,
                store=store,
                on_progress=on_progress,
                **limits,
            )
    except (Interrupted, TrainingInterrupted, KeyboardInterrupt) as stopped:
        where = f": {stopped}" if isinstance(stopped, Interrupted) else ""
        console(stderr=True).print(f"interrupted{where}. Everything is saved; the same command resumes from there.")
        raise typer.Exit(130) from None
    print_json(found.as_dict()) if as_json else print_front(found)
    if method is not None and found.method != method:
        message = (
            f"the space is small: all of it was compared instead of running {method}; --iterations forces {method}"
        )
        console(stderr=True).print(message, style="dim", markup=False)
