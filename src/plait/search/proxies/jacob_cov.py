"""jacob_cov: how differently a model responds to different inputs (Mellor et al. 2020, arXiv:2006.04647v1, eq. 3-5).

J has a row for each sequence of the batch: the gradient of its summed scores with respect to its embeddings. With λ the
eigenvalues of the rows' correlation matrix and k = 1e-5, the score is −Σ log(λ + k) + 1 / (λ + k).

Letters: B batch, T time, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from plait.model.construct import Model
from plait.search.proxies.proxy import Data, Proxy, gradients

K = 1e-5


class JacobCov(Proxy):
    name = "jacob_cov"

    def score(self, model: Model, data: Data) -> float:
        tokens_BT, _ = data(0)
        inputs: list[Tensor] = []

        def cut(_module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
            inputs.append(output.detach().requires_grad_())
            return inputs[-1]

        hook = model.backbone.embedding.register_forward_hook(cut)
        try:
            scores = model(tokens_BT)
        finally:
            hook.remove()
        (jacobian_BTD,) = gradients(scores.sum(), inputs)
        return correlation_score(jacobian_BTD.flatten(1))


def correlation_score(rows_BN: Tensor) -> float:
    """Highest where no two rows are alike."""
    correlation_BB = torch.corrcoef(rows_BN.double()).reshape(len(rows_BN), -1)  # of a single row it is a number
    shifted_B = torch.linalg.eigvalsh(correlation_BB).clamp(min=0) + K
    return -float((shifted_B.log() + 1 / shifted_B).sum())
