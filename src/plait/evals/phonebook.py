"""Phonebook: a list of names with numbers, then one name; its number must be written digit by digit.

Jelassi et al. 2024, arXiv:2402.01032, Sec. 4.2: entries `First Last: dddddddddd` in lines, two of them again as
examples of what is asked, then the name. Scored by exact match.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from plait.core.errors import UserError
from plait.evals.evaluation import Subject
from plait.evals.long_context import LongContextEvaluation
from plait.evals.questions import Asks, Question, Script, TooShort, judged, written

_FIRST = """
Ada Alan Amos Anna Arne Bea Boris Carl Celia Clara Cyrus Dana David Dora Edgar Edith Elena Emil Erik Faye Felix Flora
Frank Gina Glen Grace Greta Hanna Hector Helen Henry Hugo Ida Igor Irene Ivan Jack Jane Jonas Julia Karl Kate Lars
Laura Leon Lily Lucas Mara Mark Mary Milo Nadia Nina Noel Olga Oscar Paula Peter Rosa Ruth Sara Simon Tara Theo Una
Vera Walter Yara Zoe
"""
FIRST = tuple(_FIRST.split())
_LAST = """
Abbot Adler Baker Barlow Becker Berg Bishop Blake Bower Brandt Carver Clark Cole Cooper Crane Dale Draper Ellis Ezra
Farmer Finch Fisher Foster Frost Gale Garner Glover Grant Hale Harper Hayes Holt Hunter Jensen Keller Knight Lang
Larsen Lowe Marsh Mason Mercer Miller Moss Nash North Olsen Parker Pike Porter Quinn Reed Rowe Sawyer Shaw Stone
Tanner Thorn Vance Wagner Walsh Weaver Webb West Wolf York
"""
LAST = tuple(_LAST.split())
EXAMPLES = 2


def phonebook(script: Script, stream: np.random.Generator, length: int) -> Question:
    """A question with as many entries as fit."""
    order = stream.permutation(len(FIRST) * len(LAST))

    def entry(i: int) -> tuple[str, str]:
        first, last = divmod(int(order[i]), len(LAST))
        digits = "".join(str(digit) for digit in (stream.integers(6, 10), *stream.integers(10, size=9)))
        return f"{FIRST[first]} {LAST[last]}:", f" {digits}"

    entries: list[tuple[str, str]] = []
    pieces: list[np.ndarray] = []
    used, blank, room = 0, script.encode("\n"), script.room("6718293405")
    while len(entries) < len(order):
        name, digits = entry(len(entries))
        piece = script.encode(f"{name}{digits}\n")
        # In addition to the entries so far: the examples, two blank lines, the name asked for and room for the answer.
        more = len(piece) + (EXAMPLES + 1) * len(piece) + 2 * len(blank) + room
        if used + more > length:
            break
        entries.append((name, digits))
        pieces.append(piece)
        used += len(piece)
    if len(entries) <= EXAMPLES:
        raise TooShort("phonebook", length, (EXAMPLES + 1 - len(entries)) * len(piece) + used + more)
    chosen = stream.choice(len(entries), EXAMPLES + 1, replace=False)
    name, digits = entries[chosen[0]]
    examples = [pieces[i] for i in chosen[1:]]
    body = np.concatenate([*pieces, blank, *examples, blank, script.encode(name)])
    return Question(script.filled(body, room, "phonebook", length), (digits.strip(),), 1 / len(entries))


@dataclass(frozen=True)
class PhonebookEvaluation(LongContextEvaluation):
    name = "phonebook"
    what = "the number of one name in a long list, by generation"

    def judged(self, text: str, answers: Sequence[str]) -> float:
        return float(judged(text, answers[0]))

    def asked(self) -> dict[str, Asks]:
        return {"phonebook": phonebook}

    def filler(self, subject: Subject) -> np.ndarray:
        if subject.tokenizer is None:
            raise UserError("a phonebook is text: this evaluation needs the run's tokenizer.")
        return written(subject.tokenizer, "\n")
