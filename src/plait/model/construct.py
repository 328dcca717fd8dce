"""From text to a model with seeded weights.

Initial values: every weight matrix and embedding N(0, header.init²), every bias zero, every norm one; what a mixer
needs beyond that (decay rates, gate biases) it states in its own file. With `depth_scale` the last map of each layer
is drawn 1/√layers smaller (GPT-2). Each parameter has its own stream, seeded by the model's seed and the parameter's
name, so that a value depends neither on what was drawn before it nor on the device.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from plait.core.memory import require_memory
from plait.core.random_streams import seed_of
from plait.mixers.mixer import Draw, Mixer
from plait.model.architecture import Architecture, architecture
from plait.model.heads import AutoEncoder, Encoder, LanguageModel
from plait.spec import Spec

Model = LanguageModel | Encoder | AutoEncoder
KINDS: dict[str, type[LanguageModel] | type[Encoder] | type[AutoEncoder]] = {
    "lm": LanguageModel,
    "encoder": Encoder,
    "autoencoder": AutoEncoder,
}


def build(
    given: str | Spec | Architecture,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Model:
    """A model with seeded weights. `device="meta"` builds shapes without memory, for counting."""
    arch = architecture(given)
    if torch.device(device).type == "cpu":
        require_weights_fit(arch, torch.float32.itemsize + (dtype != torch.float32) * dtype.itemsize)
    # Modules draw values of their own when made; ours replace them, and the caller's generator stays as it was.
    with torch.random.fork_rng(devices=[]), torch.device(device):
        model = KINDS[arch.header.kind](arch)
    if torch.device(device).type != "meta":
        init_weights(model, seed)
    return model.to(dtype)


def require_weights_fit(arch: Architecture, bytes_per_weight: int) -> None:
    """Refuse a model whose weights do not fit into memory, before anything is allocated."""
    from plait.model.cost import model_cost

    params = model_cost(arch, seq=1).total_params
    require_memory(
        params * bytes_per_weight, f"a model of {params:,} weights", "Choose a smaller width or fewer layers."
    )


def init_weights(model: Model, seed: int) -> None:
    """Set every parameter of a model from a seed."""
    header = model.arch.header
    shrink = 1 / math.sqrt(max(1, len(model.backbone.blocks))) if header.depth_scale else 1.0
    _seed_modules(model, seed, header.init, shrink)


def add_next_sentence_head(model: Encoder, seed: int = 0) -> None:
    """BERT's head on the first position: a dense layer with tanh, then two scores, 1 for "follows". Other weights stay
    as the seed has them."""
    d, device = model.arch.header.d, next(model.parameters()).device
    with torch.random.fork_rng(devices=[]), device:
        model.next_sentence = nn.Sequential(nn.Linear(d, d), nn.Tanh(), nn.Linear(d, 2))
    init_weights(model, seed)


def seed_mixer(mixer: Mixer, seed: int, std: float = 0.02) -> None:
    """The same for a mixer without a model."""
    _seed_modules(mixer, seed, std, shrink=1.0)


@torch.no_grad()
def _seed_modules(root: nn.Module, seed: int, std: float, shrink: float) -> None:
    names = {id(parameter): name for name, parameter in root.named_parameters()}
    for module in root.modules():
        if isinstance(module, (nn.Linear, nn.Embedding, nn.Conv1d)):
            _draw(module.weight, std, seed, names)
        if isinstance(module, (nn.Linear, nn.Conv1d)) and module.bias is not None:
            nn.init.zeros_(module.bias)
    for module in root.modules():
        if isinstance(module, Mixer):
            module.init_weights(_drawer(seed, names))
            for weight in module.residual_weights():
                weight.mul_(shrink)


def _drawer(seed: int, names: dict[int, str]) -> Draw:
    return lambda parameter, std: _draw(parameter, std, seed, names)


def _draw(parameter: torch.Tensor, std: float, seed: int, names: dict[int, str]) -> None:
    # Drawn on the CPU in fp32 and copied, so that every device starts from the same numbers.
    stream = torch.Generator().manual_seed(seed_of(f"{seed}/{names[id(parameter)]}"))
    parameter.copy_(torch.randn(parameter.shape, generator=stream) * std)
