"""Questions about long texts, answered by generation: accuracy against length, and the effective length.

A question is a prompt and the texts that its greedy continuation must contain. All prompts of one length have exactly
that many tokens: shorter ones are preceded by filler, so that the rows of a batch need no padding. The likelihood of
an answer does not count: a model may assign the right answer a high likelihood and still not generate it.

Letters: B batch, T time, A decoded tokens, N questions.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch

from plait.analysis.intervals import group_share_interval, share_interval
from plait.core.errors import UserError
from plait.core.progress import OnCount, silent
from plait.core.result import StoredResult
from plait.evals.evaluation import Evaluation, Results, ResultTable, Subject
from plait.evals.losses import rows_at_once
from plait.evals.questions import Asks, Question, Reader, Script, TooShort, decode_greedily, decoded_text, read_prompts
from plait.reporting.axes import Axis
from plait.reporting.charts import Series, xy_chart
from plait.tasks.task import stream

#: Llama-2-7B's score at 4,096 tokens, RULER's threshold for an effective length (Hsieh et al. 2024,
#: arXiv:2404.06654).
THRESHOLD = 0.856

Self = TypeVar("Self", bound="LongContextEvaluation")


def matched(text: str, answers: Sequence[str]) -> float:
    """The share of answers that occur in the text, ignoring case: RULER's "string match all"."""
    lower = text.lower()
    return float(np.mean([answer.lower() in lower for answer in answers]))


@dataclass(frozen=True)
class LengthScore(StoredResult):
    """The score of one kind of question at one length."""

    length: int  # tokens, including room for the answer
    score: float
    interval: tuple[float, float] | None  # 95 %, over questions
    chance: float
    scores: tuple[float, ...]  # question by question


@dataclass(frozen=True)
class Curve(StoredResult):
    """The scores of one kind of question at all lengths."""

    task: str
    points: tuple[LengthScore, ...]
    effective_length: int  # the longest up to which every score is at least the threshold; 0: none
    certain_length: int  # the same with the lower ends of the intervals
    shortest: int  # tokens that a question needs; lengths below it were left out


@dataclass(frozen=True)
class LongContextResult(StoredResult):
    trained_length: int
    threshold: float
    lengths: tuple[int, ...]
    left_out: tuple[int, ...]  # lengths beyond the model's positions
    mean: Curve
    tasks: dict[str, Curve]


def effective(points: Sequence[LengthScore], threshold: float, *, certain: bool = False) -> int:
    """The longest length up to which all scores reach the threshold; if `certain`, the lower ends of their intervals
    must."""
    longest = 0
    for point in points:
        value = point.score if not certain else point.interval[0] if point.interval else 0.0
        if value < threshold:
            break
        longest = point.length
    return longest


def curve_of(
    task: str,
    asks: Asks,
    model: Reader,
    script: Script,
    lengths: Sequence[int],
    *,
    samples: int,
    seed: int = 0,
    threshold: float = THRESHOLD,
    judge: Callable[[str, Sequence[str]], float] = matched,
    device: torch.device | str = "cpu",
    progress: OnCount = silent,
) -> Curve:
    """Ask one kind of question at every length that is long enough for it. `progress` counts tokens of prompts."""
    points, shortest = [], 0
    for number, length in enumerate(lengths):
        before, total = samples * sum(lengths[:number]), samples * sum(lengths)
        try:
            questions = [asks(script, stream(task, seed, length, i), length) for i in range(samples)]
        except TooShort as short:
            shortest = max(shortest, short.least)
            progress(before + samples * length, total)
            continue
        scores: list[float] = []
        for some in _batches(questions, length):
            scores += _scores(model, script, some, length, judge, device)
            progress(before + len(scores) * length, total)
        right_or_wrong = set(scores) <= {0.0, 1.0}
        share = float(np.mean(scores))
        interval = share_interval(share, samples) if right_or_wrong else group_share_interval(scores, samples)
        chance = float(np.mean([question.chance for question in questions]))
        points.append(LengthScore(length, share, interval, chance, tuple(scores)))
    effective_lengths = (effective(points, threshold), effective(points, threshold, certain=True))
    return Curve(task, tuple(points), *effective_lengths, shortest)


def _scores(
    model: Reader,
    script: Script,
    questions: Sequence[Question],
    length: int,
    judge: Callable[[str, Sequence[str]], float],
    device: torch.device | str,
) -> list[float]:
    room = length - len(questions[0].prompt)
    prompts_BT = torch.from_numpy(np.stack([question.prompt for question in questions])).to(device)
    decoded_BA = decode_greedily(model, *read_prompts(model, prompts_BT), room)
    return [
        judge(decoded_text(script.tokenizer, ids_A), question.answers)
        for question, ids_A in zip(questions, decoded_BA.cpu().numpy(), strict=True)
    ]


def _batches(questions: Sequence[Question], length: int) -> Iterator[Sequence[Question]]:
    batch = rows_at_once(length)
    for first in range(0, len(questions), batch):
        yield questions[first : first + batch]


@dataclass(frozen=True)
class LongContextEvaluation(Evaluation):
    """A subclass gives `asked` and `filler`."""

    length: int = 0  # tokens of the shortest texts; 0: as in training
    times: str = "1,2,4,8"  # the lengths, in units of `length`
    samples: int = 50  # questions per kind and length
    threshold: float = THRESHOLD
    seed: int = 0

    @property
    def needs_text(self) -> bool:
        return False

    @property
    def amount(self) -> str:
        return f"{len(self.asked()) * len(self.factors()) * self.samples:,} questions"

    @abstractmethod
    def asked(self) -> dict[str, Asks]:
        """The kinds of question, by name."""

    @abstractmethod
    def filler(self, subject: Subject) -> np.ndarray:
        """The text that fills up prompts."""

    def judged(self, text: str, answers: Sequence[str]) -> float:
        """The score of the decoded text, 0 to 1."""
        return matched(text, answers)

    def factors(self) -> list[int]:
        try:
            factors = sorted({int(part) for part in self.times.split(",")})
        except ValueError:
            factors = [0]
        self.require(factors[0] >= 1, "times", "whole numbers separated by commas, such as 1,2,4,8")
        return factors

    def resolved(self: Self, subject: Subject) -> Self:
        self.require(self.samples >= 2, "samples", "at least 2, since one has no interval")
        self.require(0 < self.threshold <= 1, "threshold", "a score above 0, at most 1")
        self.factors()
        self.asked()
        return replace(self, length=self.length or subject.trained_length)

    def measure(self, subject: Subject, progress: OnCount = silent) -> dict[str, Any]:
        if subject.tokenizer is None:
            raise UserError("questions are text: this evaluation needs the run's tokenizer.")
        model, kinds = subject.language_model, self.asked()
        most = model.arch.header.max_len if model.arch.header.pos == "learned" else None
        lengths = [self.length * factor for factor in self.factors()]
        reached = [length for length in lengths if most is None or length <= most]
        if not reached:
            raise UserError(f"{lengths[0]} tokens asked for, but the model has only max_len={most} positions.")
        script = Script(subject.tokenizer, self.filler(subject))
        curves = []
        for number, (task, asks) in enumerate(kinds.items()):
            done, total = (kind * self.samples * sum(reached) for kind in (number, len(kinds)))
            curves.append(
                curve_of(
                    task, asks, model, script, reached, samples=self.samples, seed=self.seed, threshold=self.threshold,
                    judge=self.judged, device=next(model.parameters()).device,
                    progress=lambda so_far, _, done=done, total=total: progress(done + so_far, total),  # type: ignore[misc]
                )
            )  # fmt: skip
        if not any(curve.points for curve in curves):
            least = min(curve.shortest for curve in curves)
            raise UserError(f"the longest texts have {reached[-1]} tokens, but a question needs at least {least}.")
        return LongContextResult(
            subject.trained_length,
            self.threshold,
            tuple(reached),
            tuple(length for length in lengths if length not in reached),
            mean_curve(curves, self.threshold),
            {curve.task: curve for curve in curves},
        ).as_dict()

    def table(self, results: Results) -> ResultTable:
        of_runs = {run: LongContextResult.from_dict(result) for run, result in results.items()}
        lengths = sorted({length for result in of_runs.values() for length in result.lengths})
        columns = {"run": "left", "task": "left", **{str(n): "right" for n in lengths}}
        columns |= {"chance": "right", "effective": "right"}
        rows = []
        for run, result in of_runs.items():
            several = len(result.tasks) > 1
            for curve in [*result.tasks.values(), *([result.mean] if several else [])]:
                at = {point.length: point for point in curve.points}
                cells = [_cell(at[n]) if n in at else "–" for n in lengths]
                chance = f"{at[max(at)].chance:.2g}" if at else ""
                rows.append([run, curve.task, *cells, chance, _effective(curve)])
        return columns, rows

    def figures(self, results: Results) -> dict[str, str]:
        drawn = {}
        for run, plain in results.items():
            ending, result = f"-{run}" if len(results) > 1 else "", LongContextResult.from_dict(plain)
            series = [_series(curve) for curve in result.tasks.values() if curve.points]
            if len(series) > 1 and result.mean.points:
                series.append(_series(result.mean))
            drawn[f"{self.name}{ending}"] = xy_chart(
                series,
                title=f"{self.name}: score against length" + (f" ({run})" if ending else ""),
                x=Axis("text length, tokens", log=True),
                y=Axis("score", low=0.0, high=1.0),
                marker=result.trained_length,
                marker_label="trained length",
            )
        return drawn


def mean_curve(curves: Sequence[Curve], threshold: float) -> Curve:
    """The mean, question by question, over the kinds of question that fit at every length at which any does."""
    lengths = sorted({point.length for curve in curves for point in curve.points})
    whole = [curve for curve in curves if [point.length for point in curve.points] == lengths]
    points = []
    for i, length in enumerate(lengths if whole else ()):
        scores_N = np.mean([curve.points[i].scores for curve in whole], axis=0)
        interval = group_share_interval(scores_N, len(scores_N) * len(whole))
        chance = float(np.mean([curve.points[i].chance for curve in whole]))
        points.append(LengthScore(length, float(scores_N.mean()), interval, chance, tuple(scores_N.tolist())))
    left = len(curves) - len(whole)
    name = f"mean of {len(whole)}" if left else "mean"
    return Curve(name, tuple(points), effective(points, threshold), effective(points, threshold, certain=True), 0)


def _cell(point: LengthScore) -> str:
    low, high = point.interval or (point.score, point.score)
    return f"{point.score:.2f} ({low:.2f}–{high:.2f})"


def _effective(curve: Curve) -> str:
    if not curve.points:
        return f"needs {curve.shortest}"
    reached = curve.effective_length
    return (
        f"{'≥ ' if reached == curve.points[-1].length else ''}{reached}" if reached else f"< {curve.points[0].length}"
    )


def _series(curve: Curve) -> Series:
    return Series(
        curve.task,
        tuple(point.length for point in curve.points),
        tuple(point.score for point in curve.points),
        low=tuple((point.interval or [point.score])[0] for point in curve.points),
        high=tuple((point.interval or [point.score])[-1] for point in curve.points),
    )
