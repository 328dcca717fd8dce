"""Options and cost of mixers side by side in one layer, `(attn | mamba2)`.

Letters: d model width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from plait.core.errors import UserError
from plait.mixers.attn import AttnOptions
from plait.mixers.mamba import Mamba2Options
from plait.mixers.options import MIXING, NOT_SHARED, SHORT_CONV, Cost, MixerOptions, Number, option
from plait.spec import Layer


@dataclass(frozen=True)
class ParallelOptions(MixerOptions):
    """Parallel mixers in one layer, `(attn | mamba2)`: all read the same input, and their outputs are summed.

    `parallel` alone is `(attn | mamba2)`. Any mixers can be combined, including users' own, and channel mixers with
    sequence mixers. Options of the layer follow the parenthesis: `(attn | mamba2)[norm]`.
    """

    name: ClassVar[str] = "parallel"
    kind: ClassVar[str] = "sequence"
    module: ClassVar[str] = "plait.mixers.parallel_module:Parallel"
    reference: ClassVar[str] = "Dong et al. 2024, arXiv:2411.13676; Zuo et al. 2025, arXiv:2507.22448"

    branches: tuple[MixerOptions, ...] = ()
    norm: bool = option(False, "the mean of the branches, each normed with weights of its own, instead of their sum")

    def __post_init__(self) -> None:
        if not self.branches:
            object.__setattr__(self, "branches", (AttnOptions(), Mamba2Options()))
        # Named by its branches: different combinations are different mixers in results.
        object.__setattr__(self, "name", "|".join(branch.name for branch in self.branches))
        super().__post_init__()

    @classmethod
    def fields(cls) -> list[Any]:
        return [field for field in super().fields() if field.name != "branches"]

    @classmethod
    def of(cls, layer: Layer, branches: tuple[MixerOptions, ...]) -> ParallelOptions:
        """From a parsed layer and the options of its branches."""
        options = cls.from_layer(Layer(cls.name, layer.options))
        assert isinstance(options, ParallelOptions)
        return replace(options, branches=branches)

    def to_layer(self) -> Layer:
        changed = {f.name: getattr(self, f.name) for f in self.fields() if getattr(self, f.name) != f.default}
        return Layer(self.name, tuple(changed.items()), branches=tuple(branch.to_layer() for branch in self.branches))

    @property
    def parts(self) -> tuple[MixerOptions, ...]:
        return self.branches

    def each(self, change: Callable[[MixerOptions], MixerOptions]) -> MixerOptions:
        return replace(self, branches=tuple(change(branch) for branch in self.branches))

    @property
    def source_hash(self) -> str:
        return " ".join(sorted({branch.source_hash for branch in self.branches} - {""}))

    @property
    def bidirectional(self) -> bool:
        return any(branch.bidirectional for branch in self.branches)

    def check(self, d: int) -> None:
        if all(branch.kind != "sequence" for branch in self.branches):
            raise UserError(f"{self.to_layer()}: at least one branch must be a sequence mixer.")
        if len({branch.bidirectional for branch in self.branches if branch.kind == "sequence"}) > 1:
            raise UserError(f"{self.to_layer()}: all branches look ahead, or none does.")
        for branch in self.branches:
            branch.check(d)
            if branch.reads:
                raise UserError(f"{branch.to_layer()}: a branch reads of no other layer.")
            if (
                branch.shares(d)
                or branch.share != NOT_SHARED
                or (self.share != NOT_SHARED and branch.shared_parts == "")
            ):
                raise UserError(f"{branch.to_layer()}: a branch shares no parameters with other layers.")

    def cost(self, d: Number, seq: Number, memory: Number = 0) -> Cost:
        costs = [branch.cost(d, seq, memory) for branch in self.branches]
        params: dict[str, Number] = {}
        flops: dict[str, Number] = {}
        for place, (branch, cost) in enumerate(zip(self.branches, costs, strict=True), start=1):
            params |= {f"{place} {branch.name}: {part}": count for part, count in cost.params.items()}
            for term, count in cost.flops.items():
                name = term if term in (MIXING, SHORT_CONV) else f"{place} {branch.name}: {term}"
                flops[name] = flops.get(name, 0) + count
        norms = len(self.branches) * d if self.norm else 0
        return Cost(
            params={**params, **({"norms": norms} if self.norm else {})},
            flops=flops,
            masked=sum(cost.masked for cost in costs),
            cached=sum(cost.cached for cost in costs),
            active=sum(cost.active_params for cost in costs) + norms,
            fixed_state=sum(cost.fixed_state for cost in costs),
            conv_state=sum(cost.conv_state for cost in costs),
            kv_cache=sum(cost.kv_cache for cost in costs),
        )
