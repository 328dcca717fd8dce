"""One architecture in many sizes (those of a paper's table, or grown from a spec), and the batch size and learning rate
of planned runs: the batch depends on the budget, the rate on the width and the batch.

A family of presets is named without its size: `mad-striped-hyena-1-3` has the 35 sizes of Table C.2. When a spec is
grown, head widths stay as they are and the number of heads grows; explicit inner and expert widths grow with d; the
depth grows as the square root of d, in whole repetitions of the layer pattern, so that a hybrid keeps its ratio.

Budgets that MAD's tables cover follow its rules (`papers.recipes`: Tables C.1 and C.2). Smaller budgets follow these:

batch   TABLE_BATCH · (C / TABLE_FLOPS)^(1/3) tokens, rounded to a power of two: the critical batch grows with the
        number of tokens, which grows as C^(1/2) (McCandlish et al. 2018). All sizes of a group have the same batch: one
        that grows with the size biases the group's best size downward (Poli et al. 2024, Figure C.1). The batch is
        small enough for the group's shortest run to have LEAST_STEPS steps: shorter runs do not follow the law
decay   the cosine ends at 0: the tables' tenth of the peak would leave a short training above the loss it can reach
rate    found at one width and batch, and transferred to others as

            rate ∝ 1 / d · batch^(1/4)        from SMALL_BATCH tokens per step on; below it the batch does not count

        1 / d as a matrix of d inputs moves d times as far at the same rate (Yang et al. 2022). The power of the batch
        was measured on bytes, 0.25 (−0.01 … 0.40), below the square root that holds where noise alone bounds the rate
        (Malladi et al. 2022): benchmarks/results/2026-11-17-scaling-rates.md. From SMALL_RATE it leads to 0.72 / d at
        2^19 tokens per step, where the tables have 0.5 to 0.8 / d
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from plait.core.errors import UserError, did_you_mean
from plait.mixers.options import MixerOptions
from plait.model.architecture import Architecture, architecture
from plait.model.cost import model_cost
from plait.spec import Header, presets
from plait.training.recipe import Recipe

#: Options that count heads, and options whose widths are given as absolute numbers.
HEADS = ("heads", "kv_heads")
WIDTHS = ("inner", "width", "dt_rank")
DEPTH_POWER = 0.5
MOST_WIDTHS = 64  # most sizes of a grown family
_SIZED = re.compile(r"(?P<family>.+)-(?P<millions>\d+)m")


@dataclass(frozen=True)
class Family:
    """The sizes of one architecture, smallest first."""

    name: str
    members: tuple[Architecture, ...]
    _token_flops: dict[int, list[float]] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def params(self) -> list[int]:
        """Active parameters of each member: of mixtures of experts, those that one token uses."""
        return [model_cost(arch, seq=1).active_params for arch in self.members]

    def token_flops(self, seq_len: int) -> list[float]:
        """FLOPs of training each member on one token."""
        if seq_len not in self._token_flops:
            self._token_flops[seq_len] = [token_flops(arch, seq_len) for arch in self.members]
        return self._token_flops[seq_len]

    def nearest(self, wanted: Sequence[float]) -> list[Architecture]:
        """The member nearest to each wanted size, without duplicates, smallest first."""
        chosen = {min(range(len(self.members)), key=lambda i: abs(math.log(self.params[i] / n))) for n in wanted}
        return [self.members[i] for i in sorted(chosen)]


def token_flops(arch: Architecture, seq_len: int) -> float:
    """FLOPs of training on one token: three times the forward pass."""
    return 3 * model_cost(arch, seq=seq_len).flops / seq_len


def family(source: str, vocab: int, depth_power: float = DEPTH_POWER) -> Family:
    """`source` is the name of a family of presets, a spec to grow, or NAME=SPEC. All members get this vocabulary."""
    name, text = _split_name(source)
    of_presets = [(int(sized["millions"]), preset) for sized, preset in _sized_presets() if sized["family"] == text]
    if of_presets:
        members = tuple(architecture(preset) for _, preset in sorted(of_presets))
    else:
        try:
            base = architecture(text)
        except UserError as wrong:
            families = dict.fromkeys(sized["family"] for sized, _ in _sized_presets())
            near = did_you_mean(text, families)
            raise UserError(f"--arch {source}: neither a family of presets nor a spec.{near} {wrong}") from None
        members = grown(base, depth_power)
    fitted = tuple(arch.with_vocabulary(vocab) for arch in members)
    return Family(name or (text if of_presets else pattern_of(fitted[0])), fitted)


def _split_name(source: str) -> tuple[str, str]:
    """Name and spec of `striped=d=64 | …`; no name where the first word is a key of the spec's header, as in `d=64`."""
    name, _, text = source.partition("=")
    known = {option.name for option in dataclasses.fields(Header)}
    if text and re.fullmatch(r"[A-Za-z][\w.+-]*", name.strip()) and name.strip() not in known:
        return name.strip(), text.strip()
    return "", source.strip()


def _sized_presets() -> list[tuple[re.Match[str], str]]:
    return [(sized, name) for name in presets.names() if (sized := _SIZED.fullmatch(name)) is not None]


def grown(base: Architecture, depth_power: float = DEPTH_POWER) -> tuple[Architecture, ...]:
    """All sizes from the width of one head to `MOST_WIDTHS` heads. The depth grows as the width to `depth_power`."""
    if not 0 <= depth_power < math.inf:
        raise UserError(f"--depth-power {depth_power:g}: a number from 0 on, such as 0.5; 0 keeps the depth.")
    d = base.header.d
    mixers = [mixer for layer in base.layers for mixer in layer.parts]
    heads = math.gcd(*(getattr(o, name) for o in mixers for name in HEADS if getattr(o, name, 0))) or _steps_of_eight(d)
    period = _period(base.layers)
    periods = len(base.layers) // len(period)
    members = []
    for k in range(1, MOST_WIDTHS + 1):
        width = d * k // heads
        depth = max(1, round(periods * (width / d) ** depth_power))
        try:
            layers = tuple(o.each(partial(_widened, width=width, d=d)) for o in period) * depth
            for options in set(layers):
                options.check(width)
        except UserError:
            continue  # some option does not allow this width
        members.append(Architecture(dataclasses.replace(base.header, d=width), layers))
    if not members:
        raise UserError(f"{base.text}: no other width fits its options.")
    return tuple(sorted(members, key=lambda arch: model_cost(arch, seq=1).active_params))


def _steps_of_eight(d: int) -> int:
    """Into how many steps of 8 channels the width divides, for architectures without heads; 1 if it does not."""
    return max(1, d // 8) if d % 8 == 0 else 1


def _widened(options: MixerOptions, width: int, d: int) -> MixerOptions:
    names = {option.name for option in dataclasses.fields(options)}
    change = {name: getattr(options, name) * width // d for name in HEADS if getattr(options, name, 0)}
    for name in WIDTHS:
        if name in names and getattr(options, name):
            change[name] = max(1, round(getattr(options, name) * width / d))
    return dataclasses.replace(options, **change) if change else options


def _period(layers: tuple[MixerOptions, ...]) -> tuple[MixerOptions, ...]:
    """The shortest pattern that gives the layers when repeated."""
    for length in range(1, len(layers) + 1):
        if len(layers) % length == 0 and layers[:length] * (len(layers) // length) == layers:
            return layers[:length]
    return layers


def attention_share(arch: Architecture) -> float:
    """The fraction of sequence mixers whose cache grows with the text."""
    mixers = [options for options in arch.layers if options.kind == "sequence"]
    growing = [options for options in mixers if options.cost(arch.header.d, 2).kv_cache]
    return len(growing) / len(mixers) if mixers else 0.0


def pattern_of(arch: Architecture) -> str:
    """A name that all sizes of one architecture share: `attn swiglu`, `25 % attn 75 % hyena swiglu`."""
    words = []
    for kind in ("sequence", "channel"):
        names = [options.name for options in arch.layers if options.kind == kind]
        shares = {name: names.count(name) / len(names) for name in dict.fromkeys(names)}
        words += [name if share == 1 else f"{round(100 * share)} % {name}" for name, share in shares.items()]
    return " ".join(words)


TABLE_FLOPS, TABLE_BATCH = 4e18, 2**19
SMALL_BATCH, BATCH_POWER = 2**13, 0.25  # tokens per step above which the rate depends on the batch, and the power
#: The learning rate of models far smaller than those of the tables, and the width it was found at.
SMALL_RATE, SMALL_WIDTH = 4e-3, 64
LEAST_STEPS = 500  # runs with fewer have a higher loss than the law of longer ones

#: Active parameters, FLOPs and tokens of a sequence → a recipe.
PaperRule = Callable[[float, float, int], Recipe]


@dataclass(frozen=True)
class Rate:
    """A learning rate, and the width and the tokens per step at which it was found to be the best."""

    value: float = SMALL_RATE
    width: int = SMALL_WIDTH
    batch: int = SMALL_BATCH

    def at(self, width: int, batch: int) -> float:
        more = max(batch, SMALL_BATCH) / max(self.batch, SMALL_BATCH)
        return float(self.value * (self.width / width) * more**BATCH_POWER)

    @classmethod
    def read(cls, text: str) -> Rate:
        """`4e-3`, at width 64; `4e-3@128`, at that width; `4e-3@128@32768`, at that many tokens per step as well."""
        try:
            value, *found_at = text.split("@")
            rate = cls(float(value), *map(int, found_at))
        except (TypeError, ValueError):
            rate = cls(math.nan)
        if not (0 < rate.value < math.inf and rate.width >= 1 and rate.batch >= 1):
            raise UserError(
                f"--lr {text}: write a rate, or RATE@WIDTH, or RATE@WIDTH@TOKENS with the width and the tokens per "
                "step it was found at: 4e-3@64@8192."
            )
        return rate


def batch_tokens(flops: float) -> int:
    """Tokens per step at budgets below the tables', the same for every size of a group."""
    return int(2 ** max(0, round(math.log2(TABLE_BATCH * (flops / TABLE_FLOPS) ** (1 / 3)))))


def recipe_for(
    paper: PaperRule,
    *,
    params: float,
    width: int,
    flops: float,
    seq_len: int,
    batch: int | None = None,
    rate: Rate | None = None,
    values: dict[str, Any] | None = None,
    shortest: float = math.inf,
) -> Recipe:
    """The recipe of one run. A given `batch` (in sequences) or `rate` replaces the rule's. `shortest`: how many tokens
    the group's largest model reads, which limits the batch."""
    recipe = paper(params, flops, seq_len)
    small = flops < TABLE_FLOPS
    if batch is None and small:
        batch = max(1, int(min(batch_tokens(flops), shortest / LEAST_STEPS)) // seq_len)
    if rate is None and small:
        rate = Rate()
    change: dict[str, Any] = {} if batch is None else {"batch": batch}
    if small:
        change["min_lr_ratio"] = 0.0
    recipe = recipe.with_values({**change, **(values or {})})
    if rate is not None and "lr" not in (values or {}):
        recipe = recipe.with_values({"lr": rate.at(width, recipe.batch * seq_len)})
    return recipe
