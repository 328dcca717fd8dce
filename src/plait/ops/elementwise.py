"""Elementwise ops of every block: RMS norm, the gate of SwiGLU, rotary positions.

Elementwise work on tensors larger than a cache is memory-bound: the fast paths read them once forward and once
backward, in cache-sized blocks.

RMS norm  y = x / √(mean x² + ε) ∘ w (Zhang and Sennrich 2019, arXiv:1910.07467). With r = 1/√(mean x² + ε), x̂ = r x and
          h = dy ∘ w:  dx = r (h − x̂ · mean(h ∘ x̂)),  dw = Σ dy ∘ x̂.
SwiGLU    y = silu(g) ∘ u, both halves of one product (Shazeer 2020, arXiv:2002.05202); both gradients are written where
          the product before it wants them.
rotary    channel pairs (i, i + D/2) turn by position · θ^(−2i/D) (Su et al. 2021, arXiv:2104.09864). A rotation is
          linear and its adjoint is the rotation back, so nothing is saved. It multiplies by tables as wide as all heads
          together and reads partners by a permutation: loops over half a narrow head would take most of the time.

On a GPU, the elementwise work between a block's matrix products consists of operators, each one node of a compiled
graph: SwiGLU's gate, and the split of a joint projection [q, k, v] into rotated queries and keys, and values, whose
backward pass writes the inverse rotation into one gradient of the joint projection.

Letters: M stacked models (vmap), N rows, D width (rotary: head width), W width of the gate, B batch, T time, H heads,
I = D/2 pairs, C = H·D channels; split: P head width, H query heads, G key/value heads, A = H + 2G.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from plait.ops.paths import cache_blocks, has_kernels, plain_asked, plain_wanted, recording
from plait.ops.stacking import StackedFunction, fold_replicas, unfold_replicas


def rms_norm_reference(x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """The definition, over the last dimension."""
    return F.rms_norm(x, x.shape[-1:], weight_D, eps)


def rms_norm(x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """The same, fast on a CPU; elsewhere torch's own kernel is used, which takes one dtype and computes in fp32."""
    if x.is_cuda and x.dtype in (torch.bfloat16, torch.float16):
        weight_D = weight_D.to(x.dtype)
    if plain_wanted() or x.is_cuda or x.dtype != weight_D.dtype:
        return rms_norm_reference(x, weight_D, eps)
    y_MND: Tensor = _RmsNorm.apply(x.reshape(1, -1, x.shape[-1]), weight_D[None], eps)[0]
    return y_MND.view(x.shape)


class _RmsNorm(StackedFunction):
    """(x, weight) -> (y, r); r is for the backward pass alone."""

    @staticmethod
    def forward(x_MND: Tensor, weight_MD: Tensor, eps: float) -> Any:
        M, N, D = x_MND.shape
        y_MND, r_MN1 = x_MND.new_empty(x_MND.shape), x_MND.new_empty(M, N, 1)
        for m, n in cache_blocks(M, N, D, x_MND.device):
            x, y, r = x_MND[m, n], y_MND[m, n], r_MN1[m, n]
            torch.linalg.vector_norm(x, dim=-1, keepdim=True, out=r)
            r.square_().div_(D).add_(eps).rsqrt_()
            torch.mul(x, r, out=y)
            y.mul_(weight_MD[m, None])
        return y_MND, r_MN1

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(inputs[0], inputs[1], output[1])

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor, _: Any) -> Any:
        return *_RmsNormAdjoint.apply(*ctx.saved_tensors, grad_y), None


class _RmsNormAdjoint(StackedFunction):
    """(x, weight, r, dy) -> (dx, dw). A separate function, so that it can also be vmapped."""

    @staticmethod
    def forward(x_MND: Tensor, weight_MD: Tensor, r_MN1: Tensor, grad_y_MND: Tensor) -> Any:
        M, N, D = x_MND.shape
        grad_x_MND, grad_weight_MD = x_MND.new_empty(x_MND.shape), weight_MD.new_zeros(M, D)
        spare: Tensor | None = None
        for m, n in cache_blocks(M, N, D, x_MND.device):
            x, r, grad_y, grad_x = x_MND[m, n], r_MN1[m, n], grad_y_MND[m, n], grad_x_MND[m, n]
            # Two buffers reused for all blocks: page faults of fresh memory would cost more than the arithmetic.
            spare = x.new_empty(2, x.shape[0], x.shape[1], D) if spare is None else spare
            hat, product = spare[:, : x.shape[0], : x.shape[1]]
            torch.mul(x, r, out=hat)
            torch.mul(grad_y, hat, out=product)
            grad_weight_MD[m] += product.sum(1)
            mean = product.mul_(weight_MD[m, None]).mean(-1, keepdim=True)
            torch.mul(grad_y, weight_MD[m, None], out=grad_x)
            grad_x.addcmul_(hat, mean, value=-1).mul_(r)
        return grad_x_MND, grad_weight_MD

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        del ctx, inputs, output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise NotImplementedError("rms_norm is differentiable once; for second derivatives use `plain_ops()`")


def take_tokens(x_BTX: Tensor, at_BN: Tensor) -> Tensor:
    """x, (B, T, …), at some positions of each sequence: (B, N, …)."""
    index = at_BN.reshape(*at_BN.shape, *(1,) * (x_BTX.dim() - 2))
    return x_BTX.gather(1, index.expand(*at_BN.shape, *x_BTX.shape[2:]))


#: Up to this many rows, the gradient of a table is a product with the tokens' one-hot vectors.
SMALL_TABLE = 256


def embedding(tokens_BT: Tensor, table_VD: Tensor) -> Tensor:
    """Rows of a table. In a traced graph the gradient of a small table is a matrix product: the compiler's scatter-add
    is slow if most tokens are the same (a seventh of a step of selective copying on an H200)."""
    if recording() and table_VD.shape[0] <= SMALL_TABLE:
        rows_BTD: Tensor = _SmallEmbedding.apply(tokens_BT, table_VD)
        return rows_BTD
    return F.embedding(tokens_BT, table_VD)


class _SmallEmbedding(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(tokens_BT: Tensor, table_VD: Tensor) -> Tensor:
        return F.embedding(tokens_BT, table_VD)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        del output
        ctx.save_for_backward(inputs[0])
        ctx.rows = len(inputs[1])

    @staticmethod
    def backward(ctx: Any, grad_BTD: Tensor) -> tuple[None, Tensor]:
        (tokens_BT,) = ctx.saved_tensors
        # One product per sequence: a single product over all tokens would leave most of a GPU idle.
        with torch.autocast(grad_BTD.device.type, enabled=False):
            chosen_BTV = (tokens_BT[..., None] == torch.arange(ctx.rows, device=tokens_BT.device)).to(grad_BTD.dtype)
            return None, (chosen_BTV.mT @ grad_BTD).sum(0)


def swiglu_reference(gate_up: Tensor) -> Tensor:
    """silu of the first half of the last dimension, times the second half."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def swiglu(gate_up: Tensor) -> Tensor:
    """The same, fast."""
    if has_kernels(gate_up) and fused_takes(gate_up):
        return fused_swiglu(gate_up)
    if plain_wanted() or gate_up.is_cuda:
        return swiglu_reference(gate_up)
    y_MNW: Tensor = _Swiglu.apply(gate_up.reshape(1, -1, gate_up.shape[-1]))[0]
    return y_MNW.view(*gate_up.shape[:-1], -1)


class _Swiglu(StackedFunction):
    """(gate and up,) -> (y,)."""

    @staticmethod
    def forward(x_MNV: Tensor) -> Any:
        M, N, width = x_MNV.shape[0], x_MNV.shape[1], x_MNV.shape[2] // 2
        y_MNW = x_MNV.new_empty(M, N, width)
        for m, n in cache_blocks(M, N, 2 * width, x_MNV.device):
            gate, up = x_MNV[m, n].chunk(2, dim=-1)
            y = y_MNW[m, n]
            torch.ops.aten.silu.out(gate, out=y)
            y.mul_(up)
        return (y_MNW,)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor]) -> None:
        del output
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor) -> Any:
        (grad_x,) = _SwigluAdjoint.apply(*ctx.saved_tensors, grad_y)
        return grad_x


class _SwigluAdjoint(StackedFunction):
    """(gate and up, dy) -> (their gradient,). A separate function, so that it can also be vmapped."""

    @staticmethod
    def forward(x_MNV: Tensor, grad_y_MNW: Tensor) -> Any:
        M, N, width = x_MNV.shape[0], x_MNV.shape[1], x_MNV.shape[2] // 2
        grad_x_MNV = x_MNV.new_empty(x_MNV.shape)
        for m, n in cache_blocks(M, N, 2 * width, x_MNV.device):
            gate, up = x_MNV[m, n].chunk(2, dim=-1)
            grad_gate, grad_up = grad_x_MNV[m, n].chunk(2, dim=-1)
            grad_y = grad_y_MNW[m, n]
            torch.ops.aten.silu.out(gate, out=grad_up)
            grad_up.mul_(grad_y)
            torch.mul(grad_y, up, out=grad_gate)
            torch.ops.aten.silu_backward.grad_input(grad_gate, gate, grad_input=grad_gate)
        return (grad_x_MNV,)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor]) -> None:
        del ctx, inputs, output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise NotImplementedError("swiglu is differentiable once; for second derivatives use `plain_ops()`")


def rotary_angles(
    positions: Tensor, width: int, theta: float, dtype: torch.dtype, slowdown_I: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """cos and sin of every position and pair as (…, 1, I), ready to broadcast over heads; `positions` of any shape.
    `slowdown_I` multiplies the frequencies.

    Computed in at least fp32, whatever the requested dtype: at position 100,000, half precision cannot distinguish
    neighbours.
    """
    half = width // 2
    exact = torch.promote_types(dtype, torch.float32)
    index_I = torch.arange(half, device=positions.device, dtype=exact)
    frequencies_I = theta ** (-index_I / half)
    if slowdown_I is not None:
        frequencies_I = frequencies_I * slowdown_I
    angles = positions.to(exact)[..., None, None] * frequencies_I
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate_reference(x_BTHD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The definition. `cos` and `sin` are (T, 1, I), or (B, T, 1, I) if rows have different positions."""
    first, second = x_BTHD.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def rotate(x_BTHD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The same, fast on a CPU. Rows with different positions occur only in generation, where T is short; a GPU needs no
    cache blocking."""
    H, D = x_BTHD.shape[-2:]
    if plain_wanted() or cos.dim() > 3 or x_BTHD.is_cuda:
        return rotate_reference(x_BTHD, cos, sin)
    cos_TC = torch.cat([cos, cos], dim=-1).expand(-1, H, D).flatten(-2)
    sin_TC = torch.cat([-sin, sin], dim=-1).expand(-1, H, D).flatten(-2)
    y_MBTC: Tensor = _Rotate.apply(x_BTHD.flatten(-2)[None], cos_TC[None], sin_TC[None], D)[0]
    return y_MBTC[0].view(x_BTHD.shape)


class _Rotate(StackedFunction):
    """(x, cos, sin) -> (y,), the heads' channels side by side; sin carries the sign of the first half."""

    @staticmethod
    def forward(x_MBTC: Tensor, cos_MTC: Tensor, sin_MTC: Tensor, head: int) -> Any:
        M, B, T, C = x_MBTC.shape
        partner_C = torch.arange(C, device=x_MBTC.device).view(-1, 2, head // 2).flip(1).flatten()
        y_MBTC = x_MBTC.new_empty(x_MBTC.shape)
        for m, b in cache_blocks(M, B, T * C, x_MBTC.device):
            x, y = x_MBTC[m, b], y_MBTC[m, b]
            torch.mul(x, cos_MTC[m, None], out=y)
            y.addcmul_(x[..., partner_C], sin_MTC[m, None])
        return (y_MBTC,)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor]) -> None:
        del output
        ctx.save_for_backward(*inputs[1:3])
        ctx.head = inputs[3]

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor) -> Any:
        cos_MTC, sin_MTC = ctx.saved_tensors
        (grad_x,) = _Rotate.apply(grad_y, cos_MTC, -sin_MTC, ctx.head)
        return grad_x, None, None, None


# ---- on a GPU


def fused_takes(x: Tensor) -> bool:
    """Whether the kernels support this tensor, which is on a GPU: neither stacked (vmap) nor differentiated twice."""
    if x.dtype == torch.float64 or plain_asked() or recording():
        return False
    return torch.compiler.is_compiling() or not torch._C._functorch.is_functorch_wrapped_tensor(x)


def split_recorded(x: Tensor) -> bool:
    """Whether a recorded graph of stacked models, which are on a GPU, joins the gradients of a split by the kernel."""
    return recording() and x.dtype != torch.float64 and not plain_asked()


def fused_swiglu(gate_up: Tensor) -> Tensor:
    y_NW: Tensor = _swiglu(gate_up.reshape(-1, gate_up.shape[-1]))
    return y_NW.view(*gate_up.shape[:-1], -1)


def split_rotated(packed_BTAP: Tensor, cos_TI: Tensor, sin_TI: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rotated q_BTHP and k_BTGP, and v_BTGP; the angles are fp32."""
    q, k, v = (_RecordedSplit.apply if recording() else _split)(packed_BTAP, cos_TI, sin_TI, heads)
    return q, k, v


class _RecordedSplit(torch.autograd.Function):
    """For a graph of stacked models: the compiler fuses the rotation of the forward pass with what comes before, and
    values remain a view of the projection. The gradients it would join by selecting, at half of the speed."""

    generate_vmap_rule = True

    @staticmethod
    def forward(packed_BTAP: Tensor, cos_TI: Tensor, sin_TI: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
        groups = (packed_BTAP.shape[2] - heads) // 2
        q, k, v = packed_BTAP.split([heads, groups, groups], dim=2)
        turned = (rotate_reference(x, cos_TI[:, None], sin_TI[:, None]).to(x.dtype) for x in (q, k))
        return *turned, v

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _save_angles(ctx, inputs, output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dq: Tensor, dk: Tensor, dv: Tensor) -> tuple[Tensor | None, ...]:
        return _split_backward(dq, dk, dv, *ctx.saved_tensors), None, None, None


@torch.library.custom_op("plait::swiglu", mutates_args=())
def _swiglu(x_NV: Tensor) -> Tensor:
    from plait.ops.elementwise_triton import swiglu_forward  # Triton comes with CUDA builds of torch

    return swiglu_forward(x_NV.contiguous())


@torch.library.custom_op("plait::swiglu_backward", mutates_args=())
def _swiglu_backward(x_NV: Tensor, dy_NW: Tensor) -> Tensor:
    from plait.ops.elementwise_triton import swiglu_backward

    return swiglu_backward(x_NV.contiguous(), dy_NW.contiguous())


@torch.library.custom_op("plait::split_rotated", mutates_args=())
def _split(packed_BTAP: Tensor, cos_TI: Tensor, sin_TI: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    from plait.ops.elementwise_triton import split_forward

    return split_forward(packed_BTAP.contiguous(), cos_TI.contiguous(), sin_TI.contiguous(), heads)


@torch.library.custom_op("plait::split_rotated_backward", mutates_args=())
def _split_backward(dq: Tensor, dk: Tensor, dv: Tensor, cos_TI: Tensor, sin_TI: Tensor) -> Tensor:
    from plait.ops.elementwise_triton import split_backward

    return split_backward(dq, dk, dv, cos_TI.contiguous(), sin_TI.contiguous())


def _fake_split(packed_BTAP: Tensor, cos_TI: Tensor, sin_TI: Tensor, heads: int) -> tuple[Tensor, ...]:
    B, T, A, P = packed_BTAP.shape
    counts = (heads, (A - heads) // 2, (A - heads) // 2)
    return tuple(packed_BTAP.new_empty(B, T, count, P) for count in counts)


def _save_angles(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    del output
    ctx.save_for_backward(*inputs[1:3])


_swiglu.register_fake(lambda x_NV: x_NV.new_empty(x_NV.shape[0], x_NV.shape[1] // 2))
_swiglu_backward.register_fake(lambda x_NV, dy_NW: x_NV.new_empty(x_NV.shape))
_swiglu.register_autograd(
    lambda ctx, dy_NW: _swiglu_backward(*ctx.saved_tensors, dy_NW),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)
_split.register_fake(_fake_split)
_split_backward.register_fake(
    lambda dq, dk, dv, cos, sin: dq.new_empty(*dq.shape[:2], dq.shape[2] + dk.shape[2] + dv.shape[2], dq.shape[3])
)


def _stack_split_backward(info: Any, in_dims: Any, *args: Tensor) -> tuple[Tensor, int]:
    """Stacked models are more sequences; their angles are the same."""
    gradients = fold_replicas(args[:3], in_dims[:3], info.batch_size)
    return unfold_replicas(_split_backward(*gradients, *args[3:]), info.batch_size), 0


_split_backward.register_vmap(_stack_split_backward)
_split.register_autograd(
    lambda ctx, dq, dk, dv: (_split_backward(dq, dk, dv, *ctx.saved_tensors), None, None, None),
    setup_context=_save_angles,
)
