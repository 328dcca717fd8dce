"""Scaling laws with error bars: `plait.scale.plan`, `run`, `fit`, `probe` and `pitfall`. `run` trains each run once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.api.scale_fit import fit, flops_of, pitfall, probe
from plait.core.errors import UserError
from plait.core.progress import OnProgress, ignore
from plait.core.result import Result
from plait.core.units import parse_duration
from plait.model.architecture import architecture, load_mixers, require_sound
from plait.records import Store
from plait.records.jobs import published
from plait.records.store import opened_store
from plait.workers.pool import Place

if TYPE_CHECKING:
    from plait.scaling.plan import Plan, Price
    from plait.scaling.run import RunOutcome
    from plait.scaling.sizes import Family


__all__ = ["fit", "pitfall", "plan", "probe", "run"]


@dataclass(frozen=True)
class ScalingRuns(Result):
    """The results of a plan's runs. `missing`: those that diverged or are being trained elsewhere, with the reason.
    `notes`: users' mixers that were edited since the plan was made."""

    outcomes: tuple[RunOutcome, ...] = field(repr=False)
    missing: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def rows(self) -> list[dict[str, Any]]:
        return [
            {
                "architecture": outcome.run.architecture,
                "budget": outcome.run.budget,
                "params": outcome.run.params,
                "tokens": outcome.run.tokens,
                "flops": outcome.run.flops,
                "loss": outcome.result["loss"] if outcome.result else None,
                "seconds": outcome.result["seconds"] if outcome.result else None,
                "key": outcome.key,
            }
            for outcome in self.outcomes
        ]

    def as_dict(self) -> dict[str, Any]:
        return {"runs": self.rows(), "missing": list(self.missing), "notes": list(self.notes)}


def run(
    plan: str | Path | Plan,
    *,
    device: str = "cpu",
    workers: int | None = None,
    cluster: str = "",
    gpus_per_training: float | None = None,
    log: str | Sequence[str] = (),
    mixers: Sequence[str | Path] = (),
    runs: str | Path = "runs",
    store: str | Store | None = None,
    on_progress: OnProgress = ignore,
) -> ScalingRuns:
    """Train the runs of a plan (its file, or `plait.scale.plan(…).plan`) that are not stored yet, cheapest first.

    `workers`: concurrent trainings (default 1; one per GPU); on a `cluster` (ray://HOST:PORT, auto, slurm) as many as
    it has room for, each with `gpus_per_training`. The same call on other machines that use the same store shares the
    work. If interrupted, the same call resumes. `log`: also log for tensorboard, wandb or mlflow.
    """
    from plait.data import open_corpus
    from plait.model.user_mixers import sources_of
    from plait.scaling.plan import notes_on_edits, read_plan
    from plait.scaling.run import run_plan
    from plait.training.distributed import usable
    from plait.training.sinks import sink_names

    load_mixers(mixers)
    sinks = sink_names(log)
    if not cluster:
        usable(device)
    if workers is not None and workers < 1:
        raise UserError(f"--workers {workers}: must be at least 1.")
    place = Place.of(cluster, workers, device, gpus_per_training, usual=1)
    read = read_plan(Path(plan)) if isinstance(plan, (str, Path)) else plan
    corpus = open_corpus(read.data, tokenizer=read.tokenizer)
    models = [architecture(run.spec) for run in read.runs]
    require_sound(models)
    notes = notes_on_edits(read, corpus)
    names = f"{len(read.runs):,} trainings on {read.data}"
    with opened_store(store) as opened, published(opened, "scale run", names) as job:

        def report(done: float, total: int, what: str) -> None:
            job.update("training", done / total, f"{done:.1f} of {total:,} trainings; {what}")
            on_progress(what, done, total)

        outcomes = run_plan(
            read,
            corpus,
            opened,
            Path(runs),
            place=place,
            mixers=sources_of(models),
            log=sinks,
            on_progress=report,
        )
    missing = [
        f"{outcome.run.spec} at {outcome.run.budget:.3g} FLOPs: {outcome.why}"
        for outcome in outcomes
        if outcome.result is None
    ]
    return ScalingRuns(tuple(outcomes), tuple(missing), notes)


#: Poli et al. 2024, appendix C.
PAPER_BUDGETS = (4e18, 8e18, 2e19, 4e19, 8e19, 2e20, 5e20, 2e21)
ATTEMPTS = 5  # plans that are costed to fit a time


@dataclass(frozen=True)
class ScalingPlan(Result):
    """`plan` can be saved and run; `seconds`: its duration here, one run after the other; None if not requested."""

    plan: Plan = field(repr=False)
    prices: tuple[Price, ...] = field(repr=False)
    seconds: float | None
    warnings: tuple[str, ...]
    tokens_per_byte: float | None = None

    def as_dict(self) -> dict[str, Any]:
        told = {"seconds": self.seconds, "warnings": list(self.warnings), "tokens_per_byte": self.tokens_per_byte}
        return {**self.plan.as_dict(), **told}

    def rows(self) -> list[dict[str, Any]]:
        """One row per run."""
        seconds: list[Any] = [price.seconds for price in self.prices] or [None] * len(self.plan.runs)
        return [
            {
                "architecture": run.architecture,
                "budget": run.budget,
                "params": run.params,
                "tokens": run.tokens,
                "steps": run.steps,
                "batch": run.recipe.batch,
                "lr": run.recipe.lr,
                "seconds": took,
                "spec": run.spec,
            }
            for run, took in zip(self.plan.runs, seconds, strict=True)
        ]


def plan(
    archs: Sequence[str] = ("mad-transformer",),
    *,
    budgets: str | Sequence[float] | None = None,
    total: str | float | None = None,
    time: str | float | None = None,
    groups: int = 5,
    spacing: float = 2.5,
    sizes: int = 7,
    span: float = 6.0,
    tokens_per_param: float = 20.0,
    params: Sequence[str | float] = (),
    depth_power: float = 0.5,
    data: str = "builtin:language",
    tokenizer: str | None = None,
    seq_len: int | None = None,
    batch: int | None = None,
    lr: str | None = None,
    recipe_values: dict[str, Any] | None = None,
    seeds: int = 1,
    device: str = "cpu",
    precision: str = "",
    priced: bool = True,
    speed: str | float | None = None,
    devices: int = 1,
    validation_tokens: int = 2**17,
    mixers: Sequence[str | Path] = (),
    out: str | Path | None = None,
) -> ScalingPlan:
    """Plan IsoFLOP groups × sizes × architectures, each run with its batch, rate and steps, and price them.

    `archs`: families of presets ("mad-transformer", Table C.2's sizes) or specs to scale up ("striped=d=64 | …"), whose
    depth grows as the width to the power of `depth_power`; 0 keeps it. `budgets`: FLOPs of the groups, or `groups` of
    them a factor `spacing` apart such that all runs together cost `total` FLOPs or take `time` here; default: the
    paper's eight. `speed`: sustained FLOPs per second of each of `devices` elsewhere, instead of timing this machine.
    `mixers`: files with mixers of your own that the specs use. `out`: a file for `plait.scale.run`.
    """
    from plait.data import open_corpus
    from plait.ops.paths import precision_on
    from plait.papers.recipes import mad_recipe
    from plait.scaling.plan import budgets_of, given_speed, make_plan, price, tokens_per_byte, warnings
    from plait.scaling.sizes import Rate, family

    load_mixers(mixers)
    if sum(budget is not None for budget in (budgets, total, time)) > 1:
        raise UserError("give one of --budgets, --total and --time.")
    if not archs:
        raise UserError("give an architecture: --arch mad-transformer, or --arch NAME=SPEC.")
    explicit = [_params_of(size) for size in params]
    counts = (("--groups", groups), ("--seeds", seeds), ("--devices", devices), *(("--params", n) for n in explicit))
    for option, count in counts:
        if not count >= 1:
            raise UserError(f"{option} {count:g}: must be at least 1.")
    corpus = open_corpus(data, tokenizer=tokenizer)
    families = [family(text, corpus.vocab, depth_power) for text in archs]
    _distinct(families)
    length = seq_len if seq_len is not None else 8192 if budgets is total is time is None else 256
    rate = None if lr is None else Rate.read(lr)
    kept = precision or precision_on(device)

    def plan_at(at: Sequence[float]) -> Plan:
        plan = make_plan(
            families, at, mad_recipe, data=data, seq_len=length, sizes=sizes, span=span, per_parameter=tokens_per_param,
            explicit=explicit, batch=batch, rate=rate, values=recipe_values, seeds=seeds, tokenizer=tokenizer,
            precision=kept, validation_tokens=validation_tokens,
        )  # fmt: skip
        return replace(plan, text=corpus.fingerprint)

    def prices_of(at: Plan) -> list[Price]:
        return price(at, corpus, device) if speed is None else given_speed(at, flops_of(speed, "--speed"), devices)

    per_group = (len(explicit) or sizes) * len(families) * seeds
    prices: list[Price] | None = None
    if budgets is not None or total is not None:
        whole = 0.0 if total is None else flops_of(total, "--total")
        chosen = plan_at(_budgets(budgets) if budgets is not None else budgets_of(whole, groups, spacing, per_group))
    elif time is not None:
        chosen, prices = _within(time, plan_at, prices_of, groups, spacing, per_group)
    else:
        chosen = plan_at(PAPER_BUDGETS)
    if not priced and speed is None:
        prices = []
    elif prices is None:
        prices = prices_of(chosen)
    if out is not None:
        chosen.save(Path(out))
    told = warnings(chosen, len(corpus.tokens("train")))
    seconds = sum(cost.seconds for cost in prices) if prices else None
    return ScalingPlan(chosen, tuple(prices), seconds, tuple(told), tokens_per_byte(corpus))


def _within(
    time: str | float,
    plan_at: Callable[[Sequence[float]], Plan],
    prices_of: Callable[[Plan], list[Price]],
    groups: int,
    spacing: float,
    per_group: int,
) -> tuple[Plan, list[Price]]:
    """The largest budgets whose runs fit into `time` here, found iteratively, and their costs; if none fits, the
    shortest plan tried."""
    from plait.scaling.plan import budgets_of

    limit, total = parse_duration(time), 1e12
    tried: dict[float, tuple[Plan, list[Price]]] = {}  # by their seconds
    for _ in range(ATTEMPTS):
        plan = plan_at(budgets_of(total, groups, spacing, per_group))
        prices = prices_of(plan)
        took = sum(price.seconds for price in prices)
        tried[took] = plan, prices
        if 0.9 * limit <= took <= limit:
            break
        total *= 0.95 * limit / took
    return tried[max((took for took in tried if took <= limit), default=min(tried))]


def _budgets(text: str | Sequence[float]) -> list[float]:
    parts = [part for part in text.split(",") if part.strip()] if isinstance(text, str) else list(text)
    budgets = [flops_of(part, "--budgets") for part in parts]
    if not budgets:
        raise UserError("--budgets: give FLOPs separated by commas, such as 1e18,4e18,1e19.")
    return budgets


def _params_of(size: str | float) -> float:
    from plait.core.units import parse

    return parse(size, "count", "--params") if isinstance(size, str) else float(size)


def _distinct(families: Sequence[Family]) -> None:
    names = [family.name for family in families]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f"two architectures are called '{twice[0]}'; name them: --arch NAME=SPEC.")
