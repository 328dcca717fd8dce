"""Prompts are built as stated; a model that copies finds every needle, one that cannot finds none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from plait.core.errors import UserError
from plait.evals.evaluation import Subject
from plait.evals.needle import (
    NEEDLES,
    Haystack,
    NeedleEvaluation,
    answers,
    depths,
    lengths_up_to,
    needle_grid,
)
from plait.evals.questions import judged, stops

from .conftest import Letters, language_model

LETTERS = Letters()
FILLER = LETTERS.encode(
    "Rain fell on the roofs of the town. The market opened late. A boy counted the boats that came in. "
    "By noon the sun was out and the stones had dried. Two women argued about the price of plums. "
)


class Copier:
    """A planted reader: it finds the last place where the text ended like this before, and goes on as it did there.

    That is all that the easy mode asks for. In the standard mode the question stands nowhere in the text, and the
    copier is told the one rule that it needs: after "Answer:" begin with the needle's answer.
    """

    def __init__(self, answer: str = "") -> None:
        self.answer = answer

    def init_state(self, batch: int) -> list[list[int]]:
        return [[] for _ in range(batch)]

    def extend(self, tokens_BT: Tensor, state: list[list[int]]) -> tuple[Tensor, list[list[int]]]:
        rows = [list(row) for row in state]
        scores = torch.zeros(*tokens_BT.shape, LETTERS.vocab)
        for b, new in enumerate(tokens_BT.tolist()):
            for t, token in enumerate(new):
                rows[b].append(token)
                scores[b, t, self.next(rows[b])] = 30.0
        return scores, rows

    def next(self, seen: list[int]) -> int:
        text = LETTERS.decode(np.array(seen))
        asked = text.rfind("Answer:")
        if self.answer and asked >= 0 and self.answer in text[:asked]:
            return ord(f" {self.answer}.".removeprefix(text[asked + 7 :])[:1] or ".")
        suffix = text[-20:]
        before = text.rfind(suffix, 0, len(text) - 1)
        return ord(text[before + len(suffix)]) if before >= 0 else ord("x")


class Deaf(Copier):
    """Writes the same letter whatever it reads."""

    def next(self, seen: list[int]) -> int:
        return ord("e")


def grid(model: Any, mode: str, **options: Any) -> Any:
    return needle_grid(model, LETTERS, FILLER, lengths=[300, 420], depths=depths(3), mode=mode, **options)


def test_a_copier_finds_every_easy_needle() -> None:
    found = grid(Copier(), "easy", needles=NEEDLES)
    assert found.exact_RC.shape == (3, 2)
    assert found.score == 1.0
    assert found.log_likelihood_RC.min() > -1e-6


def test_a_copier_that_knows_what_is_asked_finds_every_standard_needle() -> None:
    assert grid(Copier(NEEDLES[0].answer), "standard").score == 1.0
    assert grid(Copier(), "standard").score == 0.0  # copying alone is not enough there


def test_the_deaf_find_nothing() -> None:
    for mode in ("easy", "standard"):
        found = grid(Deaf(), mode)
        assert found.score == 0.0
        assert found.log_likelihood_RC.max() < -10


@pytest.mark.parametrize("rows", [1, 8])
def test_a_needle_is_found_only_where_it_is_seen(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copier with a short memory finds what stands near the end: the grid's rows are depths, its columns lengths."""

    class Forgetful(Copier):
        def next(self, seen: list[int]) -> int:
            return super().next(seen[-250:])

    monkeypatch.setattr("plait.evals.needle.rows_at_once", lambda length: rows)
    found = needle_grid(Forgetful(), LETTERS, FILLER, lengths=[300, 700], depths=[0.0, 0.9], mode="easy")
    assert found.exact_RC.tolist() == [[1.0, 0.0], [1.0, 1.0]]


@pytest.mark.parametrize("mode", ["standard", "easy"])
def test_a_prompt_holds_filler_needle_and_question(mode: str) -> None:
    stack = Haystack(LETTERS, FILLER, NEEDLES[0], mode)
    prompts = {depth: stack.prompt(1200, depth) for depth in depths(5)}
    assert {len(prompt) for prompt in prompts.values()} == {1200 - 200 + len(stack.asked)}
    for depth, prompt in prompts.items():
        text = LETTERS.decode(prompt)
        hidden = f" {NEEDLES[0].hidden(mode)}"
        at = text.index(hidden)
        assert text.endswith(f" {NEEDLES[0].question} Answer:")
        room = 1000 - len(hidden)
        rest = text[:at] + text[at + len(hidden) : -len(stack.asked)]
        assert rest == (LETTERS.decode(FILLER) * 9)[:room]
        # After the last full stop at or before the depth; the end is the end.
        place = round(depth * room)
        assert at == (place if depth == 1 else rest.rfind(".", 0, place) + 1)


def test_without_a_full_stop_the_needle_stands_first() -> None:
    stack = Haystack(LETTERS, LETTERS.encode("no stop here "), NEEDLES[0])
    assert LETTERS.decode(stack.prompt(400, 0.5)).startswith(f" {NEEDLES[0].statement}")


def test_short_haystacks_keep_a_smaller_reserve() -> None:
    stack = Haystack(LETTERS, FILLER, NEEDLES[0])
    needed = len(stack.asked) + len(stack.answer)
    assert len(stack.prompt(500, 0.5)) == 500 - max(100, needed) + len(stack.asked)
    assert len(stack.prompt(stack.shortest, 0.5)) + len(stack.answer) == stack.shortest
    with pytest.raises(UserError, match=f"at least {stack.shortest}"):
        stack.prompt(stack.shortest - 1, 0.5)


def test_stops_are_found_however_words_are_cut() -> None:
    class Pieces(Letters):
        def decode(self, ids: np.ndarray) -> str:
            return "".join(["a", ".", " b.\n", "c.d"][int(i)] for i in ids)

    assert stops(Pieces(), np.array([0, 1, 2, 3, 1])).tolist() == [False, True, True, False, True]


@pytest.mark.parametrize(
    ("written", "right"),
    [
        ("in the barn", True),
        ("  in  the\nbarn. And", True),
        ("in the barns", False),
        ("in the", False),
        ("it is in the barn", False),
        ("In the barn", False),
    ],
)
def test_the_judge(written: str, right: bool) -> None:
    assert judged(written, "in the barn") is right


def test_lengths_are_the_papers_by_default() -> None:
    assert lengths_up_to(32000, 300, 11) == [1000 + 3100 * k for k in range(11)]
    assert lengths_up_to(500, 300, 3) == [300, 400, 500]
    with pytest.raises(UserError, match="at least 300"):
        lengths_up_to(200, 300, 3)


def test_every_needle_states_its_answer() -> None:
    for needle in NEEDLES:
        assert needle.answer in needle.statement
        assert needle.question.endswith("?")


def test_a_tokenizer_that_cannot_write_the_answer_is_refused() -> None:
    class Unknowing(Letters):
        def encode(self, text: str) -> np.ndarray:
            return super().encode("?" * len(text))

    with pytest.raises(UserError, match="cannot write"):
        Haystack(Unknowing(), FILLER, NEEDLES[0])


def test_answers_of_a_model_equal_its_forward_pass() -> None:
    model = language_model("d=16 vocab=128 | attn[heads=2 forget=full pos=none] mlp[inner=16]")
    prompts, answer = torch.randint(128, (2, 700)), torch.randint(128, (5,))  # the prompt is read in two parts
    decoded, likely = answers(model, prompts, answer)
    with torch.no_grad():
        log_p = model(torch.cat([prompts, answer.expand(2, -1)], dim=1))[:, 699:-1].log_softmax(-1)
        forced = log_p.gather(-1, answer.expand(2, -1)[..., None]).mean(dim=(1, 2))
        continued = model(torch.cat([prompts, decoded], dim=1))[:, 699:-1].argmax(-1)
    torch.testing.assert_close(likely, forced)
    assert torch.equal(decoded, continued)


def test_ids_that_only_the_model_has_are_not_decoded() -> None:
    class Beyond(Deaf):
        def extend(self, tokens_BT: Tensor, state: Any) -> tuple[Tensor, Any]:
            scores, state = super().extend(tokens_BT, state)
            return torch.nn.functional.pad(scores, (0, 1), value=99.0), state

    assert grid(Beyond(), "easy").score == 0.0


def test_the_evaluation() -> None:
    model = language_model("d=16 vocab=128 | attn[heads=2] mlp[inner=16]")
    subject = Subject(model, FILLER, trained_length=320, tokenizer=LETTERS)  # type: ignore[arg-type]
    made = NeedleEvaluation(length=400, lengths=2, depths=2, needles=2).resolved(subject)
    seen: list[tuple[int, int]] = []
    found = made.measure(subject, lambda *at: seen.append(at))
    assert seen[-1] == (16, 16)
    assert set(found) == {"trained_length", "standard", "easy"}
    assert np.shape(found["easy"]["exact"]) == (2, 2)
    columns, rows = made.table({"a": found})
    assert [len(row) for row in rows] == [len(columns)] * 2
    pictures = made.figures({"a": found})
    assert set(pictures) == {
        f"needle-{mode}-{judge}" for mode in ("standard", "easy") for judge in ("exact", "likelihood")
    }
    assert "trained length" in pictures["needle-easy-exact"]
    with pytest.raises(UserError, match="tokenizer"):
        made.measure(Subject(model, FILLER, trained_length=320))
