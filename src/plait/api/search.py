"""Search a space for its Pareto front under limits that hold on this machine: `plait.search`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.api.supernets import GUMBEL, Supernets, retrain, supernet_job
from plait.core import defaults
from plait.core.errors import UserError
from plait.core.progress import OnProgress, ignore
from plait.core.result import Result
from plait.device.quantities import Setting, in_rows
from plait.model.architecture import architecture, load_mixers, require_sound_layers
from plait.records import Record, Store
from plait.records.jobs import published
from plait.records.store import writable_store
from plait.searching.picking import Row, value_of
from plait.space.constraints import Limits

if TYPE_CHECKING:
    from plait.algorithms.predicted import DevicePredictor
    from plait.api.front import Picked
    from plait.data import Corpus
    from plait.device.profile import Profile
    from plait.searching.job import Request
    from plait.searching.scoring import Scoring
    from plait.searching.validation import Validated
    from plait.space.space import Space

ATTENTION, FEED_FORWARD = ("attn", "xl-attn"), "mlp"
SHARES = 1000  # progress of profiling is reported in thousandths


@dataclass(frozen=True)
class FrontResult(Result):
    """`front`: one row per model, with exact counts and predicted and measured quantities of the device; `over_limit`:
    models that measured above a limit and were replaced by a neighbour."""

    key: str
    space: str
    method: str
    limits: dict[str, float]  # seconds, bytes
    setting: dict[str, Any]
    objectives: tuple[str, ...]
    profile: str | None  # its hash
    front: tuple[Row, ...]
    over_limit: tuple[Row, ...]
    on_front: int
    evaluated: int
    proposed: int
    measured: int
    cost: dict[str, float]  # seconds
    choices: list[list[str]] | None = None  # method gumbel: the choices of each layer
    seeds: list[Row] | None = None  # method gumbel: the result of every supernet
    retrained: Row | None = None  # its models trained from scratch: a comparison and a `statement`
    store: str | Store | None = field(default=None, repr=False)
    spent: dict[str, float] = field(default_factory=dict, repr=False)  # seconds of this call

    @classmethod
    def of(cls, document: dict[str, Any], store: str | Store | None) -> FrontResult:
        tuples = {name: tuple(document[name]) for name in ("objectives", "front", "over_limit")}
        url = store.url if isinstance(store, Store) else store
        return cls(**{**document, **tuples, "store": url})

    @property
    def specs(self) -> list[str]:
        return [row["spec"] for row in self.front]

    def pick(self, *, by: str = "", measure: bool = True, **limits: str | float | None) -> Picked:
        """The best model of the whole front within the limits; see `plait.front.pick`."""
        from plait.api.front import pick

        return pick(self.key, by=by, measure=measure, mixers=(), store=self.store, on_progress=ignore, **limits)

    def headline(self) -> str:
        return f"{len(self.front)} of {self.on_front:,} models on the front of {self.evaluated:,} candidates"

    def figure(self) -> str:
        from plait.reporting.front import front_chart

        return front_chart(self.as_dict())

    def rows(self) -> list[Row]:
        shown = in_rows(self.front)
        columns = {quantity.column: name for name, quantity in shown.items()}
        return [
            {
                name: value_of(row, columns[name]) if name in columns else value
                for name, value in row.items()
                if name in columns or not isinstance(value, (dict, list))
            }
            for row in self.front
        ]

    def as_dict(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in super().as_dict().items()
            if name != "spent" and (name not in ("choices", "seeds", "retrained") or value is not None)
        }


def search(
    space: str | Path,
    *,
    objectives: Sequence[str] = (),
    constraints: Sequence[str] = (),
    seq_len: int | None = None,
    batch: int = 1,
    mode: str = "prefill",
    answer: int | None = None,
    tokens_per_second: float | None = None,
    method: str = "lts",
    iterations: int | None = None,
    population: int | None = None,
    seed: int = 0,
    fix: Mapping[str, str] | None = None,
    data: str | None = None,
    tokenizer: str | None = None,
    supernets: Supernets | None = None,
    profile: str | Path | None = None,
    anywhere: bool = False,
    device: str | None = None,
    threads: int | None = None,
    front: int = defaults.FRONT,
    validate: bool = True,
    mixers: Sequence[str | Path] = (),
    cluster: str = "",
    workers: int | None = None,
    runs: str | Path = "runs",
    store: str | Store | None = None,
    on_progress: OnProgress = ignore,
    **limits: str | float | None,
) -> FrontResult:
    """Search a space for the best architectures under `limits` (`latency="40ms"`, `memory="300MB"` …; numbers are
    seconds and bytes), and measure `front` of them (0: all) unless `validate=False`. In `mode="both"` a prompt of
    `seq_len` tokens is followed by an `answer` (64 tokens), with limits `ttft`, `token_time` or `tokens_per_second`.

    The machine is profiled the first time, unless `profile` is a file of `plait.profile`; with `anywhere` it may be
    another machine's, and nothing is measured. Your own objective is given as its file, `my_objective.py`. Objectives
    that build models (`short_training`, `snip` …) are computed by `workers` processes, or on a `cluster`
    (ray://HOST:PORT, auto, slurm). If interrupted, the same call resumes.
    """
    from plait.algorithms.objectives import register_file
    from plait.searching.job import Request
    from plait.searching.validation import document
    from plait.space.table import load_space, require_chosen
    from plait.training.distributed import usable

    load_mixers(mixers)
    objectives = [register_file(objective) for objective in objectives]  # first: constraints of the space may use them
    whole, asked = load_space(str(space)), supernets or Supernets()
    require_chosen(whole, mixers)
    require_sound_layers(whole.one_of_each())
    setting_on = partial(Setting.of, mode, answer, seq=seq_len or whole.seq, batch=batch)
    read, setting = _given_profile(profile, anywhere, setting_on, device, threads)
    # The device of another machine is only predicted for, not trained on.
    where = device or ("cpu" if anywhere else setting.device)
    if method == GUMBEL:
        usable(where)  # before a long text is read
    corpus = _corpus(data, tokenizer)
    about_supernets = method == GUMBEL or asked != Supernets() or tokenizer
    job = supernet_job(asked, corpus, where, method, tokenizer) if about_supernets else None
    request = Request(
        adapted(whole, fix or {}, corpus),
        setting,
        objectives,
        Limits.read(tokens_per_second, **limits),
        list(constraints),
        method,
        iterations,
        population,
        seed,
        job,
        corpus if job is None else None,
    )
    request = replace(request, scoring=_scoring(request, cluster, workers, data, tokenizer))
    began = time.perf_counter()
    with writable_store(store) as opened, published(opened, "search", f"{whole.name}, {method}") as running:
        on_progress = running.alongside(on_progress)
        predictor = _predictor(request, read, opened, Path(runs), on_progress)
        profiled = time.perf_counter()
        record = _searched(request, predictor, opened, Path(runs), on_progress)
        searched = time.perf_counter()
        validated = _validated(record, request, front, opened, on_progress, measure=validate and not anywhere)
        measured = time.perf_counter()
        outcome = document(record, validated)
        if job is not None and asked.retrain is not None:
            retrain(outcome, job, asked.retrain, asked.retrain_seeds, opened, Path(runs), on_progress)
        spent = {"profile": profiled - began, "search": searched - profiled, "measuring": measured - searched}
        return replace(FrontResult.of(outcome, opened), spent=spent)


def _scoring(
    request: Request, cluster: str, workers: int | None, data: str | None, tokenizer: str | None
) -> Scoring | None:
    """How workers score candidates; None if this process computes all objectives."""
    if not cluster and workers is None:
        return None
    from plait.searching.scoring import Scoring, require_proxies
    from plait.space.objective_table import PROXIES
    from plait.workers.pool import Place

    require_proxies(cluster, workers, [name for name in request.names() if name in PROXIES])
    if not cluster and workers == 1:
        return None
    assert data is not None
    return Scoring(Place(cluster, workers), data, tokenizer)


def _corpus(data: str | None, tokenizer: str | None) -> Corpus | None:
    from plait.data import open_corpus

    return open_corpus(data, tokenizer) if data is not None else None


def adapted(space: Space, fix: Mapping[str, str], corpus: Corpus | None) -> Space:
    """The space with the choices in `fix` made, and with the data's vocabulary if data are given."""
    narrowed = type(space)(space.declared.narrowed(dict(fix))) if fix else space
    return narrowed if corpus is None else narrowed.with_vocabulary(corpus.vocab)


def _given_profile(
    path: str | Path | None, anywhere: bool, setting_on: Callable[..., Setting], device: str | None, threads: int | None
) -> tuple[Profile | None, Setting]:
    """The given profile and the setting of its machine; without one, the setting of this machine."""
    from plait.device.profile import Profile

    options: dict[str, str | int | None] = {"device": device, "threads": threads}
    asked = {name: value for name, value in options.items() if value is not None}
    if path is None:
        if anywhere:
            raise UserError("--anywhere needs the profile of another machine: give it with --profile.")
        return None, setting_on(**asked).here()
    read = Profile.load(Path(path), anywhere=anywhere)
    for name, value in asked.items():
        if read.common[name] != value:
            raise UserError(f"--{name} {value} given, but {path} is a profile of {name} {read.common[name]}.")
    setting = setting_on(**read.common)
    return read, setting if anywhere else setting.here()


def _predictor(
    request: Request, profile: Profile | None, store: Store, runs: Path, on_progress: OnProgress
) -> DevicePredictor | None:
    """The predictor of the given profile, or of this machine's, which is created if needed; None if all is exact."""
    from plait.algorithms.predicted import DevicePredictor
    from plait.device.predictor import predictor_of
    from plait.searching.local_profile import is_covered, local_profile
    from plait.searching.validation import check_attainable

    if request.supernet is not None or (request.asks_device and profile is None):
        request.check_possible(profiled=profile is not None)  # before spending minutes on profiling
    if request.asks_device:
        if profile is None:
            if not is_covered(request.space, request.setting, runs):
                check_attainable(request, store, on_progress)
            what = "profiling this machine, once"
            profile = local_profile(
                request.space,
                request.setting,
                runs,
                on_progress=lambda point, over: on_progress(what, round(SHARES * min(1.0, over)), SHARES),
            )
        predictor = DevicePredictor(predictor_of(profile, request.setting))
        if request.supernet is not None:
            request.check_predicted(predictor)
        return predictor
    return None


def _searched(
    request: Request, predictor: DevicePredictor | None, store: Store, runs: Path, on_progress: OnProgress
) -> Record:
    from plait.searching.job import search_front

    report = partial(on_progress, f"searching {request.space.name}")
    report(0, None)
    return search_front(request, predictor, store, runs, lambda search: report(search.iteration, search.iterations))


def _validated(
    record: Record, request: Request, count: int, store: Store, on_progress: OnProgress, *, measure: bool
) -> Validated:
    from plait.algorithms.front import Front
    from plait.device.measurements import Measurements
    from plait.searching.validation import validate

    front = Front.from_dict(record.result)
    if not (measure and request.asks_device):
        return validate(front, request.limits, count, lambda spec, again: None)
    with Measurements(store, request.setting) as known:
        report = partial(on_progress, "measuring the front")
        return validate(front, request.limits, count, known.measure, report)


def shapes(specs: Sequence[str]) -> list[Row]:
    """Models as in LiteTransformerSearch's tables; if any has other layers, all as the text of their layers."""
    models = [architecture(spec) for spec in specs]
    lists = [_heads_and_inner(model.layers) for model in models]
    rows: list[Row] = []
    for spec, model, both in zip(specs, models, lists, strict=True):
        if None in lists or both is None:
            layers = spec.partition("|")[2].strip()
            rows.append({"n_layer": model.num_layers, "d_model": model.header.d, "layers": layers})
        else:
            heads, inner = both
            rows.append({"n_layer": len(heads), "d_model": model.header.d, "n_head": heads, "d_inner": inner})
    return rows


def _heads_and_inner(layers: tuple[Any, ...]) -> tuple[list[int], list[int]] | None:
    """Heads and inner widths of alternating attention and feed-forward layers; None for any other architecture."""
    pairs = list(zip(layers[::2], layers[1::2], strict=False))
    if len(layers) % 2 or any(a.name not in ATTENTION or f.name != FEED_FORWARD for a, f in pairs):
        return None
    return [a.heads for a, _ in pairs], [f.inner for _, f in pairs]
