"""Quantities of a model on a device (latency, memory, energy …), and the setting in which it is run.

Limits, objectives, the predictor, measurements, options, tables and pages all iterate over one table of quantities. A
new one is a file with its meter and one line here.

Values are in the base unit of their dimension (seconds, bytes, joules) wherever they are computed and stored; people
read and write them in `unit`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from plait.core.errors import UserError, did_you_mean
from plait.core.registry import Declared, Entry, Table, load_attribute, require_one_of, require_setting
from plait.core.units import UNITS, with_unit

if TYPE_CHECKING:
    from plait.model.architecture import Architecture

SUM, PEAK, EXACT = "sum", "peak", "exact"


MODES = ("prefill", "decode")
BOTH = "both"
ANSWER = 64  # tokens; the default in mode both
DEVICES = ("cpu", "cuda", "mps", "xpu")
DTYPES = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2}  # bytes per number


@dataclass(frozen=True)
class Setting:
    """One way of running a model.

    mode      prefill: `seq` new tokens at once, scored and taken into the state; decode: one token after `seq` others;
              both: a prompt of `seq` tokens, and an answer of `answer` tokens after it, one by one
    threads   of the processor. One by default, as LiteTransformerSearch (arXiv:2203.02094) measures: a single thread
              has a clock of its own by which a disturbed measurement is told from a slow one
    """

    mode: str = "prefill"
    seq: int = 192
    batch: int = 1
    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 1
    answer: int = 0  # tokens; only in mode both

    @classmethod
    def of(cls, mode: str, answer: int | None, **others: Any) -> Setting:
        """From the user's options; in mode both, the answer has a default length."""
        return cls(mode, **others, answer=answer or (ANSWER if mode == BOTH else 0))

    def __post_init__(self) -> None:
        require_one_of(self.mode, (*MODES, BOTH), f"mode {self.mode}")
        if (self.mode == BOTH) != (self.answer > 0):
            raise UserError(
                f"mode {self.mode} with an answer of {self.answer} tokens: --answer works only with --mode {BOTH}."
            )
        kind = self.device.partition(":")[0]
        if kind not in DEVICES:
            near = did_you_mean(kind, DEVICES)
            raise UserError(f"device '{self.device}' given.{near} Allowed: {', '.join(DEVICES)}, cuda:1 and so on.")
        require_one_of(self.dtype, DTYPES, f"dtype {self.dtype}")
        for name in ("seq", "batch", "threads"):
            require_setting(self, name, getattr(self, name) >= 1, "must be at least 1")
        if self.on_cpu and DTYPES[self.dtype] < 4:
            raise UserError(f"dtype {self.dtype} can be measured only on GPUs; on a CPU use float32.")

    def here(self) -> Setting:
        """This setting, to be measured here. Threads that take turns on too few cores would measure nothing that a
        user meets."""
        from plait.records.record import cores

        if self.threads > (most := cores()):
            raise UserError(
                f"--threads {self.threads}: this process may use {most} core{'s' * (most > 1)}; give no more."
            )
        return self

    @property
    def on_cpu(self) -> bool:
        return self.device == "cpu"

    @property
    def where(self) -> str:
        """Device, dtype and threads, in words."""
        return f"{self.device}, {self.dtype}, {self.threads} thread{'s' * (self.threads > 1)}"

    @property
    def words(self) -> str:
        """What runs: prefill of 256 tokens."""
        if self.mode == BOTH:
            return f"a prompt of {self.seq:,} tokens and an answer of {self.answer:,}"
        return (
            f"prefill of {self.seq:,} tokens" if self.mode == "prefill" else f"decode of one token after {self.seq:,}"
        )

    @property
    def parts(self) -> tuple[Setting, ...]:
        """The settings measured in one call each: for mode both, the prompt, and a token in the middle of the
        answer."""
        if self.mode != BOTH:
            return (self,)
        prompt = replace(self, mode="prefill", answer=0)
        return prompt, replace(prompt, mode="decode", seq=self.seq + self.answer // 2)

    @property
    def longest(self) -> int:
        """Tokens of a sequence at the end."""
        return self.seq + (self.answer if self.mode == BOTH else self.mode == "decode")

    @property
    def new_tokens(self) -> int:
        """Tokens computed per call and sequence."""
        return self.seq if self.mode == "prefill" else 1

    @property
    def held_tokens(self) -> int:
        """Tokens in the state before the call."""
        return 0 if self.mode == "prefill" else self.seq

    @property
    def number_bytes(self) -> int:
        return DTYPES[self.dtype]

    def as_dict(self) -> dict[str, Any]:
        """Part of the keys of results: fields of a single mode appear only in that mode."""
        entries = asdict(self)
        return entries if self.answer else {name: value for name, value in entries.items() if name != "answer"}


class Measured(Protocol):
    """The result of a meter: the entry `Quantity.value` is the quantity; `low`, `high` and `noisy` describe its
    uncertainty, if it varies between calls."""

    def as_dict(self) -> dict[str, Any]: ...


class Meter(Protocol):
    """Measures one quantity of models; a context manager, for resources it may need."""

    def __enter__(self) -> Meter: ...

    def __exit__(self, *exception: object) -> None: ...

    def measure(self, arch: Architecture, setting: Setting) -> Measured: ...


class OptionalMeter(Meter, Protocol):
    """A meter of a quantity that not every machine can measure."""

    @staticmethod
    def unavailable(setting: Setting) -> str:
        """Why the quantity cannot be measured here and what to do about it; empty if it can."""
        ...

    def measure_call(self, call: Callable[[], object], setting: Setting, share: float = 1.0) -> Measured:
        """Measure a part of a model, for a profile, within this share of the usual time."""
        ...


@dataclass(frozen=True)
class Quantity(Entry):
    """where       "module:Meter" that measures it, or the function that computes it
    dimension   in `plait.core.units`
    unit        for input and output
    value       its key in a measurement
    parts       keys of its components, in the same unit
    predicted   how, from a profile: `sum` (over the parts of a model), `peak` (as memory) or `exact` (no profile)
    decimals    in tables of measurements
    optional    not every machine, or not every mode, can measure it
    mode        the only mode that has it; empty: all
    first       measured before the others, in its own process: a model that is too large kills that one, not ours
    example     of a limit
    limit       what a limit refers to, if that is not obvious
    """

    name: str = ""
    dimension: str = "count"
    unit: str = ""
    value: str = ""
    parts: tuple[str, ...] = ()
    predicted: str = SUM
    decimals: int = 1
    optional: bool = False
    mode: str = ""
    first: bool = False
    example: str = ""
    limit: str = ""

    @property
    def scale(self) -> float:
        """Factor from the base unit to `unit`."""
        return 1 / UNITS[self.dimension][self.unit]

    @property
    def column(self) -> str:
        """Its key in documents, where it is in `unit`: latency_ms."""
        return f"{self.name}_{self.unit.lower()}"

    @property
    def heading(self) -> str:
        """The heading of a table column: the unit, with the name if another quantity has the same unit."""
        return f"{self.name}_{self.unit}" if self.mode else self.unit

    @property
    def upper(self) -> str:
        """The column that a limit constrains: the upper end of a prediction's interval."""
        return self.name if self.predicted == EXACT else f"{self.name}_high"

    def text(self, value: float, digits: int = 6) -> str:
        """The value as written on a command line: 40ms."""
        return with_unit(value, self.unit, digits, space="")

    def shown(self, value: float, digits: int = 3) -> str:
        """The value as written in prose: 40 ms."""
        return with_unit(value, self.unit, digits)


_LINES = (
    Quantity(
        "plait.device.latency:LatencyMeter",
        "time of one call: all tokens of a prefill, one decoded token, or a prompt with its whole answer",
        name="latency",
        dimension="seconds",
        unit="ms",
        value="seconds",
        decimals=2,
        example="40ms",
    ),
    Quantity(
        "plait.device.measurements:joined_result",
        "time to first token (of the whole prompt), in --mode both",
        name="ttft",
        dimension="seconds",
        unit="ms",
        value="seconds",
        decimals=2,
        optional=True,
        mode="both",
        example="40ms",
        limit="time to first token",
    ),
    Quantity(
        "plait.device.measurements:joined_result",
        "time per token of the answer (1 / tokens per second), in --mode both",
        name="token_time",
        dimension="seconds",
        unit="ms",
        value="seconds",
        decimals=2,
        optional=True,
        mode="both",
        example="5ms",
        limit="per token of the answer",
    ),
    Quantity(
        "plait.device.memory:MemoryMeter",
        "peak memory of one call: weights, state and activations",
        name="memory",
        dimension="bytes",
        unit="MB",
        value="peak",
        parts=("weights", "state", "activations"),
        predicted=PEAK,
        first=True,
        example="300MB",
        limit="weights, state, activations",
    ),
    Quantity(
        "plait.device.energy:EnergyMeter",
        "energy of one call, of the whole processor package or GPU, if it has counters (RAPL, NVML)",
        name="energy",
        dimension="joules",
        unit="mJ",
        value="joules",
        decimals=2,
        optional=True,
        example="500mJ",
    ),
    Quantity(
        "plait.model.cost:model_cost",
        "state that one sequence keeps from token to token, counted",
        name="state",
        dimension="bytes",
        unit="MB",
        predicted=EXACT,
        example="2MB",
        limit="of one sequence",
    ),
    Quantity(
        "plait.model.cost:model_cost",
        "forward FLOPs of one sequence, counted",
        name="flops",
        dimension="count",
        unit="G",
        predicted=EXACT,
        example="5G",
        limit="of one sequence",
    ),
)


def _accept(thing: Any, declared: Declared) -> Quantity:
    if not isinstance(thing, Quantity):
        raise UserError(f"{declared} is not a plait.device.quantities.Quantity.")
    return thing


#: An installed package adds its line, a `Quantity`, under the quantity's name.
QUANTITIES: Table[Quantity] = Table(
    "quantity", {line.name: line for line in _LINES}, group="plait.quantities", accept=_accept
)


def quantity(name: str) -> Quantity:
    line = QUANTITIES.registered(name) or QUANTITIES.entry(name)
    assert isinstance(line, Quantity)
    return line


def quantities() -> list[Quantity]:
    _discover()
    return [quantity(name) for name in QUANTITIES]


@cache
def _discover() -> None:
    """Load the quantities of installed packages, once per process. `plait list quantities` reports a package that fails
    to load; nothing else is affected by it."""
    QUANTITIES.discover()


def meter_of(name: str) -> Any:
    """The class that measures a quantity."""
    return load_attribute(quantity(name).where)


def on_device() -> dict[str, Quantity]:
    """Quantities that depend on the device, by name: they are measured, or predicted from a profile."""
    return {q.name: q for q in quantities() if q.predicted != EXACT}


def everywhere() -> list[str]:
    """Quantities that every device can measure."""
    return [q.name for q in on_device().values() if not q.optional]


def unavailable(name: str, setting: Setting) -> str:
    """Why a quantity cannot be measured in this setting and what to do about it; empty if it can be."""
    mode = quantity(name).mode
    if mode:
        return "" if setting.mode == mode else f"it is part of --mode {mode}"
    return str(meter_of(name).unavailable(setting)) if quantity(name).optional else ""


def require_measurable(names: Iterable[str], setting: Setting) -> None:
    for name in names:
        if name in on_device() and (why := unavailable(name, setting)):
            raise UserError(f"{name} cannot be measured here: {why}.")


def measurable(setting: Setting) -> list[str]:
    return [name for name in on_device() if not unavailable(name, setting)]


def in_rows(rows: Iterable[Mapping[str, Any]]) -> dict[str, Quantity]:
    """Quantities that have a column in the rows of documents."""
    columns = {key for row in rows for key in row}
    return {name: q for name, q in on_device().items() if q.column in columns}
