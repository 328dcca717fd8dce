"""GPT-2 (Radford et al. 2019), Table 2: four sizes, known to everyone, good to compare with.

Parameters: 124,439,808; 354,823,168; 774,030,080; 1,557,611,200 (the paper prints smaller, miscounted figures).
"""

from __future__ import annotations

from functools import partial

from plait.spec.presets import Catalog, Preset

# size -> (layers, width, heads)
SIZES = {"124m": (12, 768, 12), "355m": (24, 1024, 16), "774m": (36, 1280, 20), "1558m": (48, 1600, 25)}


def catalog() -> Catalog:
    return {f"gpt2-{size}": partial(_gpt2, size) for size in SIZES}


def _gpt2(size: str) -> Preset:
    n, d, heads = SIZES[size]
    header = f"d={d} vocab=50257 pos=learned max_len=1024 tie=true norm=layer eps=1e-5 depth_scale=true"
    text = f"{header} | (attn[heads={heads},pos=none,bias] mlp[inner={4 * d},act=gelu-tanh])x{n}"
    return Preset(f"gpt2-{size}", text, "gpt2", "Table 2", f"GPT-2 with {n} layers of width {d}")
