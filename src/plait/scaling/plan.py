"""Which runs a scaling law needs: IsoFLOP groups × sizes × architectures under a budget.

Budgets grow by a constant factor; given a total, the largest budget is the one at which all runs together cost that
much. The sizes of a group are spread around the size that reads 20 tokens per parameter (Hoffmann et al. 2022), from
that size divided by `span` to that size times `span`. A plan is plain JSON and names everything each run needs, so it
can be edited or sent to another machine; `plait scale run` trains the runs that are not in the store yet.

`price` is how long a plan will take on this machine, from timing a few steps of up to three models of each
architecture. Seconds per token of the other models are interpolated in log-log space over FLOPs per token; outside the
timed range they are proportional to FLOPs. Models whose step would take longer than `LONGEST_STEP` are not timed but
extrapolated.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from plait.core.errors import UserError
from plait.core.files import write_text
from plait.data import Corpus
from plait.model.architecture import Architecture, architecture
from plait.model.cost import model_cost
from plait.scaling.sizes import LEAST_STEPS, Family, PaperRule, Rate, recipe_for, token_flops
from plait.training.recipe import Recipe

VERSION = 1
PER_PARAMETER = 20.0
DECADES = 12  # largest range between the smallest and the largest budget
VALIDATION_TOKENS = 2**17


@dataclass(frozen=True)
class PlannedRun:
    """`params` counts active parameters. `tokens` and `flops` are those of a whole number of steps, so they differ a
    little from the budget."""

    architecture: str
    budget: float
    spec: str
    params: int
    tokens: int
    steps: int
    flops: float
    recipe: Recipe
    seed: int = 0

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "recipe": self.recipe.as_dict()}

    @classmethod
    def of(cls, document: dict[str, Any]) -> PlannedRun:
        recipe = {**document["recipe"]}
        recipe["no_weight_decay"] = tuple(recipe.get("no_weight_decay", ()))
        return cls(**{**document, "recipe": Recipe().with_values(recipe)})


@dataclass(frozen=True)
class Plan:
    """`sources`: users' mixers and the hashes of their source, which sizes and costs were computed with. `text`: the
    fingerprint of the text; empty if not known."""

    data: str
    runs: tuple[PlannedRun, ...]
    tokenizer: str | None = None
    precision: str = "fp32"
    validation_tokens: int = VALIDATION_TOKENS
    sources: dict[str, str] = field(default_factory=dict)
    text: str = ""

    @property
    def flops(self) -> float:
        return sum(run.flops for run in self.runs)

    @property
    def budgets(self) -> list[float]:
        return sorted({run.budget for run in self.runs})

    def as_dict(self) -> dict[str, Any]:
        return {
            "plan": VERSION,
            "data": self.data,
            "tokenizer": self.tokenizer,
            "precision": self.precision,
            "validation_tokens": self.validation_tokens,
            "flops": self.flops,
            **({"sources": self.sources} if self.sources else {}),
            **({"text": self.text} if self.text else {}),
            "runs": [run.as_dict() for run in self.runs],
        }

    def save(self, path: Path) -> None:
        write_text(path, json.dumps(self.as_dict(), indent=1) + "\n")


def read_plan(path: Path) -> Plan:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["plan"] != VERSION:
            raise UserError(f"{path} is a plan of version {document['plan']}; this plait reads version {VERSION}.")
        runs = tuple(PlannedRun.of(run) for run in document["runs"])
        settings = {name: document[name] for name in ("tokenizer", "precision", "validation_tokens")}
        sources, text = dict(document.get("sources", {})), str(document.get("text", ""))
        return Plan(document["data"], runs, sources=sources, text=text, **settings)
    except OSError as wrong:
        raise UserError(f"cannot read {path}: {wrong.strerror or wrong}.") from None
    except (ValueError, KeyError, TypeError) as wrong:
        if isinstance(wrong, UserError):
            raise
        raise UserError(f"{path} is not a plan: write one with `plait scale plan … --out {path}`.") from None


def tokens_per_byte(corpus: Corpus) -> float | None:
    """The factor that turns a loss per token into a loss per byte; None if the tokens do not represent text."""
    size = corpus.bytes("validation")
    return len(corpus.tokens("validation")) / size if size else None


def budgets_of(total: float, groups: int, spacing: float, runs_per_group: int) -> list[float]:
    """Budgets, each `spacing` times the one before, whose runs together cost `total` FLOPs."""
    if not 1 < spacing < math.inf:
        raise UserError(f"--spacing {spacing:g}: each budget is a multiple of the one before, such as 2.5 times.")
    if runs_per_group < 1:
        raise UserError("--sizes and --seeds: must be at least 1; a parabola needs 3 sizes.")
    if groups * math.log10(spacing) > DECADES:
        raise UserError(
            f"--groups {groups} with --spacing {spacing:g}: the largest budget would be more than 10^{DECADES} times "
            "the smallest; give fewer groups or a smaller spacing."
        )
    shape = [spacing**-g for g in range(groups)]
    largest = total / (runs_per_group * sum(shape))
    return sorted(largest * share for share in shape)


def make_plan(
    families: Sequence[Family],
    budgets: Sequence[float],
    paper: PaperRule,
    *,
    data: str,
    seq_len: int,
    sizes: int = 7,
    span: float = 6.0,
    per_parameter: float = PER_PARAMETER,
    explicit: Sequence[float] = (),
    batch: int | None = None,
    rate: Rate | None = None,
    values: dict[str, Any] | None = None,
    seeds: int = 1,
    tokenizer: str | None = None,
    precision: str = "fp32",
    validation_tokens: int = VALIDATION_TOKENS,
) -> Plan:
    """Every architecture at every budget. `explicit` sizes (in parameters) replace those around `per_parameter` tokens
    per parameter, and are the same in every group."""
    if sizes < 3 and not explicit:
        raise UserError(f"--sizes {sizes}: a parabola needs at least 3 sizes, better 7.")
    if not (1 < span < math.inf and 0 < per_parameter < math.inf):
        raise UserError(f"--span {span:g} should be above 1 and --tokens-per-param {per_parameter:g} above 0.")
    if seq_len < 1:
        raise UserError(f"--seq-len {seq_len}: a sequence has 1 token or more.")
    runs = []
    archs_of = {
        (family.name, flops): family.nearest(
            explicit or wanted_sizes(family, flops, sizes, span, per_parameter, seq_len)
        )
        for family in families
        for flops in sorted(budgets)
    }
    for family in families:
        for flops in sorted(budgets):
            # All sizes and architectures of a group share one batch size, small enough for the shortest training.
            group = [arch for (_, budget), archs in archs_of.items() if budget == flops for arch in archs]
            shortest = min(flops / token_flops(arch, seq_len) for arch in group)
            for arch in archs_of[family.name, flops]:
                params = model_cost(arch, seq=1).active_params
                recipe = recipe_for(
                    paper, params=params, width=arch.header.d, flops=flops, seq_len=seq_len, batch=batch, rate=rate,
                    values=values, shortest=shortest,
                )  # fmt: skip
                runs += [_run(family.name, arch, params, flops, recipe, seed) for seed in range(seeds)]
    sources = _sources([arch for archs in archs_of.values() for arch in archs])
    return Plan(data, tuple(runs), tokenizer, precision, validation_tokens, sources)


def wanted_sizes(
    family: Family, flops: float, sizes: int, span: float, per_parameter: float, seq_len: int
) -> list[float]:
    """Parameter counts spread around the size that reads `per_parameter` tokens per parameter at this budget."""
    costs = family.token_flops(seq_len)
    ratio = [math.log(flops / cost / n) for cost, n in zip(costs, family.params, strict=True)]
    # Tokens per parameter fall as the size grows; np.interp wants rising values, hence the signs.
    middle = float(np.interp(-math.log(per_parameter), [-r for r in ratio], np.log(family.params)))
    return [float(n) for n in np.exp(middle + np.linspace(-math.log(span), math.log(span), sizes))]


def _run(name: str, arch: Architecture, params: int, flops: float, recipe: Recipe, seed: int) -> PlannedRun:
    per_token = token_flops(arch, recipe.seq_len)
    per_step = recipe.batch * recipe.seq_len
    steps = max(1, round(flops / per_token / per_step))
    tokens = steps * per_step
    return PlannedRun(name, flops, arch.text, params, tokens, steps, tokens * per_token, recipe, seed)


def _sources(archs: Iterable[Architecture]) -> dict[str, str]:
    return {name: source.hash for arch in archs for name, source in sorted(arch.mixer_sources.items())}


def notes_on_edits(plan: Plan, corpus: Corpus) -> tuple[str, ...]:
    """A note on the text if it has changed since the plan was made, and on each user's mixer that was edited; a
    `UserError` if planned sizes or FLOPs are wrong since."""
    archs = {run.spec: architecture(run.spec) for run in plan.runs}
    now = _sources(archs.values())
    edited = [name for name in now if plan.sources.get(name, now[name]) != now[name]]
    for run in plan.runs:
        arch = archs[run.spec]
        params = model_cost(arch, seq=1).active_params
        flops = run.tokens * token_flops(arch, run.recipe.seq_len)
        if arch.mixer_sources and (params != run.params or not math.isclose(flops, run.flops, rel_tol=1e-9)):
            raise UserError(
                f"{', '.join(edited or arch.mixer_sources)} was edited since the plan was made: {run.spec} has "
                f"{params:,} parameters, planned with {run.params:,}, and takes {flops:.4g} FLOPs, planned with "
                f"{run.flops:.4g}: plan again with `plait scale plan`."
            )
    changed = (
        f"{corpus.name} has changed since the plan was made: its runs are trained on the text as it is now, and a fit "
        "leaves earlier ones out"
    )
    mixers = (
        f"{name} was edited since the plan was made, with the same sizes and FLOPs: its runs are trained with the "
        "source as it is now, and a fit leaves earlier ones out"
        for name in edited
    )
    return (changed, *mixers) if plan.text and plan.text != corpus.fingerprint else tuple(mixers)


def warnings(plan: Plan, corpus_tokens: int | None = None) -> list[str]:
    """Everything about the plan that would bias the laws fitted to it, in words for the user."""
    caveats = _growing_batches(plan)
    short = [run for run in plan.runs if run.steps < LEAST_STEPS]
    if short:
        least = min(run.steps for run in short)
        caveats.append(
            f"{len(short)} of {len(plan.runs)} runs have fewer than {LEAST_STEPS} steps, the shortest {least}: they "
            "are not on the law of longer ones, and E comes out wrong. A smaller batch or larger budgets help"
        )
    off = [run for run in plan.runs if abs(run.flops / run.budget - 1) > 0.05]
    if off:
        caveats.append(
            f"{len(off)} runs miss their budget by more than 5 %, as steps are whole: make the batch smaller"
        )
    groups: dict[tuple[str, float], int] = {}
    for run in plan.runs:
        groups[run.architecture, run.budget] = groups.get((run.architecture, run.budget), 0) + (run.seed == 0)
    few = [f"{name} at {flops:.3g}" for (name, flops), count in groups.items() if count < 3]
    if few:
        caveats.append(
            f"fewer than three sizes for {', '.join(few[:4])}: a parabola needs three. The sizes wanted lie between "
            "those the architecture has; larger budgets, or narrower heads in the spec, give more"
        )
    if len(plan.budgets) < 3:
        caveats.append("fewer than three groups: the exponents will be unsure")
    repeated = [run for run in plan.runs if corpus_tokens and run.tokens > corpus_tokens]
    if repeated and corpus_tokens:
        most = max(run.tokens for run in repeated) / corpus_tokens
        times = f"{most:,.{1 if most < 100 else 0}f}"
        caveats.append(f"{len(repeated)} runs read the text more than once, up to {times} times: D is not new tokens")
    return caveats


def _growing_batches(plan: Plan) -> list[str]:
    """Groups in which the largest model has a larger batch than the smallest (Poli et al. 2024, Figure C.1)."""
    growing = []
    for name, flops in dict.fromkeys((run.architecture, run.budget) for run in plan.runs):
        own = sorted(
            (run.params, run.recipe.batch) for run in plan.runs if (run.architecture, run.budget) == (name, flops)
        )
        if own[-1][1] > own[0][1]:
            growing.append(flops)
    if not growing:
        return []
    budgets = ", ".join(f"{flops:.3g}" for flops in sorted(set(growing)))
    return [
        f"the batch grows with the size inside the groups of {budgets} FLOPs: larger models then look worse than they "
        "are and N* is biased downward (MAD, Figure C.1). --batch fixes it"
    ]


__all__ = ["Plan", "PlannedRun", "budgets_of", "make_plan", "notes_on_edits", "read_plan", "warnings"]


LONGEST_STEP = 5.0  # seconds; a model whose step is expected to take longer is not timed
TIMED = 3  # models per architecture
STEPS = 3
_FIRST_GUESS = 1e9  # FLOPs per second, before anything is timed: a slow core


@dataclass(frozen=True)
class Price:
    """How long one run takes."""

    run: PlannedRun
    seconds: float


@dataclass(frozen=True)
class Speed:
    """Measured seconds per token of one architecture, at increasing FLOPs per token."""

    flops: Sequence[float]
    seconds: Sequence[float]

    def token_seconds(self, flops: float) -> float:
        x, y = np.log(self.flops), np.log(self.seconds)
        nearest = float(np.interp(math.log(flops), x, y))
        beyond = math.log(flops) - float(np.clip(math.log(flops), x[0], x[-1]))
        return math.exp(nearest + beyond)


def price(plan: Plan, corpus: Corpus, device: str = "cpu") -> list[Price]:
    """Time the plan's models here; the seconds each run would take by itself."""
    speeds = {name: _timed(plan, name, corpus, device) for name in dict.fromkeys(r.architecture for r in plan.runs)}
    return [
        Price(run, run.tokens * speeds[run.architecture].token_seconds(run.flops / run.tokens)) for run in plan.runs
    ]


def given_speed(plan: Plan, flops_per_second: float, devices: int = 1) -> list[Price]:
    """The same for another machine, whose devices each sustain so many FLOPs per second."""
    return [Price(run, run.flops / (flops_per_second * devices)) for run in plan.runs]


def _timed(plan: Plan, name: str, corpus: Corpus, device: str) -> Speed:
    own = sorted((run for run in plan.runs if run.architecture == name), key=lambda run: run.flops / run.tokens)
    places = sorted({round(i * (len(own) - 1) / (TIMED - 1)) for i in range(TIMED)})
    flops: list[float] = []
    seconds: list[float] = []
    for place in places:
        run = own[place]
        cost = run.flops / run.tokens
        per_token = seconds[-1] * cost / flops[-1] if flops else cost / _FIRST_GUESS
        if flops and (per_token * run.recipe.batch * run.recipe.seq_len > LONGEST_STEP or cost <= flops[-1]):
            continue
        flops.append(cost)
        seconds.append(_token_seconds(run, plan, corpus, device))
    return Speed(flops, seconds)


def _token_seconds(run: PlannedRun, plan: Plan, corpus: Corpus, device: str) -> float:
    """Median over a few training steps, with a smaller batch if a whole one would take too long."""
    import torch

    from plait.scaling.run import job_of
    from plait.training.distributed import Processes
    from plait.training.trainer import Trainer

    most = max(1, int(LONGEST_STEP * _FIRST_GUESS / (run.flops / run.tokens) / run.recipe.seq_len))
    job = job_of(run, plan, corpus, batch=min(run.recipe.batch, most))
    trainer = Trainer(
        job, 10_000, Processes(0, 1, torch.device(device)), activation_checkpointing=False, compiled=False
    )
    took = []
    for _ in range(1 + STEPS):
        begun = time.perf_counter()
        trainer.advance()
        took.append(time.perf_counter() - begun)
    return float(np.median(took[1:]) / job.tokens_per_step)
