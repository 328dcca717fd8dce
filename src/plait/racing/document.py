"""The results of comparisons and races, in the form in which they are printed, stored and drawn."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from plait.analysis.forecast import SO_FEW_STEPS, Foresight, Prediction
from plait.analysis.paired import NOT_DISTINGUISHABLE
from plait.core.files import finite
from plait.core.units import probability
from plait.racing.comparison import Comparison
from plait.racing.race import Raced
from plait.racing.screening import COMPARED
from plait.records.comparison import (
    BudgetForecast,
    ComparedArchitecture,
    ComparisonCost,
    ComparisonResult,
    PairedDifference,
    RaceCost,
    RacedArchitecture,
    RaceResult,
)

SURE = 0.95  # probability from which one candidate is called better than another
LONGER = "use a longer --time or --train-for"  # races are part of a design


def comparison_result(comparison: Comparison, notes: Iterable[str] = ()) -> ComparisonResult:
    compared, recipe = comparison.compared, comparison.course.recipe
    judged = {architecture.name: architecture for architecture in compared.architectures}
    rows = []
    for row in comparison.rows:
        judgement, c = judged[row.contender.name], row.contender
        rows.append(
            ComparedArchitecture(
                name=c.name,
                spec=c.arch.text,
                loss=finite(judgement.loss),
                interval=judgement.interval,
                seeds=judgement.seeds,
                diverged=judgement.diverged,
                tokens=row.tokens,
                lr=row.lr,
                curve=tuple((tokens, finite(loss)) for tokens, loss in row.curve),
                p_best=judgement.p_best,
                params=c.params,
                flops_per_token=c.flops_per_token(recipe.seq_len),
                rates={f"{rate:g}": finite(loss) for rate, loss in sorted(row.rates.items())},
                seconds=sum(float(r.result["seconds"]) for at in row.records for r in at),
                note=c.note,
            )
        )
    pairs = [
        PairedDifference(
            a=pair.a,
            b=pair.b,
            difference=finite(pair.difference),
            interval=pair.interval,
            corrected_interval=pair.corrected,
            p=pair.p,
            verdict={"a": pair.a, "b": pair.b}.get(pair.verdict, pair.verdict),
        )
        for pair in compared.pairs
    ]
    return ComparisonResult(
        data=comparison.course.data,
        architectures=tuple(rows),
        paired=tuple(pairs),
        noise=compared.noise,
        verdict=compared.verdict,
        foresight=budget_forecasts(comparison.foresight),
        foresight_text="" if comparison.foresight is None else comparison.foresight.text,
        screening_left_out=COMPARED,
        cost=ComparisonCost(
            seconds=comparison.seconds,
            trained_seconds=comparison.trained_seconds,
            tokens=sum(int(at[-1].result["tokens"]) * len(at) for row in comparison.rows for at in row.records[-1:]),
        ),
        equal=comparison.terms.equal,
        seq_len=recipe.seq_len,
        batch=recipe.batch,
        notes=tuple(notes),
    )


def budget_forecasts(foresight: Foresight | None) -> tuple[BudgetForecast, ...]:
    rows = () if foresight is None else foresight.rows
    return tuple(BudgetForecast(tokens=row.tokens, best=row.best, p_best=row.p_best) for row in rows)


def race_result(raced: Raced, prediction: Prediction, tokens: Mapping[str, float]) -> RaceResult:
    """A race; its losses are forecasts at each candidate's own budget, `tokens`. Blind ones have no intervals: those of
    so short trainings are known to be too narrow."""
    pick = prediction.pick
    rows = []
    for contender in raced.contenders:
        name, records = contender.name, raced.records[contender.name]
        interval = prediction.interval(name)
        rows.append(
            RacedArchitecture(
                name=name,
                spec=contender.arch.text,
                loss=finite(prediction.loss[name]),
                interval=interval if math.isfinite(interval[0]) and not prediction.blind else None,
                seeds=1,
                tokens=tokens[name],
                trained_tokens=int(records[-1][0].result["tokens"]) if records else 0,
                lr=raced.rates[name],
                curve=tuple((int(at[0].result["tokens"]), finite(at[0].result["loss"])) for at in records),
                p_best=prediction.p_best[name],
                regret=finite(prediction.regret[name]),
                stopped=name in raced.decision.stopped,
                screening=finite(raced.screened[name].result["loss"]) if name in raced.screened else None,
            )
        )
    return RaceResult(
        architectures=tuple(sorted(rows, key=lambda row: (row.loss is None, row.loss))),
        paired=tuple(_against(prediction, pick, other) for other in prediction.names if other != pick),
        noise=prediction.noise * prediction.loss[pick] if math.isfinite(prediction.loss[pick]) else None,
        verdict=_verdict(prediction, pick),
        rungs=tuple(steps * raced.course.tokens_per_step for steps in raced.rungs),
        rates_searched=raced.searched,
        screening_left_out=raced.unscreened,
        notes=_notes(raced),
        ended=raced.decision.why,
        cost=RaceCost(share=raced.cost, seconds=raced.seconds),
    )


def _notes(raced: Raced) -> tuple[str, ...]:
    """A warning if the longest training is short. After a screening it is meant to be: that took all steps, and the
    race only adds the level of the losses. Where it is so short that nothing is called better, it is the reason."""
    if raced.known.tested and not raced.starved:
        return ()
    few = raced.course.few_steps(raced.longest, LONGER)
    return (few,) if few else ()


def _against(prediction: Prediction, pick: str, other: str) -> PairedDifference:
    """The forecast difference between the pick and another candidate; a blind forecast calls neither better."""
    places = [prediction.names.index(name) for name in (pick, other)]
    loss_D2 = prediction.loss_DC[:, places]
    gap_D = -np.diff(loss_D2[np.isfinite(loss_D2).all(axis=1)])[:, 0]
    better = prediction.p_better(pick, other)
    verdict = NOT_DISTINGUISHABLE
    if other not in _not_ruled_out(prediction, pick):
        verdict = pick
    elif better <= 1 - SURE and not prediction.blind and len(gap_D) and not _within_noise(prediction, pick, other):
        verdict = other
    low, high = np.quantile(gap_D, [0.05, 0.95]).tolist() if len(gap_D) else (math.nan, math.nan)
    return PairedDifference(
        a=pick,
        b=other,
        difference=float(np.median(gap_D)) if len(gap_D) else None,
        interval=(low, high) if len(gap_D) and not prediction.blind else None,
        p=better,
        verdict=verdict,
    )


def _within_noise(prediction: Prediction, pick: str, other: str) -> bool:
    """Whether two forecasts differ by less than the noise between seeds: that is never called a difference."""
    losses = prediction.loss[pick], prediction.loss[other]
    return all(map(math.isfinite, losses)) and abs(losses[0] - losses[1]) < prediction.noise * losses[0]


def _not_ruled_out(prediction: Prediction, pick: str) -> list[str]:
    """The candidates that may be better than the pick. A probability of 95 % that each is worse does not rule out many
    of them together: so those with the largest P(best) are kept, until all that are ruled out have 5 % together."""
    others = [name for name in prediction.names if name != pick]
    if prediction.blind:  # of such short trainings, only a divergence counts
        all_diverged = not math.isfinite(prediction.loss[pick])
        return [name for name in others if all_diverged or math.isfinite(prediction.loss[name])]
    total, kept = prediction.p_best[pick], set()
    for name in sorted(others, key=lambda name: -prediction.p_best[name]):
        if total < SURE or prediction.p_better(pick, name) < SURE or _within_noise(prediction, pick, name):
            kept.add(name)
        total += prediction.p_best[name]
    return [name for name in others if name in kept]


def _verdict(prediction: Prediction, pick: str) -> str:
    if not math.isfinite(prediction.loss[pick]):
        return "all diverged"
    others = _not_ruled_out(prediction, pick)
    if prediction.blind and others:
        return f"{NOT_DISTINGUISHABLE} {SO_FEW_STEPS}; {pick} has the lowest forecast"
    chance = f"P(best) {probability(prediction.p_best[pick])}"
    if not others:
        return f"{pick} is best ({chance})" if len(prediction.names) > 1 else f"{pick} alone"
    return f"{pick} is the best choice ({chance}); not ruled out: {', '.join(others)}"
