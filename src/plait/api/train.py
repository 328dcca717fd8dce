"""Train a model (`plait.train`), or one model at several learning rates and seeds (`plait.sweep`).

If interrupted in any way, the same call resumes.
"""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from plait.core.errors import UserError
from plait.core.result import Result
from plait.core.units import parse_duration
from plait.model.architecture import Architecture, load_mixers, require_sound
from plait.records import Store
from plait.records.store import opened_store
from plait.training.recipe import Budget, Job, Recipe, Trained, fitted

if TYPE_CHECKING:
    from plait.api.open_run import OpenRun
    from plait.data import Corpus
    from plait.training.distributed import Processes
    from plait.training.fit import Progress
    from plait.training.run import Run

T = TypeVar("T")

#: The recipe whose learning rate depends on the size and whose batch on the budget.
SCALING = "mad-scaling"


@dataclass(frozen=True)
class TrainResult(Trained):
    curve: tuple[tuple[int, float], ...] = ()  # (step, training loss)
    validation_curve: tuple[tuple[int, float], ...] = ()  # (step, loss), on the same sixteenth of the validation text

    @property
    def validation_loss(self) -> float:
        return self.loss

    def open(self) -> OpenRun:
        """The trained model and everything in its run folder."""
        from plait.api.open_run import open_run

        return open_run(self.folder)

    def headline(self) -> str:
        return f"{self.loss:.3f} nats per token after {self.steps:,} steps: {self.spec}"

    def figure(self) -> str:
        from plait.reporting.studies import loss_figure

        curves = {"training": self.curve, "validation": self.validation_curve}
        return loss_figure({name: curve for name, curve in curves.items() if curve}, title=self.run)


def train(
    spec: str | Architecture | None = None,
    *,
    data: str | Path | Corpus | None = None,
    from_run: str | Path = "",
    tokenizer: str | None = None,
    steps: int | None = None,
    tokens: float | None = None,
    time: str | float | None = None,
    flops: float | None = None,
    validation_tokens: int | None = None,
    recipe: str | Recipe = "",
    batch: int | None = None,
    seq_len: int | None = None,
    lr: float | None = None,
    recipe_values: Mapping[str, Any] | None = None,
    seed: int = 0,
    device: str = "cpu",
    precision: str = "",
    sharding: str = "ddp",
    tensor_parallel: int = 1,
    compiled: bool | None = None,
    activation_checkpointing: bool = False,
    save_every: str | float = "60s",
    save_steps: int = 0,
    log: str | Sequence[str] = (),
    mixers: Sequence[str | Path] = (),
    runs: str | Path = "runs",
    store: str | Store | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_start: Callable[[str], None] | None = None,
) -> TrainResult:
    """Train a model on `data` for a number of `steps`, `tokens` or `flops`, or for a `time` ("10m"); exactly one.

    `recipe` is a published recipe's name or your own, `recipe_values` overrides its keys; so do `batch` (sequences per
    step, over all processes), `seq_len` and `lr`. A spec given as text gets the data's vocabulary. `from_run`: start
    from the weights of a finished run or of a Hugging Face folder (GPT-2, Llama, Qwen …, plait's own); its spec and
    data are the defaults. `compiled`: compile the blocks; default: on a GPU, if the run is long enough to pay off.
    `validation_tokens`: the most that are read of the validation text; default 131,072.
    `log`: also log to tensorboard, wandb or mlflow. With several processes (torchrun), groups of
    `tensor_parallel` share every layer; the batch is split among such groups. `on_progress` is called after every step
    and every batch of the last validation, `on_start` with what is being done before the first step.
    Ctrl-C (or a scheduler's SIGTERM) saves everything and raises `plait.training.fit.Interrupted`, a
    `KeyboardInterrupt`; the same call resumes.

    >>> trained = plait.train("d=16 | gla[heads=2] swiglu", data="builtin:language", steps=2, batch=2, seq_len=16)
    >>> trained.steps, trained.tokens, trained.open().finished
    (2, 64, True)
    """
    started = clock.perf_counter()
    from plait.api.export import imported
    from plait.ops.paths import precision_on
    from plait.training.distributed import processes
    from plait.training.fit import Options, fit
    from plait.training.resume import require_same_tokens, start_of
    from plait.training.run import Run, open_run
    from plait.training.sinks import sink_names

    load_mixers(mixers)
    sinks = sink_names(log) if log else ()
    own = {"batch": batch, "seq_len": seq_len, "lr": lr}
    values = {**{key: value for key, value in own.items() if value is not None}, **(recipe_values or {})}
    chosen, published = _recipe(recipe, values)
    seconds = None if time is None else parse_duration(time)
    if published is not None and (steps, tokens, seconds, flops) == (None, None, None, None):
        steps = published
    budget, root = Budget(steps, tokens, seconds, flops), Path(runs)
    with processes(device, sharding, tensor_parallel) as dist:
        source = open_run(_first_then_others(lambda: imported(from_run, root), dist), root) if from_run else None
        tokenizer = _tokenizer(data, tokenizer, source)
        corpus = _first_then_others(lambda: _corpus(data, tokenizer, source), dist)
        if source is not None:
            require_same_tokens(source, corpus)
        arch = _architecture(spec, corpus, source)
        require_sound([arch])
        if recipe == SCALING:
            chosen = _scaled(arch, flops, values)
        start = start_of(source) if source else None
        job = Job(arch, corpus, chosen, budget, seed, precision or precision_on(device), start=start)
        if validation_tokens is not None:
            job = replace(job, validation_tokens=validation_tokens)
        options = Options(root, activation_checkpointing, compiled, parse_duration(save_every), save_steps, sinks)
        if on_start is not None:
            options = replace(options, on_start=on_start)
        try:
            with opened_store(store) as opened:
                trained = fit(job, dist, opened, options, tokenizer=tokenizer, report=on_progress, started=started)
        except RuntimeError as wrong:
            if dist.world > 1 and _lost_process(wrong):
                raise UserError(
                    "another process of this training has ended, so this one ends too. The last checkpoint is kept: "
                    "the same command resumes from it."
                ) from None
            raise
        run = Run(Path(trained.folder))
        return TrainResult(**vars(trained), curve=tuple(run.losses()), validation_curve=tuple(run.losses("validation")))


def _recipe(named: str | Recipe, values: Mapping[str, Any]) -> tuple[Recipe, int | None]:
    """The recipe with the given values, and its published number of steps."""
    from plait.papers.recipes import recipe

    if isinstance(named, Recipe):
        return named.with_values(values), None
    base, steps = (recipe(named).recipe, recipe(named).steps) if named else (Recipe(), None)
    return base.with_values(values), steps


def _scaled(arch: Architecture, flops: float | None, values: Mapping[str, Any]) -> Recipe:
    """MAD's recipe at this size and budget, with the given values."""
    from plait.model import model_cost
    from plait.papers.recipes import mad_recipe

    if flops is None:
        raise UserError(f"--recipe {SCALING} takes its batch from the budget: give --flops, such as 4e18.")
    seq_len = values.get("seq_len", 8192)
    return mad_recipe(model_cost(arch, seq=seq_len).total_params, flops, seq_len).with_values(values)


def _tokenizer(data: str | Path | Corpus | None, tokenizer: str | None, source: Run | None) -> str | None:
    """The given tokenizer, otherwise that of the run to start from: for another text as it is, not learned anew."""
    from plait.data import Corpus
    from plait.data.corpora import needed_tokenizer

    if tokenizer is not None or source is None:
        return tokenizer
    if data is None:
        return source.about.get("tokenizer")
    return None if isinstance(data, Corpus) else needed_tokenizer(str(data), source.folder / "tokenizer")


def _corpus(data: str | Path | Corpus | None, tokenizer: str | None, source: Run | None) -> Corpus:
    from plait.data import Corpus, open_corpus

    if isinstance(data, Corpus):
        return data
    if data is not None:
        try:
            return open_corpus(str(data), tokenizer)
        except UserError as wrong:
            if source is None or tokenizer != str(source.folder / "tokenizer"):
                raise
            raise UserError(f"{data} does not fit the tokenizer of {source.name}: {wrong}") from None
    if source is None:
        raise UserError("give a corpus with --data; `plait data list` shows them.")
    return source.corpus()


def _architecture(spec: str | Architecture | None, corpus: Corpus, source: Run | None) -> Architecture:
    if isinstance(spec, Architecture):
        return spec
    if spec is not None:
        return fitted(spec, corpus)
    if source is None:
        raise UserError("give a spec, a preset or a spec file; or --from a run, to train its model further.")
    return source.arch


def _first_then_others(make: Callable[[], T], dist: Processes) -> T:
    """Run `make` in the first process before the others, which then find the data prepared."""
    if dist.first:
        prepared = make()
        dist.barrier()
        return prepared
    dist.barrier()
    return make()


def _lost_process(wrong: RuntimeError) -> bool:
    text = str(wrong).lower()
    return any(sign in text for sign in ("connection", "gloo", "nccl", "peer", "process group", "timed out"))


@dataclass(frozen=True)
class RateLosses:
    """Validation losses at one learning rate, seed by seed. `interval`: 95 % of their mean, by Student's t; None for a
    single seed."""

    lr: float | None  # None: the recipe's
    losses: tuple[float, ...]  # nats per token
    mean: float | None  # None if every seed diverged
    interval: tuple[float, float] | None
    diverged: int
    runs: tuple[str, ...]  # names, for `plait eval`


@dataclass(frozen=True)
class SweepResult(Result):
    spec: str
    rates: tuple[RateLosses, ...]
    best: float | None  # the learning rate with the lowest mean loss
    #: Whether its interval is below all others; None if there is nothing to compare.
    distinguishable: bool | None

    def rows(self) -> list[dict[str, Any]]:
        return [{"lr": at.lr, "mean": at.mean, "seeds": len(at.losses), "diverged": at.diverged} for at in self.rates]


def sweep(
    spec: str | Architecture | None = None,
    *,
    lr: Sequence[float] = (),
    seeds: int = 1,
    seed: int = 0,
    runs: str | Path = "runs",
    **options: Any,
) -> SweepResult:
    """Train at each learning rate (none: the recipe's) with `seeds` seeds from `seed` on. `options` are those of
    `plait.train`. Every training is a separate run and is not repeated."""
    from plait.training.trainer import Diverged

    if seeds < 1:
        raise UserError(f"seeds={seeds} given; must be at least 1.")
    by_rate: list[tuple[float | None, list[TrainResult]]] = []
    for rate in lr or (None,):
        trained: list[TrainResult] = []
        for number in range(seed, seed + seeds):
            try:
                trained.append(train(spec, lr=rate, seed=number, runs=runs, **options))
            except Diverged:  # noqa: PERF203 (a rate that is too high is an answer, not the end)
                continue
        by_rate.append((rate, trained))
    return _sweep_result(by_rate, seeds)


def _sweep_result(by_rate: Sequence[tuple[float | None, Sequence[TrainResult]]], seeds: int) -> SweepResult:
    from plait.analysis.intervals import mean_interval

    rates = []
    for lr, trained in by_rate:
        losses = tuple(training.loss for training in trained)
        mean = sum(losses) / len(losses) if losses else None
        interval = mean_interval(losses) if len(losses) > 1 else None
        names = tuple(training.run for training in trained)
        rates.append(RateLosses(lr, losses, mean, interval, seeds - len(losses), names))
    finite = [rate for rate in rates if rate.mean is not None]
    if not finite:
        raise UserError("every training of the sweep diverged: try lower learning rates.")
    best = min(finite, key=lambda rate: rate.mean or 0.0)
    others = [rate for rate in finite if rate is not best]
    apart = None
    if others and all(rate.interval for rate in finite):
        assert best.interval is not None
        apart = all(best.interval[1] < rate.interval[0] for rate in others if rate.interval)
    spec = next(training.spec for _, trained in by_rate for training in trained)
    return SweepResult(spec, tuple(rates), best.lr, apart)
