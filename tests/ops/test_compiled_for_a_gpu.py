"""Kernels go through Triton's compiler for a GPU that is not there: its interpreter takes Python that the compiler does
not. Where kernels are interpreted, a process is started in which they are not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

triton = pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
in_another_process = pytest.mark.skipif(INTERPRETED, reason="in another process")


@pytest.mark.skipif(not INTERPRETED, reason="in this process")
def test_in_a_process_without_the_interpreter(tmp_path: Path) -> None:
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "--noconftest", "-p", "no:cacheprovider", __file__]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "9 passed, 1 skipped" in found.stdout


def compiled(kernel, constants: dict, warps: int = 4, **types: str) -> str:
    """The PTX for a Hopper GPU. An argument of no given type is a pointer to fp32; names in capitals are constants."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {name: "constexpr" if name in constants else types.get(name, "*fp32") for name in kernel.arg_names}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    found = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
    return found.asm["ptx"]


SIZES = dict.fromkeys(("T", "E", "batch", "blocks", "segments"), "i32")


@in_another_process
@pytest.mark.parametrize(("N", "L", "kept"), [(4, 4, 4), (4, 8, 4), (12, 4, 2)])
def test_the_scan(N, L, kept):
    from plait.ops import scan_triton

    wide = triton.next_power_of_2(N)
    sizes = {"N": N, "WIDE": wide, "BLOCK": 32, "STAGES": 1}
    half = dict.fromkeys(("u", "y", "grad_y", "grad_u"), "*bf16")
    for kernel, more in (
        (scan_triton._scan_forward, {"L": L}),
        (scan_triton._scan_backward, {"L": L, "KEPT": kept}),
        (scan_triton._scan_ends, {"BACK": True}),
        (scan_triton._scan_join, {"BACK": False}),
    ):
        assert "ex2.approx" in compiled(kernel, sizes | more, warps=1, **SIZES, **half)


@in_another_process
@pytest.mark.parametrize(("even", "causal", "D"), [(True, True, 8), (False, False, 8), (True, True, 16)])
def test_attention_of_narrow_heads(even, causal, D):
    from plait.ops import few_queries_triton, narrow_attention_triton

    constants = {"H": 2, "D": D, "WIDE": 16, "ROWS": 64, "COLUMNS": 64, "EVEN": even, "CAUSAL": causal, "FOLD": D == 8}
    few = {"HEADS": 16 // D, "ROWS": 16}
    half = dict.fromkeys(("q", "k", "v", "o", "grad_o", "grad_q", "grad_k", "grad_v", "kept_q", "kept_g"), "*bf16")
    strides = {f"{name}_{axis}": "i32" for name in "qkvg" for axis in "st"}
    for kernel, more in (
        (narrow_attention_triton.forward, {}),
        (narrow_attention_triton.backward, {}),
        (narrow_attention_triton.backward, {"ROWS": 32}),
        (few_queries_triton.forward_at, few),
        (few_queries_triton.backward_at, few),
    ):
        others = {"T": "i32", "N": "i32", "at": "*i32", "scale": "fp32", "natural": "fp32"}
        sizes = {name: value for name, value in (constants | more).items() if name in kernel.arg_names}
        ptx = compiled(kernel, sizes, **others, **half, **strides)
        assert "mma" in ptx


@in_another_process
@pytest.mark.parametrize(("even", "D", "W"), [(True, 128, 512), (False, 72, 176)])
def test_a_whole_swiglu(even, D, W):
    from plait.ops import swiglu_mlp_triton as mlp

    for kernel, tile in ((mlp.forward, mlp.FORWARD), (mlp.backward, mlp.BACKWARD)):
        sizes = {"D": D, "W": W, "WIDE": 128, "ROWS": tile.rows, "INNER": tile.inner, "EVEN": even}
        types = dict.fromkeys(kernel.arg_names, "*bf16") | {"N": "i32"}
        assert "wgmma" in compiled(kernel, sizes | {"STAGES": tile.stages}, warps=tile.warps, **types)


@in_another_process
def test_forgetting_attention_backwards():
    from plait.ops import forgetting_triton as fox

    strides = [f"{name}_{axis}" for name, axes in (("q", "bmh"), ("k", "bnh"), ("v", "bnh")) for axis in axes]
    types = dict.fromkeys(("M", "N", "H", "R", "row_tiles", *strides), "i32") | {"scale": "fp32"}
    types |= dict.fromkeys(("begins", "sharp"), "*i32")
    types |= dict.fromkeys(("do", "o", "q", "k", "v", "dq", "dk", "dv"), "*bf16")
    sizes = {
        "D": 64,
        "WIDE": 64,
        "ROWS": 64,
        "KEYS": 64,
        "PRECISION": "tf32",
        "EXACT": False,
        "PAD": False,
        "pad": None,
    }
    more = {fox.backward_queries: {"LIMIT": 180.0, "SUMMIT": 90.0}, fox.backward_keys: {"EVEN": True}}
    for kernel in (fox.sharp_queries, fox.sharp_keys, fox.backward_queries, fox.backward_keys):
        assert "ex2.approx" in compiled(kernel, sizes | more.get(kernel, {}), **types)
