"""What is run when something is measured: a whole model, what stands around its layers, or layers alone.

Letters: B batch, T time, D width.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from plait.core.errors import UserError
from plait.device.setting import Setting
from plait.mixers.mixer import Loan, State
from plait.mixers.options import MixerOptions
from plait.model import Model, build
from plait.model.architecture import Architecture
from plait.model.backbone import Block, ModelState
from plait.model.heads import LanguageModel
from plait.spec import Header


@contextmanager
def threads(setting: Setting) -> Iterator[None]:
    """torch's threads as the setting has them, and afterwards as they were."""
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
    """Raise `UserError` for a model that cannot be run so."""
    header = arch.header
    if setting.mode == "decode" and header.kind != "lm":
        raise UserError(f"a model of kind={header.kind} does not decode; measure it with mode=prefill.")
    longest = setting.new_tokens + setting.held_tokens
    if header.pos == "learned" and longest > header.max_len:
        raise UserError(f"{longest} tokens asked for, but the model has max_len={header.max_len} positions.")
    if setting.device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"device '{setting.device}' given, but torch finds no GPU here.")


class Layers:
    """Equal layers in a row with weights of their own, as a model has them, on vectors instead of tokens.

    Where they read of an earlier layer, a layer that they can read of is run once, ahead of what is measured.
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
        self.batch, self.causal, self.reads = setting.batch, not options.bidirectional, bool(options.reads)
        self.states: list[State] | None = None
        with torch.inference_mode():
            self.loan, held = _lent(before, self.x_BTD, [block.mixer.init_state(self.batch) for block in before])
            if setting.mode == "decode":
                self.states = [self._extend(b, self.x_BTD, b.mixer.init_state(self.batch))[1] for b in self.blocks]
                self.loan, _ = _lent(before, self.x_BTD[:, -1:], held)

    def run(self) -> tuple[Tensor, list[State]]:
        kept = []  # a model keeps the states, too
        if self.states is not None:
            x_BD = self.x_BTD[:, -1]
            for block, state in zip(self.blocks, self.states, strict=True):
                if self.reads:
                    x_BTD, state = self._extend(block, x_BD[:, None], state)
                    x_BD = x_BTD[:, 0]
                else:
                    x_BD, state = block.step(x_BD, state)
                kept.append(state)
            return x_BD, kept
        x_BTD = self.x_BTD
        for block in self.blocks:
            if self.causal:
                x_BTD, state = self._extend(block, x_BTD, block.mixer.init_state(self.batch))
                kept.append(state)
            else:
                x_BTD = block(x_BTD)
        return x_BTD, kept

    def _extend(self, block: Block, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        if self.reads:
            return block.connected(x_BTD, state, self.loan, None)[:2]
        return block.extend(x_BTD, state)


def _lent(before: list[Block], x_BTD: Tensor, states: list[State]) -> tuple[Loan, list[State]]:
    """What layers behind these may read: the embeddings, or what the last of them lends; and the states then."""
    loan: Loan = {"embedding": x_BTD}
    after = []
    for block, state in zip(before, states, strict=True):
        _, new, loan = block.connected(x_BTD, state, {}, None)
        after.append(new)
    return loan, after
