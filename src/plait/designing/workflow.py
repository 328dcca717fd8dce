"""`plait design`: runs the stages profile, search, measure, probe, race and train, and writes one document about them.

Size and composition decide which models enter the race. The race on the user's text picks the winner for the stated
training budget. The probe reports what each pattern can do, which does not predict its loss.

Every stage reuses results from the store and the run folder, so a call after an interruption does only what is missing.
On a busy machine, stages end with what they have at their deadline, and the probe, which does not influence the choice,
is skipped (`config`).
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import plait
from plait.analysis.forecast import SO_FEW_STEPS
from plait.core.units import duration
from plait.data import open_corpus
from plait.designing.advice import RULE, advice_points, rivals
from plait.designing.compositions import pattern_name, probe_candidate
from plait.designing.config import NEARLY, Clock, DesignConfig, OnProgress
from plait.designing.document import Ahead, DesignDocument, NextStep, ProbedCandidate, ProbeDocument, Row
from plait.designing.finding import SearchFindings, find
from plait.designing.racing import hold_race, least_tokens, train
from plait.device.quantities import Setting, in_rows, quantity
from plait.model.architecture import require_sound_layers
from plait.model.user_mixers import mixers_option, sources_option
from plait.probing.plan import TooShort
from plait.probing.protocol import quick
from plait.probing.run import Machine, Outcome, Progress, compare, run_budget
from plait.probing.verdict import Comparison
from plait.probing.verdict import document as scores
from plait.records import Store, provenance_of
from plait.records.database import DEFAULT
from plait.space.constraints import Limits
from plait.space.table import load_space


def probe(
    config: DesignConfig,
    rows: Mapping[str, Mapping[str, Any]],
    store: Store,
    on_progress: OnProgress,
    clock: Clock,
) -> Outcome | None:
    """Probe the candidates (`rows` by the name of their pattern); None if there is not enough time."""
    seconds = clock.probe()
    if not seconds or clock.probe_skipped:
        return None
    protocol = quick(config.tasks)
    few = [probe_candidate(row["spec"], protocol) for row in rows.values()]

    def report(progress: Progress) -> None:
        share = min(NEARLY, progress.share(progress.work.trials)) if progress.work else None
        trials = f"{len(progress.done)} of {len(progress.work.trials)} trainings" if progress.work else progress.phase
        on_progress("probe", share, trials)

    try:
        return run_budget(few, protocol, seconds, store, Machine(config.place), report, overrun=False)
    except TooShort:
        clock.skip_probe()
        return None


def left_out(config: DesignConfig) -> ProbeDocument:
    """The document of a probe that was skipped."""
    why = (
        f"of {duration(config.seconds)} it gets {config.share('probe'):.0f} s, too few on this machine, at its load; "
        "use a longer --time"
    )
    return {
        "protocol": quick(config.tasks).name, "tasks": [], "seeds": {}, "scale": 0.0, "runs": 0, "steps": 0,
        "trained_now": 0, "architectures": [], "left_out": why,
    }  # fmt: skip


def probe_document(outcome: Outcome, comparison: Comparison, pick: str) -> ProbeDocument:
    """The probe as JSON: every pattern, the best first, with its tasks and its paired difference from the pick."""
    work = outcome.work
    by_name = {candidate.name: candidate for candidate in work.candidates}
    rows: list[ProbedCandidate] = []
    signs = comparison.signs(pick, chosen=True)
    for row in scores(comparison):
        candidate, name = by_name[row["name"]], row["name"]
        from_pick = comparison.difference(pick, name)
        ahead: Ahead = {
            "value": from_pick.value,
            "interval": None if from_pick.interval is None else list(from_pick.interval),
            "sign": signs.overall.get(name, 0),
        }
        better = [task for task in comparison.tasks if signs.by_task[task].get(name, 0) < 0]
        rows.append(
            {
                **row,
                "spec": candidate.arch.text,
                "params": candidate.params,
                "note": candidate.note,
                "pick_ahead_by": ahead,
                "better_than_pick_on": better,
            }
        )
    return {
        "protocol": work.protocol.name,
        "tasks": work.protocol.task_names,
        "seeds": {task: len(comparison.seeds[task]) for task in comparison.tasks},
        "scale": work.scale,
        "runs": work.runs,
        "steps": work.steps,
        "trained_now": outcome.fresh,
        "architectures": rows,
        "left_out": "",
    }


def design_config(
    space: str, limits: Limits, data: str, setting: Setting, seconds: float, seed: int, tokenizer: str | None = None,
    **others: Any,
) -> DesignConfig:  # fmt: skip
    """A configuration from what a user gives. Opens the text, which tokenises it the first time."""
    from plait.training.recipe import Recipe
    from plait.training.track import require_text

    corpus = open_corpus(data, tokenizer)
    require_text(corpus, Recipe().batch, setting.seq)  # of the race, which comes last
    fitting = load_space(space).with_vocabulary(corpus.vocab)
    require_sound_layers(fitting.one_of_each())
    return DesignConfig(fitting, setting, limits, data, seconds, seed, tokenizer=tokenizer, space_given=space, **others)


def design(config: DesignConfig, store: Store, on_progress: OnProgress, started: float | None = None) -> DesignDocument:
    """Run all stages. `started`: the `time.perf_counter()` at which the user's time began."""
    began, clock = time.time(), time.perf_counter() if started is None else started
    seconds: dict[str, float] = {}
    stage_clock = Clock(config, store, clock)
    findings = find(config, stage_clock, on_progress, seconds)
    rows = findings.candidates()
    begun = time.perf_counter()
    stage_clock = replace(stage_clock, specs=[row["spec"] for row in rows.values()])
    outcome = probe(config, rows, store, on_progress, stage_clock)
    comparison = None if outcome is None else compare(outcome)
    on_progress("probe", 1.0, "left out: too little time" if outcome is None else f"{len(outcome.records)} trainings")
    seconds["probe"] = time.perf_counter() - begun
    begun = time.perf_counter()
    corpus = open_corpus(config.data, config.tokenizer)
    raced = hold_race(config, rows, corpus, store, on_progress, stage_clock.race())
    pick = raced.pick
    on_progress("race", 1.0, raced.result.verdict)
    seconds["race"] = time.perf_counter() - begun
    begun = time.perf_counter()
    if raced.race.slowed:
        stage_clock.cut["race"] = (
            f"trainings of the race took {raced.race.slowdown:.1f} times as long as timed before it"
        )
    tokens = stage_clock.tokens(raced.tokens[pick], raced.race.slowdown, least_tokens(raced.recipe))
    trained = train(config, rows[pick]["spec"], corpus, raced.recipe, tokens, store, on_progress)
    seconds["train"] = time.perf_counter() - begun
    plain = pattern_name(findings.plain["spec"]) if findings.plain else None
    document: DesignDocument = {
        "config": config.as_dict(),
        "machine": provenance_of(began, time.perf_counter() - clock),
        "profile": findings.profile.describe(),
        "search": findings.document(),
        "predicted_front": _thinned_front(findings),
        "size": findings.size,
        "candidates": [{"pattern": name, **row} for name, row in rows.items()],
        "probe": probe_document(outcome, comparison, pick) if outcome and comparison else left_out(config),
        "race": raced.result.as_dict(),
        "budget": {"stated": config.budget.text, "tokens": raced.tokens[pick], "spoken_for": raced.spoken_for[pick]},
        "foresight": [row.as_dict() for row in raced.foresight],
        "foresight_text": raced.race.foresight.text if raced.race.foresight else "",
        "rule": RULE,
        "pick": {"pattern": pick, **rows[pick]},
        "recommended": rows[pick]["spec"],
        "best_probed": min(comparison.names, key=comparison.rank) if comparison else None,
        "not_distinguishable": [pick, *(pair.b for pair in raced.result.paired if pair.verdict != pick)],
        "plain": plain,
        "train": trained,
        "cut": list(stage_clock.cut.values()),
        "stages": {name: round(took, 1) for name, took in seconds.items()},
        "plait": plait.__version__,
    }
    document["commands"] = commands(document, config)
    document["next"] = next_steps(document, config, store)
    document["points"] = advice_points(document)
    document["advice"] = " ".join(document["points"])
    return document


LONGER = 4  # times the --time, for a race that was left undecided
MOST_POINTS = 160  # of the front, on the page


def _thinned_front(findings: SearchFindings) -> list[Row]:
    """The predicted front, with evenly spaced points left out if it is too long for a page."""
    every = -(-len(findings.front) // MOST_POINTS)
    kept = ("spec", findings.size, *(metric.column for metric in in_rows(findings.front).values()))
    return [{name: row[name] for name in kept} for row in findings.front[::every]]


def commands(document: DesignDocument, of: DesignConfig) -> list[str]:
    """Commands that repeat the design, as a whole and stage by stage."""
    config, limits = document["config"], document["config"]["limits"]
    texts = of.space_given or config["space"], config["data"], document["pick"]["spec"]
    space, data, pick = (shlex.quote(text) for text in texts)
    held = " ".join(f"--{name.replace('_', '-')} {quantity(name).text(limit)}" for name, limit in limits.items())
    for constraint in config.get("constraints", ()):
        held += f" --constraint {shlex.quote(constraint)}"
    seed = f" --seed {config['seed']}" if config["seed"] else ""
    text = f"--data {data}" + (f" --tokenizer {shlex.quote(config['tokenizer'])}" if config.get("tokenizer") else "")
    how, seq = _setting_options(config["setting"]), config["setting"]["seq"]
    lr = document["train"]["recipe"]["lr"]
    raced = [row["spec"] for row in document["race"]["architectures"]]
    specs = " ".join(shlex.quote(spec) for spec in raced[:3])
    mixers, of_three = sources_option(of.space.mixer_sources.values()), mixers_option(raced[:3])
    of_pick = mixers_option([document["pick"]["spec"]])
    return [
        f"plait design {held} --space {space} {text} {how} "
        f"--time {config['seconds']:g}s --train-for {shlex.quote(str(config['train_for']))}{seed}{mixers}",
        f"plait search --space {space} {held} {how} --method nsga2{seed}{mixers}",
        f"plait measure {pick} {how}{of_pick}",
        f"plait compare {specs} {text} --seq-len {seq} --tokens {document['budget']['tokens']:.3g}{of_three}",
        f"plait train {pick} {text} --seq-len {seq} --lr {lr:g} --set schedule=wsd --time 1h{of_pick}",
    ]


def next_steps(document: DesignDocument, config: DesignConfig, store: Store) -> list[NextStep]:
    """What to do now, with the commands for it; a race that left something undecided goes on where it ended."""
    repeat, *_, training = document["commands"]
    folder, kept = shlex.quote(document["train"]["folder"]), _kept_in(config, store)
    steps: list[NextStep] = []
    if rivals(document) or document["cut"] or document["race"]["notes"]:
        longer = repeat.replace(f"--time {config.seconds:g}s", f"--time {_longer(config.seconds)}")
        if config.train_for is None and SO_FEW_STEPS in document["race"]["verdict"]:
            # The budget is not the user's, but what was left: more time is to lengthen the trainings, too.
            longer = longer.replace(f" --train-for {shlex.quote(config.budget.text)}", "")
        steps.append({"to": "settle the choice", "command": longer + kept})
    steps.append({"to": "use the model", "command": f"plait export {folder} --to hf"})
    steps.append({"to": "train it longer", "command": training + kept})
    return steps


def _longer(seconds: float) -> str:
    """So many times the time, in minutes once there are some."""
    whole = math.ceil(LONGER * seconds)
    return f"{whole}s" if whole < 60 else f"{math.ceil(whole / 60)}m"


def _kept_in(config: DesignConfig, store: Store) -> str:
    """The options for where results are, without which a command would begin at nothing. A server's URL may hold a
    password: it is not repeated."""
    runs = "" if config.runs == DesignConfig.runs else f" --runs {shlex.quote(str(config.runs))}"
    elsewhere = store.file is not None and f"sqlite:///{store.name}" != DEFAULT
    return runs + (f" --store {shlex.quote(f'sqlite:///{store.name}')}" if elsewhere else "")


def _setting_options(setting: Mapping[str, Any]) -> str:
    """The command-line options of a setting, without those at their defaults."""
    usual = Setting(seq=setting["seq"]).as_dict()
    others = [f" --{name} {value}" for name, value in setting.items() if value != usual.get(name)]
    return f"--seq {setting['seq']}" + "".join(others)
