"""Two families of models that are common baselines: GPT-2 and OPT.

GPT-2 (Radford et al. 2019), Table 2: four sizes. Parameters: 124,439,808; 354,823,168; 774,030,080; 1,557,611,200 (the
paper prints smaller, miscounted figures).

OPT (Zhang et al. 2022, arXiv:2205.01068), Table 1: all sizes but 350M. From the paper: layers, width, heads, ReLU,
inner width 4 d. From its published weights: norms before the layers, a vocabulary of 50272, 2048 learned positions,
tied tables, biases everywhere. (The weights have two more rows of positions, which no token uses.) 350M is another
model there: norms behind the layers, embeddings of 512.
"""

from __future__ import annotations

from functools import partial

from plait.spec.presets import Catalog, Preset

# size -> (layers, width, heads)
GPT2 = {"124m": (12, 768, 12), "355m": (24, 1024, 16), "774m": (36, 1280, 20), "1558m": (48, 1600, 25)}
OPT = {
    "125m": (12, 768, 12),
    "1.3b": (24, 2048, 32),
    "2.7b": (32, 2560, 32),
    "6.7b": (32, 4096, 32),
    "13b": (40, 5120, 40),
    "30b": (48, 7168, 56),
    "66b": (64, 9216, 72),
    "175b": (96, 12288, 96),
}


def gpt2() -> Catalog:
    header = "vocab=50257 pos=learned max_len=1024 tie=true norm=layer eps=1e-5 depth_scale=true"
    return {f"gpt2-{size}": partial(_preset, "gpt2", f"gpt2-{size}", *GPT2[size], header, "gelu-tanh") for size in GPT2}


def opt() -> Catalog:
    header = "vocab=50272 pos=learned max_len=2048 tie=true norm=layer eps=1e-5"
    return {f"opt-{size}": partial(_preset, "opt", f"opt-{size}", *OPT[size], header, "relu") for size in OPT}


def _preset(family: str, name: str, n: int, d: int, heads: int, header: str, act: str) -> Preset:
    text = f"d={d} {header} | (attn[heads={heads},pos=none,bias] mlp[inner={4 * d},act={act}])x{n}"
    title, table = {"gpt2": ("GPT-2", "Table 2"), "opt": ("OPT", "Table 1")}[family]
    return Preset(name, text, family, table, f"{title} with {n} layers of width {d}")
