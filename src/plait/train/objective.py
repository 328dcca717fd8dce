"""What is minimised: the loss behind one call, so that DDP, FSDP and the compiler see every forward pass.

Letters: B batch, T time.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from plait.model.heads import IGNORE, Encoder, LanguageModel
from plait.model.state import ModelState


class Objective(nn.Module):
    """Mean cross-entropy in nats over scored targets; while training, plus the mixers' own losses (load balancing)."""

    def __init__(self, model: LanguageModel | Encoder) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, tokens_BT: Tensor, targets_BT: Tensor, memory: ModelState | None = None
    ) -> tuple[Tensor, ModelState | None]:
        if memory is not None:
            assert isinstance(self.model, LanguageModel)
            return self.model.loss_with_memory(tokens_BT, targets_BT, memory)
        if self.training:
            return self.model.loss(tokens_BT, targets_BT), None
        if isinstance(self.model, LanguageModel):
            return self.model.score(self.model.backbone(tokens_BT), targets_BT), None
        scores = self.model(tokens_BT)
        return F.cross_entropy(scores.flatten(0, 1), targets_BT.flatten(), ignore_index=IGNORE), None
