"""What is run when something is measured: a whole model, embedding and head, or layers alone.

Letters: B batch, T time, D width.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from plait.core.errors import UserError
from plait.device.quantities import Setting
from plait.mixers.mixer import Loan, State
from plait.mixers.options import MixerOptions
from plait.model import Model, build
from plait.model.architecture import Architecture
from plait.model.backbone import Block, ModelState
from plait.model.language_model import LanguageModel
from plait.spec import Header


@contextmanager
def threads(setting: Setting) -> Iterator[None]:
    """Run with the setting's number of torch threads, and restore the old number afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(setting.threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Workload:
    """A model as a call that can be repeated: `run()` returns scores and, for a language model, the new state.

    States are never changed in place, so a decoding step may be repeated from the same one.
    """

    def __init__(self, arch: Architecture, setting: Setting) -> None:
        check(arch, setting)
        dtype: torch.dtype = getattr(torch, setting.dtype)
        self.setting = setting
        self.model: Model = build(arch, device=setting.device, dtype=dtype).eval()
        numbers = torch.Generator().manual_seed(0)
        shape = (setting.batch, setting.seq)
        self.tokens_BT = torch.randint(arch.header.vocab, shape, generator=numbers).to(setting.device)
        self.state: ModelState | None = None
        if setting.mode == "decode":
            assert isinstance(self.model, LanguageModel)
            with torch.inference_mode():
                self.state = self.model.extend(self.tokens_BT, self.model.init_state(setting.batch))[1]

    def run(self) -> tuple[Tensor, ModelState | None]:
        if not isinstance(self.model, LanguageModel):
            return self.model(self.tokens_BT), None
        if self.state is not None:
            return self.model.step(self.tokens_BT[:, -1], self.state)
        return self.model.extend(self.tokens_BT, self.model.init_state(self.setting.batch))

    @property
    def weight_bytes(self) -> int:
        held = [*self.model.parameters(), *self.model.buffers()]
        return sum(tensor.numel() * tensor.element_size() for tensor in held)


def check(arch: Architecture, setting: Setting) -> None:
    """Raise `UserError` for a model that cannot run in this setting."""
    header = arch.header
    if setting.mode == "decode" and header.kind != "lm":
        raise UserError(f"a model of kind={header.kind} cannot decode; measure it with mode=prefill.")
    longest = setting.new_tokens + setting.held_tokens
    if header.pos == "learned" and longest > header.max_len:
        raise UserError(f"{longest} tokens asked for, but the model has max_len={header.max_len} positions.")
    if setting.device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"device '{setting.device}' given, but torch finds no GPU here.")


class Layers:
    """Equal layers in a row with weights of their own, as a model has them, on vectors instead of tokens.

    A layer that reads an earlier one (`cross-attn` its keys and values, `gmu` its memory) finds that ready: the earlier
    layer runs once, here, and not with every `run`.
    """

    def __init__(self, d: int, options: MixerOptions, norm: str, setting: Setting, copies: int) -> None:
        kind = "encoder" if options.bidirectional else "lm"
        lender = options.lender()
        layers = (options,) if lender is None else (lender, options)
        arch = Architecture(Header(d=d, vocab=2, norm=norm, kind=kind), layers)
        dtype: torch.dtype = getattr(torch, setting.dtype)
        *before, first = build(arch, device=setting.device, dtype=dtype).eval().backbone.blocks
        self.blocks = [first, *(copy.deepcopy(first) for _ in range(copies - 1))]
        numbers = torch.Generator().manual_seed(0)
        shape = (setting.batch, setting.seq, d)
        self.x_BTD = torch.randn(shape, generator=numbers).to(device=setting.device, dtype=dtype)
        self.batch, self.causal = setting.batch, not options.bidirectional
        self.states: list[State] | None = None
        self._loan: Loan | None = None
        with torch.inference_mode():
            if before:
                self._loan = self._lent(before[0], decode=setting.mode == "decode")
            if setting.mode == "decode":
                self.states = [self._extend(block, self.x_BTD)[1] for block in self.blocks]

    def run(self) -> tuple[Tensor, list[State]]:
        kept = []  # a model keeps the states, too
        if self.states is not None:
            x_BD = self.x_BTD[:, -1]
            for block, state in zip(self.blocks, self.states, strict=True):
                x_BD, state = self._step(block, x_BD, state)
                kept.append(state)
            return x_BD, kept
        x_BTD = self.x_BTD
        for block in self.blocks:
            if self.causal:
                x_BTD, state = self._extend(block, x_BTD)
                kept.append(state)
            else:
                x_BTD = block(x_BTD)
        return x_BTD, kept

    def _extend(self, block: Block, x_BTD: Tensor) -> tuple[Tensor, State]:
        state = block.mixer.init_state(self.batch)
        return block.extend(x_BTD, state) if self._loan is None else block.connected(x_BTD, state, self._loan, None)[:2]

    def _step(self, block: Block, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        if self._loan is None:
            return block.step(x_BD, state)
        x_BTD, state, _ = block.connected(x_BD[:, None], state, self._loan, None)
        return x_BTD[:, 0], state

    def _lent(self, lender: Block, decode: bool) -> Loan:
        """What the earlier layer lends for the whole sequence, or for one token after it."""
        _, state, loan = lender.connected(self.x_BTD, lender.mixer.init_state(self.batch), {}, None)
        return lender.connected(self.x_BTD[:, -1:], state, {}, None)[2] if decode else loan
