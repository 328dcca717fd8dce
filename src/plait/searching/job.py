"""One search, from the user's request to the record of its front; and the table of search algorithms (`--method`).

    predictor = DevicePredictor(Predictor(local_profile(request.space, request.setting, runs), request.setting))
    record = search_front(request, predictor, store, runs)

A search that is already in the store is returned from there; an interrupted one is resumed. To add an algorithm, add a
file with a subclass of `Search` and a line in `METHODS`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.algorithms.evolution import FEW, RandomSearch
from plait.algorithms.front import NO_LIMITS, search_record, with_request
from plait.algorithms.objectives import Exact, Objective, Predicted, ProxyObjective, exact
from plait.algorithms.predicted import DevicePredictor
from plait.algorithms.search import Search
from plait.core.errors import UserError
from plait.core.progress import Stopped, stop_signals
from plait.core.registry import Entry, Table, accept_subclass
from plait.data import Corpus
from plait.device.measurements import AnswerPredictor
from plait.device.quantities import Setting, everywhere, on_device, require_measurable
from plait.records import Record, Store
from plait.searching.scoring import Scoring, scored_by_workers
from plait.space.constraints import Limits
from plait.space.objective_table import PROXIES, load
from plait.space.slot_tables import layer_fits
from plait.space.space import Space
from plait.supernet.loss import SupernetLoss
from plait.supernet.settings import SupernetJob, layer_choices

if TYPE_CHECKING:
    from plait.algorithms.search import Search


METHODS: Table[type[Search]] = Table(
    "method",
    {
        "lts": Entry("plait.algorithms.evolution:LtsSearch", "LiteTransformerSearch's evolutionary loop (the default)"),
        "nsga2": Entry("plait.algorithms.nsga:Nsga2", "NSGA-II: non-dominated sorting and crowding distance"),
        "nsga3": Entry(
            "plait.algorithms.nsga:Nsga3",
            "NSGA-III: non-dominated sorting and reference directions; for many objectives",
        ),
        "random": Entry("plait.algorithms.evolution:RandomSearch", "random search: the baseline"),
        "exhaustive": Entry(
            "plait.algorithms.evolution:Exhaustive",
            "evaluates every candidate; used for small spaces unless iterations are given",
        ),
        "gumbel": Entry("plait.supernet.search:GumbelSearch", "differentiable search: trains a supernet on --data"),
    },
    group="plait.methods",
    accept=accept_subclass("plait.algorithms.search:Search"),
)


CAPABILITY, EXHAUSTIVE = "capability", "exhaustive"
GUMBEL, LOSS = "gumbel", "loss"
FULL_NUMBER = 4  # bytes per number in the column `weights`
PROXY_TOKENS = 64  # sequence length for proxies


@dataclass(frozen=True)
class Request:
    """Everything that defines a search.

    `objectives` empty: the default ones. `iterations`, `population`: None for the method's published values.
    `supernet` is the training job of gumbel, with its steps and seeds. `corpus` is the text for zero-cost proxies.
    """

    space: Space
    setting: Setting
    objectives: Sequence[str] = ()
    limits: Limits = NO_LIMITS
    constraints: Sequence[str] = ()
    method: str = "lts"
    iterations: int | None = None
    population: int | None = None
    seed: int = 0
    supernet: SupernetJob | None = None
    corpus: Corpus | None = None
    scoring: Scoring | None = None  # workers that compute the proxies; None: this process
    cut: int | None = None  # end after this many iterations; None: after all

    def __post_init__(self) -> None:
        METHODS.load(self.method)
        if (self.method == GUMBEL) != (self.supernet is not None):
            raise UserError("gumbel trains a supernet and needs --data; the other methods train nothing.")
        if self.corpus is not None and not set(self.names()) & set(PROXIES):
            raise UserError(f"--data is for --method gumbel and for proxies as objectives: {', '.join(PROXIES)}.")
        if self.method == GUMBEL and (self.iterations or self.population):
            raise UserError("gumbel has neither iterations nor a population: give --steps and --seeds.")
        if self.supernet is not None:
            layer_choices(self.space)
            self.supernet.check(self.space)
        tokens, learned = self.setting.longest, self.space.headers.positions
        if tokens > learned:
            raise UserError(f"{tokens} tokens asked for, but models of {self.space.name} have {learned} positions.")
        self.names()  # raises now, not after minutes of profiling

    def names(self) -> list[str]:
        """The names of the objectives, including quantities with a limit."""
        names = []
        for text in list(self.objectives) or self._defaults():
            direction, _, name = text.rpartition(":")
            kind = load(name)
            if issubclass(kind, Exact):
                names.append(text)
                continue
            if name == LOSS and self.method != GUMBEL:
                raise UserError("loss is that of a supernet, which only --method gumbel trains.")
            if name in PROXIES and (self.corpus is None or self.method == GUMBEL):
                where = "with another method than gumbel" if self.method == GUMBEL else "as builtin:stdlib"
                raise UserError(f"{name} is a score of a built model on text: give --data, {where}.")
            only = "max" if kind.maximise else "min"
            if direction not in ("", only):
                raise UserError(f"objective '{text}' given; of {name} there is only {only}:{name}.")
            names.append(name)
        return [*names, *(name for name in self.limits.on_device if name not in names)]

    @property
    def asks_device(self) -> bool:
        """Whether a profile of the device is needed to predict an objective."""
        penalty = self.supernet.settings.penalty if self.supernet else ""
        return any(name in on_device() for name in (*self.names(), penalty))

    def check_possible(self, *, profiled: bool = False) -> None:
        """Raise a `UserError` if no candidate satisfies the constraints that need no profile, before one is made."""
        if not profiled:
            require_measurable(self.names(), self.setting)
        known = self.without_predictions()
        RandomSearch(known, exact(["decoder_params"]), samples=1, seed=self.seed, seq=self.setting.seq).run()

    def check_predicted(self, predictor: DevicePredictor) -> None:
        """Raise a `UserError` if no candidate is predicted to keep the limits, before a supernet is trained: it
        compares architectures only at its end."""
        if self.limits.on_device:
            likewise = replace(self, method="random", supernet=None, objectives=("decoder_params",))
            names = likewise.names()
            RandomSearch(
                self.space, [likewise._objective(name, predictor, None) for name in names], samples=1, seed=self.seed,
                seq=self.setting.seq, constraints=[*self.constraints, *self.limits.constraints()],
            ).run()  # fmt: skip

    def without_predictions(self) -> Space:
        """The space with the constraints that need no profile; a memory limit becomes a limit on the weights."""
        weights = [
            f"weights <= {limit * FULL_NUMBER / self.setting.number_bytes / 1e6:g}MB"
            for name, limit in self.limits.values
            if name == "memory"
        ]
        space = self.space.with_constraints([*self.constraints, *self.limits.constraints(), *weights])
        constraints = [constraint for constraint in space.constraints if not constraint.names & space.needs()]
        return Space(replace(space.declared, constraints=constraints))

    def _defaults(self) -> list[str]:
        return default_objectives(self.space) if self.method != GUMBEL else [LOSS, "flops"]

    def search(self, predictor: DevicePredictor | None, store: Store | None = None) -> Search:
        """The search algorithm, ready to run. The store provides probe records if capability is an objective."""
        objectives = [self._objective(name, predictor, store) for name in self.names()]
        common: dict[str, Any] = {
            "seed": self.seed,
            "constraints": [*self.constraints, *self.limits.constraints()],
            "seq": self.setting.seq,
        }
        if self.supernet is not None:
            layers = predictor.predictor if predictor is not None else None
            if isinstance(layers, AnswerPredictor):
                raise UserError("gumbel is priced by one mode: give --mode prefill or decode.")
            return self.supernet.search(self.space, objectives, layers, **common)
        kind = METHODS.load(self._method(objectives))
        search = kind(self.space, objectives, **{**common, **kind.sizes(self.iterations, self.population)})
        search.iterations = min(search.iterations, self.cut or search.iterations)
        return search

    def _method(self, objectives: Sequence[Objective]) -> str:
        """A small space is enumerated unless the user sets the number of iterations or the population."""
        sized = self.iterations is not None or self.population is not None
        small = self.space.count <= FEW and all(objective.cheap for objective in objectives)
        return EXHAUSTIVE if small and not sized else self.method

    def _objective(self, name: str, predictor: DevicePredictor | None, store: Store | None) -> Objective:
        if name == CAPABILITY:
            from plait.searching.capability import Capability

            return Capability.from_store(store) if store is not None else Capability()
        if name == LOSS:
            return SupernetLoss()
        if name in PROXIES:
            assert self.corpus is not None
            tokens = min(PROXY_TOKENS, self.space.headers.positions)
            return ProxyObjective(name, self.corpus.tokens("train"), seq=int(tokens), seed=self.seed)
        kind = load(name.rpartition(":")[2])
        if issubclass(kind, Predicted):
            return kind(name, predictor)
        return exact([name])[0] if issubclass(kind, Exact) else kind()


class Interrupted(Stopped):
    """Raised when a search is interrupted, after its checkpoint is saved."""

    def __init__(self, search: Search) -> None:
        super().__init__(f"{search.method} stopped after {search.iteration} of {search.iterations} iterations")
        self.search = search


def default_objectives(space: Space) -> list[str]:
    """Parameters of the layers, latency and memory; in spaces with experts only the active parameters count."""
    options = (option for slot in space.slots for option in slot.options if option is not None)
    fitting = ((option, next((d for d in space.widths if layer_fits(option, d)), None)) for option in options)
    layers = (option.cost(d, 1) for option, d in fitting if d is not None)
    experts = any(int(cost.active_params) < int(cost.total_params) for cost in layers)
    return ["active_decoder_params" if experts else "decoder_params", *everywhere()]


def search_front(
    request: Request,
    predictor: DevicePredictor | None,
    store: Store,
    folder: Path,
    on_step: Callable[[Search], object] | None = None,
    ended: Callable[[Search], bool] = lambda search: False,
) -> Record:
    """Run a search and return its record, from the store if it is there. Ctrl-C raises `Interrupted`; the same call
    then resumes. If `ended` returns true after an iteration, the search ends there, and its record is that of a search
    with so many iterations."""
    search = request.search(predictor, store)
    stored = store.get(search.key)
    if stored is not None:
        return with_request(stored, search, store, request.limits, request.setting, predictor)
    path, started = folder / f"search-{search.key[:16]}.npz", time.time()
    with ExitStack() as stack:
        stop = stack.enter_context(stop_signals())
        if request.scoring is not None:
            stack.enter_context(scored_by_workers(search, request.scoring, store, stop))

        def between_steps(search: Search) -> None:
            if on_step is not None:
                on_step(search)
            if stop.is_set():
                search.save(path)
                raise Interrupted(search)
            if ended(search):
                search.iterations = search.iteration

        search.run(path=path, on_step=between_steps)
    record = search_record(search, started, limits=request.limits, setting=request.setting, predictor=predictor)
    store.put(record)
    path.unlink(missing_ok=True)
    return record
