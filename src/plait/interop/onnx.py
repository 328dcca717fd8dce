"""An ONNX file of a model: `tokens` (batch, time) → `logits` (batch, time, vocabulary), for any batch and time.

Chunked and convolutional mixers have no graph of dynamic length. A causal model needs none: later tokens do not affect
earlier ones, so the graph pads every input to its maximum `length` and truncates the logits. An encoder would see the
padding, so its file takes exactly `length` tokens.

Letters: B batch, T time, V vocabulary.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plait.core.errors import UserError
from plait.core.files import filled_file
from plait.model import build
from plait.model.architecture import Architecture
from plait.model.language_model import Encoder, LanguageModel
from plait.spec import parse

#: The largest difference that ONNX Runtime, in float32, may show to the model in float64, over the standard deviation
#: of the logits.
TOLERANCE = 1e-4
NEEDED = ("onnx", "onnxscript", "onnxruntime")


class Filled(nn.Module):
    """A causal model that computes at one fixed length and accepts any length up to it."""

    def __init__(self, model: LanguageModel, length: int) -> None:
        super().__init__()
        self.model, self.length = model, length

    def forward(self, tokens_BT: Tensor) -> Tensor:
        seq_len = tokens_BT.shape[1]
        logits_BTV: Tensor = self.model(F.pad(tokens_BT, (0, self.length - seq_len)))
        # Not a slice, whose contiguity depends on the length, which a graph must not.
        return logits_BTV.index_select(1, torch.arange(seq_len, device=tokens_BT.device))


class Exact(nn.Module):
    """A model for one fixed length."""

    def __init__(self, model: Encoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens_BT: Tensor) -> Tensor:
        logits_BTV: Tensor = self.model(tokens_BT)
        return logits_BTV


def export_onnx(model: LanguageModel | Encoder, file: Path, length: int, *, force: bool = False) -> None:
    _require_packages()
    header = model.arch.header
    if header.kind not in ("lm", "encoder"):
        raise UserError(f"a model of kind={header.kind} cannot be exported; lm and encoder can.")
    if length < 2 or (header.pos == "learned" and length > header.max_len):
        longest = f" and at most max_len={header.max_len}" if header.pos == "learned" else ""
        raise UserError(f"length={length}: must be at least 2{longest}.")
    with filled_file(file, force=force) as scratch:
        try:
            program = _program(model, length)
        except Exception as wrong:
            raise UserError(f"cannot export to ONNX: {_culprit(model.arch, wrong)}") from wrong
        program.save(scratch)


@torch.no_grad()
def check_onnx(model: LanguageModel | Encoder, file: Path, length: int) -> float:
    """The largest difference between the file under ONNX Runtime and the model in float64, over the standard deviation
    of the logits; too large is an error."""
    _require_packages()
    onnxruntime: Any = import_module("onnxruntime")
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    stream, gap = torch.Generator().manual_seed(0), 0.0
    model = copy.deepcopy(model).cpu().double().eval()
    lengths = {length} if isinstance(model, Encoder) else {1, length // 2, length}
    for batch, tokens in ((batch, tokens) for batch in (1, 3) for tokens in sorted(lengths)):
        tokens_BT = torch.randint(model.arch.header.vocab, (batch, tokens), generator=stream)
        (logits_BTV,) = session.run(["logits"], {"tokens": tokens_BT.numpy()})
        expected_BTV = model(tokens_BT)
        gap_BTV = torch.from_numpy(logits_BTV) - expected_BTV
        gap = max(gap, (gap_BTV.abs().max() / expected_BTV.std().clamp(min=torch.finfo(torch.float64).tiny)).item())
    if not gap <= TOLERANCE:
        raise UserError(
            f"{file} was written, but it gives different logits (the largest difference is {gap:.3g} of their standard "
            "deviation)."
        )
    return gap


def _program(model: LanguageModel | Encoder, length: int) -> Any:
    """torch's ONNX program of a model."""
    model = copy.deepcopy(model).cpu().float().eval()
    tokens_BT = torch.zeros(2, length - isinstance(model, LanguageModel), dtype=torch.long)
    sizes: dict[int, Any] = {0: torch.export.Dim("batch")}  # the file's names for them
    if isinstance(model, LanguageModel):
        wrapped: nn.Module = Filled(model, length)
        sizes[1] = torch.export.Dim("time", min=1, max=length)
    else:
        wrapped = Exact(model)
    with _quiet(), torch.no_grad():
        graph = torch.export.export(wrapped, (tokens_BT,), dynamic_shapes={"tokens_BT": sizes})
        return torch.onnx.export(
            graph, dynamo=True, input_names=["tokens"], output_names=["logits"], verbose=False,
            dynamic_shapes={"tokens_BT": {place: size.__name__ for place, size in sizes.items()}},
            custom_translation_table={torch.ops.aten.linalg_solve_triangular.default: _solve_unit_lower},
        )  # fmt: skip


def _solve_unit_lower(a: Any, b: Any, upper: bool, left: bool = True, unitriangular: bool = False) -> Any:
    """DeltaNet's triangular solve, for which ONNX has no operator: with N strictly lower (so N^C = 0),
    (1 + N)⁻¹ = Π_k (1 + (−N)^(2^k)), k < log₂ C."""
    op: Any = import_module("onnxscript").opset18
    if upper or not left or not unitriangular:
        raise NotImplementedError("only unit lower triangular systems")
    power = op.Neg(op.Trilu(a, op.Constant(value_int=-1), upper=0))
    for _ in range((int(a.shape[-1]) - 1).bit_length()):
        b = op.Add(b, op.MatMul(power, b))
        power = op.MatMul(power, power)
    return b


def _culprit(arch: Architecture, wrong: Exception) -> str:
    """Find out which kinds of layer cannot be exported, by exporting each alone."""
    header = parse(f"d={arch.header.d} vocab=8 kind={arch.header.kind} | identity").header
    refused = []
    for options in dict.fromkeys(arch.layers):
        layer = str(options.to_layer())
        if options.lender() is not None:  # it cannot be exported alone
            continue
        alone = build(Architecture(header, (options,)))
        assert isinstance(alone, LanguageModel | Encoder)
        try:
            _program(alone, 16)
        except Exception as why:
            wrong = why
            refused.append(layer)
    if refused:
        message = f"{', '.join(refused)} cannot be expressed in ONNX for any batch size."
        if "specialized it to be a constant" in str(wrong):
            message += " Its code makes a size a constant: write x.shape[0], not len(x), and take no int() of a shape."
        return message
    return f"no single layer is the cause; the exporter says: {str(wrong).strip().splitlines()[0]}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter, which logs and warns a lot; real problems are exceptions."""
    was = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(was)


def _require_packages() -> None:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise UserError(f"this needs {', '.join(missing)}: pip install 'plait[onnx]'.")
