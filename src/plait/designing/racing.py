"""The race on the user's text among the candidates that were measured within the limits; then the pick's training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.core import defaults
from plait.designing.config import NEARLY, DesignConfig, OnProgress
from plait.model.architecture import architecture
from plait.model.user_mixers import sources_of
from plait.records import Store
from plait.records.comparison import BudgetForecast, RaceResult

if TYPE_CHECKING:
    from plait.data import Corpus
    from plait.racing.race import Raced
    from plait.training.recipe import Recipe


WARMUP = 10  # steps
TIMING = 0.1  # largest fraction of the race's time for timing its candidates
STARTING = 15.0  # seconds for starting processes and timing; fixed, so that a resumed design makes the same plan


@dataclass(frozen=True)
class Race:
    """`tokens`: the budget in tokens of each candidate. `spoken_for`: the part of it that the race can forecast (all of
    it, unless it is far beyond what was trained). `result`: the race's forecast at `spoken_for`."""

    race: Raced
    pick: str
    tokens: dict[str, float]
    spoken_for: dict[str, float]
    result: RaceResult
    foresight: tuple[BudgetForecast, ...]

    @property
    def recipe(self) -> Recipe:
        """The recipe of the pick's training: the race's, with the pick's learning rate."""
        return replace(self.race.course.recipe, lr=self.race.rates[self.pick])


def hold_race(
    config: DesignConfig,
    rows: Mapping[str, Mapping[str, Any]],
    corpus: Corpus,
    store: Store,
    on_progress: OnProgress,
    seconds: float,
) -> Race:
    """Race the candidates (`rows` by the name of their pattern) to the stated training budget within `seconds`."""
    from plait.racing.contenders import Contender
    from plait.racing.document import budget_forecasts, race_result
    from plait.racing.leg import Course
    from plait.racing.race import race, speeds
    from plait.racing.workers import Workers
    from plait.training.recipe import Recipe
    from plait.training.track import track_recipe

    recipe = track_recipe(Recipe(seq_len=config.setting.seq), WARMUP)
    course = Course(config.data, config.tokenizer, corpus.fingerprint, recipe, defaults.HELD_OUT, config.device)
    contenders = [Contender(name, architecture(row["spec"])) for name, row in rows.items()]
    sources = sources_of(contender.arch for contender in contenders)
    on_progress("race", None, "timing the candidates")
    with Workers(course, store, config.place, sources, config.log) as pool:
        speed = speeds(contenders, pool, most=TIMING * seconds)
        tokens = {
            contender.name: config.budget.tokens(speed[contender.name], contender.flops_per_token(recipe.seq_len))
            for contender in contenders
        }
        raced = race(
            contenders,
            max(tokens.values()),
            pool,
            config.runs,
            speed=speed,
            seconds=max(0.6 * seconds, seconds - STARTING),
            on_stage=lambda stage, share: on_progress("race", min(NEARLY, share), stage),
        )
    spoken_for = within_reach(tokens, raced.reach)
    prediction = raced.prediction_at(spoken_for)
    result = race_result(raced, prediction, spoken_for)
    return Race(raced, prediction.pick, tokens, spoken_for, result, budget_forecasts(raced.foresight))


def within_reach(tokens: Mapping[str, float], reach: float) -> dict[str, float]:
    """The budgets, all scaled down by one factor if the largest is beyond the range of valid forecasts."""
    shrink = min(1.0, reach / max(tokens.values()))
    return {name: shrink * budget for name, budget in tokens.items()}


VALIDATION_TOKENS = 2**15  # a quarter of the usual number: these trainings are short, and so should evaluations be
LEAST_STEPS = 20  # of the training, however short the budget


def least_tokens(recipe: Recipe) -> int:
    return LEAST_STEPS * recipe.batch * recipe.seq_len


def train(
    config: DesignConfig,
    spec: str,
    corpus: Corpus,
    recipe: Recipe,
    tokens: float,
    store: Store,
    on_progress: OnProgress,
) -> dict[str, Any]:
    """Train the pick; returns the result with its curves. Raises `plait.training.fit.Interrupted` on Ctrl-C; another
    call then resumes."""
    from plait.training.distributed import processes
    from plait.training.fit import Options, Progress, fit
    from plait.training.recipe import Budget, Job, fitted

    def report(now: Progress) -> None:
        words = f"loss {now.loss:.2f} nats per token, {now.tokens_per_second:,.0f} tokens/s"
        on_progress("train", NEARLY * now.step / now.steps, words)

    on_progress("train", None, "building the model")
    budget = Budget(tokens=max(tokens, least_tokens(recipe)))
    job = Job(fitted(spec, corpus), corpus, recipe, budget, config.seed, validation_tokens=VALIDATION_TOKENS)
    with processes(config.device, "ddp") as dist:
        trained = fit(job, dist, store, Options(config.runs, log=config.log), report=report)
    on_progress("train", 1.0, f"{trained.loss:.3f} nats per token on validation text")
    record = store.get(job.key)
    assert record is not None
    return {
        **record.result,
        "race_loss": race_loss(Path(record.result["folder"]), corpus, recipe, config.device),
        "trained_now": trained.trained_now,
        "recipe": recipe.as_dict(),
        "seed": config.seed,
    }


def race_loss(folder: Path, corpus: Corpus, recipe: Recipe, device: str) -> float | None:
    """The loss of a trained model on the held-out windows of the race, which forecasts are about. They are spread over
    the validation split, of which a training's own validation reads the beginning: on text that varies, these differ by
    more than architectures do. None if the run folder of an earlier training is gone."""
    import torch

    from plait.ops.paths import autocast_on
    from plait.training.run import open_run
    from plait.training.track import Text

    if not folder.exists():
        return None
    text, model = Text.of(corpus, recipe.seq_len, defaults.HELD_OUT), open_run(folder).model(device)
    losses = []
    with torch.no_grad(), autocast_on(torch.device(device)):
        for begin in range(0, len(text.inputs_NT), recipe.batch):
            rows = slice(begin, begin + recipe.batch)
            inputs, targets = (torch.from_numpy(part[rows]).to(device) for part in (text.inputs_NT, text.targets_NT))
            nll_BT = -model(inputs).float().log_softmax(-1).gather(-1, targets[..., None])[..., 0]
            losses.append(nll_BT.mean(-1).double())
    return float(torch.cat(losses).mean())
