"""A question about a long text: its prompt, filled to an exact number of tokens, the expected answers, and a model's
answer by greedy decoding.

Letters: B batch, T time, V vocabulary, A decoded tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from plait.core.errors import UserError


class Writer(Protocol):
    """The part of a tokenizer that the evaluation uses."""

    @property
    def vocab(self) -> int: ...

    def encode(self, text: str) -> np.ndarray: ...

    def decode(self, ids: np.ndarray) -> str: ...


def plain(text: str) -> str:
    """The text with single spaces between words: tokenizers treat blanks differently."""
    return " ".join(text.split())


def stops(tokenizer: Writer, tokens: np.ndarray) -> np.ndarray:
    """Which tokens end with a full stop."""
    kinds = np.unique(tokens)
    ending = [kind for kind in kinds if tokenizer.decode(np.array([kind])).rstrip().endswith(".")]
    return np.isin(tokens, np.array(ending, dtype=np.int64))


def judged(written: str, answer: str) -> bool:
    """Exact match: whether the decoded text begins with the answer, word for word."""
    written, answer = plain(written), plain(answer)
    return written.startswith(answer) and not written[len(answer) : len(answer) + 1].isalnum()


class TooShort(UserError):
    """Raised for a length that is too short for this kind of question; `least` is long enough."""

    def __init__(self, what: str, length: int, least: int) -> None:
        super().__init__(f"{what} needs at least {least} tokens, not {length}; give a larger --length.")
        self.least = least


@dataclass(frozen=True)
class Question:
    """A prompt in tokens, and the texts that its continuation must contain. `chance` is the expected score of a guess
    among the things of the right kind that occur in the text or, if there are no wrong ones in it, among all."""

    prompt: np.ndarray
    answers: tuple[str, ...]
    chance: float


NEEDED = "They need one that keeps letters, digits and punctuation, such as bytes or a BPE."


def written(tokenizer: Writer, text: str) -> np.ndarray:
    """The tokens of a piece of a question."""
    try:
        return np.asarray(tokenizer.encode(text), np.int64)
    except UserError as refused:
        raise UserError(f"this tokenizer cannot write the questions: {refused} {NEEDED}") from None


class Script:
    """A tokenizer, and the filler that is put around questions."""

    def __init__(self, tokenizer: Writer, filler: np.ndarray) -> None:
        self.tokenizer, self.filler = tokenizer, np.asarray(filler, np.int64)

    def encode(self, text: str) -> np.ndarray:
        """The tokens of a text, which must decode to the same text."""
        tokens = written(self.tokenizer, text)
        back = plain(self.tokenizer.decode(tokens))
        if back != plain(text):
            raise UserError(
                f"this tokenizer cannot write the questions: '{plain(text)[:40]}' comes back as '{back[:40]}'. {NEEDED}"
            )
        return tokens

    def room(self, answer: str, answers: int = 1) -> int:
        """How many tokens are decoded: twice what so many answers like this one need, since a model may generate
        other words around them. It is the same for all questions of a kind, so that their prompts have one length."""
        return 2 * answers * len(self.encode(f" {answer},")) + 8

    def fill(self, room: int) -> np.ndarray:
        """The last `room` tokens of the filler."""
        if not len(self.filler):
            raise UserError("there is no filler text: the text given is empty.")
        return np.tile(self.filler, -(-room // len(self.filler)))[-room:] if room else self.filler[:0]

    def hay(self, room: int) -> tuple[np.ndarray, np.ndarray]:
        """So many tokens of filler, and the positions right after full stops (all, if it has none)."""
        hay = self.fill(room)
        is_stop = np.tile(self._stops, -(-room // len(self.filler)))[-room:] if room else self._stops[:0]
        places = np.flatnonzero(is_stop) + 1
        return hay, places if len(places) else np.arange(room + 1)

    @cached_property
    def _stops(self) -> np.ndarray:
        return stops(self.tokenizer, self.filler)

    def filled(self, body: np.ndarray, room: int, what: str, length: int) -> np.ndarray:
        """The body with filler in front, `length - room` tokens in all."""
        spare = length - room - len(body)
        if spare < 0:
            raise TooShort(what, length, length - spare)
        return np.concatenate([self.fill(spare), body])


#: Draws one question of a length in tokens, the room to answer included.
Asks = Callable[[Script, np.random.Generator, int], Question]


PREFILL = 1024  # tokens read at a time over all rows, which bounds the logits in memory


class Reader(Protocol):
    """The part of a model's interface that the evaluation uses; the language models of `plait.model` have it."""

    def init_state(self, batch: int) -> Any: ...

    def extend(self, tokens_BT: Tensor, state: Any) -> tuple[Tensor, Any]: ...


@torch.no_grad()
def read_prompts(model: Reader, prompts_BT: Tensor) -> tuple[Tensor, Any]:
    """Logits of the next token after prompts of one length, (B, V), and the model's state there."""
    state = model.init_state(len(prompts_BT))
    for part_BT in prompts_BT.split(max(1, PREFILL // len(prompts_BT)), dim=1):
        logits_BTV, state = model.extend(part_BT, state)
    return logits_BTV[:, -1], state


@torch.no_grad()
def decode_greedily(model: Reader, next_BV: Tensor, state: Any, tokens: int) -> Tensor:
    """The next tokens, (B, A), each the most likely given those before. `next_BV` and `state` are of `read_prompts`;
    the state is not changed in place, so a prompt that was read once can be continued several times."""
    decoded = []
    for _ in range(tokens):
        if not torch.isfinite(next_BV.amax(dim=-1)).all():
            raise UserError("the model's logits are not finite at this length; it diverged.")
        decoded.append(next_BV.argmax(dim=-1))
        logits_BTV, state = model.extend(decoded[-1][:, None], state)
        next_BV = logits_BTV[:, -1]
    return torch.stack(decoded, dim=1)


def decoded_text(tokenizer: Writer, ids_A: np.ndarray) -> str:
    """The text of decoded tokens, up to the first id that the tokenizer does not have: a model's vocabulary may be
    rounded up."""
    unknown = np.flatnonzero(ids_A >= tokenizer.vocab)
    return tokenizer.decode(ids_A[: unknown[0]] if len(unknown) else ids_A)
