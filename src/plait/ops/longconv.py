"""Causal long convolution, and the modal filters that give it an exact recurrent form.

A filter in modal form is the impulse response of a diagonal state-space model (Massaroli et al., "Laughing Hyena
Distillery", 2023, arXiv:2310.18780), here with real modes, so that the state is exactly S numbers per channel:

    h_t = Σ_n R_n λ_n^t       ⇔       s_t = λ ∘ s_{t-1} + x_t 1,   y_t = ⟨R, s_t⟩

It is given as log λ ≤ 0. Multi-head Hyena (same paper; Poli et al., "Mechanistic Design and Scaling of Hybrid
Architectures", 2024, arXiv:2403.17844) convolves the outer products k_t v_tᵀ of a head with the head's one filter and
reads them with q_t. That is linear attention with a Toeplitz decay, y = (q kᵀ ∘ Toeplitz(h)) v, so the P × P products
are never laid out along time.

Both are chunked: a dense product with the Toeplitz matrix inside a chunk, the state between chunks. Up to one chunk of
time that is the quadratic form; beyond, linear in T. On one CPU thread it is as fast as an FFT at 128 steps and several
times faster at 8192, because a filter has few modes.

Shapes: B batch, T time, C channels, S modes of a filter, H heads, P head dimension; G chunks, L steps in a chunk.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from plait.ops.paths import full_precision

# Chosen by measurement (one CPU thread). A sequence of at most the first number is one chunk, so one dense product;
# a longer one is cut into chunks of the second.
_CHANNEL_CHUNKS = (64, 32)
_HEAD_CHUNKS = (16, 16)
_MOST_WALKED = 64  # chunks, on a CPU


def modal_filter(log_lambda_CS: Tensor, residues_CS: Tensor, n_steps: int) -> Tensor:
    """The first `n_steps` taps of every channel's filter: h_t = Σ_n R_n λ_n^t, shape (C, T)."""
    return _filter(residues_CS, _powers(log_lambda_CS, n_steps))


def long_conv_reference(x_BTC: Tensor, h_CT: Tensor, skip_C: Tensor | None = None) -> Tensor:
    """y_t = Σ_{s ≤ t} h_{t-s} x_s (+ skip ∘ x_t), the definition."""
    ys = []
    for t in range(x_BTC.shape[1]):
        taps_sC = h_CT[:, : t + 1].flip(-1).mT
        ys.append((x_BTC[:, : t + 1] * taps_sC).sum(1))
    return _add_skip(torch.stack(ys, dim=1), x_BTC, skip_C)


@full_precision
def modal_conv(
    x_BTC: Tensor,
    log_lambda_CS: Tensor,
    residues_CS: Tensor,
    skip_C: Tensor | None = None,
    *,
    state_BCS: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Convolve with a modal filter, continuing from a state. Returns the output and the exact state after T steps."""
    n_steps = x_BTC.shape[1]
    L = _chunk_length(n_steps, _CHANNEL_CHUNKS)
    # One product per channel: rows are the chunks of all sequences (R = G·B).
    x_CRL = _pad_time(x_BTC, L).unflatten(1, (-1, L)).permute(3, 1, 0, 2).flatten(1, 2)
    power_CSl = _powers(log_lambda_CS, L + 1)
    fresh = state_BCS is None
    state_BCS = x_BTC.new_zeros(x_BTC.shape[0], *log_lambda_CS.shape) if state_BCS is None else state_BCS

    def gather(x_CRl: Tensor) -> Tensor:
        """What a chunk (or its first n steps) leaves in the state at its end, Σ_i λ^(n-1-i) x_i: (C, G, B, S)."""
        weight_CSl = power_CSl[..., : x_CRl.shape[-1]].flip(-1)
        left_CGBS: Tensor = (x_CRl @ weight_CSl.mT).unflatten(1, (-1, x_BTC.shape[0]))
        return left_CGBS

    added_CGBS = gather(x_CRL)
    n_whole, last_CBS = added_CGBS.shape[1] - 1, added_CGBS[:, -1]
    starts_CGBS = _chunk_starts(state_BCS.movedim(1, 0), added_CGBS[:, :-1], L * log_lambda_CS[:, None])
    n_in_last = n_steps - L * n_whole
    if n_in_last < L:
        last_CBS = gather(x_CRL[:, -x_BTC.shape[0] :, :n_in_last]).squeeze(1)
    state_CBS = power_CSl[:, None, :, n_in_last] * starts_CGBS[:, -1] + last_CBS

    y_CRL = x_CRL @ _toeplitz(_filter(residues_CS, power_CSl[..., :L])).mT
    if n_whole or not fresh:
        y_CRL = torch.baddbmm(y_CRL, starts_CGBS.flatten(1, 2), residues_CS[..., None] * power_CSl[..., 1:])
    y_BTC = y_CRL.unflatten(1, (-1, x_BTC.shape[0])).permute(2, 1, 3, 0).flatten(1, 2)
    return _add_skip(_trim_time(y_BTC, n_steps), x_BTC, skip_C), state_CBS.movedim(0, 1)


def modal_conv_step(
    x_BC: Tensor, log_lambda_CS: Tensor, residues_CS: Tensor, skip_C: Tensor | None, state_BCS: Tensor
) -> tuple[Tensor, Tensor]:
    """One token: the output and the next state."""
    state_BCS = log_lambda_CS.exp() * state_BCS + x_BC[..., None]
    return _add_skip((state_BCS * residues_CS).sum(-1), x_BC, skip_C), state_BCS


def multihead_conv_reference(
    q_BTHP: Tensor,
    k_BTHP: Tensor,
    v_BTHP: Tensor,
    log_lambda_HS: Tensor,
    residues_HS: Tensor,
    *,
    state_BHSPP: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The definition, one step at a time. Returns the output and the state after the last step."""
    state_BHSPP = _zero_head_state(q_BTHP, log_lambda_HS) if state_BHSPP is None else state_BHSPP
    ys = []
    for t in range(q_BTHP.shape[1]):
        y_BHP, state_BHSPP = multihead_conv_step(
            q_BTHP[:, t], k_BTHP[:, t], v_BTHP[:, t], log_lambda_HS, residues_HS, state_BHSPP
        )
        ys.append(y_BHP)
    return torch.stack(ys, dim=1), state_BHSPP


@full_precision
def multihead_conv(
    q_BTHP: Tensor,
    k_BTHP: Tensor,
    v_BTHP: Tensor,
    log_lambda_HS: Tensor,
    residues_HS: Tensor,
    *,
    state_BHSPP: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """y_t = Σ_{s ≤ t} h_{t-s} ⟨q_t, k_s⟩ v_s for every head, continuing from a state; also the state after T steps.

    A mode's state is S_n ← λ_n S_n + k_t v_tᵀ, read as Σ_n R_n S_nᵀ q_t. The S states of a head are stacked along the
    key axis (S·P rows), so that all modes are written, and read, by one product.
    """
    n_steps = q_BTHP.shape[1]
    P, S = q_BTHP.shape[-1], log_lambda_HS.shape[-1]
    L = _chunk_length(n_steps, _HEAD_CHUNKS)
    q, k, v = (
        _pad_time(x, L).unflatten(1, (-1, L)).permute(0, 3, 1, 2, 4).contiguous() for x in (q_BTHP, k_BTHP, v_BTHP)
    )  # BHGLP
    power_HSl = _powers(log_lambda_HS, L + 1)
    fresh = state_BHSPP is None
    state_BHSPP = _zero_head_state(q_BTHP, log_lambda_HS) if state_BHSPP is None else state_BHSPP

    def gather(k_BHGlP: Tensor, v_BHGlP: Tensor) -> Tensor:
        """What a chunk (or its first n steps) leaves in the state at its end: Σ_i λ^(n-1-i) k_i v_iᵀ."""
        return _per_mode(k_BHGlP, power_HSl[..., : k_BHGlP.shape[-2]].flip(-1)).mT @ v_BHGlP

    def decay(n_taken: int) -> Tensor:
        return power_HSl[..., n_taken].repeat_interleave(P, dim=-1)[..., None]

    *whole_chunks, last_BHsP = gather(k, v).unbind(2)
    starts = [state_BHSPP.flatten(2, 3)]
    for added_BHsP in whole_chunks:
        starts.append(decay(L) * starts[-1] + added_BHsP)
    n_in_last = n_steps - L * len(whole_chunks)
    if n_in_last < L:
        last_BHsP = gather(k[:, :, -1:, :n_in_last], v[:, :, -1:, :n_in_last]).squeeze(2)
    state_BHsP = decay(n_in_last) * starts[-1] + last_BHsP

    toeplitz_HLL = _toeplitz(_filter(residues_HS, power_HSl[..., :L]))
    y = ((q @ k.mT) * toeplitz_HLL[:, None]) @ v
    if whole_chunks or not fresh:
        y = y + _per_mode(q, residues_HS[..., None] * power_HSl[..., 1:]) @ torch.stack(starts, dim=2)
    y_BTHP = y.permute(0, 2, 3, 1, 4).flatten(1, 2)
    return _trim_time(y_BTHP, n_steps), state_BHsP.unflatten(2, (S, P))


def multihead_conv_step(
    q_BHP: Tensor, k_BHP: Tensor, v_BHP: Tensor, log_lambda_HS: Tensor, residues_HS: Tensor, state_BHSPP: Tensor
) -> tuple[Tensor, Tensor]:
    """One token: the output and the next state."""
    outer_BH1PP = (k_BHP[..., :, None] * v_BHP[..., None, :])[:, :, None]
    state_BHSPP = log_lambda_HS.exp()[..., None, None] * state_BHSPP + outer_BH1PP
    read_BHPP = (residues_HS[..., None, None] * state_BHSPP).sum(2)
    return (q_BHP[..., :, None] * read_BHPP).sum(-2), state_BHSPP


def _chunk_starts(first_X: Tensor, writes_XG: Tensor, log_decay_X: Tensor) -> Tensor:
    """The state each chunk starts from, s_g = exp(log decay) s_{g-1} + write_g along the second axis; s_0 is `first`.

    Few chunks on a CPU are processed one by one. Otherwise log2(G) rounds each reach twice as far back as the previous
    one: few operations for a GPU or a compiler, where a loop would need hundreds.
    """
    if writes_XG.shape[1] < _MOST_WALKED and not writes_XG.is_cuda:
        decay_X, walked = log_decay_X.exp(), [first_X]
        for write_X in writes_XG.unbind(1):
            walked.append(torch.addcmul(write_X, decay_X, walked[-1]))
        return torch.stack(walked, dim=1)
    starts, reach = torch.cat((first_X[:, None], writes_XG), dim=1), 1
    while reach <= writes_XG.shape[1]:
        decay = torch.exp(reach * log_decay_X[:, None])
        starts = torch.cat((starts[:, :reach], torch.addcmul(starts[:, reach:], decay, starts[:, :-reach])), dim=1)
        reach *= 2
    return starts


def _powers(log_lambda_XS: Tensor, n_powers: int) -> Tensor:
    """λ^0 … λ^(n-1), shape (X, S, n). Exponents are ≤ 0: far powers go to zero, none can overflow."""
    exponents = torch.arange(n_powers, dtype=log_lambda_XS.dtype, device=log_lambda_XS.device)
    return torch.exp(log_lambda_XS[..., None] * exponents)


def _filter(residues_XS: Tensor, power_XSl: Tensor) -> Tensor:
    return (residues_XS[..., None] * power_XSl).sum(-2)


def _toeplitz(h_XL: Tensor) -> Tensor:
    """The lower-triangular matrices with h_{t-s} at (t, s), shape (X, L, L).

    Rows of period 2L (the taps, then zeros) read with period 2L - 1 shift by one from row to row: a copy, where
    indexing would make the gradient a scatter.
    """
    X, L = h_XL.shape
    rows = F.pad(h_XL, (0, L))[:, None].expand(X, L, 2 * L).flatten(1)
    shifted = rows[:, : L * (2 * L - 1)].view(X, L, 2 * L - 1)[..., :L]
    return shifted.mT.contiguous()


def _per_mode(x_BHGLP: Tensor, weight_HSL: Tensor) -> Tensor:
    """x scaled by each mode's weight of the step, modes side by side: (B, H, G, L, S·P)."""
    # Expanded along P, so that the product runs over L·P contiguous numbers and not over P.
    weight_H1LP = weight_HSL[..., None].expand(*weight_HSL.shape, x_BHGLP.shape[-1]).contiguous().unbind(1)
    return torch.cat([x_BHGLP * weight[:, None] for weight in weight_H1LP], dim=-1)


def _chunk_length(n_steps: int, longest_and_usual: tuple[int, int]) -> int:
    longest, usual = longest_and_usual
    return n_steps if n_steps <= longest else usual


def _pad_time(x: Tensor, multiple: int) -> Tensor:
    """Zeros after the last step, up to a multiple of the chunk."""
    padding = -x.shape[1] % multiple
    return torch.cat((x, x.new_zeros(x.shape[0], padding, *x.shape[2:])), dim=1) if padding else x


def _trim_time(y: Tensor, n_steps: int) -> Tensor:
    return y[:, :n_steps] if y.shape[1] > n_steps else y


def _add_skip(y: Tensor, x: Tensor, skip_C: Tensor | None) -> Tensor:
    return y if skip_C is None else torch.addcmul(y, x, skip_C)


def _zero_head_state(q_BTHP: Tensor, log_lambda_HS: Tensor) -> Tensor:
    B, _, H, P = q_BTHP.shape
    return q_BTHP.new_zeros(B, H, log_lambda_HS.shape[-1], P, P)
