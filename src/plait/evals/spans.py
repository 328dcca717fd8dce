"""Questions and contexts as windows of tokens, and scores of tokens back to answers.

Any tokenizer will do: the context is cut into words and marks (a run of letters and digits, or one other character),
each is encoded by itself with the space before it, and so every token knows which characters it stands for. Long
contexts become overlapping windows. An answer begins where a word begins and ends where a word ends; where windows
overlap, a word may begin an answer only in the window that shows most around it (BERT's "maximum context").
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from plait.core.errors import UserError
from plait.data.tokenizer import boundary_token
from plait.evals.finetune_loop import Row
from plait.evals.squad import Answer, Question

if TYPE_CHECKING:
    from plait.data import Tokenizer

WORD = re.compile(r"\w+|[^\w\s]")
#: Positions tried as beginning and as end in every window.
TRIED = 20
LONGEST_ANSWER = 30  # words


class Span(NamedTuple):
    text: str
    score: float


@dataclass(frozen=True)
class Passage:
    """A context's words and tokens."""

    text: str
    words: list[tuple[int, int]]  # characters [from, to)
    tokens: list[int]
    word_of: np.ndarray  # of each token
    begins: np.ndarray  # whether a token is its word's first
    ends: np.ndarray  # … or last

    def token_span(self, answer: Answer) -> tuple[int, int]:
        """First and last token of the words that an answer touches."""
        stop = answer.start + len(answer.text)
        touched = [w for w, (start, end) in enumerate(self.words) if end > answer.start and start < stop]
        if not touched:
            raise UserError(f"the answer '{answer.text}' at character {answer.start} holds no word.")
        (first,) = np.flatnonzero((self.word_of == touched[0]) & self.begins)
        (last,) = np.flatnonzero((self.word_of == touched[-1]) & self.ends)
        return int(first), int(last)

    def slice(self, first: int, last: int) -> str:
        return self.text[self.words[self.word_of[first]][0] : self.words[self.word_of[last]][1]]


@dataclass(frozen=True)
class Window:
    """One row for the model: boundary, question, boundary, part of the context, boundary."""

    row: Row
    offset: int  # of the first context token in the row
    start: int  # of that token in the passage
    count: int  # context tokens
    target: tuple[int, int]  # first and last token of the answer in the row; (0, 0) where it is not in this window

    def __len__(self) -> int:
        return len(self.row)


def read_passage(text: str, tokenizer: Tokenizer) -> Passage:
    words: list[tuple[int, int]] = []
    tokens: list[int] = []
    word_of: list[int] = []
    begins: list[bool] = []
    ends: list[bool] = []
    for found in WORD.finditer(text):
        start, end = found.span()
        spaced = " " if start and text[start - 1].isspace() else ""
        ids = [int(token) for token in tokenizer.encode(spaced + found[0])]
        if not ids:
            continue
        word_of += [len(words)] * len(ids)
        begins += [i == 0 for i in range(len(ids))]
        ends += [i == len(ids) - 1 for i in range(len(ids))]
        words.append((start, end))
        tokens += ids
    return Passage(text, words, tokens, np.array(word_of, int), np.array(begins, bool), np.array(ends, bool))


def windows_of(question: Question, passage: Passage, tokenizer: Tokenizer, max_len: int) -> list[Window]:
    """A question takes at most a quarter of a row; windows overlap by two thirds of a row (BERT: 384 and 128)."""
    between = boundary_token(tokenizer)
    asked = [int(token) for token in tokenizer.encode(question.text)][: max_len // 4]
    head = [between, *asked, between]
    room = max_len - len(head) - 1
    stride = min(room, max(1, max_len // 3))
    first, last = passage.token_span(question.answers[0])
    windows = []
    for start in range(0, max(1, len(passage.tokens) - room + stride), stride):
        part = passage.tokens[start : start + room]
        inside = start <= first and last < start + len(part)
        shift = len(head) - start
        windows.append(
            Window(
                Row([*head, *part, between], [0] * len(head) + [1] * (len(part) + 1)),
                offset=len(head),
                start=start,
                count=len(part),
                target=(first + shift, last + shift) if inside else (0, 0),
            )
        )
    return windows


def owners(windows: Sequence[Window], tokens: int) -> np.ndarray:
    """For every token of a passage, the window with most context on its poorer side."""
    best = np.full(tokens, -1.0)
    owner = np.zeros(tokens, dtype=int)
    for w, window in enumerate(windows):
        at = np.arange(window.count)
        # The longer window wins among equals.
        context = np.minimum(at, window.count - 1 - at) + 0.01 * window.count
        here = slice(window.start, window.start + window.count)
        better = context > best[here]
        best[here][better] = context[better]
        owner[here][better] = w
    return owner


def best_spans(
    passage: Passage, windows: Sequence[Window], scores: Sequence[np.ndarray], n_best: int = 20
) -> list[Span]:
    """The best answers by the sum of their first token's and last token's score; `scores` is (T, 2) a window."""
    owner = owners(windows, len(passage.tokens))
    found: dict[tuple[int, int], float] = {}
    for w, (window, scores_T2) in enumerate(zip(windows, scores, strict=True)):
        inside = np.arange(window.start, window.start + window.count)
        part_T2 = scores_T2[window.offset : window.offset + window.count]
        firsts = _top(part_T2[:, 0], passage.begins[inside] & (owner[inside] == w))
        lasts = _top(part_T2[:, 1], passage.ends[inside])
        for first in firsts:
            for last in lasts:
                length = passage.word_of[inside[last]] - passage.word_of[inside[first]] + 1
                if first <= last and length <= LONGEST_ANSWER:
                    key = (int(inside[first]), int(inside[last]))
                    value = float(part_T2[first, 0] + part_T2[last, 1])
                    found[key] = max(value, found.get(key, -np.inf))
    ranked = sorted(found.items(), key=lambda entry: -entry[1])[:n_best]
    return [Span(passage.slice(*key), value) for key, value in ranked]


def _top(scores_T: np.ndarray, allowed_T: np.ndarray) -> np.ndarray:
    places = np.flatnonzero(allowed_T)
    return places[np.argsort(-scores_T[places], kind="stable")[:TRIED]]
