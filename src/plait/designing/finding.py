"""Find models within the limits: profile the machine, search the space, measure the models found."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from plait.algorithms.front import Front, Row
from plait.algorithms.predicted import DevicePredictor
from plait.algorithms.search import Search
from plait.core.errors import UserError
from plait.designing.compositions import compositions, few_of, pattern_name
from plait.designing.config import NEARLY, Clock, DesignConfig, OnProgress
from plait.device.measurements import Measurements
from plait.device.predictor import predictor_of
from plait.device.profile import Profile
from plait.records import Record
from plait.searching.job import Request, default_objectives, search_front
from plait.searching.local_profile import local_profile
from plait.searching.validation import DocumentRow, Validated, describe, document, measured_row, validate

METHOD = "nsga2"
ACROSS = 5  # additional models that are measured, spread over the front
TRIES = 3  # models of a composition that are measured before it is dropped as exceeding the limits
LEAST = 2  # fewest compositions measured within the limits, however late it is
PLAIN = "attn"  # the mixer of the plain Transformer that everything is compared with


@dataclass
class SearchFindings:
    """Rows in the format of `plait search --json`.

    size        the objective that is to be large
    front       every model of the front, predicted
    measured    some from all over it
    few         one of each composition, the largest that holds the limits
    plain       the largest Transformer that does, where the space has Transformers; it may be one of the few
    """

    profile: Profile
    record: Record
    size: str
    front: list[DocumentRow]
    measured: Validated
    few: list[DocumentRow]
    plain: DocumentRow | None

    def candidates(self) -> dict[str, DocumentRow]:
        """The few and the Transformer by the name of their pattern, the largest first. Of several models with one
        pattern only the largest is kept."""
        by_pattern: dict[str, DocumentRow] = {}
        for row in sorted([*self.few, *([self.plain] if self.plain else [])], key=lambda row: -row[self.size]):
            by_pattern.setdefault(pattern_name(row["spec"]), row)
        return by_pattern

    def document(self) -> dict[str, object]:
        return document(self.record, self.measured)


def find(config: DesignConfig, clock: Clock, on_progress: OnProgress, seconds: dict[str, float]) -> SearchFindings:
    """Everything that can be found without training. Writes into `seconds` how long each stage took."""
    # The KV cache is a cost of its own. Without this objective, only mixers with the lowest latency per parameter would
    # be left on the front.
    objectives = [*default_objectives(config.space), "min:kv_cache"]
    request = Request(
        config.space, config.setting, objectives, config.limits, config.constraints, METHOD, seed=config.seed
    )
    request.check_possible()  # before minutes are spent on a profile
    begun = time.perf_counter()
    profile = local_profile(
        config.space,
        config.setting,
        config.runs,
        seconds=config.share("profile"),
        most=clock.profile_most,
        on_progress=lambda point, over: on_progress("profile", NEARLY * over, point.heading),
    )
    on_progress("profile", 1.0, f"{len(profile.points)} measurements")
    seconds["profile"] = time.perf_counter() - begun
    begun = time.perf_counter()
    predictor = DevicePredictor(predictor_of(profile, config.setting))

    def step(search: Search) -> None:
        on_progress("search", NEARLY * search.iteration / search.iterations, f"{search.evaluated:,} candidates")

    # The Transformers first: `plait front` and the dashboard show the newest search, and that should be the one which
    # the candidates come from.
    on_progress("search", None, "Transformers alone, for comparison")
    plain_rows = _transformers(config, objectives, predictor, clock)
    record = _search("the search", request, predictor, clock, step)
    front = Front.from_dict(record.result)
    on_progress("search", 1.0, f"{record.result['evaluated']:,} candidates, {len(front)} on the front")
    seconds["search"] = time.perf_counter() - begun
    begun = time.perf_counter()
    size = objectives[0]
    measured, few, plain = _measured(config, front, size, plain_rows, clock, on_progress)
    seconds["measure"] = time.perf_counter() - begun
    rows = [describe(row, config.limits, None) for row in front.rows]
    return SearchFindings(profile, record, size, rows, measured, few, plain)


def _search(
    name: str,
    request: Request,
    predictor: DevicePredictor,
    clock: Clock,
    on_step: Callable[[Search], object] | None = None,
) -> Record:
    """The search's record, possibly of a search that was ended early at its deadline."""
    whole = request.search(predictor, clock.store)
    end = clock.end_of("search", whole.key)
    in_time = replace(request, cut=end.known)
    record = search_front(
        in_time, predictor, clock.store, clock.config.runs, on_step, lambda search: end.reached(search.iteration)
    )
    if end.known is not None and end.known < whole.iterations:
        clock.cut[name] = f"{name} ended after {end.known} of {whole.iterations} iterations"
    return record


def _transformers(
    config: DesignConfig, objectives: Sequence[str], predictor: DevicePredictor, clock: Clock
) -> Sequence[Row]:
    """The front of the same search restricted to Transformers; empty if none is within the limits."""
    slots = [slot for slot in config.space.slots if any(option and option.name == PLAIN for option in slot.options)]
    if not slots:
        return []
    only = [*config.constraints, f"count({PLAIN}) == {len(slots)} * layers"]
    request = Request(config.space, config.setting, objectives, config.limits, only, METHOD, seed=config.seed)
    try:
        return Front.from_dict(_search("the search among Transformers", request, predictor, clock).result).rows
    except UserError:  # no Transformer is within the limits
        return []


def _measured(
    config: DesignConfig, front: Front, size: str, plain_rows: Sequence[Row], clock: Clock, on_progress: OnProgress
) -> tuple[Validated, list[DocumentRow], DocumentRow | None]:
    """Measure a model of each composition, the Transformer, and some spread over the front, as long as there is
    time."""
    chosen = few_of(compositions(front.rows, size), config.few)
    if not chosen:
        raise UserError(
            f"no model on the front of {config.space.name} mixes anything along the sequence, so there is nothing to "
            "probe: give the space a constraint that asks for it, as count(attn) >= 1."
        )
    plain_composition = sorted(plain_rows, key=lambda row: -row[size])
    total, done = len(chosen) + bool(plain_composition) + ACROSS, 0
    end = clock.end_of("measure", " ".join(row["spec"] for composition in chosen for row in composition[:1]))
    dropped: list[DocumentRow] = []

    def report() -> None:
        on_progress("measure", NEARLY * done / total, f"{done} of {total} models")

    with Measurements(clock.store, config.setting) as known:

        def first_within(composition: Sequence[Row]) -> DocumentRow | None:
            nonlocal done
            report()
            within = None
            for row in composition[:TRIES]:
                described, _ = measured_row(row, config.limits, known.measure)
                if described["within"]:
                    within = described
                    break
                dropped.append(described)
            done += 1
            return within

        few: list[DocumentRow] = []
        for composition in chosen:
            if len(few) >= LEAST and end.reached(done):
                break
            few += [row] if (row := first_within(composition)) is not None else []
        if not few:
            raise _none_left("model", dropped)
        dropped.clear()
        plain = first_within(plain_composition) if plain_composition and not end.reached(done) else None
        # If all Transformers were measured above a limit, then none is within it. If none could be measured at all,
        # there is nothing to compare with.
        if dropped and not plain and not any(row["measurement"] for row in dropped):
            raise _none_left("plain Transformer", dropped)
        report()
        measured = validate(
            front,
            config.limits,
            ACROSS,
            known.measure,
            lambda now, of: on_progress("measure", NEARLY * (done + now) / total, f"{done + now} of {total} models"),
            lambda now: end.reached(done + now),
        )
    if end.known is not None:
        clock.cut["measure"] = f"{end.known} of {total} models were measured"
        if plain_composition and plain is None and end.known <= len(chosen):
            clock.cut["measure"] += ", no plain Transformer among them"
    others = f"{measured.measured} model{'s' * (measured.measured != 1)} from all over the front"
    on_progress("measure", 1.0, f"{len(few)} compositions of mixers, {others}")
    return measured, few, plain


def _none_left(what: str, dropped: Sequence[DocumentRow]) -> UserError:
    unmeasured = [row for row in dropped if row["measurement"] is None]
    if unmeasured:
        return UserError(
            f"no {what} is left: of {len(dropped)} that were predicted to meet the limits, {len(unmeasured)} could not "
            f"be measured. The first: {unmeasured[0]['exceeded'][0]} Where they are too large for this machine, lower "
            "--memory or --seq."
        )
    return UserError(
        f"every {what} that was predicted to meet the limits measures above them: the machine is busier than when it "
        "was profiled. Run it again when it is quiet, or loosen --latency or --memory."
    )
