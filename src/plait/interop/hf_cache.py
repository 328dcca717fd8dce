"""Attention masks as plait's models take them (the number of padding tokens at the start of each row), and plait's
state as the cache that Hugging Face's `generate` passes from call to call.

Letters: B batch, T time.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from plait.core.errors import UserError
from plait.model.backbone import Backbone, ModelState


def left_padding(mask_BT: Tensor | None, tokens_BT: Tensor, seen: int) -> tuple[Tensor | None, bool]:
    """The number of padding tokens at the start of each row (None if none), and whether any row ends in padding.

    The mask also covers the `seen` tokens before these.
    """
    if mask_BT is None:
        return None, False
    real_BT = mask_BT.bool()
    if real_BT.dim() != 2 or real_BT.shape[1] != seen + tokens_BT.shape[1]:
        raise UserError(
            f"the attention mask has shape {tuple(mask_BT.shape)}; expected one number per token, "
            f"({len(tokens_BT)}, {seen + tokens_BT.shape[1]})."
        )
    pad_B, behind_B = _ends(real_BT)
    if not bool((real_BT.sum(1) + pad_B + behind_B == real_BT.shape[1]).all()):
        raise UserError("the attention mask has holes: padding must be at the start or the end of a row.")
    return (pad_B if bool(pad_B.any()) else None), bool(behind_B.any())


@dataclass(frozen=True)
class Moved:
    """Rows rotated so that all their padding is at the start."""

    tokens_BT: Tensor
    segments_BT: Tensor | None
    pad_B: Tensor | None
    back_BT: Tensor | None  # new index of each original position

    def back(self, x_BTV: Tensor) -> Tensor:
        """Undo the rotation of an output."""
        return x_BTV if self.back_BT is None else x_BTV.gather(1, self.back_BT[..., None].expand_as(x_BTV))


def padding_to_the_left(mask_BT: Tensor | None, tokens_BT: Tensor, segments_BT: Tensor | None) -> Moved:
    """For bidirectional models: move all padding to the start of the row, where plait's mixers mask it."""
    pad_B, behind = left_padding(mask_BT, tokens_BT, 0)
    if mask_BT is None or not behind:
        return Moved(tokens_BT, segments_BT, pad_B, None)
    behind_B = _ends(mask_BT.bool())[1]
    T = tokens_BT.shape[1]
    place_T = torch.arange(T, device=tokens_BT.device)
    source_BT = (place_T - behind_B[:, None]) % T
    turned = [None if x is None else x.gather(1, source_BT) for x in (tokens_BT, segments_BT)]
    assert turned[0] is not None
    pads_B = T - mask_BT.bool().sum(1)
    return Moved(turned[0], turned[1], pads_B, (place_T + behind_B[:, None]) % T)


def _ends(real_BT: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers of padding tokens before the first real token and after the last."""
    if not bool(real_BT.any(1).all()):
        raise UserError("a row of the attention mask is all padding.")
    number_BT = real_BT.long()
    return number_BT.argmax(1), number_BT.flip(1).argmax(1)


class StateCache(Cache):
    """One `ModelState` for all layers, whatever their kinds of state.

    `seen` counts tokens as `generate` does, padding included; the state itself may hold rows without padding.
    """

    def __init__(self, backbone: Backbone) -> None:
        super().__init__(layers=[])  # the library's layers are for keys and values only
        self.backbone = backbone
        self.state: ModelState | None = None
        self.seen = 0

    def keep(self, state: ModelState, tokens: int) -> None:
        """The state after `tokens` more tokens."""
        self.state, self.seen = state, self.seen + tokens

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.seen

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1  # no maximum

    def reorder_cache(self, beam_idx: Tensor) -> None:
        if self.state is not None:
            self.state = self.state.reorder(beam_idx.to(self.state.pos_B.device))

    def batch_select_indices(self, indices: Tensor) -> None:
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.state is not None:
            self.reorder_cache(torch.arange(len(self.state.pos_B)).repeat_interleave(repeats))

    def crop(self, tokens_to_remove: int) -> None:
        """Drop the last tokens, if every mixer can; else an error that names those that cannot."""
        if self.state is not None and tokens_to_remove:
            self.state = self.backbone.crop(self.state, abs(tokens_to_remove))
            self.seen -= abs(tokens_to_remove)

    def reset(self) -> None:
        self.state, self.seen = None, 0

    @property
    def batch_size(self) -> int:
        return -1 if self.state is None else len(self.state.pos_B)

    @property
    def is_initialized(self) -> bool:
        return self.state is not None

    @property
    def is_croppable(self) -> bool:
        return False  # would have to hold for every mixer, but holds only for a plain KV cache
