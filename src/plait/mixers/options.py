"""The torch-free half of a mixer: its options, and its exact cost without building it.

Options are a frozen dataclass. Its fields are declared with `option(...)`, so that one declaration serves the spec
language (types, errors), `plait list` (documentation) and search spaces (`choices`). Options are validated, costed and
searched in microseconds; `module` names the torch class, which is imported only when a model is built.

Costs are plain arithmetic on sizes, so a size may be a NumPy array: a hundred thousand candidates are costed by the
same formulas as one. FLOPs count two for each multiply-add of a matrix product or convolution; elementwise work is not
counted, and causal attention counts the full rectangle, as in `torch.utils.flop_counter`. The papers' own conventions
are in `plait.papers.conventions`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cache, wraps
from typing import Any, ClassVar, TypedDict, get_type_hints

from plait.core.errors import UserError, did_you_mean
from plait.core.user_files import MixerSource
from plait.spec import Layer

Number = Any  # int, float, or a NumPy array of them

#: The one term of `Cost.flops` that is not a product with a weight: mixing along the sequence. For a recurrence it
#: counts the arithmetic of the recurrence itself; a chunked fast path may need more FLOPs.
MIXING = "mixing"

#: The term of depthwise short convolutions, which are not matrix products.
SHORT_CONV = "short conv"


@dataclass(frozen=True)
class Cost:
    """The cost of one layer for `seq` new tokens after `memory` older ones, one sequence.

    params         parameters by part
    active         parameters that one token uses (less than all of them for experts); None: all
    shared         parameters held once for the whole model, by name, however many layers use them
    flops          forward FLOPs for the `seq` new tokens, by term
    masked         those of `flops` that causal masks and windows leave out, which fast kernels do not compute
    cached         those of `flops` that generation saves because its state holds their results: for Transformer-XL's
                   attention the keys and values of its memory, which training computes again
    fixed_state    numbers of recurrent state that do not grow with the sequence (MAD's "fixed state")
    conv_state     the last few inputs that short convolutions and token shifts keep
    kv_cache       numbers of state that grow with the sequence (key-value caches), at length `memory + seq`
    """

    params: Mapping[str, Number]
    flops: Mapping[str, Number]
    masked: Number = 0
    cached: Number = 0
    active: Number | None = None
    shared: Mapping[str, Number] = field(default_factory=dict)
    fixed_state: Number = 0
    conv_state: Number = 0
    kv_cache: Number = 0

    def __post_init__(self) -> None:
        for name in ("params", "flops", "shared"):
            if not isinstance(value := getattr(self, name), Mapping):
                raise UserError(f"Cost({name}={value}): give numbers by name, such as {{'output': d * d}}.")

    @property
    def total_params(self) -> Number:
        """All parameters of this layer, except those shared with others."""
        return sum(self.params.values())

    @property
    def active_params(self) -> Number:
        return self.total_params if self.active is None else self.active

    @property
    def total_flops(self) -> Number:
        return sum(self.flops.values())

    @property
    def unmasked_flops(self) -> Number:
        """FLOPs that must be computed: for causal attention, only visible pairs of query and key."""
        return self.total_flops - self.masked

    @property
    def generation_flops(self) -> Number:
        """FLOPs in generation, from the state."""
        return self.total_flops - self.cached


def seen_pairs(seq: int, memory: int, window: int = 0) -> int:
    """The number of visible query-key pairs: all keys up to the query's position, or the last `window` of them."""
    if not window:
        return seq * memory + seq * (seq + 1) // 2
    growing = min(seq, max(0, window - memory))  # queries that see all earlier keys
    return growing * memory + growing * (growing + 1) // 2 + (seq - growing) * window


def linear(d_in: Number, d_out: Number, bias: bool = False) -> Number:
    """Parameters of a linear map."""
    return d_in * d_out + (d_out if bias else 0)


#: Width of Canon's convolutions: a token and the three before it.
CANON_WIDTH = 4

#: The value of `share` that means no sharing.
NOT_SHARED = "none"


class OptionError(UserError):
    """Options that a mixer does not accept; `option` is the offending one, if known."""

    def __init__(self, message: str, option: str | None = None) -> None:
        super().__init__(message)
        self.option = option


class OptionRow(TypedDict):
    """An option for `plait list` and the documentation."""

    option: str
    type: str
    default: Any
    allowed: list[str]
    choices: list[Any]
    doc: str


def option(
    default: Any,
    doc: str,
    *,
    allowed: tuple[str, ...] | None = None,
    minimum: float | None = None,
    choices: tuple[Any, ...] = (),
    kw_only: bool = False,
) -> Any:
    """A field of an options class.

    allowed   the values a name may take (for `str` fields)
    minimum   the least number allowed
    choices   values worth trying in a search
    """
    metadata = {"doc": doc, "allowed": allowed, "minimum": minimum, "choices": choices}
    return field(default=default, metadata=metadata, kw_only=kw_only)


@dataclass(frozen=True)
class MixerOptions:
    """Base of every mixer's options. A subclass defines `name`, `kind`, `module` and `cost`."""

    name: ClassVar[str] = ""
    kind: ClassVar[str] = ""  # "sequence" or "channel"
    module: ClassVar[str] = ""  # "package.module:Class" of the torch side
    source: ClassVar[MixerSource | None] = None  # for mixers that are not plait's own; set when loaded
    state_knobs: ClassVar[tuple[str, ...]] = ()  # options that set the fixed state, in the order in which to try them
    prenorm: ClassVar[bool] = True  # whether the block normalises this mixer's input
    reference: ClassVar[str] = ""  # the paper
    canon_points: ClassVar[str | None] = None  # where it can have Canon's convolutions; None: only on its input
    reads: ClassVar[str] = ""  # what it reads from an earlier layer: "keys", "memory", "embedding"; "" nothing
    #: The parts of its `params` that `share` shares; None: all, and "" that it cannot be shared.
    shared_parts: ClassVar[tuple[str, ...] | str | None] = None

    canon: str = option(
        "none",
        "residual convolutions of width 4 (Canon): a, c on the input, b on queries, keys, values, d inside an MLP",
        kw_only=True,
    )
    share: str = option(
        NOT_SHARED, "a name: layers of this mixer with the same name hold their weights once", kw_only=True
    )

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "cost" in cls.__dict__:
            setattr(cls, "cost", _whole_cost(cls.__dict__["cost"]))  # noqa: B010 # mypy refuses an assignment

    def __post_init__(self) -> None:
        allowed = self.canon_allowed()
        if self.canon not in allowed:
            near = did_you_mean(self.canon, allowed)
            raise OptionError(
                f"{self.name}[canon]: '{self.canon}' given.{near} Allowed: {', '.join(allowed)}.", "canon"
            )
        if self.canon != "none" and self.bidirectional:
            raise OptionError(f"{self.name}: canon looks back only and does not go with causal=false.", "canon")
        if self.share != NOT_SHARED and self.shared_parts == "":
            raise OptionError(f"{self.name}[share]: layers of {self.name} do not share their weights.", "share")

    @classmethod
    def canon_allowed(cls) -> tuple[str, ...]:
        """The values of `canon`: the points one by one and all together."""
        points = cls.canon_points
        if points is None:
            points = "a" if cls.kind == "sequence" else "c"
        return ("none", *points, *([points] if len(points) > 1 else []))

    @classmethod
    def canon_choices(cls) -> tuple[str, ...]:
        """The values worth trying in a search: none, and all points."""
        allowed = cls.canon_allowed()
        return (allowed[0], allowed[-1])

    def canon_width(self, point: str, d: Number) -> Number:
        """Channels of the convolution at a point, at model width `d`."""
        return d

    def cost(self, d: int, seq: int, memory: int = 0) -> Cost:
        """Exact cost at model width `d`, for `seq` new tokens after `memory` older ones."""
        raise NotImplementedError

    def check(self, d: int) -> None:
        """Raise `UserError` for options that do not fit together at width `d`."""

    def shares(self, d: int) -> dict[str, tuple[int, ...]]:
        """Parameters shared with all layers of the model that have them, by name, with the shape they must agree on."""
        return {}

    @property
    def lends(self) -> str:
        """What a later layer may read from this one, matching the later one's `reads`; "" for nothing."""
        return ""

    def lender(self) -> MixerOptions | None:
        """For a mixer that reads from an earlier layer: a layer it can read from, which `plait check` places before
        it."""
        return None

    def check_lender(self, lender: MixerOptions, d: int) -> None:
        """Raise `UserError` if this layer cannot read from that one."""

    def inner_width(self, d: Any) -> Any:
        """The inner width at model width `d` (`inner=0` leaves it to the mixer); None: it has none."""
        return None

    def head_width(self, d: Any) -> Any:
        """The width of one head at model width `d` (`head_dim=0` leaves it to the mixer); None: it has none."""
        return None

    @classmethod
    def has(cls, option: str) -> bool:
        return any(field.name == option for field in cls.fields())

    @classmethod
    def fields(cls) -> list[dataclasses.Field[Any]]:
        """What may be set, the mixer's own options first."""
        every = {field.name: field for field in dataclasses.fields(cls)}
        canon, share = every.pop("canon"), every.pop("share")
        common = [*([] if cls.canon_points == "" else [canon]), *([] if cls.shared_parts == "" else [share])]
        return [*every.values(), *common]

    @property
    def parts(self) -> tuple[MixerOptions, ...]:
        """The mixers of this layer: itself, or its parallel branches."""
        return (self,)

    def each(self, change: Callable[[MixerOptions], MixerOptions]) -> MixerOptions:
        """This layer with each of its mixers changed."""
        return change(self)

    @property
    def source_hash(self) -> str:
        """The source hash of a mixer that is not plait's own; empty for plait's mixers."""
        return self.source.hash if self.source is not None else ""

    @property
    def bidirectional(self) -> bool:
        """Whether a position sees later ones, as in an encoder."""
        return False

    @classmethod
    def sizes(cls, **values: Any) -> Any:
        """An unchecked instance for vectorised costing: sizes may be NumPy arrays."""
        options = object.__new__(cls)
        for f in dataclasses.fields(cls):
            object.__setattr__(options, f.name, values.pop(f.name, f.default))
        assert not values, f"{cls.name} has no option {sorted(values)}"
        return options

    @classmethod
    def from_layer(cls, layer: Layer) -> MixerOptions:
        """Typed options from a parsed layer."""
        types = _types(cls)
        known = {f.name: f for f in cls.fields()}
        values: dict[str, Any] = {}
        for key, value in layer.options:
            if key not in known:
                listing = ", ".join(known) or "none"
                message = f"{cls.name} has no option '{key}'.{did_you_mean(key, known)} Options: {listing}."
                raise OptionError(message, key)
            try:
                metadata: Mapping[str, Any] = known[key].metadata
                if key == "canon":
                    metadata = {**metadata, "allowed": cls.canon_allowed()}
                values[key] = coerce(value, types[key], metadata)
            except UserError as wrong:
                raise OptionError(f"{cls.name}[{key}]: {wrong}", key) from None
        return cls(**values)

    def to_layer(self) -> Layer:
        """The layer in its shortest spelling: options equal to their defaults are left out.

        Because defaults are never written, adding an option later changes no architecture's hash; in return, a released
        default never changes.
        """
        changed = {
            f.name: getattr(self, f.name) for f in dataclasses.fields(self) if getattr(self, f.name) != f.default
        }
        return Layer(self.name, tuple(sorted(changed.items())))

    @classmethod
    def describe(cls) -> list[OptionRow]:
        """One row per option, for `plait list` and the documentation."""
        types = _types(cls)
        return [
            {
                "option": f.name,
                "type": types[f.name].__name__,
                "default": f.default,
                "allowed": list(cls.canon_allowed() if f.name == "canon" else f.metadata.get("allowed") or ()),
                "choices": list(cls.canon_choices() if f.name == "canon" else f.metadata.get("choices", ())),
                "doc": f.metadata.get("doc", ""),
            }
            for f in cls.fields()
        ]


def _whole_cost(cost: Callable[..., Cost]) -> Callable[..., Cost]:
    """A mixer's cost including what is counted the same way for all mixers: Canon convolutions and shared weights."""

    @wraps(cost)
    def whole(self: MixerOptions, d: Number, seq: Number, memory: Number = 0) -> Cost:
        own = cost(self, d, seq, memory)
        if not isinstance(own, Cost):
            raise UserError(f"`cost` of {self.name} returns a {type(own).__name__}; return a plait.mixers.Cost.")
        if type(self).cost is not whole:  # called by a subclass, whose own `cost` adds them
            return own
        return _shared(self, _with_canon(self, own, d, seq))

    return whole


def _shared(self: MixerOptions, cost: Cost) -> Cost:
    """Move shared parameters to `shared`, under their share name: the model counts each of these once."""
    if self.share == NOT_SHARED:
        return cost
    parts = cost.params if self.shared_parts is None else self.shared_parts
    held = {f"{self.name} {self.share}: {part}": count for part, count in cost.params.items() if part in parts}
    own = {part: count for part, count in cost.params.items() if part not in parts}
    return dataclasses.replace(cost, params=own, shared={**cost.shared, **held}, active=None)


def _with_canon(self: MixerOptions, cost: Cost, d: Number, seq: Number) -> Cost:
    if self.canon == "none":
        return cost
    taps = CANON_WIDTH * sum(self.canon_width(point, d) for point in self.canon)
    own_taps, own_flops = cost.params.get(SHORT_CONV, 0), cost.flops.get(SHORT_CONV, 0)
    return dataclasses.replace(
        cost,
        params={**cost.params, SHORT_CONV: own_taps + taps},
        active=None if cost.active is None else cost.active + taps,
        flops={**cost.flops, SHORT_CONV: own_flops + 2 * seq * taps},
        conv_state=cost.conv_state + taps * (CANON_WIDTH - 1) // CANON_WIDTH,
    )


@cache
def _type_hints(cls: Hashable) -> dict[str, Any]:
    return get_type_hints(cls)


def _types(cls: Any) -> dict[str, Any]:
    """An options class's types, read once."""
    return _type_hints(cls)


def coerce(value: Any, wanted: type, metadata: Mapping[str, Any]) -> Any:
    """`value` as the option's type, or `UserError` saying what is allowed."""
    allowed, minimum = metadata.get("allowed"), metadata.get("minimum")  # a user's may be a plain field
    if wanted is bool:
        if not isinstance(value, bool):
            raise UserError(f"'{value}' given, but this is true or false.")
        return value
    if wanted is str:
        if not isinstance(value, str) and not allowed:
            raise UserError(f"'{value}' given, but this is a name.")
        if not isinstance(value, str) or (allowed and value not in allowed):
            near = did_you_mean(str(value), allowed or ())
            raise UserError(f"'{value}' given.{near} Allowed: {', '.join(allowed or ())}.")
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UserError(f"'{value}' given, but this is a number.")
    if wanted is int and value != int(value):
        raise UserError(f"{value} given, but this is a whole number.")
    if minimum is not None and value < minimum:
        raise UserError(f"{value} given, but the least allowed is {minimum}.")
    return wanted(value)
