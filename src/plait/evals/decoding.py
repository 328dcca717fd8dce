"""Greedy decoding after long prompts, for evaluations that ask questions about a text.

Letters: B batch, T time, V vocabulary, A decoded tokens.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from plait.core.errors import UserError
from plait.evals.haystack import Writer

PREFILL = 1024  # tokens read at a time, all rows together: their logits over the vocabulary exist at once


class Reader(Protocol):
    """What an evaluation needs of a model. The language models of `plait.model` have it."""

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
    """The next tokens, (B, A), each the likeliest after those before. `next_BV` and `state` are of `read_prompts`; the
    state is not changed in place, so a prompt that was read once can be continued several times."""
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
