"""Latency and memory of models on this machine, measured (`plait.measure`) or predicted from a profile without running
anything (`plait.predict`); latency of blocks over sequence length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.core.errors import UserError
from plait.core.progress import OnProgress, ignore
from plait.core.result import Result
from plait.device.quantities import BOTH, Setting, on_device, require_measurable
from plait.model.architecture import load_mixers
from plait.model.user_mixers import read_architectures
from plait.records import Record, Store
from plait.records.jobs import published_store

if TYPE_CHECKING:
    from plait.device.lengths import BlockScaling
    from plait.model.architecture import Architecture


@dataclass(frozen=True)
class MeasuredModel:
    """`result` has one entry per quantity, in seconds, bytes …, with its uncertainty."""

    spec: str
    key: str
    result: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        return {"spec": self.spec, "key": self.key, **self.result}

    def row(self) -> dict[str, Any]:
        """The quantities in readable units: latency_ms, memory_mb …"""
        there = ((self.result[name], quantity) for name, quantity in on_device().items() if name in self.result)
        return {
            "spec": self.spec,
            **{quantity.column: quantity.scale * entry[quantity.value] for entry, quantity in there},
        }


@dataclass(frozen=True)
class MeasureResult(Result):
    setting: Setting
    models: tuple[MeasuredModel, ...]

    def rows(self) -> list[dict[str, Any]]:
        return [model.row() for model in self.models]


@dataclass(frozen=True)
class Crossover:
    """From `tokens` on, `faster` takes less time than `slower`; before, it takes more."""

    faster: str
    slower: str
    tokens: float


@dataclass(frozen=True)
class LengthsResult(Result):
    setting: Setting
    lengths: tuple[int, ...]
    blocks: tuple[BlockScaling, ...]

    def as_dict(self) -> dict[str, Any]:
        setting = {name: value for name, value in self.setting.as_dict().items() if name != "seq"}
        return {
            "setting": setting,
            "lengths": list(self.lengths),
            "blocks": [block.as_dict() for block in self.blocks],
            "crossovers": [asdict(crossover) for crossover in self.crossovers],
        }

    def rows(self) -> list[dict[str, Any]]:
        return [
            {"block": block.block.text, "d": block.block.d, "seq_len": seq_len, "latency_ms": 1e3 * timing.seconds}
            for block in self.blocks
            for seq_len, timing in zip(self.lengths, block.timings, strict=True)
        ]

    @property
    def crossovers(self) -> tuple[Crossover, ...]:
        """Lengths from which one block of a sequence mixer is faster than another, shortest first."""
        from plait.device.lengths import crossover

        mixing = [scaling for scaling in self.blocks if scaling.block.options.kind == "sequence"]
        seconds = {scaling: [timing.seconds for timing in scaling.timings] for scaling in mixing}
        crossovers = [
            Crossover(self.name_of(ours), self.name_of(theirs), at)
            for ours in mixing
            for theirs in mixing
            if (at := crossover(self.lengths, seconds[ours], seconds[theirs])) is not None
        ]
        return tuple(sorted(crossovers, key=lambda row: row.tokens))

    @property
    def subtitle(self) -> str:
        tokens = "prefill of N tokens" if self.setting.mode == "prefill" else "one token after N"
        return f"{tokens}, batch {self.setting.batch}; {self.setting.where}"

    def name_of(self, scaling: BlockScaling) -> str:
        """The layer's text, with its width if widths differ."""
        widths = {other.block.d for other in self.blocks}
        return scaling.block.text if len(widths) == 1 else f"d={scaling.block.d} | {scaling.block.text}"

    def figure(self) -> str:
        """The latency of every block over sequence length."""
        from plait.reporting.studies import BlockLine, length_chart

        lines = [
            BlockLine(self.name_of(scaling), *scaling.seconds_low_high(), words=_exponents(scaling))
            for scaling in self.blocks
        ]
        return length_chart(lines, self.lengths, title="Block latency over sequence length", below=self.subtitle)


def measure(
    specs: str | Architecture | Sequence[str | Architecture],
    *,
    seq_len: int = 192,
    batch: int = 1,
    mode: str = "prefill",
    answer: int | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    threads: int = 1,
    needed: Sequence[str] = (),
    archai: bool = False,
    again: bool = False,
    mixers: Sequence[str | Path] = (),
    store: str | Store | None = None,
    on_progress: OnProgress = ignore,
) -> MeasureResult:
    """Measure latency, peak memory and, if available, energy of models here: `mode="prefill"` of `seq_len` tokens,
    `"decode"` of one token after them, or `"both"`, a prompt and an `answer` (64 tokens). A `needed` quantity that
    cannot be measured is an error. Stored results are reused unless noisy, or with `again`; `archai`: also memory as
    counted by LiteTransformerSearch's code."""
    from plait.device.measurements import Measurements, noisy
    from plait.device.workload import check

    load_mixers(mixers)
    setting = Setting.of(mode, answer, seq=seq_len, batch=batch, device=device, dtype=dtype, threads=threads).here()
    require_measurable(needed, setting)
    archs = read_architectures(specs)
    for arch in archs:  # all of them before the first is measured
        for part in setting.parts:
            check(arch, part)
    models = []
    title = archs[0].text if len(archs) == 1 else f"{len(archs)} models"
    with (
        published_store(store, "measure", title, on_progress) as (opened, report),
        Measurements(opened, setting, archai=archai) as known,
    ):
        for done, arch in enumerate(archs):
            report(f"measuring {arch.text}", done, len(archs))
            models.append(_model(known.measure(arch.text, again=again or noisy(known.find(arch.text)))))
    return MeasureResult(setting, tuple(models))


def _model(record: Record) -> MeasuredModel:
    return MeasuredModel(record.config["spec"], record.key, record.result)


def measure_lengths(
    specs: str | Architecture | Sequence[str | Architecture],
    lengths: str | Sequence[int],
    *,
    batch: int = 1,
    mode: str = "prefill",
    device: str = "cpu",
    dtype: str = "float32",
    threads: int = 1,
    mixers: Sequence[str | Path] = (),
    on_progress: OnProgress = ignore,
) -> LengthsResult:
    """Measure every distinct block of these models over sequence lengths; nothing is stored."""
    from plait.device.lengths import distinct_blocks, measure_scaling, read_lengths

    load_mixers(mixers)
    if mode == BOTH:
        raise UserError("--lengths times one block at a time: give --mode prefill or --mode decode, not both.")
    setting = Setting(mode=mode, batch=batch, device=device, dtype=dtype, threads=threads).here()
    wanted = read_lengths(lengths if isinstance(lengths, str) else ",".join(map(str, lengths)))
    blocks, done = distinct_blocks(read_architectures(specs)), 0

    def report(block: object, seq_len: int) -> None:
        nonlocal done
        done += 1
        on_progress("measuring blocks", done, len(blocks) * len(wanted))

    return LengthsResult(setting, wanted, tuple(measure_scaling(blocks, wanted, setting, on_progress=report)))


def _exponents(scaling: BlockScaling) -> str:
    counted = {"FLOPs": scaling.flops.whole, "mixing": scaling.flops.mixing}
    known = ", ".join(f"{name} {value:.2f}" for name, value in counted.items() if value is not None)
    return f"k = {scaling.exponent.value:.2f}" + (f" ({known})" if known else "")


@dataclass(frozen=True)
class Estimate:
    """A predicted value with its 95 % interval."""

    mean: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class PredictedModel:
    """`quantities` by column, in the unit of its name: latency_ms, memory_mb …"""

    spec: str
    quantities: dict[str, Estimate]

    def as_dict(self) -> dict[str, Any]:
        quantities = {
            name: {"mean": estimate.mean, "interval": list(estimate.interval)}
            for name, estimate in self.quantities.items()
        }
        return {"spec": self.spec, **quantities}

    def row(self) -> dict[str, Any]:
        return {"spec": self.spec, **{name: estimate.mean for name, estimate in self.quantities.items()}}


@dataclass(frozen=True)
class PredictResult(Result):
    setting: Setting
    profile: dict[str, Any]  # its machine and number of measurements
    models: tuple[PredictedModel, ...]

    def rows(self) -> list[dict[str, Any]]:
        return [model.row() for model in self.models]


def predict(
    specs: str | Architecture | Sequence[str | Architecture],
    profile: str | Path | None = None,
    *,
    seq_len: int = 192,
    batch: int = 1,
    mode: str = "prefill",
    answer: int | None = None,
    anywhere: bool = False,
    mixers: Sequence[str | Path] = (),
    runs: str | Path = "runs",
) -> PredictResult:
    """Predict from a profile (a file of `plait.profile`; default: this machine's, stored in `runs` by searches), with
    95 % intervals; `anywhere`: accept a profile of another machine."""
    from plait.device.predictor import predictor_of
    from plait.device.profile import Profile
    from plait.device.quantities import quantity

    load_mixers(mixers)
    path = Path(profile) if profile is not None else _kept_profile(Path(runs))
    archs, read = read_architectures(specs), Profile.load(path, anywhere=anywhere)
    predictor = predictor_of(read, Setting.of(mode, answer, seq=seq_len, batch=batch))
    predicted = {quantity(name): prediction for name, prediction in predictor.predict(archs).items()}
    models = []
    for index, arch in enumerate(archs):
        estimates = {}
        for of, prediction in predicted.items():
            mean, low, high = (
                of.scale * float(column[index]) for column in (prediction.mean, prediction.low, prediction.high)
            )
            estimates[of.column] = Estimate(mean, (low, high))
        models.append(PredictedModel(arch.text, estimates))
    return PredictResult(predictor.setting, read.describe(), tuple(models))


def _kept_profile(runs: Path) -> Path:
    """This machine's profile on one thread, saved by a search or a design."""
    from plait.searching.local_profile import profile_path

    path = profile_path(runs, Setting(seq=1))
    if not path.exists():
        raise UserError(
            f"{runs} has no profile of this machine yet: make one with `plait profile` and pass it with --profile; a "
            "search under a limit also makes one."
        )
    return path
