"""−log p of every token, for any model, length and device.

A long sequence is read in chunks through the model's own state, so that its length is limited by the state and not by
one forward pass. Logits are computed for a bounded number of tokens at a time. Losses are returned in fp64 on the CPU,
so that sums are accurate.

Letters: B batch, T time, D width, N scored tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from plait.core.errors import UserError
from plait.model.adaptive_softmax import AdaptiveSoftmax
from plait.model.backbone import ModelState
from plait.model.language_model import IGNORE, Encoder, LanguageModel

if TYPE_CHECKING:
    from plait.data import Tokenizer
    from plait.model.architecture import Architecture


#: Logits (tokens × vocabulary) in memory at once: a quarter of a gigabyte in fp32.
LOGITS_AT_ONCE = 1 << 26
#: Default number of tokens per forward pass, over all rows.
TOKENS_AT_ONCE = 8192


def rows_at_once(length: int) -> int:
    """The number of rows of this length in a batch."""
    return max(1, TOKENS_AT_ONCE // length)


@torch.no_grad()
def token_losses(model: LanguageModel, inputs_BT: Tensor, targets_BT: Tensor, *, chunk: int = 0) -> Tensor:
    """(B, T) losses in nats, 0 where the target is `IGNORE`. With `chunk`, that many tokens are read at a time."""
    check_length(model, inputs_BT.shape[1])
    inputs_BT, targets_BT = _on_device(model, inputs_BT), _on_device(model, targets_BT)
    if not chunk or inputs_BT.shape[1] <= chunk:
        return _score(model, model.backbone(inputs_BT), targets_BT)
    state, parts = model.init_state(len(inputs_BT)), []
    for inputs, targets in zip(inputs_BT.split(chunk, dim=1), targets_BT.split(chunk, dim=1), strict=True):
        losses, state = losses_after(model, inputs, targets, state)
        parts.append(losses)
    return torch.cat(parts, dim=1)


@torch.no_grad()
def losses_after(
    model: LanguageModel, inputs_BT: Tensor, targets_BT: Tensor, state: ModelState
) -> tuple[Tensor, ModelState]:
    """The same for the next tokens after a state or a Transformer-XL memory, and the state after them."""
    hidden_BTD, state = model.backbone.extend(_on_device(model, inputs_BT), state)
    return _score(model, hidden_BTD, _on_device(model, targets_BT)), state


def check_length(model: LanguageModel | Encoder, tokens: int) -> None:
    header = model.arch.header
    if header.pos == "learned" and tokens > header.max_len:
        raise UserError(
            f"{tokens} tokens asked for, but the model has learned only max_len={header.max_len} positions; "
            "evaluate at that length or less."
        )


def _score(model: LanguageModel, hidden_BTD: Tensor, targets_BT: Tensor) -> Tensor:
    scored_BT = targets_BT != IGNORE
    # Selected before computing logits, so that a sliding window pays only for the tokens it scores.
    hidden_ND, targets_N = hidden_BTD[scored_BT], targets_BT[scored_BT]
    rows = max(1, LOGITS_AT_ONCE // model.arch.header.vocab)
    parts = [_nll(model, h, t) for h, t in zip(hidden_ND.split(rows), targets_N.split(rows), strict=True)]
    losses_BT = torch.zeros(targets_BT.shape, dtype=torch.float64)
    losses_BT[scored_BT.cpu()] = torch.cat(parts).cpu().double()
    return losses_BT


def _nll(model: LanguageModel, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
    if isinstance(model.output, AdaptiveSoftmax):
        return model.output.nll(hidden_ND, targets_N)
    logits_NV: Tensor = model.output(hidden_ND)
    exact = torch.promote_types(logits_NV.dtype, torch.float32)
    return F.cross_entropy(logits_NV.to(exact), targets_N, reduction="none")


def _on_device(model: LanguageModel, tokens_BT: Tensor) -> Tensor:
    return tokens_BT.to(next(model.parameters()).device)


def require_same_vocabulary(arch: Architecture, tokenizer: Tokenizer) -> None:
    """A tokenizer may leave ids of a (padded) vocabulary unused, but not the other way round."""
    if tokenizer.vocab > arch.header.vocab:
        raise UserError(
            f"the tokenizer has {tokenizer.vocab:,} tokens, the model only vocab={arch.header.vocab:,}: "
            "they do not belong together."
        )
