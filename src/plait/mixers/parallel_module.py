"""Parallel mixers in one layer (parallel heads).

    y = Σ_i mixer_i(x),   or with `norm`   y = 1/n Σ_i RMSNorm_i(mixer_i(x))

Each branch has its own input and output projections. Falcon-H1 (Zuo et al. 2025, arXiv:2507.22448) sums attention and
Mamba-2 in this way. Hymba (Dong et al. 2024, arXiv:2411.13676) norms both, weights every channel and takes the mean,
but before an output map that both share; here each has its own. With a channel mixer as a branch, `(attn | mlp)`, it is
the parallel block of PaLM (Chowdhery et al. 2022, arXiv:2204.02311).

Letters: B batch, T new tokens, D model width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from plait.mixers.mixer import Mixer, RmsNorm, State, make_mixer
from plait.mixers.parallel import ParallelOptions

PAD = "pad"


class Parallel(Mixer):
    def __init__(self, d: int, options: ParallelOptions) -> None:
        super().__init__(d, options)
        self.branches = nn.ModuleList(make_mixer(branch, d) for branch in options.branches)
        self.norms = nn.ModuleList(RmsNorm(d, 1e-6) for _ in self.branches) if options.norm else None
        self.paddable = all(branch.paddable for branch in self._mixers)

    @property
    def _mixers(self) -> list[Mixer]:
        return [cast("Mixer", branch) for branch in self.branches]

    def forward(self, x_BTD: Tensor, pad_B: Tensor | None = None) -> Tensor:
        return self._combine([self._run(branch, x_BTD, pad_B) for branch in self._mixers])

    def forward_with_loss(self, x_BTD: Tensor) -> tuple[Tensor, Tensor | None]:
        outputs, losses = zip(*(branch.forward_with_loss(x_BTD) for branch in self._mixers), strict=True)
        own = [loss for loss in losses if loss is not None]
        return self._combine(outputs), torch.stack(own).sum() if own else None

    def init_state(self, batch: int, *, rollback: int = 0) -> State:
        return _joined([branch.init_state(batch, rollback=rollback) for branch in self._mixers])

    def step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        outputs = [branch.step(x_BD, own) for branch, own in zip(self._mixers, self._split(state), strict=True)]
        return self._combine([y_BD for y_BD, _ in outputs]), _joined([own for _, own in outputs])

    def extend(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        outputs = [branch.extend(x_BTD, own) for branch, own in zip(self._mixers, self._split(state), strict=True)]
        return self._combine([y_BTD for y_BTD, _ in outputs]), _joined([own for _, own in outputs])

    def crop(self, state: State, tokens: int) -> State:
        return _joined([b.crop(own, tokens) for b, own in zip(self._mixers, self._split(state), strict=True)])

    def merge(self, states: Sequence[State]) -> State:
        apart = zip(*(self._split(state) for state in states), strict=True)
        return _joined([b.merge(own) if own[0] else {} for b, own in zip(self._mixers, apart, strict=True)])

    def _combine(self, outputs: Sequence[Tensor]) -> Tensor:
        if self.norms is None:
            return torch.stack(list(outputs)).sum(0)
        normed = [norm(output) for norm, output in zip(self.norms, outputs, strict=True)]
        return torch.stack(normed).mean(0)

    def _run(self, branch: Mixer, x_BTD: Tensor, pad_B: Tensor | None) -> Tensor:
        y_BTD: Tensor = branch(x_BTD) if pad_B is None or branch.options.kind == "channel" else branch(x_BTD, pad_B)
        return y_BTD

    def _split(self, state: State) -> list[State]:
        """Each branch's own state. Padding is given once for the layer; from then on, every branch keeps its own."""
        apart: list[State] = [{} for _ in self.branches]
        for key, value in state.items():
            if key != PAD:
                place, _, name = key.partition(".")
                apart[int(place)][name] = value
        if PAD in state:
            for own, branch in zip(apart, self._mixers, strict=True):
                if branch.options.kind == "sequence":
                    own[PAD] = state[PAD]
        return apart


def _joined(states: Sequence[State]) -> State:
    return {f"{place}.{key}": value for place, state in enumerate(states) for key, value in state.items()}
