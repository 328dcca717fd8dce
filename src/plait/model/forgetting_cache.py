r"""Cache eviction for forgetting attention: entries that provably cannot matter any more are dropped.

The score of a future query i for entry j, relative to its score for the newest entry m of the cache, is

    s_ij − s_im = q_i·(k_j − k_m)/√P + c_m − c_j        (c falls with every gate; with ALiBi also − slope·(m − j))

so whatever i will be, p_ij ≤ p_im · exp(reach_j + c_m − c_j), reach_j = max over all queries the layer can make of
q·(k_j − k_m)/√P. Those queries lie in an ellipsoid that the weights fix:

    QK-norm      q = w∘x̂,                 ‖x̂‖ ≤ √P
    otherwise    q = W_q(γ∘x̂ + β) + b,     ‖x̂‖ ≤ √D     (x̂ is the layer norm's or RMS norm's output before γ, β)

    reach = [radius · √(Δᵀ G Δ) + offset·Δ]/√P,   Δ = k_j − k_m,   G = diag(w²) or W_q diag(γ²) W_qᵀ

(rotary positions rotate the queries, so there only the ellipsoid's longest axis counts). The keys are those actually in
the cache, so KV-shift, which changes keys before they are stored, needs no special treatment.

What is dropped is the longest prefix of entries with Σ_j exp(reach_j + c_m − c_j) ≤ bound in every head. Then

* of one call: the dropped entries' total probability for any later query is ≤ bound · p_im;
* of all calls at different lengths together: ≤ bound · Σ_m p_im ≤ bound, because the entries m differ. The bound
  holds for the whole generation, however often entries are dropped;
* a head's output moves by at most 2 · bound · max‖v‖.

The bounds hold in exact arithmetic; floating point adds rounding errors. Such a bound for tiles of a training pass: Lin
et al. 2025, Adaptive Computation Pruning, arXiv:2504.06949, which bounds all norms at once.

Letters: B batch, N entries, D model width, H query heads, G key-value heads, P head width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from plait.core.errors import UserError
from plait.mixers.attn_module import Attention
from plait.mixers.mixer import RmsNorm, State
from plait.model.backbone import Block, ModelState
from plait.model.language_model import LanguageModel

PER_ENTRY = ("k", "v", "log_f")


@dataclass(frozen=True)
class Dropped:
    """What was dropped from the caches, summed over layers and rows."""

    entries: int
    bytes: int

    def __add__(self, other: Dropped) -> Dropped:
        return Dropped(self.entries + other.entries, self.bytes + other.bytes)


@dataclass(frozen=True)
class Queries:
    """One ellipsoid per head that contains every query the layer can make: offset + radius · {q : qᵀ G⁻¹ q ≤ 1}."""

    gram_HPP: Tensor
    radius: float
    offset_HP: Tensor

    def reach(self, delta_BNP: Tensor, head: int, *, turning: bool) -> Tensor:
        """The largest q·Δ of a head, for each Δ."""
        gram_PP, offset_P = self.gram_HPP[head], self.offset_HP[head]
        if turning:
            longest = self.radius * torch.linalg.eigvalsh(gram_PP)[-1].clamp(min=0).sqrt() + offset_P.norm()
            reach_BN: Tensor = longest * delta_BNP.norm(dim=-1)
            return reach_BN
        squared_BN = ((delta_BNP @ gram_PP) * delta_BNP).sum(-1)
        return self.radius * squared_BN.clamp(min=0).sqrt() + delta_BNP @ offset_P


def check_forget(model: LanguageModel, bound: float) -> None:
    if not 0 < bound < 1:
        raise UserError(f"forget={bound}: the bound is a probability above 0 and below 1, such as 1e-4.")
    if not any(_forgets(block) for block in model.backbone.blocks):
        kinds = sorted({block.mixer.options.name for block in model.backbone.blocks})
        raise UserError(
            f"no layer of this model forgets (it has {', '.join(kinds)}): "
            "`forget` is for attention with a forget gate (fox) or with pos=alibi."
        )


@torch.no_grad()
def drop_forgotten(model: LanguageModel, state: ModelState, bound: float) -> tuple[ModelState, Dropped]:
    """The state without entries whose total probability stays ≤ `bound` in every head for every later query.

    Each row loses its own prefix, independently of the others: the part that all rows lose is freed, the rest becomes
    padding. Removing tokens (`crop`) beyond the newest entry of this call invalidates the bound.
    """
    check_forget(model, bound)
    layers, total = [], Dropped(0, 0)
    for block, layer in zip(model.backbone.blocks, state.layers, strict=True):
        if _forgets(block) and layer["k"].shape[1]:
            lost_B = forgotten(block, layer, bound)
            layer, dropped = _without(layer, lost_B)
            total = total + dropped
        layers.append(layer)
    return ModelState(tuple(layers), state.pos_B, state.pad_B), total


def forgotten(block: Block, layer: State, bound: float) -> Tensor:
    """How many entries at the start of each row's cache are padding or can be dropped."""
    mixer = block.mixer
    assert isinstance(mixer, Attention)
    k_BNGP = layer["k"].double()
    B, N = k_BNGP.shape[:2]
    position_N = torch.arange(N, device=k_BNGP.device)
    padded_BN = position_N < layer["pad"][:, None] if "pad" in layer else torch.zeros_like(k_BNGP[..., 0, 0]).bool()
    queries, lost_B = possible_queries(block), torch.full((B,), N, device=k_BNGP.device)
    for head in range(mixer.heads):
        k_BNP = k_BNGP[:, :, head * mixer.groups // mixer.heads]
        excess_BN = queries.reach(k_BNP - k_BNP[:, -1:], head, turning=mixer.rotary is not None)
        excess_BN = excess_BN / math.sqrt(mixer.width) + _decay(mixer, layer, head)
        total_BN = excess_BN.masked_fill(padded_BN, -torch.inf).logcumsumexp(dim=1)
        lost_B = torch.minimum(lost_B, (total_BN <= math.log(bound)).sum(dim=1))
    return lost_B  # the newest entry has excess 0 > log bound: it always stays


def possible_queries(block: Block) -> Queries:
    """The set of queries that the layer can make, from its weights alone."""
    mixer, norm = block.mixer, block.norm
    assert isinstance(mixer, Attention)
    if mixer.query_norm is not None:
        weight_HP = mixer.query_norm.weight.double().expand(mixer.heads, mixer.width)
        return Queries(torch.diag_embed(weight_HP**2), math.sqrt(mixer.width), torch.zeros_like(weight_HP))
    if not isinstance(norm, RmsNorm | nn.LayerNorm):
        raise UserError(f"{mixer.options.name} has neither qk_norm nor a norm before it: its queries have no bound.")
    inner = mixer.heads * mixer.width
    weight_HPD = mixer.qkv.weight[:inner].double().unflatten(0, (mixer.heads, mixer.width))
    scaled_HPD = weight_HPD * norm.weight.double()
    offset_HP = torch.zeros_like(weight_HPD[..., 0])
    if isinstance(norm, nn.LayerNorm):
        offset_HP = weight_HPD @ norm.bias.double()
    if mixer.qkv.bias is not None:
        offset_HP = offset_HP + mixer.qkv.bias[:inner].double().unflatten(0, (mixer.heads, mixer.width))
    return Queries(scaled_HPD @ scaled_HPD.mT, math.sqrt(mixer.d), offset_HP)


def _forgets(block: Block) -> bool:
    mixer = block.mixer
    return isinstance(mixer, Attention) and (mixer.forget != "none" or mixer.pos == "alibi")


def _decay(mixer: Attention, layer: State, head: int) -> Tensor:
    """c_m − c_j (and − slope·(m − j)) of every entry j relative to the newest, m; includes padding, which is masked."""
    held = layer["k"].shape[1]
    age_N = torch.arange(held - 1, -1, -1, device=layer["k"].device, dtype=torch.float64)
    decay_BN = torch.zeros(len(layer["k"]), held, device=age_N.device, dtype=torch.float64)
    if "log_f" in layer:
        c_BN = layer["log_f"][..., head].double().cumsum(1)
        decay_BN = c_BN[:, -1:] - c_BN
    if mixer.pos == "alibi":
        decay_BN = decay_BN - mixer.slopes_H[head].double() * age_N
    return decay_BN


def _without(layer: State, lost_B: Tensor) -> tuple[State, Dropped]:
    common = int(lost_B.min())
    new = dict(layer)
    if bool((lost_B > common).any()) or "pad" in layer:
        new["pad"] = lost_B - common
    if not common:
        return new, Dropped(0, 0)
    saved = 0
    for key in PER_ENTRY:
        if key in layer:
            saved += layer[key][:, :common].numel() * layer[key].element_size()
            new[key] = layer[key][:, common:].clone()  # a slice would keep the memory alive
    return new, Dropped(common * len(lost_B), saved)
