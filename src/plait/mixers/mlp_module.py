"""Channel mixers: `mlp`, `swiglu`, `identity`, and sparse experts (`moe`).

mlp       W₂ act(W₁ x)                  Vaswani et al. 2017, arXiv:1706.03762
swiglu    W₃ (silu(W₁ x) ∘ W₂ x)        Shazeer 2020, arXiv:2002.05202
identity  0, so that the residual sum passes x on: F(X) = X (Mandava et al. 2020, arXiv:2009.04534, eq. 4)
moe       Σ_{k ∈ top K} s_k swiglu_k(x)   see `MixtureOfExperts`

Letters: B batch, T time, D model width, W inner width.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plait.mixers.canon_module import INNER_TAIL, Canon, crop_tail, inner_canon
from plait.mixers.mixer import ChannelMixer, Cut, Draw, State, only_present, trimmed
from plait.mixers.mlp import IdentityOptions, MlpOptions, MoeOptions, SwigluOptions
from plait.ops.elementwise import swiglu
from plait.ops.paths import has_kernels, took
from plait.ops.swiglu_mlp import swiglu_mlp, swiglu_path

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "relu2": lambda x: F.relu(x).square(),  # So et al. 2021, arXiv:2109.08668
}


class DenseMixer(ChannelMixer):
    """Base of the two below: `narrow(widen(x))`, with Canon's convolution in between if `canon` contains d; its last
    inputs are a state."""

    def __init__(self, d: int, options: MlpOptions | SwigluOptions) -> None:
        super().__init__(d, options)
        self.canon = Canon(options.canon_width("d", d)) if "d" in options.canon else None
        self.paddable = self.canon is None
        self.down = nn.Linear(options.inner_width(d), d, bias=isinstance(options, MlpOptions) and options.bias)

    @abstractmethod
    def widen(self, x_BTD: Tensor) -> Tensor: ...

    @abstractmethod
    def narrow(self, inner_BTW: Tensor) -> Tensor: ...

    def init_weights(self, draw: Draw) -> None:
        if self.canon is not None:
            self.canon.init_weights(draw)

    def forward(self, x_BTD: Tensor) -> Tensor:
        inner_BTW = self.widen(x_BTD)
        return self.narrow(inner_BTW if self.canon is None else self.canon(inner_BTW)[0])

    def init_state(self, batch: int, *, rollback: int = 0) -> State:
        return {} if self.canon is None else {INNER_TAIL: self.canon.init_tail(batch, rollback)}

    def step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        y_BTD, state = self.extend(x_BD[:, None], state)
        return y_BTD[:, 0], state

    def extend(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        inner_BTW, state = inner_canon(self.canon, self.widen(x_BTD), state)
        return self.narrow(inner_BTW), state

    def crop(self, state: State, tokens: int) -> State:
        return {key: crop_tail(tail, tokens, self.options.name) for key, tail in state.items()}

    def merge(self, states: Sequence[State]) -> State:
        return super().merge(trimmed(states, [INNER_TAIL]))

    def residual_weights(self) -> list[Tensor]:
        return [self.down.weight]

    def _cuts(self, first: str, maps: int, parts: int) -> dict[str, Cut]:
        """Split d_ff into parts; the linear map `first` fuses this many maps to d_ff."""
        width = self.down.in_features
        if width % parts:
            return {}
        rows = Cut(0, (width,) * maps)
        every = {f"{first}.weight": rows, f"{first}.bias": rows, "canon.taps_CW": rows, "down.weight": Cut(1, (width,))}
        return only_present(self, every)


class Mlp(DenseMixer):
    def __init__(self, d: int, options: MlpOptions) -> None:
        super().__init__(d, options)
        self.up = nn.Linear(d, options.inner_width(d), bias=options.bias)
        self.act = ACTIVATIONS[options.act]

    def tensor_parallel(self, parts: int) -> dict[str, Cut]:
        return self._cuts("up", 1, parts)

    def widen(self, x_BTD: Tensor) -> Tensor:
        inner_BTW: Tensor = self.up(x_BTD)
        return inner_BTW

    def narrow(self, inner_BTW: Tensor) -> Tensor:
        y: Tensor = self.down(self.act(inner_BTW))
        return y


class Swiglu(DenseMixer):
    def __init__(self, d: int, options: SwigluOptions) -> None:
        super().__init__(d, options)
        # Gate and up in one product: one large matrix product is faster than two of half its size.
        self.gate_up = nn.Linear(d, 2 * options.inner_width(d), bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        # Linear maps that are split for tensor parallelism, or replaced by others, do more than multiply by their
        # weights.
        ours = has_kernels(x_BTD) and self.canon is None and type(self.gate_up) is type(self.down) is nn.Linear
        if took("swiglu", swiglu_path(x_BTD, self.down.weight) if ours else "products") == "triton":
            return swiglu_mlp(x_BTD, self.gate_up.weight, self.down.weight)
        return super().forward(x_BTD)

    def tensor_parallel(self, parts: int) -> dict[str, Cut]:
        return self._cuts("gate_up", 2, parts)

    def widen(self, x_BTD: Tensor) -> Tensor:
        inner_BTW: Tensor = self.gate_up(x_BTD)
        return inner_BTW

    def narrow(self, inner_BTW: Tensor) -> Tensor:
        y: Tensor = self.down(swiglu(inner_BTW))
        return y


class Identity(ChannelMixer):
    def __init__(self, d: int, options: IdentityOptions) -> None:
        super().__init__(d, options)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return torch.zeros_like(x_BTD)


class MixtureOfExperts(ChannelMixer):
    """Sparse mixture of SwiGLU experts.

        s = softmax(top_K(x W_r)),   y = Σ_{k ∈ top K} s_k · expert_k(x)

    Shazeer et al. 2017, arXiv:1701.06538; the softmax over the chosen scores only, as MAD (arXiv:2403.17844, Sec. 3.3)
    writes it. The load-balancing loss is E · Σ_e f_e P_e (Fedus et al. 2021, arXiv:2101.03961, eq. 4): f_e is the
    fraction of assignments to expert e, P_e its mean router probability; it is 1 if the load is even.

    `router=sigmoid` has s_k = σ(x W_r)_k / Σ_{top K} σ(x W_r), times `scale`. `shared` experts process every token.
    With `bias` the top K are selected by the scores plus b, which is used nowhere else; its gradient is sign(f_e −
    1/E), so that an optimizer lowers it for overloaded experts (DeepSeek-AI 2024, arXiv:2412.19437; there the step size
    is a separate constant, here it is the learning rate under Adam).

    Letters: B batch, T time, D width, N tokens in all, E experts, K active experts, W expert width.
    """

    bias_E: nn.Parameter | None

    def __init__(self, d: int, options: MoeOptions) -> None:
        super().__init__(d, options)
        self.experts, self.active, self.balance = options.experts, options.active, options.balance
        width = options.inner_width(d)
        self.router = nn.Linear(d, options.experts, bias=False)
        self.shared = options.shared * width
        self.by_sigmoid, self.scale = options.router == "sigmoid", options.scale
        self.register_parameter("bias_E", nn.Parameter(torch.zeros(options.experts)) if options.bias else None)
        if self.shared:
            self.shared_gate_up = nn.Linear(d, 2 * self.shared, bias=False)
            self.shared_down = nn.Linear(self.shared, d, bias=False)
        self.gate_up_EDW = nn.Parameter(torch.empty(options.experts, d, 2 * width))
        self.down_EWD = nn.Parameter(torch.empty(options.experts, width, d))

    def init_weights(self, draw: Draw) -> None:
        draw(self.gate_up_EDW, 0.02)
        draw(self.down_EWD, 0.02)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.forward_with_loss(x_BTD)[0]

    def forward_with_loss(self, x_BTD: Tensor) -> tuple[Tensor, Tensor]:
        """The output, and the weighted load-balancing loss that training adds."""
        x_ND = x_BTD.reshape(-1, x_BTD.shape[-1])
        logits_NE = self.router(x_ND)
        scores_NE = logits_NE.sigmoid() if self.by_sigmoid else logits_NE
        biased_NE = scores_NE if self.bias_E is None else scores_NE + self.bias_E.detach()
        chosen_NK = biased_NE.topk(self.active, dim=-1).indices
        # Normalised sigmoids are a softmax of their logarithms, which stays finite if all of them are 0.
        logits_NE = F.logsigmoid(logits_NE) if self.by_sigmoid else logits_NE
        weight_NK = self.scale * logits_NE.gather(-1, chosen_NK).softmax(dim=-1)
        # Gathering tokens by expert needs data-dependent sizes; where shapes must be static (inside vmap or a compiled
        # graph), every expert computes every token and the weights mask the result.
        static = torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(x_ND)
        mix = self._dense if static else self._sparse
        y_ND = mix(x_ND, weight_NK, chosen_NK)
        if self.shared:
            y_ND = y_ND + self.shared_down(swiglu(self.shared_gate_up(x_ND)))
        share_E = self._one_hot(chosen_NK).to(logits_NE.dtype).mean(dim=(0, 1))
        loss = self.balance * self.experts * (share_E * logits_NE.softmax(dim=-1).mean(dim=0)).sum()
        if self.bias_E is not None:
            # Its value is 0; only its gradient matters.
            pull = (self.bias_E * (share_E - 1 / self.experts).sign()).sum()
            loss = loss + pull - pull.detach()
        return y_ND.view_as(x_BTD), loss

    def _sparse(self, x_ND: Tensor, weight_NK: Tensor, chosen_NK: Tensor) -> Tensor:
        y_ND = torch.zeros_like(x_ND)
        for expert in range(self.experts):
            token, rank = (chosen_NK == expert).nonzero(as_tuple=True)
            gate, up = (x_ND[token] @ self.gate_up_EDW[expert]).chunk(2, dim=-1)
            out = (F.silu(gate) * up) @ self.down_EWD[expert]
            y_ND = y_ND.index_add(0, token, out * weight_NK[token, rank, None])
        return y_ND

    def _dense(self, x_ND: Tensor, weight_NK: Tensor, chosen_NK: Tensor) -> Tensor:
        weight_NE = (self._one_hot(chosen_NK) * weight_NK[..., None]).sum(dim=-2)
        gate, up = (x_ND @ self.gate_up_EDW).chunk(2, dim=-1)
        out_END = (F.silu(gate) * up) @ self.down_EWD
        return (out_END * weight_NE.mT[..., None]).sum(dim=0)

    def _one_hot(self, chosen_NK: Tensor) -> Tensor:
        # By comparison: torch's one_hot inspects the values, which vmap does not allow.
        return chosen_NK[..., None] == torch.arange(self.experts, device=chosen_NK.device)

    def residual_weights(self) -> list[Tensor]:
        return [self.down_EWD, *([self.shared_down.weight] if self.shared else [])]
