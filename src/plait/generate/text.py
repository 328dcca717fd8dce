"""Text as it is generated, without ever showing half a character.

A token of a byte-level vocabulary may end inside a UTF-8 character; decoded alone, such a tail becomes U+FFFD. Only the
last character of a text can be unfinished in that way, so that one is held back until the next token settles it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

UNFINISHED = "\N{REPLACEMENT CHARACTER}"

#: Tokens that are decoded again with the new one: spaces between words depend on what stands before.
CONTEXT = 8


class TextStream:
    """`push` tokens and show what comes back; `finish` gives what was held back."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._tokens: list[int] = []  # the newest ones
        self._shown = ""  # what of their text is out already

    def push(self, token: int) -> str:
        """The text that this token makes certain."""
        self._tokens.append(token)
        text = self._decode(self._tokens)
        new = self._show(text.removesuffix(UNFINISHED))
        if len(self._tokens) > 4 * CONTEXT and not text.endswith(UNFINISHED):
            # Forget the older ones, or every token would cost as much as the text is long.
            self._tokens = self._tokens[-CONTEXT:]
            self._shown = self._decode(self._tokens)
        return new

    def finish(self) -> str:
        """What is left at the end of the text, finished or not."""
        return self._show(self._decode(self._tokens)) if self._tokens else ""

    def _show(self, text: str) -> str:
        new = text[len(self._shown) :]
        self._shown = text
        return new
