"""Which architecture learns a text best, with what confidence: `plait.compare`."""

from __future__ import annotations

import time as clock
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.core import defaults
from plait.core.errors import UserError
from plait.core.progress import OnProgress, ignore
from plait.core.registry import require_one_of
from plait.core.result import Result
from plait.core.units import parse_duration
from plait.model.architecture import Architecture, load_mixers, require_sound
from plait.records import Store
from plait.records.comparison import ComparedArchitecture, ComparisonResult, PairedDifference
from plait.records.jobs import keep_answer, published
from plait.records.store import opened_store
from plait.reporting.comparison import comparison_figure, ranking
from plait.workers.pool import Place

if TYPE_CHECKING:
    from plait.data import Corpus
    from plait.racing.comparison import Comparison
    from plait.racing.planning import Terms
    from plait.training.track import Text

WARMUP = 10  # steps
MUCH_SEEN = 0.1  # share of validation windows that repeat the training text, from which a note says so
FEW_WINDOWS = 8  # validation windows, below which a note says that they are few


@dataclass(frozen=True)
class CompareResult(Result):
    """`comparison` is the complete result; `document` is the same as JSON, as `--json` prints it."""

    verdict: str
    best: tuple[str, ...]  # the lowest loss first, then those not distinguishable from it
    noise: float | None  # standard deviation between seeds
    foresight: str
    architectures: tuple[ComparedArchitecture, ...]  # in the order given
    paired: tuple[PairedDifference, ...]
    comparison: ComparisonResult = field(repr=False)

    @property
    def document(self) -> dict[str, Any]:
        return self.comparison.as_dict()

    def as_dict(self) -> dict[str, Any]:
        return self.document

    def headline(self) -> str:
        return self.verdict

    def figure(self) -> str:
        return comparison_figure(self.comparison)

    def rows(self) -> list[dict[str, Any]]:
        """One per architecture, the lowest loss first."""
        return [row.row() for row in ranking(self.comparison)]


def compare(
    architectures: str | Path | Architecture | Sequence[str | Path | Architecture],
    *,
    data: str = "builtin:stdlib",
    tokenizer: str | None = None,
    time: str | float | None = None,
    tokens: float | None = None,
    flops: float | None = None,
    at: str | None = None,
    match: str | None = None,
    seeds: int = 5,
    search_rates: bool = True,
    lr: float | None = None,
    batch: int = 8,
    seq_len: int = 256,
    held_out: int = defaults.HELD_OUT,
    workers: int | None = None,
    device: str = "cpu",
    cluster: str = "",
    gpus_per_training: float | None = None,
    log: str | Sequence[str] = (),
    mixers: Sequence[str | Path] = (),
    runs: str | Path = "runs",
    store: str | Store | None = None,
    on_progress: OnProgress = ignore,
) -> CompareResult:
    """Train architectures on the same text, batches and seeds, each with its own tuned learning rate, and say which has
    the lower validation loss, with what confidence. If interrupted, the same call resumes.

    architectures  specs, presets, spec files, runs, mixers (gla, gla[heads=8]), mixer files (my_mixer.py)
    time           total time of the comparison: "90s", "10m", or seconds; default ten minutes
    tokens, flops  or the length of each training, per seed
    at             what is equal for all: tokens (unless flops are given), flops or time
    match          resize all to the first one's params or state, or none; default params if all are mixers
    lr             initial learning rate of the search; default by width
    search_rates   False: train all with `lr`
    held_out       validation tokens
    cluster        where trainings run: ray://HOST:PORT, auto (from a machine of the cluster) or slurm; default here
    workers        concurrent trainings: one per core, or as many as the cluster has room for
    gpus_per_training  with device "cuda": default 1, or a fraction such as 0.25
    log            also log every training for tensorboard, wandb or mlflow
    """
    from plait.data import open_corpus
    from plait.racing.comparison import compare as run
    from plait.racing.contenders import read_contenders
    from plait.racing.leg import Course
    from plait.training.distributed import usable
    from plait.training.recipe import Recipe
    from plait.training.sinks import sink_names
    from plait.training.track import require_text, track_recipe

    started = clock.perf_counter()
    terms = _terms(time, tokens, flops, at, seeds, search_rates, lr)
    recipe = track_recipe(Recipe(batch=batch, seq_len=seq_len), WARMUP)
    if held_out < seq_len:
        raise UserError(f"--held-out {held_out}: must be at least one sequence of {seq_len} tokens.")
    load_mixers(mixers)
    sinks = sink_names(log)
    place = Place.of(cluster, workers, device, gpus_per_training)
    several = [architectures] if isinstance(architectures, (str, Path, Architecture)) else architectures
    entries = [arch if isinstance(arch, Architecture) else str(arch) for arch in several]
    if not cluster:
        usable(device)
    # Invalid architectures are reported before a long text is read.
    require_sound(contender.arch for contender in read_contenders(entries, 256, match, Path(runs)))
    corpus = open_corpus(data, tokenizer)
    contenders = read_contenders(entries, corpus.vocab, match, Path(runs))
    course = Course(data, tokenizer, corpus.fingerprint, recipe, held_out, device)
    require_text(corpus, batch, seq_len)
    names = f"{', '.join(contender.name for contender in contenders)} on {data}"
    with opened_store(store) as records, published(records, "compare", names) as job:
        report = job.alongside(on_progress)
        comparison = run(
            contenders,
            course,
            terms,
            records,
            Path(runs),
            place=place,
            log=sinks,
            on_stage=lambda stage, share: report(stage, share, 1.0),
            started=started,
        )
        result = _result(comparison, corpus, started)
        took = clock.perf_counter() - started
        keep_answer(records, "compare", _question(comparison), result.document, clock.time() - took, took)
    return result


def _question(comparison: Comparison) -> dict[str, object]:
    """What identifies the comparison in the store: its trainings, and what is equal among them."""
    keys = {row.contender.name: [[record.key for record in at] for at in row.records] for row in comparison.rows}
    return {"trainings": keys, "equal": comparison.terms.equal, "data": comparison.course.data}


def _terms(
    time: str | float | None,
    tokens: float | None,
    flops: float | None,
    at: str | None,
    seeds: int,
    search_rates: bool,
    lr: float | None,
) -> Terms:
    from plait.racing.budget import EQUAL
    from plait.racing.planning import Terms

    budgets = {"--time": time, "--tokens": tokens, "--flops": flops}
    several = [name for name, value in budgets.items() if value is not None]
    if len(several) > 1:
        raise UserError(f"{' and '.join(several)} are given; a comparison takes only one budget.")
    equal = at or ("tokens" if flops is None else "flops")
    require_one_of(equal, EQUAL, f"--at {equal}")
    if flops is not None and equal != "flops":
        raise UserError(f"--flops with --at {equal}: FLOPs are equal for all (--at flops), or give --tokens or --time.")
    for name, value in (("--tokens", tokens), ("--flops", flops), ("--seeds", seeds), ("--lr", lr)):
        if value is not None and not 0 < value < float("inf"):
            raise UserError(f"{name} {value:g}: must be greater than 0{' and finite' * (value > 0)}.")
    limit = defaults.TIME if time is None else time
    seconds = parse_duration(limit) if tokens is None and flops is None else None
    return Terms(seeds, search_rates, equal, tokens, flops, seconds, lr)


def _result(comparison: Comparison, corpus: Corpus, started: float) -> CompareResult:
    from plait.racing.document import comparison_result

    timed = replace(comparison, seconds=clock.perf_counter() - started)
    result = comparison_result(timed, _notes(comparison, corpus))
    return CompareResult(
        verdict=result.verdict,
        best=tuple(comparison.compared.best),
        noise=result.noise,
        foresight=result.foresight_text,
        architectures=result.architectures,
        paired=result.paired,
        comparison=result,
    )


def _notes(comparison: Comparison, corpus: Corpus) -> list[str]:
    """Notes on how the comparison was made that a reader should know."""
    from plait.training.track import Text

    length = len(corpus.tokens("train"))
    longest = max(row.tokens for row in comparison.rows)
    notes = [f"{row.contender.name}: {row.contender.note}" for row in comparison.rows if row.contender.note]
    if longest > length:
        notes.append(
            f"the text has {length:,} training tokens: the longest training read it {longest / length:.1f} times"
        )
    text = Text.of(corpus, comparison.course.recipe.seq_len, comparison.course.held_out)
    notes += _notes_on_windows(text, comparison.compared.windows)
    if few := comparison.course.few_steps(longest, "use more tokens or a smaller --batch"):
        notes.append(few)
    if not comparison.compared.best:
        notes.append("all diverged with every seed: a smaller --lr, or the search of rates, may help")
    for row in comparison.rows if comparison.compared.best else ():
        lost = next(
            compared.diverged for compared in comparison.compared.architectures if compared.name == row.contender.name
        )
        if lost == comparison.terms.seeds:
            notes.append(
                f"{row.contender.name} diverged with every seed at the rate {row.lr:g}: it loses to all others"
            )
        elif lost:
            notes.append(f"{row.contender.name}: {lost} of {comparison.terms.seeds} seeds diverged and are left out")
    if comparison.terms.search_rates and not comparison.rows[0].rates:
        notes.append(
            "learning rates were not searched: the time allows too few steps; each has the default of its width"
        )
    if comparison.terms.seeds == 1:
        notes.append("one seed: the noise is unknown, so no difference is significant; give --seeds 2 or more")
    if len(comparison.rows) == 1:
        notes.append("one architecture: there is nothing to compare it with")
    return notes


def _notes_on_windows(text: Text, independent: float) -> list[str]:
    """`independent`: how many independent windows these are worth."""
    windows, seen, notes = len(text.inputs_NT), text.windows_seen(), []
    if windows == 1:
        notes.append("one validation window: how far losses depend on the text is unknown, and not in the intervals")
    elif windows < FEW_WINDOWS:
        notes.append(f"{windows} validation windows are few: intervals are wide, and a larger --held-out narrows them")
    elif independent < FEW_WINDOWS:
        notes.append(
            f"the {windows} validation windows are worth {independent:.0f} independent ones: neighbours are alike, as "
            "in few long documents. Intervals may still be too narrow for other text; a validation text of more "
            "documents helps, a larger --held-out does not"
        )
    if seen >= MUCH_SEEN * windows:
        notes.append(f"{seen} of {windows} validation windows repeat training text: their losses also measure memory")
    return notes
