"""Our state in the shape of the cache that Hugging Face's `generate` hands from call to call."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from plait.model.backbone import Backbone
from plait.model.state import ModelState


class StateCache(Cache):
    """One `ModelState` for all layers, whatever each of them keeps.

    `seen` counts tokens as `generate` does, padding included; the state itself may hold rows without padding.
    """

    def __init__(self, backbone: Backbone) -> None:
        super().__init__(layers=[])  # theirs are for keys and values only
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
        """Take tokens back, where every mixer can; it says so where it cannot."""
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
        return False  # a promise about every mixer that none but a plain cache could keep
