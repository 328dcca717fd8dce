"""How fast plait is on this machine, next to every peer library that can be imported: `plait.bench.kernels`, `train`,
`fleet`, `decode`.

Results are checked first: a wrong kernel is not timed. All times and ratios of a table are from one run.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.core.errors import UserError
from plait.core.progress import OnProgress, ignore
from plait.core.registry import require_one_of
from plait.core.result import Result
from plait.model.architecture import load_mixers

if TYPE_CHECKING:
    from plait.device.kernel_bench import KernelTiming
    from plait.device.model_bench import DecodeTiming, FleetTiming
    from plait.interop.train_bench import TrainTiming


@dataclass(frozen=True)
class KernelsResult(Result):
    ROWS = "kernels"
    device: str  # its name
    dtype: str
    batch: int
    seq_len: int
    versions: dict[str, str]
    kernels: tuple[KernelTiming, ...]


def kernels(
    *ops: str,
    batch: int | None = None,
    seq_len: int | None = None,
    device: str | None = None,
    dtype: str | None = None,
    repeats: int = 20,
    on_progress: OnProgress = ignore,
) -> KernelsResult:
    """Check and time the kernels of these `ops` (default: all) at the shapes of 125M models, next to other libraries'.
    Default device: a GPU if there is one; default dtype: bfloat16 on a GPU, float32 on a CPU."""
    from plait.device.kernel_bench import TOLERANCES, bench_case, cases
    from plait.device.workload import bench_device, bench_dtype, bench_size, bench_versions, device_name

    chosen = cases(ops)
    place = bench_device(device)
    batch, seq_len = bench_size(place, batch, seq_len)
    named = dtype or bench_dtype(place)
    known = {str(torch_dtype).removeprefix("torch."): torch_dtype for torch_dtype in TOLERANCES}
    require_one_of(named, known, f"dtype {named}")
    timings: list[KernelTiming] = []
    for done, case in enumerate(chosen):
        on_progress(f"timing {case.name}", done, len(chosen))
        timings += bench_case(
            case, batch=batch, seq_len=seq_len, device=place, dtype=known[named], repeats=repeats
        )  # fmt: skip
    return KernelsResult(device_name(place), named, batch, seq_len, bench_versions(), tuple(timings))


@dataclass(frozen=True)
class TrainBenchResult(Result):
    ROWS = "models"
    device: str  # its name
    batch: int
    seq_len: int
    vocab: int
    versions: dict[str, str]
    models: tuple[TrainTiming, ...]


@dataclass(frozen=True)
class DecodeCrossover:
    """From `tokens` tokens of context, `faster` generates a token of `batch` rows in less time than `slower`."""

    faster: str
    slower: str
    batch: int
    tokens: float


@dataclass(frozen=True)
class DecodeBenchResult(Result):
    ROWS = "models"
    device: str  # its name
    dtype: str
    versions: dict[str, str]
    models: tuple[DecodeTiming, ...]

    @property
    def crossovers(self) -> tuple[DecodeCrossover, ...]:
        """Context lengths from which one of plait's models generates faster than another, by number of rows."""
        from plait.device.lengths import crossover

        times: dict[tuple[str, int], dict[int, float]] = {}
        for row in self.models:
            if row.generator == "plait":
                times.setdefault((row.spec, row.batch), {})[row.position] = row.milliseconds
        crossovers = []
        for (ours, batch), our_times in times.items():
            for (theirs, other_batch), their_times in times.items():
                places = sorted(set(our_times) & set(their_times))
                if batch == other_batch and len(places) > 1:
                    at = crossover(
                        places, [our_times[place] for place in places], [their_times[place] for place in places]
                    )
                    crossovers += [] if at is None else [DecodeCrossover(ours, theirs, batch, at)]
        return tuple(sorted(crossovers, key=lambda row: (row.batch, row.tokens)))

    def as_dict(self) -> dict[str, Any]:
        return {**super().as_dict(), "crossovers": [asdict(row) for row in self.crossovers]}


@dataclass(frozen=True)
class FleetBenchResult(Result):
    ROWS = "fleets"
    device: str  # its name
    versions: dict[str, str]
    fleets: tuple[FleetTiming, ...]


def fleet(
    *models: str,
    replicas: tuple[int, ...] = (24,),
    batch: int | None = None,
    tokens: int | None = None,
    steps: int | None = None,
    device: str | None = None,
    on_progress: OnProgress = ignore,
) -> FleetBenchResult:
    """Train fleets of these `models` (names of `plait.device.model_bench.BODIES`; default attn, hyena, gla and
    mamba) next to one model in the plain loop. On a GPU 128 sequences of 128 tokens and 200 steps, on a CPU less."""
    from plait.device.model_bench import BATCH, TOKENS, fleet_body, fleet_timing
    from plait.device.workload import bench_device, bench_versions, device_name

    place = bench_device(device)
    usual = (BATCH, TOKENS, 200) if place.type == "cuda" else (8, 32, 3)
    batch, tokens, steps = batch or usual[0], tokens or usual[1], steps or usual[2]
    chosen = models or ("attn", "hyena", "gla", "mamba")
    for name in chosen:
        fleet_body(name)
    wanted = [(name, many) for name in chosen for many in replicas]
    rows: list[FleetTiming] = []
    for done, (name, many) in enumerate(wanted):
        on_progress(f"training a fleet of {name}", done, len(wanted))
        rows.append(fleet_timing(name, replicas=many, steps=steps, batch=batch, tokens=tokens, device=place))
    return FleetBenchResult(device_name(place), bench_versions(), tuple(rows))


def train(
    *models: str,
    size: str = "125m",
    batch: int | None = None,
    seq_len: int | None = None,
    vocab: int = 50257,
    steps: int = 10,
    device: str | None = None,
    compiled: bool | None = None,
    peers: bool = True,
    mixers: Sequence[str | Path] = (),
    on_progress: OnProgress = ignore,
) -> TrainBenchResult:
    """Train these `models` (names of `plait.interop.train_bench.MODELS`, default all, or specs) for some steps of
    batch × seq_len random tokens: eager, compiled (by default on a GPU) and with a peer library."""
    from plait.device.workload import bench_device, bench_size, bench_versions, device_name
    from plait.interop.train_bench import MODELS, spec_of, train_timings
    from plait.ops.gpu import compiler_on

    load_mixers(mixers)
    place = bench_device(device)
    batch, seq_len = bench_size(place, batch, seq_len)
    wanted = [(model, spec_of(model, size)) for model in models or MODELS]
    rows: list[TrainTiming] = []
    for done, (model, spec) in enumerate(wanted):
        on_progress(f"training {model}", done, len(wanted))
        rows += train_timings(
            model, spec, batch=batch, seq_len=seq_len, vocab=vocab, steps=steps, device=str(place),
            compiled=compiler_on(place) if compiled is None else compiled, peers=peers,
        )  # fmt: skip
    return TrainBenchResult(device_name(place), batch, seq_len, vocab, bench_versions(), tuple(rows))


def decode(
    *models: str,
    size: str = "360m",
    batches: tuple[int, ...] = (1,),
    positions: tuple[int, ...] = (1024, 65536),
    vocab: int = 50257,
    tokens: int = 64,
    device: str | None = None,
    dtype: str | None = None,
    peers: bool = True,
    mixers: Sequence[str | Path] = (),
    on_progress: OnProgress = ignore,
) -> DecodeBenchResult:
    """Generate with these `models` (as for `train`) at these context lengths, for these numbers of rows."""
    import torch

    from plait.device.model_bench import decode_speed, hugging_face_speed
    from plait.device.workload import bench_device, bench_dtype, bench_versions, device_name
    from plait.interop.train_bench import MODELS, spec_of

    load_mixers(mixers)
    place = bench_device(device)
    named = dtype or bench_dtype(place)
    require_one_of(named, ("bfloat16", "float16", "float32"), f"dtype {named}")
    kind = getattr(torch, named)
    wanted = [
        (spec_of(model, size), batch, position)
        for model in models or MODELS
        for batch in batches
        for position in positions
    ]
    rows: list[DecodeTiming] = []
    for done, (spec, batch, position) in enumerate(wanted):
        on_progress(f"generating with {spec}", done, len(wanted))
        sizes = {"batch": batch, "position": position, "tokens": tokens, "vocab": vocab}
        rows.append(decode_speed(spec, **sizes, device=place, dtype=kind))
        if peers:
            with suppress(UserError):  # only attention has one
                rows.append(hugging_face_speed(spec, **sizes, device=place, dtype=kind))
        if place.type == "cuda":
            torch.cuda.empty_cache()
    return DecodeBenchResult(device_name(place), named, bench_versions(), tuple(rows))
