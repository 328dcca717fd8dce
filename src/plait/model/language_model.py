"""Language model, masked-language encoder and the probe's auto-encoder; and `build`, from text to a model with seeded
weights.

Initial values: every weight matrix and embedding N(0, header.init²), every bias zero, every norm one; anything else
that a mixer needs (decay rates, gate biases) is defined in its own file. With `depth_scale` the last linear map of each
layer is initialised 1/√layers smaller (GPT-2). Each parameter has its own random stream, seeded by the model's seed and
the parameter's name, so its value depends neither on earlier draws nor on the device.

Letters: B batch, T time, D width, V vocabulary, N scored tokens.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from plait.core.errors import UserError
from plait.core.files import CHECKSUM
from plait.core.progress import require_memory
from plait.mixers.mixer import Draw, Mixer, make_norm
from plait.model.adaptive_softmax import AdaptiveSoftmax
from plait.model.architecture import Architecture, architecture
from plait.model.backbone import Backbone, ModelState
from plait.ops.linear_cross_entropy import IGNORE as IGNORE
from plait.ops.linear_cross_entropy import linear_cross_entropy
from plait.ops.relative import sinusoid
from plait.spec import Spec


def make_output(arch: Architecture, backbone: Backbone) -> nn.Module:
    """The output layer, from hidden vectors to logits over the vocabulary: plain, tied or adaptive."""
    h = arch.header
    if h.embed == "adaptive":
        tied = backbone.embedding if h.tie else None
        return AdaptiveSoftmax(h.vocab, h.d, h.d_embed or h.d, h.cutoffs, h.div, tied=tied)
    output = nn.Linear(h.d, h.vocab, bias=h.head_bias)
    if h.tie:
        output.weight = backbone.embedding.first_table
    return output


def cross_entropy_of(output: nn.Module, hidden_BTD: Tensor, targets_BT: Tensor) -> Tensor:
    """Mean cross-entropy over targets that are not `IGNORE`; with a linear output layer, all logits are never in memory
    at once."""
    if type(output) is nn.Linear:  # not a replacement, such as an adapter's or a quantizer's
        hidden_ND, targets_N = hidden_BTD.flatten(0, -2), targets_BT.flatten()
        return linear_cross_entropy(hidden_ND, output.weight, targets_N, output.bias)
    return F.cross_entropy(output(hidden_BTD).flatten(0, -2), targets_BT.flatten(), ignore_index=IGNORE)


MOST_NATS = 700.0  # the exponential of more nats overflows


def perplexity_of(nats: float) -> float:
    return float(perplexities(nats))


def perplexities(nats: ArrayLike) -> NDArray[np.float64]:
    """Perplexities of many losses."""
    return np.asarray(np.exp(np.minimum(np.asarray(nats, dtype=np.float64), MOST_NATS)))


class LanguageModel(nn.Module):
    """Predicts each next token. The logits are log-probabilities under an adaptive softmax."""

    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        self.arch = arch
        self.backbone = Backbone(arch)
        self.output = make_output(arch, self.backbone)

    def forward(self, tokens_BT: Tensor, *, pad_B: Tensor | None = None) -> Tensor:
        logits: Tensor = self.output(self.backbone(tokens_BT, pad_B=pad_B))
        return logits

    def loss(self, tokens_BT: Tensor, targets_BT: Tensor, at_BN: Tensor | None = None) -> Tensor:
        """Mean cross-entropy in nats over targets that are not `IGNORE`, plus the mixers' auxiliary losses. With
        `at_BN`, the targets belong to these positions, (B, N)."""
        if at_BN is None:
            hidden_BTD, own = self.backbone.forward_with_loss(tokens_BT)
        else:
            hidden_BTD, own = self.backbone.forward_at(tokens_BT, at_BN)
        return self.score(hidden_BTD, targets_BT) + own

    def loss_with_memory(self, tokens_BT: Tensor, targets_BT: Tensor, memory: ModelState) -> tuple[Tensor, ModelState]:
        """Cross-entropy of the next segment after a memory (`init_memory`), and the memory after it."""
        hidden_BTD, memory = self.backbone.extend(tokens_BT, memory)
        return self.score(hidden_BTD, targets_BT), memory

    def score(self, hidden_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        if isinstance(self.output, AdaptiveSoftmax):
            # The adaptive softmax scores only clusters that contain targets; logits of the full vocabulary are never
            # formed.
            scored = targets_BT != IGNORE
            return self.output.nll(hidden_BTD[scored], targets_BT[scored]).mean()
        return cross_entropy_of(self.output, hidden_BTD, targets_BT)

    def init_state(self, batch: int, *, rollback: int = 0, pad_B: Tensor | None = None) -> ModelState:
        return self.backbone.init_state(batch, rollback=rollback, pad_B=pad_B)

    def init_memory(self, batch: int, tokens: int) -> ModelState:
        return self.backbone.init_memory(batch, tokens)

    def extend(self, tokens_BT: Tensor, state: ModelState) -> tuple[Tensor, ModelState]:
        hidden_BTD, state = self.backbone.extend(tokens_BT, state)
        return self.output(hidden_BTD), state

    def step(self, tokens_B: Tensor, state: ModelState) -> tuple[Tensor, ModelState]:
        hidden_BD, state = self.backbone.step(tokens_B, state)
        return self.output(hidden_BD), state

    def crop(self, state: ModelState, tokens: int) -> ModelState:
        return self.backbone.crop(state, tokens)

    def merge(self, states: Sequence[ModelState]) -> ModelState:
        return self.backbone.merge(states)


class Encoder(nn.Module):
    """Masked-language encoder (BERT, Devlin et al. 2019, arXiv:1810.04805): scores every position from both sides."""

    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        h = arch.header
        self.arch = arch
        self.backbone = Backbone(arch)
        self.transform = nn.Sequential(nn.Linear(h.d, h.d), nn.GELU(), make_norm(h.norm, h.d, h.eps))
        self.output = make_output(arch, self.backbone)
        #: Head of next-sentence prediction; trainings that need it add it (`add_next_sentence_head`).
        self.next_sentence: nn.Module | None = None

    def forward(self, tokens_BT: Tensor, *, pad_B: Tensor | None = None, segments_BT: Tensor | None = None) -> Tensor:
        hidden_BTD = self.backbone(tokens_BT, pad_B=pad_B, segments_BT=segments_BT)
        logits: Tensor = self.output(self.transform(hidden_BTD))
        return logits

    def loss(
        self,
        tokens_BT: Tensor,
        targets_BT: Tensor,
        segments_BT: Tensor | None = None,
        follows_B: Tensor | None = None,
        next_sentence_weight: float = 1.0,
    ) -> Tensor:
        """Mean cross-entropy over the masked positions (targets that are not `IGNORE`); with `follows_B`, plus that of
        predicting from the first position whether the second text follows the first."""
        hidden_BTD, own = self.backbone.forward_with_loss(tokens_BT, segments_BT)
        loss = cross_entropy_of(self.output, self.transform(hidden_BTD), targets_BT) + own
        if follows_B is None:
            return loss
        assert self.next_sentence is not None
        return loss + next_sentence_weight * F.cross_entropy(self.next_sentence(hidden_BTD[:, 0]), follows_B)


class Objective(nn.Module):
    """Mean cross-entropy in nats over scored targets; in training, plus the mixers' auxiliary losses (load
    balancing)."""

    def __init__(self, model: LanguageModel | Encoder) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        tokens_BT: Tensor,
        targets_BT: Tensor,
        memory: ModelState | None = None,
        segments_BT: Tensor | None = None,
        follows_B: Tensor | None = None,
        next_sentence_weight: float = 1.0,
    ) -> tuple[Tensor, ModelState | None]:
        if memory is not None:
            assert isinstance(self.model, LanguageModel)
            return self.model.loss_with_memory(tokens_BT, targets_BT, memory)
        if follows_B is not None:
            assert isinstance(self.model, Encoder)
            return self.model.loss(tokens_BT, targets_BT, segments_BT, follows_B, next_sentence_weight), None
        if self.training:
            return self.model.loss(tokens_BT, targets_BT), None
        if isinstance(self.model, LanguageModel):
            return self.model.score(self.model.backbone(tokens_BT), targets_BT), None
        hidden_BTD = self.model.transform(self.model.backbone(tokens_BT))
        return cross_entropy_of(self.model.output, hidden_BTD, targets_BT), None


class AutoEncoder(nn.Module):
    """MAD's compression model (arXiv:2403.17844, App. B.1.5): from the last position's vector plus the sinusoidal
    encoding of a queried position, a two-layer MLP must recover that position's token."""

    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        h = arch.header
        self.arch = arch
        self.backbone = Backbone(arch)
        self.decoder = nn.Sequential(nn.Linear(h.d, h.d), nn.GELU(), nn.Linear(h.d, h.vocab))

    def forward(self, tokens_BT: Tensor) -> Tensor:
        return self.decode(self.backbone(tokens_BT)[:, -1:], tokens_BT.shape[1])

    def decode(self, last_B1D: Tensor, tokens: int) -> Tensor:
        asked_TD = sinusoid(torch.arange(tokens, device=last_B1D.device), last_B1D.shape[-1])
        logits: Tensor = self.decoder(last_B1D + asked_TD.to(last_B1D.dtype))
        return logits

    def loss(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        B, T = tokens_BT.shape
        last_B1D, own = self.backbone.forward_at(tokens_BT, torch.full((B, 1), T - 1, device=tokens_BT.device))
        logits_BTV = self.decode(last_B1D, T)
        return F.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten(), ignore_index=IGNORE) + own


Model = LanguageModel | Encoder | AutoEncoder
KINDS: dict[str, type[LanguageModel] | type[Encoder] | type[AutoEncoder]] = {
    "lm": LanguageModel,
    "encoder": Encoder,
    "autoencoder": AutoEncoder,
}


def build(
    spec: str | Spec | Architecture,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Model:
    """A model with seeded weights. `device="meta"` builds shapes without memory, for counting."""
    arch = architecture(spec)
    if torch.device(device).type == "cpu":
        require_weights_fit(arch, torch.float32.itemsize + (dtype != torch.float32) * dtype.itemsize)
    # Modules initialise themselves when constructed; our values replace theirs, and the caller's RNG state is restored.
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
    """BERT's head on the first position: a dense layer with tanh, then two logits, index 1 for "follows". Other weights
    are unchanged."""
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


def seed_of(name: str, size: int = 8) -> int:
    """A seed for torch's generators: the first bytes of the name's hash, at most 63 bits."""
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:size], "little") >> max(0, 8 * size - 63)


def fill(model: nn.Module, weights: dict[str, Tensor], source: str) -> None:
    """Copy weights into a model of the same architecture; anything missing, left over or misshapen is an error."""
    parameters = dict(model.named_parameters())
    missing, spare = parameters.keys() - weights.keys(), weights.keys() - parameters.keys()
    if missing or spare:
        raise UserError(
            f"the weights of {source} are not those of its architecture: "
            f"{len(missing)} missing ({', '.join(sorted(missing)[:3])}), {len(spare)} unknown."
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            if parameter.shape != weights[name].shape:
                raise UserError(
                    f"{source}: {name} has shape {tuple(weights[name].shape)}, the architecture needs "
                    f"{tuple(parameter.shape)}."
                )
            if not weights[name].isfinite().all():
                raise UserError(f"{source}: {name} holds numbers that are not finite; it cannot be used.")
            parameter.copy_(weights[name])


def save_tensors(path: Path, tensors: Mapping[str, Tensor], beside: Mapping[str, str]) -> None:
    """Write tensors, and texts in the header; any failure is an OSError."""
    on_cpu = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    try:
        save_file(on_cpu, path, metadata={**beside, CHECKSUM: _digest(on_cpu, beside)})
    except SafetensorError as wrong:
        raise OSError(str(wrong)) from wrong


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the header's texts; `UserError` if the file is damaged or cannot be read. Files of earlier
    versions have no checksum and are not checked."""
    try:
        with safe_open(path, framework="pt") as opened:
            beside = dict(opened.metadata() or {})
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, RuntimeError, ValueError, TypeError, MemoryError) as wrong:
        raise UserError(f"{path} cannot be read: {getattr(wrong, 'strerror', None) or wrong}.") from wrong
    written = beside.pop(CHECKSUM, None)
    if written is not None and written != _digest(tensors, beside):
        raise UserError(f"{path} is damaged: its checksum is not the one written down.")
    return tensors, beside


def _digest(tensors: Mapping[str, Tensor], beside: Mapping[str, str]) -> str:
    total = hashlib.sha256(json.dumps(dict(beside), sort_keys=True).encode())
    for name, value in sorted(tensors.items()):
        total.update(f"\n{name} {value.dtype} {tuple(value.shape)}\n".encode())
        total.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()
