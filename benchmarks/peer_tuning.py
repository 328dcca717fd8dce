"""Triton's autotuner made quick enough for whole models: all configurations it wants to time are compiled at once, in
threads, and it looks for the best one coordinate by coordinate.

First every tile of a kernel, with the number of warps and stages in the middle of its list; then, for the best tile,
every number of warps; then every number of stages. A kernel of 48 configurations needs 8 to 12 of them. Results are
kept on disk beside the compiled kernels, so another process has them at once. Written for Triton 3.6.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gpu_turn import TURN, choosing

THREADS = 4  # compilers of one process
Config = Any  # Triton's: a tile in `kwargs`, `num_warps`, `num_stages`
Timings = dict[Config, Any]


def search(configs: Sequence[Config], measure: Callable[[list[Config]], Timings]) -> Timings:
    """Times of those that were looked at; the best of them is the best of each coordinate."""
    by_size = {(_tile(each), each.num_warps, each.num_stages): each for each in configs}
    tiles = list(dict.fromkeys(_tile(each) for each in configs))
    warps, stages = (sorted({of(each) for each in configs}) for of in (lambda c: c.num_warps, lambda c: c.num_stages))
    timings: Timings = {}

    def best(candidates: list[Config]) -> Config:
        timings.update(measure([each for each in candidates if each not in timings]))
        return min(candidates, key=lambda each: timings[each])

    def nearest(tile: Any) -> Config:
        """With the middle number of warps and stages, where the kernel has that."""
        usual = (warps[len(warps) // 2], stages[len(stages) // 2])
        mine = [each for each in configs if _tile(each) == tile]
        return min(mine, key=lambda c: (c.num_warps != usual[0], c.num_stages != usual[1]))

    found = best([nearest(tile) for tile in tiles])
    for sizes in (
        [(_tile(found), many, found.num_stages) for many in warps],
        [(_tile(found), None, many) for many in stages],
    ):
        sizes = [(tile, found.num_warps if many is None else many, deep) for tile, many, deep in sizes]
        found = best([by_size[each] for each in sizes if each in by_size])
    return timings


def _tile(config: Config) -> tuple[Any, ...]:
    return tuple(sorted(config.kwargs.items()))


def refuse_nothing() -> None:
    """flash-linear-attention refuses gated kernels whose gradients this pair of Triton and GPU gets wrong. Their time
    is what is asked for here."""
    with contextlib.suppress(ImportError):
        chunk_o = importlib.import_module("fla.ops.common.chunk_o")
        chunk_o.TRITON_ABOVE_3_7_1 = True  # type: ignore[attr-defined]


def install() -> None:
    """For all autotuned kernels of this process. Call it before anything is launched."""
    from triton.runtime.autotuner import Autotuner

    os.environ["TRITON_CACHE_AUTOTUNING"] = "1"
    usual_run, usual_lookup = Autotuner.run, Autotuner.check_disk_cache

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.given = args, kwargs
        self.cache_results = True
        return usual_run(self, *args, **kwargs)

    def lookup(self: Any, key: Any, configs: list[Config], bench: Callable[[], None]) -> Any:
        args, kwargs = self.given
        nargs = self.nargs

        def measure(some: list[Config]) -> Timings:
            with TURN.aside():
                _compile(self, some, args, kwargs)
            with choosing():
                self.nargs = nargs
                return {each: self._bench(*args, config=each, **kwargs) for each in some}

        def tune() -> None:
            self.configs_timings = search(configs, measure)
            self.cache[key] = min(self.configs_timings, key=self.configs_timings.get)
            self.bench_time = 0.0
            self.pre_hook({**nargs, **kwargs, **self.cache[key].all_kwargs()}, reset_only=True)

        # Without a key a kernel is tuned once for all, and Triton keeps that nowhere.
        return usual_lookup(self, key, configs, tune)

    Autotuner.run, Autotuner.check_disk_cache = run, lookup
    Autotuner.do_bench = property(lambda self: _bench)  # type: ignore[assignment]


def _bench(call: Callable[[], Any], quantiles: Any = None) -> Any:
    from triton.testing import do_bench

    return do_bench(call, warmup=4, rep=16, quantiles=quantiles)


def _compile(tuner: Any, configs: list[Config], args: Any, kwargs: Any) -> None:
    """Those that do not compile say so again when they are timed, and are left out there."""
    from triton.runtime._async_compile import AsyncCompileMode

    options = {name: value for name, value in kwargs.items() if name != "warmup"}
    with ThreadPoolExecutor(THREADS) as threads, AsyncCompileMode(threads, ignore_errors=True):
        for config in configs:
            tuner.fn.warmup(*args, **options, **config.all_kwargs())
