"""Attention maps of heads, and maps of their forget gates.

    F_ij = exp(c_i − c_j),    c_t = Σ_{s≤t} log f_s,    j ≤ i
    A_ij = softmax_j(q_i·k_j / √P + c_i − c_j)

As in Figure 3 of Lin et al. 2025, arXiv:2503.02130, which shows the entries of A above 0.5, which are few. Both are
computed with the model's weights on a text. A is the output of the attention op for an identity matrix as values, so it
includes all features of that op: windows, ALiBi, rotary positions, grouped heads, relative positions.

Letters: T time, H heads, P head width, D model width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plait.core.errors import UserError
from plait.core.progress import OnCount, silent
from plait.core.units import percent
from plait.evals.evaluation import Evaluation, Results, ResultTable, Subject
from plait.evals.losses import check_length
from plait.mixers.attn_module import Attention
from plait.mixers.mixer import Mixer
from plait.mixers.xl_attn_module import RelativeAttention
from plait.model.language_model import Encoder, LanguageModel
from plait.ops.attention import attention_reference, sink_attention
from plait.ops.relative import relative_attention_reference, sinusoid
from plait.reporting.heat_maps import Matrix, matrices

SHARP = 0.5  # the paper's figure shows weights above this
MOST_CELLS = 96  # on each side of a map that is stored and drawn
MOST_MAPS = 6  # unless a layer or head is given


@dataclass(frozen=True)
class AttentionMap:
    layer: int  # index of the layer in the architecture
    head: int
    attention_TT: np.ndarray  # rows are queries and sum to 1
    values_TP: np.ndarray  # attention_TT @ values_TP is the head's output
    forget_TT: np.ndarray | None  # None without a forget gate

    @property
    def sharp(self) -> float:
        """The share of queries that give one key more than half of their attention."""
        return float((self.attention_TT.max(axis=1) > SHARP).mean())

    @property
    def distance(self) -> float:
        """The mean attention distance, in tokens."""
        T = len(self.attention_TT)
        away_TT = np.abs(np.arange(T)[:, None] - np.arange(T))
        return float((self.attention_TT * away_TT).sum(axis=1).mean())

    @property
    def memory(self) -> float | None:
        """The number of tokens that remain visible through the forget gate: the mean over i of Σ_j F_ij."""
        return None if self.forget_TT is None else float(self.forget_TT.sum(axis=1).mean())


def attention_layers(model: LanguageModel | Encoder) -> dict[int, Attention | RelativeAttention]:
    """The layers that have maps, by their index in the architecture."""
    mixers: dict[int, Mixer] = {index: block.mixer for index, block in enumerate(model.backbone.blocks)}
    return {i: mixer for i, mixer in mixers.items() if isinstance(mixer, (Attention, RelativeAttention))}


@torch.no_grad()
def attention_map(model: LanguageModel | Encoder, tokens_T: Tensor, layer: int, head: int) -> AttentionMap:
    """The map of one head on one text."""
    layers = attention_layers(model)
    if layer not in layers:
        has = f"its attention layers are {', '.join(map(str, layers))}" if layers else "it has no attention"
        raise UserError(f"layer {layer} of this architecture has no attention map; {has} (counted from 0).")
    mixer = layers[layer]
    if not 0 <= head < mixer.heads:
        raise UserError(f"head {head}: layer {layer} has heads 0 to {mixer.heads - 1}.")
    x_BTD = _input_of(model, layer, tokens_T)
    if isinstance(mixer, Attention):
        return _plain_map(mixer, x_BTD, layer, head)
    return _relative_map(mixer, x_BTD, layer, head)


def _input_of(model: LanguageModel | Encoder, layer: int, tokens_T: Tensor) -> Tensor:
    """The input of a layer's mixer while the model reads the text, taken from the layer's norm: the mixer itself may be
    shared by several layers, or be called by a method other than forward."""
    seen: list[Tensor] = []
    norm = model.backbone.blocks[layer].get_submodule("norm")
    handle = norm.register_forward_hook(lambda _module, _given, out: seen.append(out))
    try:
        model.backbone(tokens_T[None].to(next(model.parameters()).device))
    finally:
        handle.remove()
    return seen[0]


def _plain_map(mixer: Attention, x_BTD: Tensor, layer: int, head: int) -> AttentionMap:
    q, k, v, log_f = mixer.heads_of(x_BTD)
    group = head // (mixer.heads // mixer.groups)
    own, shared = slice(head, head + 1), slice(group, group + 1)
    slopes = mixer.slopes_H[own] if mixer.pos == "alibi" else None
    log_f = None if log_f is None else log_f[..., own]
    if mixer.sinks_H is not None:
        A_BT1T = sink_attention(q[:, :, own], k[:, :, shared], _identity(k), mixer.sinks_H[own], window=mixer.window)
    else:
        A_BT1T = attention_reference(
            q[:, :, own], k[:, :, shared], _identity(k), log_f_BNH=log_f, slopes_H=slopes, causal=mixer.causal,
            window=mixer.window,
        )  # fmt: skip
    forget_TT = None
    if mixer.causal and not (log_f is None and slopes is None):
        step_T = torch.zeros(x_BTD.shape[1], dtype=torch.float64)
        if log_f is not None:
            step_T = step_T + log_f[0, :, 0].cpu().double()
        if slopes is not None:
            step_T = step_T - float(slopes[0])
        forget_TT = forget_matrix(step_T)
    return AttentionMap(layer, head, _array(A_BT1T[0, :, 0]), _array(v[0, :, group]), forget_TT)


def _relative_map(mixer: RelativeAttention, x_BTD: Tensor, layer: int, head: int) -> AttentionMap:
    T, own = x_BTD.shape[1], slice(head, head + 1)
    q_BTHP = mixer.query(x_BTD).unflatten(-1, (mixer.heads, mixer.width))
    k_BTHP, v_BTHP = mixer.key_value(x_BTD).unflatten(-1, (2, mixer.heads, mixer.width)).unbind(dim=-3)
    distances = sinusoid(torch.arange(T, device=x_BTD.device), mixer.d).to(x_BTD.dtype)
    r_THP = mixer.distance(distances).unflatten(-1, (mixer.heads, mixer.width))
    A_BT1T = relative_attention_reference(
        q_BTHP[:, :, own], k_BTHP[:, :, own], _identity(k_BTHP), r_THP[:, own], mixer.content_bias_HP[own],
        mixer.position_bias_HP[own], window=mixer.window, clamp=mixer.clamp,
    )  # fmt: skip
    return AttentionMap(layer, head, _array(A_BT1T[0, :, 0]), _array(v_BTHP[0, :, head]), None)


def forget_matrix(log_f_T: Tensor) -> np.ndarray:
    """F: 1 on the diagonal, 0 above it, and below it the product of the gates between two tokens."""
    c_T = log_f_T.double().cumsum(0)
    # Above the diagonal c_i − c_j is positive and may overflow: it is masked before the exponential.
    hidden_TT = torch.ones(len(c_T), len(c_T), dtype=torch.bool, device=c_T.device).triu(1)
    return _array((c_T[:, None] - c_T).masked_fill(hidden_TT, -torch.inf).exp())


def _identity(k_BTGP: Tensor) -> Tensor:
    """Values with which attention returns its own weights: (1, T, 1, T)."""
    return torch.eye(k_BTGP.shape[1], device=k_BTGP.device, dtype=k_BTGP.dtype)[None, :, None]


def _array(tensor: Tensor) -> np.ndarray:
    array: np.ndarray = tensor.double().cpu().numpy()
    return array


def pooled(matrix_TT: np.ndarray, most: int = MOST_CELLS) -> np.ndarray:
    """The matrix reduced to at most `most` cells per side, each the maximum of the entries it covers."""
    cells = min(most, len(matrix_TT))
    edges = np.linspace(0, len(matrix_TT), cells + 1).astype(np.int64)[:-1]
    cells_CC: np.ndarray = np.maximum.reduceat(np.maximum.reduceat(matrix_TT, edges, axis=0), edges, axis=1)
    return cells_CC


@dataclass(frozen=True)
class MapsEvaluation(Evaluation):
    name = "maps"
    what = "forget-gate matrix F and attention A of single heads"

    length: int = 0  # tokens of the text; 0: as in training, at most 512
    layer: int = -1  # index in the architecture; -1: some, first to last
    head: int = -1  # -1: some
    start: int = 0  # position in the split where the text begins

    def resolved(self, subject: Subject) -> MapsEvaluation:
        length = self.length or min(512, subject.trained_length)
        self.require(self.start >= 0 and self.start + length <= len(subject.tokens), "start", "within the text")
        return replace(self, length=length)

    def measure(self, subject: Subject, progress: OnCount = silent) -> dict[str, Any]:
        check_length(subject.model, self.length)
        tokens_T = torch.from_numpy(subject.tokens[self.start : self.start + self.length].astype(np.int64))
        chosen, maps = self._chosen(subject.model), []
        for done, (layer, head) in enumerate(chosen, start=1):
            drawn = attention_map(subject.model, tokens_T, layer, head)
            forget = None if drawn.forget_TT is None else pooled(drawn.forget_TT).round(3).tolist()
            maps.append(
                {
                    "layer": layer,
                    "head": head,
                    "sharp": drawn.sharp,
                    "distance": drawn.distance,
                    "memory": drawn.memory,
                    "attention": pooled(drawn.attention_TT).round(3).tolist(),
                    "forget": forget,
                }
            )
            progress(done, len(chosen))
        return {"maps": maps}

    def _chosen(self, model: LanguageModel | Encoder) -> list[tuple[int, int]]:
        layers = attention_layers(model)
        if not layers:
            raise UserError("this architecture has no attention layer, so there is no attention to map.")
        if self.layer >= 0:
            heads = layers[self.layer].heads if self.layer in layers else 1  # `attention_map` raises the error
            pairs = [(self.layer, head) for head in range(heads)]
        else:
            pairs = [(layer, head) for layer, mixer in layers.items() for head in range(mixer.heads)]
        if self.head >= 0:
            return [(layer, self.head) for layer in dict.fromkeys(layer for layer, _ in pairs)]
        if self.layer >= 0:
            return pairs
        spread = np.unique(np.linspace(0, len(pairs) - 1, min(MOST_MAPS, len(pairs))).astype(np.int64))
        return [pairs[index] for index in spread]

    def table(self, results: Results) -> ResultTable:
        columns = {"run": "left", "layer": "right", "head": "right", "rows with A > 0.5": "right",
                   "mean distance": "right", "tokens left by F": "right"}  # fmt: skip
        rows = [
            [
                run,
                str(row["layer"]),
                str(row["head"]),
                percent(row["sharp"]),
                f"{row['distance']:.1f}",
                "–" if row["memory"] is None else f"{row['memory']:.1f}",
            ]
            for run, result in results.items()
            for row in result["maps"]
        ]
        return columns, rows

    def figures(self, results: Results) -> dict[str, str]:
        """F and A side by side, one row per head."""
        drawn = {}
        for run, result in results.items():
            panels = []
            for row in result["maps"]:
                place = f"layer {row['layer']}, head {row['head']}"
                if row["forget"] is not None:
                    panels.append(Matrix(f"F, {place}", np.array(row["forget"])))
                panels.append(Matrix(f"A, {place}", np.array(row["attention"])))
            name = f"maps-{run}" if len(results) > 1 else "maps"
            title = "Forget gates and attention" if any(p.title[0] == "F" for p in panels) else "Attention"
            # Two heads per row, or four without F.
            drawn[name] = matrices(panels, title=title, x_label="key", y_label="query", columns=4, power=0.5)
        return drawn
