"""Options and cost of the channel mixers: `mlp`, `swiglu`, `identity` (it does nothing), and sparse experts (`moe`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from plait.core.errors import UserError
from plait.mixers.options import Cost, MixerOptions, Number, linear, option


@dataclass(frozen=True)
class MlpOptions(MixerOptions):
    """Two linear maps with a nonlinearity between."""

    name: ClassVar[str] = "mlp"
    kind: ClassVar[str] = "channel"
    module: ClassVar[str] = "plait.mixers.mlp_module:Mlp"
    reference: ClassVar[str] = "Vaswani et al. 2017, arXiv:1706.03762"
    canon_points: ClassVar[str | None] = "cd"

    inner: int = option(0, "inner width (0: 4 d)", minimum=0, choices=(512, 1024, 2048, 3072))
    act: str = option("gelu", "nonlinearity", allowed=("gelu", "gelu-tanh", "relu", "silu", "relu2"))
    bias: bool = option(True, "biases on both maps")

    def canon_width(self, point: str, d: Number) -> Number:
        return d if point == "c" else self.inner_width(d)

    def inner_width(self, d: Number) -> Number:
        return 4 * d if isinstance(self.inner, int) and not self.inner else self.inner

    def cost(self, d: Number, seq: Number, memory: Number = 0) -> Cost:
        f = self.inner_width(d)
        return Cost(
            params={"up": linear(d, f, self.bias), "down": linear(f, d, self.bias)},
            flops={"up": 2 * seq * d * f, "down": 2 * seq * d * f},
        )


@dataclass(frozen=True)
class SwigluOptions(MixerOptions):
    """Gated MLP: down(silu(gate x) * up x)."""

    name: ClassVar[str] = "swiglu"
    kind: ClassVar[str] = "channel"
    module: ClassVar[str] = "plait.mixers.mlp_module:Swiglu"
    reference: ClassVar[str] = "Shazeer 2020, arXiv:2002.05202"
    canon_points: ClassVar[str | None] = "cd"

    inner: int = option(0, "inner width (0: 8 d / 3, rounded to a multiple of 16)", minimum=0)

    def canon_width(self, point: str, d: Number) -> Number:
        return d if point == "c" else 2 * self.inner_width(d)

    def inner_width(self, d: Number) -> Number:
        # MAD Table C.2 rounds to the nearest 16 in all its 35 rows; 8 d / 3 / 16 is d / 6.
        return 16 * ((d + 3) // 6) if isinstance(self.inner, int) and not self.inner else self.inner

    def cost(self, d: Number, seq: Number, memory: Number = 0) -> Cost:
        f = self.inner_width(d)
        return Cost(
            params={"gate": linear(d, f), "up": linear(d, f), "down": linear(f, d)},
            flops={"gate, up": 4 * seq * d * f, "down": 2 * seq * d * f},
        )


@dataclass(frozen=True)
class IdentityOptions(MixerOptions):
    """A layer that passes its input through: F(X) = X."""

    name: ClassVar[str] = "identity"
    kind: ClassVar[str] = "channel"
    module: ClassVar[str] = "plait.mixers.mlp_module:Identity"
    prenorm: ClassVar[bool] = False
    canon_points: ClassVar[str | None] = ""
    shared_parts: ClassVar[tuple[str, ...] | str | None] = ""
    reference: ClassVar[str] = "Mandava et al. 2020, arXiv:2009.04534"

    def cost(self, d: Number, seq: Number, memory: Number = 0) -> Cost:
        return Cost(params={}, flops={})


@dataclass(frozen=True)
class MoeOptions(MixerOptions):
    """SwiGLU experts; each token is processed only by the `active` experts with the highest scores."""

    name: ClassVar[str] = "moe"
    kind: ClassVar[str] = "channel"
    module: ClassVar[str] = "plait.mixers.mlp_module:MixtureOfExperts"
    reference: ClassVar[str] = "Shazeer et al. 2017, arXiv:1701.06538; DeepSeek-AI 2024, arXiv:2412.19437"
    shared_parts: ClassVar[tuple[str, ...] | str | None] = ""

    experts: int = option(8, "experts in all", minimum=1, choices=(4, 8, 16))
    active: int = option(2, "experts that compute per token", minimum=1, choices=(1, 2))
    inner: int = option(0, "width of one expert (0: a SwiGLU's, divided by the active experts)", minimum=0)
    balance: float = option(0.01, "weight of the load-balancing loss", minimum=0)
    shared: int = option(0, "more experts of that width that compute for every token", minimum=0, choices=(0, 1))
    router: str = option(
        "softmax", "scores of the chosen experts: softmax, or sigmoid, normalised", allowed=("softmax", "sigmoid")
    )
    bias: bool = option(False, "a bias per expert that counts in choosing only and evens out the load")
    scale: float = option(1.0, "factor of the routed experts' output (DeepSeek-V3: 2.5)", minimum=0)

    def inner_width(self, d: Number) -> Number:
        if isinstance(self.inner, int) and not self.inner:
            sixteens = (d + 3 * self.active) // (6 * self.active)  # 8 d / 3 / active, rounded to the nearest 16 …
            return 16 * (sixteens + (sixteens == 0))  # … and at least 16
        return self.inner

    def check(self, d: int) -> None:
        if self.active > self.experts:
            raise UserError(f"moe: active={self.active} is more than experts={self.experts}.")

    def cost(self, d: Number, seq: Number, memory: Number = 0) -> Cost:
        w = self.inner_width(d)
        router, expert = linear(d, self.experts), 3 * linear(d, w)
        bias, shared = self.experts * self.bias, self.shared * expert
        return Cost(
            params={"router": router + bias, "experts": self.experts * expert, "shared experts": shared},
            active=router + bias + self.active * expert + shared,
            flops={"router": 2 * seq * router, "experts": 2 * seq * (self.active * expert + shared)},
        )
