"""Options and cost of the Hyena family: `hyena`, `mh-hyena` (heads) and `hyena-experts` (sparse routing).

All three gate a long convolution whose filter is a sum of S decaying exponentials, so that it is also a recurrence
with S numbers of state for each sequence it filters.

Letters: d model width, H heads, P = d / H head width, E experts, K active experts, w expert width, S modes of a
filter, W short convolution width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from plait.core.errors import UserError
from plait.mixers.options import MIXING, SHORT_CONV, Cost, MixerOptions, Number, linear, option


@dataclass(frozen=True)
class HyenaOptions(MixerOptions):
    """Two gates around a long convolution, one filter per channel."""

    name: ClassVar[str] = "hyena"
    kind: ClassVar[str] = "sequence"
    module: ClassVar[str] = "plait.mixers.hyena_module:Hyena"
    reference: ClassVar[str] = "Poli et al. 2023, arXiv:2302.10866; Massaroli et al. 2023, arXiv:2310.18780"
    state_knobs: ClassVar[tuple[str, ...]] = ("state",)

    order: int = option(2, "gates (2 is the only order there is)", minimum=2)
    short: int = option(3, "width of the short convolution on q, k and v", minimum=1)
    state: int = option(16, "modes of a channel's filter", minimum=1, choices=(4, 8, 16, 32))

    def check(self, d: int) -> None:
        if self.order != 2:
            raise UserError(f"{self.name}: order={self.order} given; allowed: 2 (one long convolution, two gates).")

    def cost(self, d: Number, seq: Number, memory: Number = 0) -> Cost:
        S = self.state
        return Cost(
            params=_around(d, d, self.short) | {"filter": 2 * d * S, "skip": d, "output": d * d},
            flops={
                "projections": 2 * seq * 4 * d * d,
                SHORT_CONV: 2 * seq * 3 * d * self.short,
                # Each mode is advanced and read once per token; the gates and the skip are elementwise.
                MIXING: 4 * seq * d * S,
            },
            fixed_state=d * S,
            conv_state=(self.short - 1) * 3 * d,
        )


@dataclass(frozen=True)
class MhHyenaOptions(HyenaOptions):
    """Hyena with heads: the outer product of key and value is filtered, one filter per head."""

    name: ClassVar[str] = "mh-hyena"
    module: ClassVar[str] = "plait.mixers.hyena_module:MultiHeadHyena"
    reference: ClassVar[str] = "Massaroli et al. 2023, arXiv:2310.18780"
    state_knobs: ClassVar[tuple[str, ...]] = ("state", "heads")

    heads: int = option(16, "heads, each with one filter", minimum=1, choices=(4, 8, 16))
    state: int = option(2, "modes of a head's filter", minimum=1, choices=(1, 2, 4))

    def check(self, d: int) -> None:
        super().check(d)
        if d % self.heads:
            raise UserError(f"{self.name}: d={d} is not a multiple of heads={self.heads}.")

    def cost(self, d: Number, seq: Number, memory: Number = 0) -> Cost:
        H, S, P = self.heads, self.state, d // self.heads
        state = d * P * S  # S matrices of P × P per head
        return Cost(
            params=_around(d, d, self.short) | {"filter": 2 * H * S, "output": d * d},
            flops={
                "projections": 2 * seq * 4 * d * d,
                SHORT_CONV: 2 * seq * 3 * d * self.short,
                # Each mode of k vᵀ is advanced and weighted once per token; then q reads their sum.
                MIXING: 4 * seq * state + 2 * seq * d * P,
            },
            fixed_state=state,
            conv_state=(self.short - 1) * 3 * d,
        )


@dataclass(frozen=True)
class HyenaExpertsOptions(MixerOptions):
    """E narrow Hyenas; each token's output comes only from the K with the highest scores."""

    name: ClassVar[str] = "hyena-experts"
    kind: ClassVar[str] = "sequence"
    module: ClassVar[str] = "plait.mixers.hyena_module:HyenaExperts"
    reference: ClassVar[str] = "Poli et al. 2024, arXiv:2403.17844, Sec. 3.3"
    state_knobs: ClassVar[tuple[str, ...]] = ("state",)

    experts: int = option(8, "experts in all", minimum=1, choices=(4, 8, 16))
    active: int = option(2, "experts that a token's output comes from", minimum=1, choices=(1, 2))
    width: int = option(0, "width of one expert (0: d / experts)", minimum=0)
    short: int = option(3, "width of the short convolution on q, k and v", minimum=1)
    state: int = option(16, "modes of a channel's filter", minimum=1, choices=(4, 8, 16, 32))

    def expert_width(self, d: Number) -> Number:
        return d // self.experts if isinstance(self.width, int) and not self.width else self.width

    def check(self, d: int) -> None:
        if self.active > self.experts:
            raise UserError(f"{self.name}: active={self.active} is more than experts={self.experts}.")
        if not self.width and d % self.experts:
            raise UserError(f"{self.name}: d={d} is not a multiple of experts={self.experts}; change one or set width.")

    def cost(self, d: Number, seq: Number, memory: Number = 0) -> Cost:
        w, S = self.expert_width(d), self.state
        total = self.experts * w
        params = {"router": linear(d, self.experts)} | _around(d, total, self.short)
        params |= {"filter": 2 * total * S, "skip": total, "output": w * d}
        # Every expert's state sees every token, so projections and short convolutions run for all of them; a token's
        # output uses only the filters of its active experts.
        idle = (self.experts - self.active) * w * (2 * S + 1)
        return Cost(
            params=params,
            active=sum(params.values()) - idle,
            flops={
                "router": 2 * seq * d * self.experts,
                "projections": 2 * seq * (3 * d * total + w * d),
                SHORT_CONV: 2 * seq * 3 * total * self.short,
                MIXING: 4 * seq * total * S,
            },
            fixed_state=total * S,
            conv_state=(self.short - 1) * 3 * total,
        )


def _around(d: Number, width: Number, short: Number) -> dict[str, Number]:
    """Parameters of the projections and short convolutions before every Hyena's filter."""
    return {"q, k, v": linear(d, 3 * width), SHORT_CONV: 3 * width * short}
