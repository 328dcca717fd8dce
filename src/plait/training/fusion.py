"""Several models of one width trained at once with shared weights, at about the cost of the largest.

LiteTransformerSearch, App. B (Javaheripi et al. 2022, arXiv:2203.02094): models of 3 and of 5 layers are fused into one
supernet of 5 layers. Model i uses the first n_i layers and exits through its own final norm; embeddings and the output
are shared. If two models differ in a layer's heads or inner width, the narrower one uses a slice of the wider one's
weights. Computation is shared as far as models agree: from the first layer in which they differ, each runs separately,
still on shared weights.

    fused = fuse(["d=64 | (attn mlp)x3", "d=64 | (attn mlp)x5"])
    fused.loss(tokens_BT, targets_BT).sum().backward()
    small = fused.extract(0)

Letters: M models, B batch, T time, D width, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from plait.core.errors import UserError
from plait.mixers.mixer import make_mixer, make_norm
from plait.mixers.options import NOT_SHARED, MixerOptions
from plait.model import build
from plait.model.architecture import Architecture, architecture
from plait.model.backbone import Block
from plait.model.language_model import LanguageModel


class Slice(NamedTuple):
    """A parameter made of `parts` equal stacks along `axis`; a narrower layer takes the first rows of each."""

    axis: int
    parts: int = 1


_ATTENTION = {
    "qkv.weight": Slice(0, 3),
    "qkv.bias": Slice(0, 3),
    "output.weight": Slice(1),
    "forget_gate.weight": Slice(0),
    "forget_gate.bias": Slice(0),
}
#: By mixer: the parameters whose size depends on heads or inner width.
SLICES: dict[str, dict[str, Slice]] = {
    "mlp": {"up.weight": Slice(0), "up.bias": Slice(0), "down.weight": Slice(1)},
    "swiglu": {"gate_up.weight": Slice(0, 2), "down.weight": Slice(1)},
    "attn": _ATTENTION,
    "fox": _ATTENTION,
}
#: Options in which fused layers may differ.
SIZES = ("inner", "heads")

Prefix = tuple[MixerOptions, ...]


def fuse(specs: Sequence[str | Architecture], *, seed: int = 0) -> Fused:
    """The supernet of these models with seeded weights; a `UserError` says why models cannot be fused."""
    archs = [architecture(spec) for spec in specs]
    if len(archs) < 2:
        raise UserError("fusing needs two or more models.")
    if len(set(archs)) < len(archs):
        raise UserError("a model is given twice; fusing needs different ones.")
    _check_headers(archs)
    for options in {options for arch in archs for options in arch.layers}:
        if options.reads or options.share != NOT_SHARED:
            raise UserError(
                f"{options.to_layer()}: fused models cannot share weights by name or read from other layers."
            )
    deepest = max(len(arch.layers) for arch in archs)
    if not min(len(arch.layers) for arch in archs):
        raise UserError("a model without layers has nothing to share.")
    widest = tuple(
        _widest(place, [arch.layers[place] for arch in archs if len(arch.layers) > place], archs[0].header.d)
        for place in range(deepest)
    )
    return Fused(archs, widest, seed)


class Fused(nn.Module):
    """The supernet that `fuse` builds. Train `loss`; `extract` returns the single models."""

    def __init__(self, archs: Sequence[Architecture], widest: Prefix, seed: int) -> None:
        super().__init__()
        self.archs = tuple(archs)
        header = archs[0].header
        trunk = build(Architecture(header, widest), seed=seed)
        assert isinstance(trunk, LanguageModel)
        self.trunk = trunk
        self.final_norms = nn.ModuleList(
            make_norm(header.norm, header.d, header.eps) if header.final_norm else nn.Identity() for _ in archs
        )
        trunk.backbone.final_norm = nn.Identity()
        #: Modules of narrower layers, used only for their code: their weights are slices of the trunk's.
        self._narrow: dict[tuple[int, MixerOptions, torch.device], Block] = {}

    def forward(self, tokens_BT: Tensor) -> list[Tensor]:
        """The logits of every model, (B, T, V) each."""
        return [self.trunk.output(hidden_BTD) for hidden_BTD, _ in self._exits(tokens_BT)]

    def loss(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """(M,): each model's own loss, as its `LanguageModel.loss`."""
        exits = self._exits(tokens_BT)
        return torch.stack([self.trunk.score(hidden_BTD, targets_BT) + own for hidden_BTD, own in exits])

    def extract(self, i: int) -> LanguageModel:
        """Model i by itself, with a copy of its weights; its logits are those of `forward`."""
        like = next(self.parameters())
        model = build(self.archs[i], device=like.device, dtype=like.dtype)
        assert isinstance(model, LanguageModel)
        weights = {
            name: value for name, value in self.trunk.state_dict().items() if not name.startswith("backbone.blocks.")
        }
        for place, block in enumerate(model.backbone.blocks):
            mine = self._weights(place, block)
            weights |= {f"backbone.blocks.{place}.{name}": value.detach() for name, value in mine.items()}
        norm = self.final_norms[i].state_dict()
        model.load_state_dict(weights | {f"backbone.final_norm.{name}": value for name, value in norm.items()})
        return model.train(self.training)

    def _exits(self, tokens_BT: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Hidden vectors after each model's final norm, and the sum of its auxiliary losses."""
        x_BTD = self._embedded(tokens_BT)
        # Keyed by the layers run so far: models that agree up to there share the result.
        reached: dict[Prefix, tuple[Tensor, Tensor]] = {(): (x_BTD, x_BTD.new_zeros(()))}
        for place in range(len(self.trunk.backbone.blocks)):
            for prefix in dict.fromkeys(arch.layers[: place + 1] for arch in self.archs if len(arch.layers) > place):
                x_BTD, own = reached[prefix[:-1]]
                x_BTD, loss = self._run(place, prefix[-1], x_BTD)
                reached[prefix] = x_BTD, own if loss is None else own + loss
        exits = [reached[arch.layers] for arch in self.archs]
        return [(norm(x_BTD), own) for norm, (x_BTD, own) in zip(self.final_norms, exits, strict=True)]

    def _embedded(self, tokens_BT: Tensor) -> Tensor:
        backbone, time = self.trunk.backbone, tokens_BT.shape[1]
        if backbone.pos == "learned" and time > backbone.max_len:
            raise UserError(f"{time} tokens given, but the models have max_len={backbone.max_len} positions.")
        positions_BT = torch.arange(time, device=tokens_BT.device).expand(tokens_BT.shape)
        return backbone.embed(tokens_BT, positions_BT, None)

    def _run(self, place: int, options: MixerOptions, x_BTD: Tensor) -> tuple[Tensor, Tensor | None]:
        block = self._block(place)
        if options == block.mixer.options:
            return block.forward_with_loss(x_BTD)
        key = (place, options, x_BTD.device)
        if key not in self._narrow:
            with torch.random.fork_rng(devices=[]), x_BTD.device:
                self._narrow[key] = Block(self.trunk.arch.header, options)
        narrow = self._narrow[key]
        out: Tensor = torch.func.functional_call(narrow, self._weights(place, narrow), (x_BTD,))
        return out, None

    def _weights(self, place: int, block: Block) -> dict[str, Tensor]:
        """The weights of `block`, one model's layer at this depth: the trunk's, or slices of them."""
        shapes = {name: tuple(value.shape) for name, value in block.state_dict().items()}
        cuts = SLICES.get(block.mixer.options.name, {})
        return {
            name: _cut(held, shapes[name], cuts.get(name.removeprefix("mixer.")))
            for name, held in self._block(place).state_dict(keep_vars=True).items()
        }

    def _block(self, place: int) -> Block:
        block = self.trunk.backbone.blocks[place]
        assert isinstance(block, Block)
        return block


def _cut(held: Tensor, shape: tuple[int, ...], cut: Slice | None) -> Tensor:
    if tuple(held.shape) == shape:
        return held
    assert cut is not None
    size = shape[cut.axis] // cut.parts
    parts = held.unflatten(cut.axis, (cut.parts, -1)).narrow(cut.axis + 1, 0, size)
    # Contiguous, so that the same kernels run as in the extracted model and give the same bits.
    cut_out: Tensor = parts.flatten(cut.axis, cut.axis + 1).contiguous()
    return cut_out


def _check_headers(archs: Sequence[Architecture]) -> None:
    first = archs[0].header
    if first.kind != "lm":
        raise UserError(f"kind={first.kind}: only causal language models (kind=lm) are fused.")
    for other in (arch.header for arch in archs[1:]):
        if different := [f.name for f in dataclasses.fields(first) if getattr(first, f.name) != getattr(other, f.name)]:
            said = "; ".join(f"{key}={getattr(first, key)} and {key}={getattr(other, key)}" for key in different)
            raise UserError(f"models to be fused have one header: {said} cannot share embeddings and layers.")


def _widest(place: int, layers: Sequence[MixerOptions], d: int) -> MixerOptions:
    """The layer whose weights contain those of all the others."""
    where = f"layer {place + 1}"
    names = list(dict.fromkeys(options.name for options in layers))
    if len(names) > 1:
        raise UserError(f"{where} is {' in one model and '.join(names)} in another; they share no weights.")
    widest = max(layers, key=lambda options: _parameters(options, d))
    for options in layers:
        for key in _differing(options, widest):
            if key not in SIZES:
                values = f"{key}={getattr(options, key)} and {key}={getattr(widest, key)}"
                raise UserError(f"{where}, {widest.name}: {values}; fused layers may differ in {' and '.join(SIZES)}.")
        if reason := _uncuttable(options, widest, d):
            raise UserError(f"{where}, {widest.name}: {reason}")
    return widest


def _uncuttable(options: MixerOptions, widest: MixerOptions, d: int) -> str:
    """Why one layer's weights cannot be slices of the other's; empty if they can."""
    cuts, large, small = SLICES.get(widest.name, {}), _shapes(widest, d), _shapes(options, d)
    for name, shape in large.items():
        if small[name] == shape:
            continue
        if name not in cuts:
            return f"{name} has shape {small[name]} in one model and {shape} in another, and no slice of it is defined."
        if getattr(widest, "kv_heads", 0):
            return "with kv_heads, models that differ in heads are not fused."
    return ""


def _shapes(options: MixerOptions, d: int) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        return {name: tuple(value.shape) for name, value in make_mixer(options, d).state_dict().items()}


def _parameters(options: MixerOptions, d: int) -> int:
    return int(options.cost(d, 1).total_params)


def _differing(left: MixerOptions, right: MixerOptions) -> list[str]:
    values: list[tuple[str, Any, Any]] = [
        (f.name, getattr(left, f.name), getattr(right, f.name)) for f in dataclasses.fields(left)
    ]
    return [name for name, mine, theirs in values if mine != theirs]
