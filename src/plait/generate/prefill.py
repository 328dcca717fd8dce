"""Reading prompts of different lengths as one batch.

Where every mixer takes padding, rows are padded on the left and read together. Where one does not, rows of equal length
are read together and their states merged, so that no state ever contains padding.

Letters: B batch, T time, D width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from plait.model.backbone import Backbone
from plait.model.state import ModelState


def pad_left(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Tokens with zeros in front of the shorter rows, and how many."""
    longest = max(len(prompt) for prompt in prompts)
    padded = [[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
    pads = [longest - len(prompt) for prompt in prompts]
    return torch.tensor(padded, device=device), torch.tensor(pads, device=device)


def prefill(backbone: Backbone, tokens_BT: Tensor, pad_B: Tensor | None) -> tuple[Tensor, ModelState]:
    """Hidden vectors of a batch's first tokens (without meaning at padding) and the state after them."""
    if pad_B is None or not pad_B.any():
        return backbone.extend(tokens_BT, backbone.init_state(len(tokens_BT)))
    if all(block.mixer.paddable for block in backbone.blocks):
        return backbone.extend(tokens_BT, backbone.init_state(len(tokens_BT), pad_B=pad_B))
    rows, hidden, states = [], [], []
    for pad in pad_B.unique().tolist():
        (same,) = (pad_B == pad).nonzero(as_tuple=True)
        part, state = backbone.extend(tokens_BT[same, pad:], backbone.init_state(len(same)))
        rows.append(same)
        hidden.append(torch.nn.functional.pad(part, (0, 0, pad, 0)))
        states.append(state)
    back = torch.cat(rows).argsort()
    return torch.cat(hidden)[back], backbone.merge(states).reorder(back)
