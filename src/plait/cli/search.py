"""`plait search`: the architectures that no other beats, under limits that hold on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plait.cli.options import AsJson, Mixers, StoreUrl, limit_options
from plait.cli.output import console

if TYPE_CHECKING:
    from rich.progress import Progress

    from plait.device.profile import Profile
    from plait.device.setting import Setting
    from plait.records import Record, Store
    from plait.searching.confirm import Confirmed
    from plait.searching.job import Request
    from plait.space.limits import Limits

FRONT = 16  # models returned, each measured


@limit_options()
def command(
    space: Annotated[
        str, typer.Option(help="lts-gpt2, lts-xl, lts-opt, lts-proxy, par, hybrid, small-hybrid, or a file.")
    ],
    objectives: Annotated[
        str,
        typer.Option(
            help="By commas; min: or max: in front; proxies need --data. \\[default: decoder_params,latency,memory]"
        ),
    ] = "",
    *,
    limits: Limits,
    constraint: Annotated[
        list[str] | None, typer.Option("--constraint", "--rule", help="Further ones, such as 'count(attn) >= 1'.")
    ] = None,
    seq: Annotated[int | None, typer.Option(min=1, help="Tokens. \\[default: the space's]")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Sequences at once.")] = 1,
    mode: Annotated[str, typer.Option(help="prefill: all tokens at once; decode: one token after them.")] = "prefill",
    method: Annotated[str, typer.Option(help="lts, nsga2, nsga3, random or gumbel.")] = "lts",
    iterations: Annotated[int | None, typer.Option(min=1, help="\\[default: the method's, 30 for lts]")] = None,
    population: Annotated[int | None, typer.Option(min=2, help="\\[default: the method's, 100 for lts]")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of all that is drawn.")] = 0,
    fix: Annotated[list[str] | None, typer.Option(help="Narrow the space: d=256, layers=6..12.")] = None,
    data: Annotated[
        str | None, typer.Option(help="What gumbel trains on, and proxies look at; `plait data list`.")
    ] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Of the data: bytes, chars, words, bpe:SIZE …")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="gumbel: of each supernet. \\[default: 2000]")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="gumbel: supernets to train. \\[default: 1]")] = None,
    recipe: Annotated[str, typer.Option(help="gumbel: how weights are trained; `plait list recipes`.")] = "",
    set_: Annotated[list[str] | None, typer.Option("--set", help="gumbel: a key of the recipe, lr=0.002.")] = None,
    supernet: Annotated[
        list[str] | None, typer.Option(help="gumbel: a setting, such as penalty=latency, strength=0.2.")
    ] = None,
    retrain: Annotated[
        int | None, typer.Option(min=1, help="gumbel: steps to train what is found from scratch.")
    ] = None,
    profile: Annotated[
        Path | None, typer.Option(help="From `plait profile`. \\[default: this machine's, kept with the runs]")
    ] = None,
    anywhere: Annotated[
        bool, typer.Option("--anywhere", help="Take a profile of another machine; nothing is measured.")
    ] = False,
    device: Annotated[str | None, typer.Option(help="\\[default: the profile's, else cpu]")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="\\[default: the profile's, else 1]")] = None,
    front: Annotated[int, typer.Option(min=0, help="How many models to return and measure; 0: all.")] = FRONT,
    no_confirm: Annotated[bool, typer.Option("--no-confirm", help="Predict only; measure nothing.")] = False,
    runs: Annotated[Path, typer.Option(help="Where profile and unfinished searches are kept.")] = Path("runs"),
    mixers: Mixers = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Search a space for the best architectures under limits, and measure those it returns."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from plait.cli.front_display import print_front
    from plait.cli.output import print_json
    from plait.cli.search_supernet import GUMBEL, Asked, adapted, retrained
    from plait.core.settings import pairs
    from plait.records import open_store
    from plait.searching.confirm import document
    from plait.searching.job import Interrupted, Request
    from plait.space.table import load_space
    from plait.training.devices import usable

    asked = Asked(data, tokenizer, steps, seeds, recipe, set_ or [], supernet or [], retrain)
    whole = load_space(space)
    common = {"mode": mode, "seq": seq or whole.seq, "batch": batch}
    read, setting = _given_profile(profile, anywhere, common, device, threads)
    # Another machine's device is predicted for, not trained on.
    where = device or ("cpu" if anywhere else setting.device)
    if method == GUMBEL:
        usable(where)  # before a long text is read
    corpus = asked.corpus()
    job = asked.job(corpus, where, method)
    chosen = adapted(whole, pairs(fix or [], "--fix"), corpus)
    names = [name.strip() for name in objectives.split(",") if name.strip()]
    request = Request(
        chosen,
        setting,
        names,
        limits,
        constraint or [],
        method,
        iterations,
        population,
        seed,
        job,
        corpus if job is None else None,
    )
    columns = (TextColumn("{task.description:<32}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with open_store(store) as opened:
        try:
            with Progress(*columns, console=console(stderr=True), transient=True, disable=as_json) as bar:
                record = _searched(request, read, opened, runs, bar)
                confirmed = _confirmed(record, request, front, opened, bar, measure=not (no_confirm or anywhere))
                found = document(record, confirmed)
                if job is not None and retrain is not None:
                    retrained(found, job, retrain, opened, runs, bar)
        except (Interrupted, KeyboardInterrupt) as stopped:
            where = f": {stopped}" if isinstance(stopped, Interrupted) else ""
            console(stderr=True).print(f"interrupted{where}. All is saved; the same command goes on from there.")
            raise typer.Exit(130) from None
    print_json(found) if as_json else print_front(found)


def _given_profile(
    path: Path | None, anywhere: bool, common: dict[str, Any], device: str | None, threads: int | None
) -> tuple[Profile | None, Setting]:
    from plait.core.errors import UserError
    from plait.device.profile import Profile
    from plait.device.setting import Setting

    asked: dict[str, Any] = {
        name: value for name, value in (("device", device), ("threads", threads)) if value is not None
    }
    if path is None:
        if anywhere:
            raise UserError("--anywhere is about a profile of another machine; name it with --profile.")
        return None, Setting(**common, **asked)
    read = Profile.load(path, anywhere=anywhere)
    for name, value in asked.items():
        if read.common[name] != value:
            raise UserError(f"--{name} {value} given, but {path} is a profile of {name} {read.common[name]}.")
    return read, Setting(**common, **read.common)


def _searched(request: Request, profile: Profile | None, store: Store, runs: Path, bar: Progress) -> Record:
    from plait.algorithms.predicted import DevicePredictor
    from plait.device.predictor import Predictor
    from plait.searching.job import search_front
    from plait.searching.local_profile import local_profile

    predictor = None
    if request.supernet is not None or (request.asks_device and profile is None):
        request.check_possible(profiled=profile is not None)  # before minutes are spent on it
    if request.asks_device:
        if profile is None:
            task = bar.add_task("profiling this machine, once", total=1.0)
            profile = local_profile(
                request.space,
                request.setting,
                runs,
                heard=lambda point, over: bar.update(task, completed=over),
            )
            bar.remove_task(task)
        predictor = DevicePredictor(Predictor(profile, request.setting))
    task = bar.add_task(f"searching {request.space.name}", total=None)
    record = search_front(
        request,
        predictor,
        store,
        runs,
        lambda search: bar.update(task, completed=search.iteration, total=search.iterations),
    )
    bar.remove_task(task)
    return record


def _confirmed(
    record: Record, request: Request, count: int, store: Store, bar: Progress, *, measure: bool
) -> Confirmed:
    from plait.algorithms.front import Front
    from plait.device.measurements import Measurements
    from plait.searching.confirm import confirm

    front = Front.from_dict(record.result)
    if not (measure and request.asks_device):
        return confirm(front, request.limits, count, lambda spec, again: None)
    task = bar.add_task("measuring the front", total=None)
    with Measurements(store, request.setting) as known:
        return confirm(
            front,
            request.limits,
            count,
            lambda spec, again: known.measure(spec, again=again),
            lambda done, total: bar.update(task, completed=done, total=total),
        )
