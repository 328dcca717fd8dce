"""OPT (Zhang et al. 2022, arXiv:2205.01068), Table 1: all sizes but 350M.

From the paper: layers, width, heads, ReLU, inner width 4 d. From its published weights: norms before the layers, a
vocabulary of 50272, 2048 learned positions, tied tables, biases everywhere. (The weights have two rows of positions
more, which no token meets.) 350M is another model there: norms behind the layers, embeddings of 512.
"""

from __future__ import annotations

from functools import partial

from plait.spec.presets import Catalog, Preset

# size -> (layers, width, heads)
SIZES = {
    "125m": (12, 768, 12),
    "1.3b": (24, 2048, 32),
    "2.7b": (32, 2560, 32),
    "6.7b": (32, 4096, 32),
    "13b": (40, 5120, 40),
    "30b": (48, 7168, 56),
    "66b": (64, 9216, 72),
    "175b": (96, 12288, 96),
}


def catalog() -> Catalog:
    return {f"opt-{size}": partial(_opt, size) for size in SIZES}


def _opt(size: str) -> Preset:
    n, d, heads = SIZES[size]
    header = f"d={d} vocab=50272 pos=learned max_len=2048 tie=true norm=layer eps=1e-5"
    text = f"{header} | (attn[heads={heads},pos=none,bias] mlp[inner={4 * d},act=relu])x{n}"
    return Preset(f"opt-{size}", text, "opt", "Table 1", f"OPT with {n} layers of width {d}")
