"""How fast plait's own parts are here, beside every peer that can be imported: `plait.bench.kernels`.

Correctness first: what is wrong is not timed. All times of a table are of one run, and so are their ratios.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from plait.core.errors import UserError
from plait.core.progress import OnProgress, ignore
from plait.core.result import Result

if TYPE_CHECKING:
    from plait.device.kernel_bench import KernelTiming


@dataclass(frozen=True)
class KernelsResult(Result):
    device: str  # its name
    dtype: str
    batch: int
    seq_len: int
    versions: dict[str, str]
    kernels: tuple[KernelTiming, ...]

    def rows(self) -> list[dict[str, Any]]:
        return [asdict(kernel) for kernel in self.kernels]


def kernels(
    *ops: str,
    batch: int = 8,
    seq_len: int = 4096,
    device: str | None = None,
    dtype: str | None = None,
    repeats: int = 20,
    on_progress: OnProgress = ignore,
) -> KernelsResult:
    """Check and time the kernels of these `ops` (all unless given) at the shapes of 125M models, beside others'. The
    device is a GPU where there is one; the dtype bfloat16 there and float32 on a CPU."""
    from plait.device.bench_device import bench_device, bench_versions, device_name
    from plait.device.kernel_bench import TOLERANCES, bench_case, cases

    chosen = cases(ops)
    place = bench_device(device)
    named = dtype or ("bfloat16" if place.type == "cuda" else "float32")
    known = {str(each).removeprefix("torch."): each for each in TOLERANCES}
    if named not in known:
        raise UserError(f"dtype {named} is not one of {', '.join(known)}.")
    timings: list[KernelTiming] = []
    for done, case in enumerate(chosen):
        on_progress(f"timing {case.name}", done, len(chosen))
        timings += bench_case(
            case, batch=batch, seq_len=seq_len, device=place, dtype=known[named], repeats=repeats
        )  # fmt: skip
    return KernelsResult(device_name(place), named, batch, seq_len, bench_versions(), tuple(timings))
