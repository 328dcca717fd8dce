"""SQuAD v1.1 (Rajpurkar et al. 2016, arXiv:1606.05250): its files, its official scores, and answers from logits.

`read_squad` refuses files that deviate from the published layout and names the place. `score` is the official
evaluation: answers are compared in lower case, without punctuation, articles and extra spaces; exact match and F1 over
words, the best over the reference answers, in per cent.

Any tokenizer works: the context is split into words and marks (a run of letters and digits, or one other character),
and each is encoded separately with the space before it, so that every token maps to known characters. Long
contexts become overlapping windows. An answer begins where a word begins and ends where a word ends; where windows
overlap, a word may begin an answer only in the window that shows most around it (BERT's "maximum context").
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from plait.core.errors import UserError
from plait.core.files import read_json
from plait.data.tokenizers import boundary_token
from plait.evals.finetune_loop import Row

if TYPE_CHECKING:
    from plait.data import Tokenizer


@dataclass(frozen=True)
class Answer:
    text: str
    start: int  # characters into the context


@dataclass(frozen=True)
class Question:
    id: str
    text: str
    context: str
    answers: tuple[Answer, ...]


def find_files(folder: Path) -> tuple[Path, Path]:
    """The train and dev file of a folder."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder} with SQuAD's files.")
    paths = []
    for split in ("train", "dev"):
        files = sorted(folder.glob(f"{split}*.json"))
        if len(files) != 1:
            names = ", ".join(file.name for file in files) or "none"
            raise UserError(f"{folder} should hold one {split}*.json (such as {split}-v1.1.json); found: {names}.")
        paths.append(files[0])
    return paths[0], paths[1]


def read_squad(path: Path) -> list[Question]:
    document = read_json(path)
    questions: list[Question] = []
    for a, article in enumerate(_get(document, "data", list, str(path))):
        for p, paragraph in enumerate(_get(article, "paragraphs", list, f"{path}: data[{a}]")):
            where = f"{path}: data[{a}].paragraphs[{p}]"
            context = _get(paragraph, "context", str, where)
            for q, qa in enumerate(_get(paragraph, "qas", list, where)):
                questions.append(_question(qa, context, f"{where}.qas[{q}]"))
    if not questions:
        raise UserError(f"{path} contains no question.")
    repeated = next((id for id, count in Counter(question.id for question in questions).items() if count > 1), None)
    if repeated is not None:
        raise UserError(f"{path}: two questions have the id '{repeated}'.")
    return questions


def _question(qa: Any, context: str, where: str) -> Question:
    answers = []
    for i, entry in enumerate(_get(qa, "answers", list, where)):
        at = f"{where}.answers[{i}]"
        answer = Answer(_get(entry, "text", str, at), _get(entry, "answer_start", int, at))
        if not answer.text or context[answer.start : answer.start + len(answer.text)] != answer.text:
            raise UserError(f"{at}: the context does not say '{answer.text}' at character {answer.start}.")
        answers.append(answer)
    if not answers:
        raise UserError(f"{where}: no answer; every question of SQuAD v1.1 has one (v2.0 is another format).")
    return Question(_get(qa, "id", str, where), _get(qa, "question", str, where), context, tuple(answers))


def _get(holder: Any, key: str, kind: type, where: str) -> Any:
    value = holder.get(key) if isinstance(holder, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        what = {list: "a list", str: "a string", int: "a whole number"}[kind]
        raise UserError(f"{where}: '{key}' should be {what}; found {type(value).__name__}.")
    return value


def normalized(answer: str) -> str:
    plain = "".join(letter for letter in answer.lower() if letter not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", plain).split())


def exact_match(predicted: str, truth: str) -> float:
    return float(normalized(predicted) == normalized(truth))


def word_f1(predicted: str, truth: str) -> float:
    ours, theirs = normalized(predicted).split(), normalized(truth).split()
    shared = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * shared / (len(ours) + len(theirs)) if shared else 0.0


def score(questions: Sequence[Question], predictions: Mapping[str, str]) -> dict[str, float]:
    """Official scores in per cent; a question without a prediction counts as wrong."""
    exact = f1 = 0.0
    for question in questions:
        if (predicted := predictions.get(question.id)) is not None:
            exact += max(exact_match(predicted, answer.text) for answer in question.answers)
            f1 += max(word_f1(predicted, answer.text) for answer in question.answers)
    return {"exact_match": 100 * exact / len(questions), "f1": 100 * f1 / len(questions)}


WORD = re.compile(r"\w+|[^\w\s]")
#: Number of candidate start and end positions per window.
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
    target: tuple[int, int]  # first and last token of the answer in the row; (0, 0) if not in this window

    def __len__(self) -> int:
        return len(self.row)


def read_passage(text: str, tokenizer: Tokenizer) -> Passage:
    words: list[tuple[int, int]] = []
    tokens: list[int] = []
    word_of: list[int] = []
    begins: list[bool] = []
    ends: list[bool] = []
    for word in WORD.finditer(text):
        start, end = word.span()
        spaced = " " if start and text[start - 1].isspace() else ""
        ids = [int(token) for token in tokenizer.encode(spaced + word[0])]
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
    """For every token of a passage, the window in which the smaller of its left and right contexts is largest."""
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
    """The best answers by the sum of the logits of their first and last tokens; `scores` is (T, 2) for each window."""
    owner = owners(windows, len(passage.tokens))
    scored: dict[tuple[int, int], float] = {}
    for w, (window, logits_T2) in enumerate(zip(windows, scores, strict=True)):
        inside = np.arange(window.start, window.start + window.count)
        part_T2 = logits_T2[window.offset : window.offset + window.count]
        firsts = _top(part_T2[:, 0], passage.begins[inside] & (owner[inside] == w))
        lasts = _top(part_T2[:, 1], passage.ends[inside])
        for first in firsts:
            for last in lasts:
                length = passage.word_of[inside[last]] - passage.word_of[inside[first]] + 1
                if first <= last and length <= LONGEST_ANSWER:
                    key = (int(inside[first]), int(inside[last]))
                    value = float(part_T2[first, 0] + part_T2[last, 1])
                    scored[key] = max(value, scored.get(key, -np.inf))
    ranked = sorted(scored.items(), key=lambda entry: -entry[1])[:n_best]
    return [Span(passage.slice(*key), value) for key, value in ranked]


def _top(scores_T: np.ndarray, allowed_T: np.ndarray) -> np.ndarray:
    places = np.flatnonzero(allowed_T)
    return places[np.argsort(-scores_T[places], kind="stable")[:TRIED]]
