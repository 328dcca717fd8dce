"""What is run in a measurement (a whole model, embedding and head, or single layers), and the device and package
versions of benchmarks.

Letters: B batch, T time, D width.
"""

from __future__ import annotations

import copy
import platform
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from plait import __version__
from plait.core.errors import UserError
from plait.device.quantities import Setting
from plait.mixers.mixer import Loan, State
from plait.mixers.options import MixerOptions
from plait.model import Model, build
from plait.model.architecture import Architecture
from plait.model.backbone import Block, ModelState
from plait.model.language_model import LanguageModel
from plait.ops.paths import precision_on
from plait.records.record import installed_version
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
    """A model as a repeatable call: `run()` returns logits and, for a language model, the new state.

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
    """A stack of equal layers, each with its own weights as in a model, applied to vectors instead of tokens.

    For a layer that reads from an earlier one (`cross-attn` its keys and values, `gmu` its memory), the earlier layer
    runs once in the constructor, not in every `run`.
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
        kept = []  # a model also keeps the states
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
        """What the earlier layer provides for the whole sequence, or for one token after it."""
        _, state, loan = lender.connected(self.x_BTD, lender.mixer.init_state(self.batch), {}, None)
        return lender.connected(self.x_BTD[:, -1:], state, {}, None)[2] if decode else loan


def bench_device(name: str | None) -> torch.device:
    """The device given, checked to be available; by default the GPU if there is one, else the CPU."""
    here = torch.cuda.is_available()
    if name is not None and name.startswith("cuda") and not here:
        raise UserError("this machine has no CUDA device; leave out the device, or give cpu.")
    try:
        return torch.device(name or ("cuda" if here else "cpu"))
    except RuntimeError:
        raise UserError(f"'{name}' is not a device; give cpu or cuda.") from None


def bench_size(device: torch.device, batch: int | None, seq_len: int | None) -> tuple[int, int]:
    """Batch size and sequence length: as given, otherwise a size that fills a GPU, or that a CPU finishes in
    seconds."""
    usual = (8, 4096) if device.type == "cuda" else (1, 256)
    return batch or usual[0], seq_len or usual[1]


def bench_dtype(device: torch.device) -> str:
    """bfloat16 on a GPU that multiplies it, else float32."""
    return {"bf16": "bfloat16", "fp32": "float32"}[precision_on(device)]


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return platform.processor() or platform.machine()


def bench_versions() -> dict[str, str]:
    """Versions of plait and of the installed packages that a kernel's speed depends on."""
    known = {package: installed_version(package) for package in ("torch", "triton", "flash-linear-attention")}
    return {"plait": __version__} | {
        package: installed for package, installed in known.items() if installed is not None
    }
