"""The text of a needle-in-a-haystack test: a fact hidden at a depth in filler, and a question about it at the end.

As in Lin et al. 2025, arXiv:2503.02130, section 4.3: *standard* hides a statement of the fact, *easy* hides the
question and "Answer:" with it, so that the end of the text repeats what came before and copying is enough. The needle
goes in after the last "." before its depth. Filler and needle together have the stated length less a reserve for the
question and the answer: 200 tokens, or a fifth of lengths below 1000, but never less than those two need.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from plait.core.errors import UserError

MODES = ("standard", "easy")
RESERVE = 200


class Writer(Protocol):
    """The part of a tokenizer that the evaluation uses."""

    @property
    def vocab(self) -> int: ...

    def encode(self, text: str) -> np.ndarray: ...

    def decode(self, ids: np.ndarray) -> str: ...


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
        if mode not in MODES:
            raise UserError(f"unknown mode '{mode}' of a haystack; known: {', '.join(MODES)}.")
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


def stops(tokenizer: Writer, tokens: np.ndarray) -> np.ndarray:
    """Which tokens end with a full stop."""
    kinds = np.unique(tokens)
    ending = [kind for kind in kinds if tokenizer.decode(np.array([kind])).rstrip().endswith(".")]
    return np.isin(tokens, np.array(ending, dtype=np.int64))


def plain(text: str) -> str:
    """The text with single spaces between words: tokenizers treat blanks differently."""
    return " ".join(text.split())


def judged(written: str, answer: str) -> bool:
    """Exact match: whether the decoded text begins with the answer, word for word."""
    written, answer = plain(written), plain(answer)
    return written.startswith(answer) and not written[len(answer) : len(answer) + 1].isalnum()


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
