"""SQuAD v1.1 (Rajpurkar et al. 2016, arXiv:1606.05250): its JSON files, its official scores.

`read_squad` refuses what is not in the published layout and says where. `score` is the official evaluation: answers are
compared in lower case, without punctuation, articles and extra spaces; exact match and F1 over words, the best over
the reference answers, in per cent.
"""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plait.core.errors import UserError


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
    found = []
    for split in ("train", "dev"):
        files = sorted(folder.glob(f"{split}*.json"))
        if len(files) != 1:
            names = ", ".join(file.name for file in files) or "none"
            raise UserError(f"{folder} should hold one {split}*.json (such as {split}-v1.1.json); found: {names}.")
        found.append(files[0])
    return found[0], found[1]


def read_squad(path: Path) -> list[Question]:
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as wrong:
        raise UserError(f"{path} cannot be read: {wrong.strerror}.") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text.") from None
    except json.JSONDecodeError as wrong:
        raise UserError(f"{path}:{wrong.lineno}: not JSON: {wrong.msg} at column {wrong.colno}.") from None
    questions: list[Question] = []
    for a, article in enumerate(_get(document, "data", list, str(path))):
        for p, paragraph in enumerate(_get(article, "paragraphs", list, f"{path}: data[{a}]")):
            where = f"{path}: data[{a}].paragraphs[{p}]"
            context = _get(paragraph, "context", str, where)
            for q, qa in enumerate(_get(paragraph, "qas", list, where)):
                questions.append(_question(qa, context, f"{where}.qas[{q}]"))
    if not questions:
        raise UserError(f"{path} holds no question.")
    repeated = next((id for id, count in Counter(question.id for question in questions).items() if count > 1), None)
    if repeated is not None:
        raise UserError(f"{path}: two questions have the id '{repeated}'.")
    return questions


def _question(qa: Any, context: str, where: str) -> Question:
    answers = []
    for i, given in enumerate(_get(qa, "answers", list, where)):
        at = f"{where}.answers[{i}]"
        answer = Answer(_get(given, "text", str, at), _get(given, "answer_start", int, at))
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
