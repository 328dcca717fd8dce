"""SQuAD's file, its official scores, and the way from characters to tokens and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plait.core.errors import UserError
from plait.evals import squad as spans
from plait.evals.finetune_loop import Row
from plait.evals.squad import (
    Answer,
    Question,
    Window,
    best_spans,
    exact_match,
    find_files,
    normalized,
    owners,
    read_passage,
    read_squad,
    score,
    windows_of,
    word_f1,
)


class Pairs:
    """Two letters a token, so that words and tokens never coincide by luck."""

    vocab = 128 * 128 + 1
    end = 128 * 128

    def encode(self, text: str) -> np.ndarray:
        codes = [ord(letter) % 128 for letter in text]
        return np.array(
            [a * 128 + b for a, b in zip(codes[::2], [*codes[1::2], 0], strict=False)][: -(-len(codes) // 2)],
            dtype=np.int64,
        )


CONTEXT = 'The Amazon (5,500,000 km2)\nholds "390 billion" trees. It rains.'


def question(text: str, nth: int = 0) -> Question:
    start = -1
    for _ in range(nth + 1):
        start = CONTEXT.index(text, start + 1)
    return Question("q", "How many?", CONTEXT, (Answer(text, start),))


def document(**changes: Any) -> dict[str, Any]:
    qa = {"id": "1", "question": "Who?", "answers": [{"text": "Ann", "answer_start": 0}], **changes}
    return {"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": "Ann ran.", "qas": [qa]}]}]}


def test_reads_the_published_layout(tmp_path: Path) -> None:
    for name in ("train-v1.1.json", "dev-v1.1.json"):
        (tmp_path / name).write_text(json.dumps(document()))
    train, dev = find_files(tmp_path)
    assert (train.name, dev.name) == ("train-v1.1.json", "dev-v1.1.json")
    assert read_squad(train) == [Question("1", "Who?", "Ann ran.", (Answer("Ann", 0),))]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"data": [\n{"paragraphs": }]}', "train.json cannot be read: invalid JSON in line 2"),
        ("[]", "'data' should be a list; found NoneType"),
        ('{"data": [{}]}', "data[0]: 'paragraphs' should be a list"),
        ('{"data": []}', "contains no question"),
        (json.dumps(document(id=7)), "data[0].paragraphs[0].qas[0]: 'id' should be a string; found int"),
        (json.dumps(document(answers=[])), "no answer; every question of SQuAD v1.1 has one"),
        (
            json.dumps(document(answers=[{"text": "Ann", "answer_start": 1}])),
            "qas[0].answers[0]: the context does not say 'Ann' at character 1",
        ),
        (json.dumps(document(answers=[{"text": "Ann", "answer_start": True}])), "'answer_start' should be a whole"),
    ],
)
def test_malformed_files(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "train.json").write_text(text)
    with pytest.raises(UserError) as raised:
        read_squad(tmp_path / "train.json")
    assert message in str(raised.value)


def test_files_must_be_there_and_ids_unique(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no folder"):
        find_files(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"should hold one train\*\.json"):
        find_files(tmp_path)
    twice = document()
    twice["data"] *= 2
    (tmp_path / "dev.json").write_text(json.dumps(twice))
    with pytest.raises(UserError, match="two questions have the id '1'"):
        read_squad(tmp_path / "dev.json")


def test_official_scores_by_hand() -> None:
    assert normalized("The  Cat's (a) Hat!") == "cats hat"
    assert normalized("another theatre") == "another theatre"  # articles are whole words
    assert exact_match("the cat", "Cat.") == 1.0
    # "big red dog" against "red dog house": two words shared of three and three
    assert word_f1("big red dog", "a red dog, house") == pytest.approx(2 * (2 / 3) * (2 / 3) / (4 / 3))
    assert word_f1("red red", "red") == pytest.approx(2 / 3)
    assert word_f1("the", "the") == 0.0  # nothing is left of either
    asked = [
        Question("1", "", "", (Answer("Ann", 0), Answer("Ann Lee", 0))),
        Question("2", "", "", (Answer("in May", 0),)),
        Question("3", "", "", (Answer("no one", 0),)),
        Question("4", "", "", (Answer("x", 0),)),
    ]
    found = score(asked, {"1": "ann lee", "2": "May", "3": "all"})  # the fourth is missing: wrong
    assert found == {"exact_match": pytest.approx(25.0), "f1": pytest.approx(100 * (1 + 2 / 3) / 4)}


@pytest.mark.parametrize(
    ("answer", "nth", "covers"),
    [
        ("5,500,000", 0, "5,500,000"),
        ("5,500,000 km2", 0, "5,500,000 km2"),
        ("390 billion", 0, "390 billion"),
        ('"390 billion"', 0, '"390 billion"'),
        ("trees", 0, "trees"),
        ("rain", 0, "rains"),  # half a word becomes the word
        ("The", 0, "The"),
        (".", 1, "."),
    ],
)
@pytest.mark.parametrize("length", [24, 32, 200])
def test_answers_survive_the_way_to_tokens_and_back(answer: str, nth: int, covers: str, length: int) -> None:
    asked, passage = question(answer, nth), read_passage(CONTEXT, Pairs())
    assert passage.slice(*passage.token_span(asked.answers[0])) == covers
    windows = windows_of(asked, passage, Pairs(), length)
    assert all(len(window) <= length for window in windows)
    seen: set[int] = set()
    for window in windows:
        part = window.row.tokens[window.offset : window.offset + window.count]
        assert part == passage.tokens[window.start : window.start + window.count]
        assert window.row.tokens[0] == window.row.tokens[window.offset - 1] == window.row.tokens[-1] == Pairs.end
        assert window.row.segments == [0] * window.offset + [1] * (window.count + 1)
        seen |= set(range(window.start, window.start + window.count))
        if window.target != (0, 0):
            assert window.row.tokens[window.target[0] : window.target[1] + 1] == passage.tokens[
                slice(passage.token_span(asked.answers[0])[0], passage.token_span(asked.answers[0])[1] + 1)
            ]  # fmt: skip
    assert seen == set(range(len(passage.tokens)))
    # Perfect scores decode to the answer.
    perfect = []
    for window in windows:
        logits_T2 = np.zeros((len(window), 2))
        if window.target != (0, 0):
            logits_T2[window.target[0], 0] = logits_T2[window.target[1], 1] = 9.0
        perfect.append(logits_T2)
    assert best_spans(passage, windows, perfect)[0].text == covers


def window(start: int, count: int) -> Window:
    return Window(Row([0] * (count + 3), [0] * (count + 3)), offset=2, start=start, count=count, target=(0, 0))


def test_a_token_belongs_to_the_window_that_shows_most_around_it() -> None:
    # Token 5 has 0 tokens to the right in the first window and 1 to the left in the second.
    assert owners([window(0, 6), window(4, 6)], 10).tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]
    passage = read_passage("a b c d e f g h i j", Pairs())
    low, high = np.zeros((9, 2)), np.zeros((9, 2))
    low[2 + 5, 0] = 50.0  # "f" in the window it does not belong to: not heard
    high[2 + 1, 0] = high[2 + 2, 1] = 1.0
    assert best_spans(passage, [window(0, 6), window(4, 6)], [low, high])[0].text == "f g"


def test_decoding_keeps_to_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    passage = read_passage("one two three four", Pairs())
    (whole,) = [window(0, len(passage.tokens))]
    logits_T2 = np.zeros((len(whole), 2))
    begins, ends = np.flatnonzero(passage.begins) + 2, np.flatnonzero(passage.ends) + 2
    logits_T2[begins[2], 0] = 5.0
    logits_T2[ends[0], 1] = 4.0  # before the beginning: no answer
    logits_T2[ends[3], 1] = 3.0
    logits_T2[begins[3] + 1, 0] = 99.0  # inside a word
    best = best_spans(passage, [whole], [logits_T2], n_best=3)
    assert best[0] == ("three four", 8.0)
    assert [span.score for span in best] == sorted((span.score for span in best), reverse=True)
    assert len({span.text for span in best}) == len(best) == 3
    monkeypatch.setattr(spans, "LONGEST_ANSWER", 1)
    assert best_spans(passage, [whole], [logits_T2])[0].text == "three"
