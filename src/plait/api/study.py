"""Studies that train many small models: `plait.study.proxies`, `placement`, `lr`, `shapes`, `verdict`.

If interrupted, the same call resumes: completed trainings and measurements are in the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from plait.core.errors import UserError
from plait.core.progress import OnProgress, ignore
from plait.core.result import Result
from plait.core.units import parse
from plait.model.architecture import Architecture, load_mixers, require_sound, require_sound_layers
from plait.records import Store
from plait.records.jobs import published_store
from plait.workers.pool import Place

if TYPE_CHECKING:
    from plait.studies.lr_sweep import SweepFindings
    from plait.studies.placement import PlacementFindings
    from plait.studies.proxies import Findings
    from plait.studies.shapes import ShapeFindings
    from plait.studies.verdict import VerdictFindings

    AnyFindings = SweepFindings | PlacementFindings | Findings | ShapeFindings | VerdictFindings

TEXT = "builtin:stdlib"
RATES = (1e-4, 1e-3, 1e-2, 1e-1)
F = TypeVar("F", bound="AnyFindings")


@dataclass(frozen=True)
class StudyResult(Result, Generic[F]):
    """`findings`: the results of the study; `document`: the same as JSON."""

    findings: F
    table: str  # the key of the document's list of rows

    @cached_property
    def document(self) -> dict[str, Any]:
        return self.findings.as_dict()

    def as_dict(self) -> dict[str, Any]:
        return self.document

    def rows(self) -> list[dict[str, Any]]:
        return list(self.document[self.table])


def proxies(
    *,
    space: str = "study-gpt2",
    models: int = 40,
    data: str = TEXT,
    steps: int = 200,
    proxies: Sequence[str] | None = None,
    batch: int = 8,
    seq_len: int = 64,
    lr: float = 6e-3,
    seeds: int = 2,
    seed: int = 0,
    device: str = "cpu",
    mixers: Sequence[str | Path] = (),
    runs: str | Path = "runs",
    store: str | Store | None = None,
    on_progress: OnProgress = ignore,
) -> StudyResult[Findings]:
    """Train models of a space and measure how well every proxy (or only `proxies`; () for counts only) ranks them."""
    from plait.algorithms.proxies import PROXIES
    from plait.data import open_corpus
    from plait.ops.paths import precision_on
    from plait.studies.proxies import RECIPE, Study, study_space
    from plait.training.distributed import usable

    load_mixers(mixers)
    chosen = tuple(PROXIES) if proxies is None else tuple(proxies)
    recipe = RECIPE.with_values({"batch": batch, "seq_len": seq_len, "lr": lr})
    whole, corpus, precision = study_space(space), open_corpus(data), precision_on(usable(device))
    require_sound_layers(whole.one_of_each())
    study = Study(whole, corpus, models, steps, chosen, recipe, seed, device, precision, seeds)
    title = f"{models} models of {space} on {data}"
    with published_store(store, "study proxies", title, on_progress) as (opened, report):
        findings = study.run(opened, Path(runs), report)
    return StudyResult(findings, "rankings")


def placement(
    *,
    p: Sequence[float] = (2, 3, 4, 6, 8),
    specs: Sequence[str] = (),
    k: int | None = None,
    layers: int = 12,
    width: int = 48,
    heads: int = 4,
    d_ff: int = 192,
    data: str = TEXT,
    steps: int = 150,
    seeds: int = 3,
    batch: int = 8,
    seq_len: int = 64,
    lr: float = 3e-3,
    device: str = "cpu",
    mixers: Sequence[str | Path] = (),
    runs: str | Path = "runs",
    store: str | Store | None = None,
    on_progress: OnProgress = ignore,
) -> StudyResult[PlacementFindings]:
    """Train patterns with more and less attention (`p`: layers per attention block of the PAR pattern; `k` of the
    sandwich; any further `specs`) and compare them."""
    from plait.data import open_corpus
    from plait.ops.paths import precision_on
    from plait.studies.placement import RECIPE, PlacementStudy, Shape, patterns_of
    from plait.training.distributed import usable

    load_mixers(mixers)
    usable(device)  # before a long text is read
    corpus = open_corpus(data)
    patterns = patterns_of(corpus, Shape(layers, width, heads, d_ff), list(p), specs, k)
    require_sound(pattern.arch for pattern in patterns)
    recipe = RECIPE.with_values({"batch": batch, "seq_len": seq_len, "lr": lr})
    study = PlacementStudy(patterns, corpus, steps, seeds, recipe, device, precision_on(device))
    title = f"{len(patterns)} patterns on {data}"
    with published_store(store, "study placement", title, on_progress) as (opened, report):
        findings = study.run(opened, Path(runs), report)
    return StudyResult(findings, "patterns")


def lr(
    *,
    space: str = "study-gpt2",
    models: int = 6,
    specs: Sequence[str] = (),
    rates: Sequence[float] = RATES,
    seeds: int = 2,
    data: str = TEXT,
    steps: int = 60,
    batch: int = 8,
    seq_len: int = 32,
    seed: int = 0,
    device: str = "cpu",
    mixers: Sequence[str | Path] = (),
    store: str | Store | None = None,
    on_progress: OnProgress = ignore,
) -> StudyResult[SweepFindings]:
    """Train architectures (`models` drawn from a space, and `specs`) with several learning rates each: which rate is
    the best for which, and whether a fixed one changes ranks."""
    from plait.data import open_corpus
    from plait.model.architecture import architecture
    from plait.studies.lr_sweep import RateSweep
    from plait.studies.proxies import drawn, study_space
    from plait.training.distributed import usable
    from plait.training.recipe import fitted

    load_mixers(mixers)
    usable(device)
    corpus = open_corpus(data)
    archs = [fitted(text, corpus) for text in specs]
    if models:
        whole = study_space(space)
        fitting = whole.with_vocabulary(corpus.vocab)
        archs += [architecture(fitting.spec(row_G)) for row_G in drawn(fitting, models, seed)]
    require_sound(archs)
    sweep = RateSweep(archs, corpus, list(rates), seeds, steps, batch, seq_len, device=device)
    title = f"{len(archs)} architectures, {len(rates)} rates, on {data}"
    with published_store(store, "study lr", title, on_progress) as (opened, report):
        findings = sweep.run(opened, report)
    return StudyResult(findings, "best")


def shapes(
    *,
    space: str = "study-gpt2",
    models: int = 8,
    params: str | float | None = None,
    tolerance: float = 0.01,
    seq_len: int = 192,
    threads: int = 1,
    steps: int = 0,
    data: str = TEXT,
    batch: int = 8,
    train_seq_len: int = 64,
    lr: float = 6e-3,
    seeds: int = 2,
    seed: int = 0,
    mixers: Sequence[str | Path] = (),
    runs: str | Path = "runs",
    store: str | Store | None = None,
    on_progress: OnProgress = ignore,
) -> StudyResult[ShapeFindings]:
    """Measure architectures of one size (`params`: "20M"; default: where shapes differ most) and many shapes, from deep
    and narrow to shallow and wide; with `steps` also train them."""
    from plait.data import open_corpus
    from plait.device.quantities import Setting
    from plait.studies.proxies import RECIPE, study_space
    from plait.studies.shapes import ShapeStudy, Training

    load_mixers(mixers)
    chosen, training = study_space(space), None
    if steps:
        require_sound_layers(chosen.one_of_each())
        corpus = open_corpus(data)
        chosen = chosen.with_vocabulary(corpus.vocab)
        recipe = RECIPE.with_values({"batch": batch, "seq_len": train_seq_len, "lr": lr})
        training = Training(corpus, steps, recipe, seeds)
    setting = Setting(seq=seq_len, threads=threads).here()
    size = _count(params) if isinstance(params, str) else params
    study = ShapeStudy(chosen, setting, models, size, tolerance, seed, training)
    title = f"{models} shapes of {space}"
    with published_store(store, "study shapes", title, on_progress) as (opened, report):
        findings = study.run(opened, Path(runs), report)
    return StudyResult(findings, "models")


#: Compared by default: a model of every kind, and hybrids.
CONTENDERS = (
    *("attn", "fox", "gla", "gated-deltanet", "mamba2", "hyena"),
    *(f"d=128 | {first} swiglu {second} swiglu" for first, second in (("mamba2", "attn"), ("hyena", "attn"))),
)


def verdict(
    architectures: Sequence[str | Architecture] = CONTENDERS,
    *,
    data: str = TEXT,
    tokens: float = 2e5,
    seeds: int = 2,
    batch: int = 8,
    seq_len: int = 128,
    held_out: int = 2**14,
    workers: int = 0,
    device: str = "cpu",
    cluster: str = "",
    gpus_per_training: float | None = None,
    mixers: Sequence[str | Path] = (),
    runs: str | Path = "runs",
    store: str | Store | None = None,
    on_progress: OnProgress = ignore,
) -> StudyResult[VerdictFindings]:
    """Train architectures of one size to `tokens`, and measure how well cheaper methods would have ranked them: counts,
    shorter trainings, races. `cluster`, `gpus_per_training`: as for `plait.compare`."""
    from plait.data import open_corpus
    from plait.model.user_mixers import sources_of
    from plait.racing.contenders import read_contenders
    from plait.racing.leg import Course
    from plait.racing.workers import Workers
    from plait.studies.verdict import verdict_study
    from plait.training.distributed import usable
    from plait.training.recipe import Recipe
    from plait.training.track import track_recipe

    load_mixers(mixers)
    if not cluster:
        usable(device)
    corpus = open_corpus(data)
    contenders = read_contenders(list(architectures), corpus.vocab, "params")
    require_sound(contender.arch for contender in contenders)
    recipe = track_recipe(Recipe(batch=batch, seq_len=seq_len), 10)
    course = Course(data, None, corpus.fingerprint, recipe, held_out, device)
    place = Place.of(cluster, workers, device, gpus_per_training)
    title = f"{len(contenders)} architectures on {data}"
    with (
        published_store(store, "study verdict", title, on_progress) as (opened, report),
        Workers(course, opened, place, sources_of(contender.arch for contender in contenders)) as pool,
    ):
        findings = verdict_study(contenders, tokens, seeds, pool, Path(runs), report)
    return StudyResult(findings, "signals")


def _count(text: str) -> float:
    try:
        return parse(text.upper().replace("B", "G"), "count", "--params")
    except UserError:
        raise UserError(f"--params {text}: a number of parameters, such as 200K or 20M.") from None
