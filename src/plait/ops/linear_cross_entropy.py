"""The output layer and its cross-entropy as one operator: the logits of all tokens are never in memory at once.

    loss = mean over scored n of  logsumexp_v(h_n·w_v + b_v) − (h_n·w_t + b_t),   t = target_n

One chunk of tokens at a time: its logits, its losses and, in training, immediately the gradients,

    g = softmax(h Wᵀ + b) − one-hot(target),   dh = g W / N,   dW = gᵀ h / N,   db = Σ g / N

(N scored tokens), so the logits of a chunk are freed before the next. It needs the same three products as the plain
form; dh and dW are saved for the backward pass. Under autocast the products are in half precision, sums of exponentials
and dW in fp32. On a GPU the vocabulary is padded to a multiple of 64 inside: rows of 50257 half-precision numbers are
not aligned as fast matrix products require.

Letters: N tokens, D width, V vocabulary, W the same padded, C tokens of a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from plait.ops.paths import has_kernels, plain_asked, recording

#: Targets with this value are not scored.
IGNORE = -100
#: Number of logits (tokens × vocabulary) from which on the operator is used, and that of one chunk.
WORTHWHILE_ON_CPU, CHUNK_ON_CPU = 2**23, 2**22
WORTHWHILE_ON_GPU, CHUNK_ON_GPU = 2**24, 2**28
_ALIGNED = 64


def linear_cross_entropy_reference(
    hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, bias_V: Tensor | None = None
) -> Tensor:
    """The definition."""
    return F.cross_entropy(F.linear(hidden_ND, weight_VD, bias_V), targets_N, ignore_index=IGNORE)


def linear_cross_entropy(
    hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, bias_V: Tensor | None = None
) -> Tensor:
    """The same, in chunks where that is worthwhile. Differentiable once."""
    if linear_cross_entropy_path(hidden_ND, weight_VD) == "plain":
        return linear_cross_entropy_reference(hidden_ND, weight_VD, targets_N, bias_V)
    return chunked_linear_cross_entropy(hidden_ND, weight_VD, targets_N, bias_V)


def linear_cross_entropy_path(hidden_ND: Tensor, weight_VD: Tensor) -> str:
    """ "chunked" or "plain": few logits, stacked replicas (vmap), second derivatives."""
    if plain_asked() or recording() or hidden_ND.device.type not in ("cpu", "cuda"):
        return "plain"
    if not torch.compiler.is_compiling() and torch._C._functorch.is_functorch_wrapped_tensor(hidden_ND):
        return "plain"
    least = WORTHWHILE_ON_GPU if hidden_ND.is_cuda else WORTHWHILE_ON_CPU
    return "chunked" if hidden_ND.shape[0] * weight_VD.shape[0] >= least else "plain"


def chunked_linear_cross_entropy(
    hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, bias_V: Tensor | None = None, *, chunk: int = 0
) -> Tensor:
    """Always in chunks, of `chunk` tokens each if given."""
    device = hidden_ND.device.type
    if torch.is_autocast_enabled(device):
        hidden_ND = hidden_ND.to(torch.get_autocast_dtype(device))
    inputs = (hidden_ND, weight_VD) if bias_V is None else (hidden_ND, weight_VD, bias_V)
    gradients = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
    loss: Tensor = _chunked(hidden_ND, weight_VD, targets_N, bias_V, chunk, gradients)[0]
    return loss


@torch.library.custom_op("plait::linear_cross_entropy", mutates_args=())
def _chunked(
    hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, bias_V: Tensor | None, chunk: int, gradients: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Loss, 1 / N, and N times the gradients of hidden, weight and bias (empty if not needed)."""
    exact = torch.promote_types(hidden_ND.dtype, torch.float32)
    nll_N = hidden_ND.new_empty(len(hidden_ND), dtype=exact)
    grad_hidden, grad_weight, grad_bias = _empty_gradients(hidden_ND, weight_VD, bias_V, gradients)
    grad_weight.zero_()
    grad_bias.zero_()
    with torch.autocast(hidden_ND.device.type, enabled=False):
        weight_WD, bias_W = _padded(weight_VD, hidden_ND), None if bias_V is None else _padded(bias_V, hidden_ND)
        sum_WD = weight_WD.new_zeros(weight_WD.shape, dtype=exact) if gradients else grad_weight
        logits: Tensor | None = None
        for rows in _chunks(len(hidden_ND), len(weight_WD), chunk, hidden_ND.is_cuda):
            h_CD, targets_C = hidden_ND[rows], targets_N[rows]
            logits = h_CD.new_empty(len(h_CD), len(weight_WD)) if logits is None else logits[: len(h_CD)]
            if bias_W is None:
                torch.mm(h_CD, weight_WD.T, out=logits)
            else:
                torch.addmm(bias_W, h_CD, weight_WD.T, out=logits)
            _score_rows(logits, targets_C, nll_N[rows], len(weight_VD), gradients)
            if gradients:
                torch.mm(logits, weight_WD, out=grad_hidden[rows])
                _add_product(sum_WD, logits.T, h_CD)
                if bias_V is not None:
                    grad_bias += logits[:, : len(bias_V)].sum(0, dtype=exact)
    share = 1 / (targets_N != IGNORE).sum().to(exact)
    if gradients:
        grad_weight = sum_WD[: len(weight_VD)].to(weight_VD.dtype)
    return nll_N.sum() * share, share, grad_hidden, grad_weight, grad_bias


def _empty_gradients(
    hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, gradients: bool
) -> tuple[Tensor, Tensor, Tensor]:
    bias = hidden_ND.new_empty(0) if bias_V is None else bias_V
    return tuple(x.new_empty(x.shape if gradients else 0) for x in (hidden_ND, weight_VD, bias))  # type: ignore[return-value]


def _padded(x: Tensor, like: Tensor) -> Tensor:
    """In the dtype of the products; on a GPU with zero rows up to an aligned number."""
    wide = -(-len(x) // _ALIGNED) * _ALIGNED if like.is_cuda else len(x)
    if wide == len(x):
        return x.to(like.dtype)
    padded = x.new_zeros(wide, *x.shape[1:], dtype=like.dtype)
    padded[: len(x)] = x
    return padded


def _chunks(tokens: int, wide: int, chunk: int, gpu: bool) -> Iterator[slice]:
    """Of about equal size; the first is the largest."""
    count = -(-tokens * wide // (CHUNK_ON_GPU if gpu else CHUNK_ON_CPU))
    size = chunk or -(-tokens // max(1, count))
    size = size if chunk or not gpu else -(-size // 128) * 128
    for begin in range(0, tokens, max(1, size)):
        yield slice(begin, min(begin + size, tokens))


def _score_rows(logits_CW: Tensor, targets_C: Tensor, nll_C: Tensor, vocab: int, gradients: bool) -> None:
    """Losses of a chunk's rows, and the logits replaced by softmax − one-hot (zero where not scored)."""
    if has_kernels(logits_CW) and logits_CW.dtype != torch.float64:
        from plait.ops.elementwise_triton import cross_entropy_rows  # Triton comes with CUDA builds of torch

        cross_entropy_rows(logits_CW, targets_C, nll_C, vocab, IGNORE, gradients)
        return
    x_CV = logits_CW[:, :vocab]
    scored_C1 = (targets_C != IGNORE)[:, None]
    place_C1 = targets_C[:, None].where(scored_C1, 0)
    # In place, on a chunk that stays in cache.
    x_CV = x_CV.sub_(x_CV.amax(1, keepdim=True))
    at_target_C1 = x_CV.gather(1, place_C1)
    total_C1 = x_CV.exp_().sum(1, keepdim=True)
    nll_C.copy_(torch.where(scored_C1, total_C1.log() - at_target_C1, 0.0)[:, 0])
    if gradients:
        logits_CW[:, vocab:] = 0.0
        x_CV.mul_(scored_C1 / total_C1)
        x_CV.scatter_add_(1, place_C1, -scored_C1.to(x_CV.dtype))


def _add_product(sum_WD: Tensor, a_WC: Tensor, b_CD: Tensor) -> None:
    """Add a product in the precision of the sum, whatever that of the factors."""
    if a_WC.dtype == sum_WD.dtype:
        sum_WD.addmm_(a_WC, b_CD)
    elif has_kernels(a_WC):
        torch.ops.aten.addmm.dtype_out(sum_WD, a_WC, b_CD, sum_WD.dtype, out=sum_WD)
    else:
        sum_WD += a_WC @ b_CD


def _fake(
    hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, bias_V: Tensor | None, chunk: int, gradients: bool
) -> tuple[Tensor, ...]:
    exact = torch.promote_types(hidden_ND.dtype, torch.float32)
    loss, share = (hidden_ND.new_empty((), dtype=exact) for _ in range(2))
    return loss, share, *_empty_gradients(hidden_ND, weight_VD, bias_V, gradients)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.has_bias = inputs[3] is not None
    ctx.save_for_backward(*output[1:])


def _backward(ctx: Any, grad_loss: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    share, grad_hidden, grad_weight, grad_bias = ctx.saved_tensors
    scale = grad_loss * share
    hidden, weight, bias = (grad * scale.to(grad.dtype) for grad in (grad_hidden, grad_weight, grad_bias))
    return hidden, weight, None, bias if ctx.has_bias else None, None, None


_chunked.register_fake(_fake)
_chunked.register_autograd(_backward, setup_context=_save)
