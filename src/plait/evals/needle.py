"""Needle in a haystack: can a model find one fact, at any depth of texts of any length?

Each cell of the grid of depths and lengths has two scores: whether greedy decoding writes the answer word for word, and
the mean log-likelihood of the answer's tokens given the prompt (teacher-forced). The first is what counts in use; the
second improves earlier and distinguishes small models. Neither needs a network; in Lin et al. 2025, arXiv:2503.02130,
section 4.3, a large language model grades the answers.

The text is a fact hidden at a depth in filler, and a question about it at the end. As in that paper, *standard* hides a
statement of the fact, *easy* hides the question and "Answer:" with it, so that the end of the text repeats what came
before and copying is enough. The needle goes in after the last "." before its depth. Filler and needle together have
the stated length less a reserve for the question and the answer: 200 tokens, or a fifth of lengths below 1000, but
never less than those two need.

Letters: B batch, T time, V vocabulary, A tokens of the answer, R depths (rows), C lengths (columns).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plait.core.errors import UserError
from plait.core.progress import OnCount, silent
from plait.core.registry import require_one_of
from plait.core.units import percent
from plait.evals.evaluation import Evaluation, Results, ResultTable, Subject
from plait.evals.losses import check_length, rows_at_once
from plait.evals.questions import Reader, Writer, decode_greedily, decoded_text, judged, plain, read_prompts, stops
from plait.reporting.heat_maps import heat_map

MODES = ("standard", "easy")
RESERVE = 200


@dataclass(frozen=True)
class Needle:
    """A fact in three forms. The statement contains the answer as it is written here."""

    statement: str
    question: str
    answer: str

    def hidden(self, mode: str) -> str:
        return self.statement if mode == "standard" else f"{self.question} Answer: {self.answer}."

    @property
    def asked(self) -> str:
        return f"{self.question} Answer:"


NEEDLES = (
    Needle(
        "The lighthouse keeper hides the spare key inside the blue teapot.",
        "Where does the lighthouse keeper hide the spare key?",
        "inside the blue teapot",
    ),
    Needle(
        "The baker of Halden gives the first loaf of the day to the night watchman.",
        "To whom does the baker of Halden give the first loaf of the day?",
        "to the night watchman",
    ),
    Needle(
        "The old ferry across the lake leaves when the church bell rings nine times.",
        "When does the old ferry across the lake leave?",
        "when the church bell rings nine times",
    ),
    Needle(
        "The winning entry at the garden fair was a pumpkin shaped like a swan.",
        "What was the winning entry at the garden fair?",
        "a pumpkin shaped like a swan",
    ),
    Needle(
        "The cartographer marked the hidden spring with three small green triangles.",
        "With what did the cartographer mark the hidden spring?",
        "three small green triangles",
    ),
)


class Haystack:
    """Prompts about one needle, of any length and depth, in filler that is repeated if too short."""

    def __init__(self, tokenizer: Writer, filler: np.ndarray, needle: Needle, mode: str = "standard") -> None:
        require_one_of(mode, MODES, f"mode={mode}")
        if not len(filler):
            raise UserError("a haystack needs filler: the text given is empty.")
        # Each piece begins with a space, as in running text.
        pieces = (f" {needle.hidden(mode)}", f" {needle.asked}", f" {needle.answer}")
        self.hidden, self.asked, self.answer = (np.asarray(tokenizer.encode(piece), np.int64) for piece in pieces)
        written = plain(tokenizer.decode(self.answer))
        if written != plain(needle.answer):
            raise UserError(
                f"this tokenizer cannot write the answer: '{needle.answer}' comes back as '{written}'. "
                "A needle must be made of words that it knows."
            )
        self.needle, self.filler = needle, np.asarray(filler, np.int64)
        self._stops = stops(tokenizer, self.filler)

    @property
    def shortest(self) -> int:
        """The length of the shortest prompt with as much filler as needle."""
        return 2 * len(self.hidden) + len(self.asked) + len(self.answer)

    def prompt(self, length: int, depth: float) -> np.ndarray:
        """Filler, needle at `depth` (0 the start, 1 the end), filler, question. The answer is what should follow; with
        it the text is no longer than `length`. All depths give prompts of one length."""
        if length < self.shortest:
            raise UserError(f"a haystack of {length} tokens is too short: this needle needs at least {self.shortest}.")
        reserve = max(min(RESERVE, length // 5), len(self.asked) + len(self.answer))
        room = length - reserve - len(self.hidden)
        hay, stops_at = self._cut(room)
        place = round(depth * room)
        before = stops_at[stops_at <= place]
        at = place if place == room else int(before[-1]) if len(before) else 0
        return np.concatenate([hay[:at], self.hidden, hay[at:], self.asked])

    def _cut(self, room: int) -> tuple[np.ndarray, np.ndarray]:
        """`room` tokens of filler, and the positions right after a full stop."""
        times = -(-room // len(self.filler))
        hay, is_stop = np.tile(self.filler, times)[:room], np.tile(self._stops, times)[:room]
        return hay, np.flatnonzero(is_stop) + 1


def lengths_up_to(longest: int, shortest: int, number: int) -> list[int]:
    """Evenly spaced lengths, from a thirty-second of the longest or `shortest`; the paper has 11 from 1000 to 32000."""
    first = max(shortest, round(longest / 32))
    if first > longest:
        raise UserError(f"length {longest} is too short: this needle needs at least {shortest} tokens.")
    return sorted({round(length) for length in np.linspace(first, longest, number)})


def depths(number: int) -> Sequence[float]:
    """From the start of the text to its end."""
    shares: list[float] = np.linspace(0.0, 1.0, number).tolist()
    return shares


SPARE = 2  # tokens decoded beyond the answer's length, in case it is tokenized differently


@dataclass(frozen=True)
class Grid:
    """Means over needles: rows are depths, columns lengths."""

    depths: Sequence[float]
    lengths: Sequence[int]
    exact_RC: np.ndarray  # share of needles whose answer was written word for word
    log_likelihood_RC: np.ndarray  # nats per token of the answer

    @property
    def score(self) -> float:
        return float(self.exact_RC.mean())


@torch.no_grad()
def answers(model: Reader, prompts_BT: Tensor, answer_A: Tensor) -> tuple[Tensor, Tensor]:
    """After prompts of one length: greedily decoded tokens (B, A + SPARE), and each row's mean log-likelihood of the
    answer's tokens."""
    last_BV, state = read_prompts(model, prompts_BT)
    decoded_BA = decode_greedily(model, last_BV, state, len(answer_A) + SPARE)
    answer_BA = answer_A.expand(len(prompts_BT), -1)
    rows_BAV = last_BV[:, None]
    if len(answer_A) > 1:
        rows_BAV = torch.cat([rows_BAV, model.extend(answer_BA[:, :-1], state)[0]], dim=1)
    log_p_BAV = rows_BAV.to(torch.promote_types(rows_BAV.dtype, torch.float32)).log_softmax(dim=-1)
    return decoded_BA, log_p_BAV.gather(-1, answer_BA[..., None])[..., 0].mean(dim=1)


def needle_grid(
    model: Reader,
    tokenizer: Writer,
    filler: np.ndarray,
    *,
    lengths: Sequence[int],
    depths: Sequence[float],
    needles: Sequence[Needle] = NEEDLES[:1],
    mode: str = "standard",
    device: torch.device | str = "cpu",
    progress: OnCount = silent,
) -> Grid:
    """Ask for every needle in prompts of every length, hidden at every depth."""
    stacks = [Haystack(tokenizer, filler, needle, mode) for needle in needles]
    exact_RC, likely_RC = np.zeros((2, len(depths), len(lengths)))
    done, total = 0, len(stacks) * len(lengths) * len(depths)
    for stack in stacks:
        answer_A = torch.from_numpy(stack.answer).to(device)
        for column, length in enumerate(lengths):
            prompts = np.stack([stack.prompt(length, depth) for depth in depths])
            for first in range(0, len(depths), rows_at_once(length)):
                some_BT = torch.from_numpy(prompts[first : first + rows_at_once(length)]).to(device)
                decoded_BA, likely_B = answers(model, some_BT, answer_A)
                for row, (ids_A, likely) in enumerate(zip(decoded_BA.cpu().numpy(), likely_B.tolist(), strict=True)):
                    right = judged(decoded_text(tokenizer, ids_A), stack.needle.answer)
                    exact_RC[first + row, column] += right / len(stacks)
                    likely_RC[first + row, column] += likely / len(stacks)
                done += len(some_BT)
                progress(done, total)
    if not np.isfinite(likely_RC).all():
        raise UserError("the model's logits are not finite at this length; it diverged.")
    return Grid(list(depths), list(lengths), exact_RC, likely_RC)


@dataclass(frozen=True)
class NeedleEvaluation(Evaluation):
    name = "needle"
    what = "retrieval of one fact at any depth, in texts of any length"

    length: int = 0  # of the longest haystack; 0: as in training
    mode: str = "both"  # standard, easy or both
    lengths: int = 11  # how many, evenly spaced up to `length`
    depths: int = 11
    needles: int = 1  # different facts per cell

    def resolved(self, subject: Subject) -> NeedleEvaluation:
        self.require(self.mode in (*MODES, "both"), "mode", "standard, easy or both")
        self.require(1 <= self.needles <= len(NEEDLES), "needles", f"1 to {len(NEEDLES)}")
        self.require(self.lengths >= 1, "lengths", "at least 1")
        self.require(self.depths >= 1, "depths", "at least 1")
        return replace(self, length=self.length or subject.trained_length)

    def measure(self, subject: Subject, progress: OnCount = silent) -> dict[str, Any]:
        if subject.tokenizer is None:
            raise UserError("a needle is text: this evaluation needs the run's tokenizer.")
        model = subject.language_model
        check_length(model, self.length)
        modes = MODES if self.mode == "both" else (self.mode,)
        chosen = NEEDLES[: self.needles]
        shortest = max(
            Haystack(subject.tokenizer, subject.tokens[:1], needle, mode).shortest
            for needle in chosen
            for mode in modes
        )
        lengths = lengths_up_to(self.length, shortest, self.lengths)
        questions = len(lengths) * self.depths * len(chosen)
        result: dict[str, Any] = {"trained_length": subject.trained_length}
        for number, mode in enumerate(modes):
            grid = needle_grid(
                model,
                subject.tokenizer,
                subject.tokens[: self.length],
                lengths=lengths,
                depths=depths(self.depths),
                needles=chosen,
                mode=mode,
                device=next(model.parameters()).device,
                progress=partial(_report, progress, number * questions, len(modes) * questions),
            )
            result[mode] = {
                "score": grid.score,
                "mean_log_likelihood": float(grid.log_likelihood_RC.mean()),
                "lengths": list(grid.lengths),
                "depths": list(grid.depths),
                "exact": grid.exact_RC.tolist(),
                "log_likelihood": grid.log_likelihood_RC.tolist(),
            }
        return result

    def table(self, results: Results) -> ResultTable:
        """Exact matches by length, over all depths, and the means of both scores."""
        lengths = sorted({n for result in results.values() for mode in MODES if mode in result
                          for n in result[mode]["lengths"]})  # fmt: skip
        columns = {"run": "left", "mode": "left", "score": "right", "log p/token": "right"}
        columns |= {str(length): "right" for length in lengths}
        rows = []
        for run, result in results.items():
            for mode in (mode for mode in MODES if mode in result):
                by_length = dict(zip(result[mode]["lengths"], np.mean(result[mode]["exact"], axis=0), strict=True))
                cells = [f"{by_length[n]:.2f}" if n in by_length else "" for n in lengths]
                means = (f"{result[mode]['score']:.3f}", f"{result[mode]['mean_log_likelihood']:.3f}")
                rows.append([run, mode, *means, *cells])
        return columns, rows

    def figures(self, results: Results) -> dict[str, str]:
        drawn = {}
        for run, result in results.items():
            name = f"-{run}" if len(results) > 1 else ""
            for mode in (mode for mode in MODES if mode in result):
                grid = result[mode]
                exact_RC, likely_RC = np.array(grid["exact"]), np.array(grid["log_likelihood"])
                for judge, values_RC in (("exact match", exact_RC), ("likelihood per token", np.exp(likely_RC))):
                    title = f"Needle, {mode}: {judge}" + (f" ({run})" if name else "")
                    picture = _figure(values_RC, title, grid, result["trained_length"])
                    drawn[f"needle-{mode}-{judge.split()[0]}{name}"] = picture
        return drawn


def _report(progress: OnCount, before: int, all_modes: int, done: int, _one_mode: int) -> None:
    """One mode's progress as part of all modes'."""
    progress(before + done, all_modes)


def _figure(values_RC: np.ndarray, title: str, grid: dict[str, Any], trained: int) -> str:
    lengths = grid["lengths"]
    # The line of the trained length stands between the columns of the lengths around it.
    beyond = lengths[0] <= trained < lengths[-1]
    return heat_map(
        values_RC,
        title=title,
        x_label="text length, tokens",
        y_label="depth",
        x_ticks=[str(length) for length in lengths],
        y_ticks=[percent(depth) for depth in grid["depths"]],
        marker=sum(length <= trained for length in lengths) if beyond else -1,
        marker_label="trained length",
    )
