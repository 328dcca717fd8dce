"""The token that stands between texts: before the first, between two, after the last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plait.core.errors import UserError

if TYPE_CHECKING:
    from plait.arch import Architecture
    from plait.data import Tokenizer


def boundary_token(tokenizer: Tokenizer) -> int:
    """End-of-text where the tokenizer has one, else what it makes of a line break."""
    if tokenizer.end is not None:
        return tokenizer.end
    line_break = tokenizer.encode("\n")
    return int(line_break[-1]) if len(line_break) else 0


def require_same_vocabulary(arch: Architecture, tokenizer: Tokenizer) -> None:
    """A tokenizer may leave ids of a (padded) vocabulary unused, but not the other way round."""
    if tokenizer.vocab > arch.header.vocab:
        raise UserError(
            f"the tokenizer has {tokenizer.vocab:,} tokens, the model only vocab={arch.header.vocab:,}: "
            "they do not belong together."
        )
