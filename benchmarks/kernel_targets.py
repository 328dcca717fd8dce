"""Do the kernels fit GPUs that are not here? Each is compiled for them, for the shapes that `plait bench kernels` times
and for wider heads, forward and backward, and the memory that it takes on the chip is read off.

    python benchmarks/kernel_targets.py [--out PAGE.md] [--capabilities 80 89] [--ops fox gla]

No GPU is needed: launches go to Triton's compiler with a driver that only names its target, and do not run. A kernel
whose shared memory exceeds a multiprocessor's would not start there.
"""

from __future__ import annotations

import argparse
import platform
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from plait.device.kernel_bench import CASES, KernelCase, attention_case, delta_case, gla_case
from plait.ops.paths import watched_paths

#: Compute capability → KiB of shared memory that a kernel can use, of a multiprocessor's, and the GPUs.
TARGETS = {
    80: (163, 164, "A100"),
    86: (99, 100, "RTX 30, A10"),
    89: (99, 100, "RTX 40, L4, L40"),
    90: (227, 228, "H100, H200"),
    100: (227, 228, "B200"),
    120: (99, 100, "RTX 50"),
}
WIDTHS = (16, 64, 72)  # narrow heads and models, of those that the guard checks
TOKENS = 200
WIDER = {
    "attn, D 128": attention_case("attn", 8, 128),
    "fox, D 128": attention_case("fox", 8, 128, gates=True),
    "gla, K 256": gla_case("gla", 4, 4, 256, 512, per_head=False),
    "retnet, K 256": gla_case("retnet", 4, 4, 256, 512, per_head=True),
    "deltanet, K 256": delta_case("deltanet", 4, 256, 256),
    "gated-deltanet, K 256": delta_case("gated-deltanet", 4, 256, 512, decay="head"),
    "kda, K 64": delta_case("kda", 8, 64, 64, decay="channel"),
}


class Compiled(NamedTuple):
    kernel: str
    case: str
    dtype: str
    shared: float  # KiB
    stack: int  # bytes per thread, into which registers are spilled


@contextmanager
def compiling_for(capability: int, found: list[tuple[str, float, int]]) -> Iterator[None]:
    """Tensors of the CPU pass for this GPU's, and launches end with their compilation."""
    target = SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", capability, 32),
        get_current_device=lambda: capability,
        get_current_stream=lambda device: 0,
        get_active_torch_device=lambda: torch.device("cpu"),
    )
    launch = JITFunction.run
    seen: set[str] = set()

    def compile_only(self: Any, *args: Any, warmup: bool, **options: Any) -> None:
        built = launch(self, *args, warmup=True, **options)
        if built.hash not in seen:
            seen.add(built.hash)
            found.append((self.__name__, built.metadata.shared / 1024, _stack(built.asm["cubin"])))

    about = SimpleNamespace(shared_memory_per_multiprocessor=TARGETS[capability][1] * 1024)
    kept = torch.cuda.get_device_capability, torch.cuda.get_device_properties
    torch.cuda.get_device_capability = lambda device=None: divmod(capability, 10)  # type: ignore[assignment]
    torch.cuda.get_device_properties = lambda device=None: about  # type: ignore[assignment]
    torch.Tensor.is_cuda = property(lambda x: True)  # type: ignore[assignment,misc]
    JITFunction.run = compile_only
    driver.set_active(target)
    try:
        yield
    finally:
        JITFunction.run = launch
        torch.cuda.get_device_capability, torch.cuda.get_device_properties = kept
        del torch.Tensor.is_cuda


def _stack(cubin: bytes) -> int:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    stack = re.search(r"STACK:(\d+)", usage)
    assert stack is not None, usage
    return int(stack[1])


def run_once(case: KernelCase, dtype: torch.dtype) -> str:
    """Forward and backward; the paths that were taken. What is computed has no meaning."""
    drawn = case.draw(1, TOKENS, torch.Generator().manual_seed(0))
    leaves = {name: x.to(torch.float32 if name in case.wide else dtype).requires_grad_() for name, x in drawn.items()}
    with watched_paths() as taken:
        o = case.ours(leaves)
    torch.autograd.grad(o.float().sum(), list(leaves.values()), allow_unused=True)
    return ", ".join(taken.values())


def survey(capability: int, ops: Sequence[str]) -> Iterator[Compiled]:
    cases = {**CASES} | {
        f"{name}, width {width}": narrow for name, case in CASES.items() for width, narrow in case.narrow.items()
        if width in WIDTHS
    } | WIDER  # fmt: skip
    for name, case in cases.items():
        if ops and name.partition(",")[0] not in ops:
            continue
        for dtype in (torch.bfloat16, torch.float32):
            found: list[tuple[str, float, int]] = []
            with compiling_for(capability, found):
                path = run_once(case, dtype)
            kind = str(dtype).removeprefix("torch.")
            print(f"{capability} {name} {kind}: {path}, {len(found)} kernels", flush=True)
            yield from (Compiled(kernel, name, kind, shared, stack) for kernel, shared, stack in found)


def page(by_target: dict[int, list[Compiled]]) -> str:
    lines = [
        "# Do the kernels fit GPUs that were not at hand?",
        "",
        f"torch {torch.__version__}, Triton {triton.__version__}, {platform.system()}, without a GPU: "
        "`python benchmarks/kernel_targets.py --out PAGE.md`",
        "compiles every kernel that `plait bench kernels` times, and those of wider and narrower heads, in bf16 and in",
        "fp32, and reads off what it takes. Compiled is not measured: whether results are right and how fast they come",
        "is checked on the GPU itself, by `plait doctor` and `plait check NAME --device cuda`.",
        "",
        "| compute capability | GPUs | kernels | shared memory there, KiB | largest taken | too large |",
        "|-|-|-|-|-|-|",
    ]
    for capability, kernels in by_target.items():
        room, _, names = TARGETS[capability]
        most = max(kernels, key=lambda k: k.shared)
        over = [k for k in kernels if k.shared > room]
        lines.append(
            f"| {capability / 10:.1f} | {names} | {len(kernels)} | {room} | {most.shared:.0f}: {most.kernel} "
            f"({most.case}, {most.dtype}) | {', '.join(f'{k.kernel} ({k.case}, {k.dtype})' for k in over) or 'none'} |"
        )
    lines += ["", "The kernels that spill most, bytes per thread:", "", "| kernel | op | dtype | " +
              " | ".join(f"{capability / 10:.1f}" for capability in by_target) + " |",
              "|-|-|-|" + "-|" * len(by_target)]  # fmt: skip
    spilled: dict[tuple[str, str, str], dict[int, int]] = {}
    for capability, kernels in by_target.items():
        for k in kernels:
            row = spilled.setdefault((k.kernel, k.case, k.dtype), {})
            row[capability] = max(k.stack, row.get(capability, 0))
    for key, row in sorted(spilled.items(), key=lambda item: -max(item[1].values()))[:12]:
        lines.append(f"| {' | '.join(key)} | " + " | ".join(str(row.get(c, "–")) for c in by_target) + " |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the tables as a page")
    parser.add_argument("--capabilities", type=int, nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--ops", nargs="+", choices=CASES, default=[])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    text = page({capability: list(survey(capability, asked.ops)) for capability in asked.capabilities})
    print(text)
    if asked.out is not None:
        asked.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
