"""The race among the candidates that were measured to hold the limits, on the user's text, for the stated budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from plait.designing.config import NEARLY, DesignConfig, OnProgress
from plait.model.architecture import architecture
from plait.records import Store

if TYPE_CHECKING:
    from plait.data import Corpus
    from plait.racing.race import Raced
    from plait.training.recipe import Recipe

HELD_OUT = 2**14  # tokens; candidates are compared on the same ones
WARMUP = 10  # steps
STARTING = 15.0  # seconds for processes to start and candidates to be timed; fixed, so that a design goes on as planned


@dataclass(frozen=True)
class Race:
    """`tokens`: what the budget comes to for each candidate; `spoken_for`: how far of it the race can speak about (the
    same, unless the budget is far beyond what was trained); `document`: the race at those budgets."""

    race: Raced
    pick: str
    tokens: dict[str, float]
    spoken_for: dict[str, float]
    document: dict[str, Any]
    foresight: list[dict[str, Any]]

    @property
    def recipe(self) -> Recipe:
        """Of the pick's training: the race's own, at its rate."""
        return replace(self.race.course.recipe, lr=self.race.rates[self.pick])


def hold_race(
    config: DesignConfig, rows: Mapping[str, Mapping[str, Any]], corpus: Corpus, store: Store, on_progress: OnProgress
) -> Race:
    """`rows` by the name of their pattern."""
    from plait.racing.contenders import Contender
    from plait.racing.document import foresight_rows, race_document
    from plait.racing.leg import Course
    from plait.racing.race import race, speeds
    from plait.racing.workers import Workers
    from plait.training.recipe import Recipe
    from plait.training.track import track_recipe

    recipe = track_recipe(Recipe(seq_len=config.setting.seq), WARMUP)
    course = Course(config.data, config.tokenizer, corpus.fingerprint, recipe, HELD_OUT, config.device)
    contenders = [Contender(name, architecture(row["spec"])) for name, row in rows.items()]
    sources = {source.hash: source for each in contenders for source in each.arch.mixer_sources.values()}
    on_progress("race", None, "timing the candidates")
    with Workers(course, store, config.place, tuple(sources.values()), config.log) as pool:
        speed = speeds(contenders, pool)
        tokens = {
            each.name: config.budget.tokens(speed[each.name], each.flops_per_token(recipe.seq_len))
            for each in contenders
        }
        raced = race(
            contenders,
            max(tokens.values()),
            pool,
            config.runs,
            speed=speed,
            seconds=max(0.6 * config.share("race"), config.share("race") - STARTING),
            on_stage=lambda stage, share: on_progress("race", min(NEARLY, share), stage),
        )
    shrink = min(1.0, raced.reach / max(tokens.values()))
    spoken_for = {name: shrink * budget for name, budget in tokens.items()}
    prediction = raced.prediction_at(spoken_for)
    document = race_document(raced, prediction, spoken_for)
    return Race(raced, prediction.pick, tokens, spoken_for, document, foresight_rows(raced.foresight))
