"""Latency of PAR and Sandwich Transformers against their baselines: the paper's ratios, measured in one run.

    python benchmarks/par.py [--device cpu|cuda] [--threads 1] [--dtype float32] [--rounds 30] [--only base]
                             [--out FILE.md]

Batch 1, with the paper's evaluation lengths (PAR Transformer, arXiv:2009.04534, Tables 1 to 3): so many new tokens
after a memory of layer inputs, whose keys and values every pass computes anew, as Transformer-XL does and the paper's
FLOPs say. One more group has them cached. BERT reads 384 tokens, to which SQuAD is usually cut; the paper does not say.

The models of a group take turns, and each round gives one ratio to the group's first model; a ratio is the median over
rounds with a 95 % bootstrap interval, so that a slow phase of the machine falls on all of them. `whole` includes
embedding and output (the adaptive softmax scores only the clusters that targets lie in; words are drawn with
probability 1 / rank). `blocks` is the blocks alone.

A single sequence leaves a GPU idle between kernels: there everything is measured launched kernel by kernel (`eager`)
and with the blocks replayed as one CUDA graph (`graph`; adaptive embedding and output, whose shapes depend on the data,
stay outside of it).
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plait.device.latency import keep_freed_memory
from plait.model import build, model_cost
from plait.model.language_model import Encoder, LanguageModel
from plait.papers.par.presets import ROWS, SIZES
from plait.records import provenance_of

Call = Callable[[], Any]

TURN = 0.02  # seconds at least that a model runs before it is another's turn
WARM_UP = 3
BERT_TOKENS = 384
RESAMPLES = 2000


@dataclass(frozen=True)
class Group:
    """Models that take turns; ratios are to the first."""

    name: str
    models: tuple[str, ...]
    cached: bool = False  # keys and values of the memory are kept, not computed anew

    @property
    def tokens(self) -> tuple[int, int]:
        """New tokens, and tokens in memory."""
        evaluation = SIZES[ROWS[self.models[0]].size].evaluation
        if not evaluation:
            return BERT_TOKENS, 0
        new, memory, _ = map(int, evaluation.split("/"))
        return new, memory


GROUPS = (
    Group("base", ("txl-base", "sandwich-base", "par-base")),
    Group("base, cached", ("txl-base", "sandwich-base", "par-base"), cached=True),
    Group("large", ("txl-large", "sandwich-large", "par-large")),
    Group("24b", ("txl-24b-enwik8", "sandwich-24b-enwik8", "par-24b-enwik8")),
    Group("bert", ("bert-base", "par-bert-base")),
)


@dataclass(frozen=True)
class Row:
    """One model's times over the rounds, in seconds."""

    group: Group
    model: str
    how: str
    whole: np.ndarray
    blocks: np.ndarray


class Work:
    """A model, and what is run of it."""

    def __init__(self, name: str, group: Group, device: str, dtype: torch.dtype) -> None:
        new, memory = group.tokens
        self.model: Any = build(name, device=device, dtype=dtype).eval()
        words = np.arange(1, self.model.arch.header.vocab + 1)
        drawn = np.random.default_rng(0).choice(len(words), memory + new + 1, p=(1 / words) / (1 / words).sum())
        text = torch.from_numpy(drawn).to(device)[None]
        self.tokens, self.targets, self.state = text[:, memory:-1], text[:, memory + 1 :], None
        if isinstance(self.model, LanguageModel):
            empty = self.model.init_state(1) if group.cached else self.model.init_memory(1, memory)
            self.state = self.model.backbone.extend(text[:, :memory], empty)[1]
        self.x_BTD = self.embed()

    def blocks(self) -> Tensor:
        """From `x_BTD`, which stands at one place in memory, as a graph needs it."""
        x_BTD, blocks = self.x_BTD, self.model.backbone.blocks
        if self.state is None:
            for block in blocks:
                x_BTD = block(x_BTD)
            return x_BTD
        for block, state in zip(blocks, self.state.layers, strict=True):
            x_BTD, _ = block.extend(x_BTD, state)
        return x_BTD

    def embed(self) -> Tensor:
        model, (rows, new) = self.model, self.tokens.shape
        positions = torch.arange(new, device=self.tokens.device).expand(rows, new)
        embedded: Tensor = model.backbone.embed(self.tokens, positions, None)
        return embedded

    def output(self, hidden_BTD: Tensor) -> Tensor:
        if isinstance(self.model, Encoder):
            return self.model.output(self.model.transform(hidden_BTD))
        return self.model.score(hidden_BTD, self.targets)

    def calls(self, graph: bool) -> tuple[Call, Call]:
        """The whole model, and the blocks alone."""
        blocks = captured(self.blocks) if graph else self.blocks

        def whole() -> Tensor:
            self.x_BTD.copy_(self.embed())
            return self.output(self.model.backbone.final_norm(blocks()))

        return whole, blocks


def captured(call: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """The call as a CUDA graph."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(WARM_UP):
            call()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay


def measured(group: Group, given: argparse.Namespace) -> Iterator[Row]:
    with torch.inference_mode():
        works = [Work(name, group, given.device, getattr(torch, given.dtype)) for name in group.models]
        for how in ("eager", "graph") if given.device == "cuda" else ("eager",):
            calls = [call for work in works for call in work.calls(graph=how == "graph")]
            times = rounds(calls, given.rounds, given.device)
            for at, name in enumerate(group.models):
                yield Row(group, name, how, times[:, 2 * at], times[:, 2 * at + 1])


def rounds(calls: list[Call], count: int, device: str) -> np.ndarray:
    """Seconds of each call (columns) in each round (rows)."""
    for call in calls:
        for _ in range(WARM_UP):
            once(call, device)
    repeats = [max(1, math.ceil(TURN / once(call, device))) for call in calls]
    return np.array(
        [
            [sum(once(call, device) for _ in range(times)) / times for call, times in zip(calls, repeats, strict=True)]
            for _ in range(count)
        ]
    )


def once(call: Call, device: str) -> float:
    start = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def ratio(of: np.ndarray, to: np.ndarray) -> str:
    ratios = of / to
    draws = np.random.default_rng(0).choice(ratios, (RESAMPLES, len(ratios)))
    low, high = np.quantile(np.median(draws, axis=1), (0.025, 0.975))
    return f"{np.median(ratios):.3f} ({low:.3f} to {high:.3f})"


def block_flops(name: str, group: Group) -> float:
    new, memory = group.tokens
    cost = model_cost(name, seq=new, memory=memory)
    terms = [layer.flops for layer in cost.layers]
    total = sum(float(sum(layer.values())) for layer in terms)
    # Cached keys and values are computed for the new tokens only.
    unused = memory / (new + memory) * sum(float(layer.get("key, value", 0)) for layer in terms)
    return total - unused if group.cached else total


def cells(row: Row, first: Row) -> list[str]:
    whole, blocks = (1e3 * float(np.median(times)) for times in (row.whole, row.blocks))
    new, memory = row.group.tokens
    shown = [row.group.name, f"{new} after {memory}" if memory else str(new), row.model, row.how]
    shown += [f"{whole:.2f}", f"{blocks:.2f}"]
    if row.model == first.model:
        return [*shown, "1", "1", "1", "1"]
    flops = block_flops(row.model, row.group) / block_flops(first.model, row.group)
    paper = ROWS[row.model].latency_ms / ROWS[first.model].latency_ms
    return [*shown, ratio(row.whole, first.whole), ratio(row.blocks, first.blocks), f"{flops:.3f}", f"{paper:.3f}"]


HEAD = ["group", "tokens", "model", "how", "whole ms", "blocks ms", "whole ratio", "blocks ratio", "FLOPs of blocks",
        "paper"]  # fmt: skip


def document(lines: list[list[str]], given: argparse.Namespace, started: float, load: float) -> str:
    around = provenance_of(started, time.time() - started)
    machine = around["gpu"] if given.device == "cuda" else f"{around['cpu']}, {around['cores']} cores"
    versions = ", ".join(f"{name} {around[name]}" for name in ("plait", "torch", "python"))
    threads = f"{given.threads} thread{'s' * (given.threads > 1)}"
    return "\n".join(
        [
            "# Latency of PAR Transformers against their baselines",
            "",
            f"{around['started'][:10]}, {machine}; {versions}; {given.device}, {given.dtype}, {threads}, batch 1, "
            f"{given.rounds} rounds, load {load:.1f} before, {around['seconds']:.0f} s in all. `benchmarks/par.py` "
            "says how it is measured; the paper's ratios are of an A100.",
            "",
            f"| {' | '.join(HEAD)} |",
            f"|{'---|' * len(HEAD)}",
            *(f"| {' | '.join(line)} |" for line in lines),
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", default="", help="groups whose name has this in it")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(given.threads)
    started, load, lines = time.time(), os.getloadavg()[0], []
    for group in (group for group in GROUPS if given.only in group.name):
        firsts: dict[str, Row] = {}
        for row in measured(group, given):
            lines.append(cells(row, firsts.setdefault(row.how, row)))
            print("  ".join(lines[-1]), flush=True)
    text = document(lines, given, started, load)
    print(f"\n{text}")
    if given.out:
        given.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
