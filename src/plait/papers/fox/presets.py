"""Forgetting Transformer (Lin et al. 2025, arXiv:2503.02130): its models, the ablations of Table 3, its baselines.

Three sizes (Table 4). The MLP's width is 2/3 of 4d (LLaMA) or 3.5d (Pro), rounded up to a multiple of 256. Parameters,
the output layer included and the input table not, in millions: FoX (LLaMA) 123.66, 360.19, 757.63; FoX (Pro) 123.91,
367.34, 759.51.

`fox-ablation-1` to `-15` are Table 3's rows in order. The table does not say how wide their MLPs are: here a row has
Pro's narrower one if it has the output gate, which is what the narrower one pays for, so all rows have 359.8 to 367.3M
parameters.

Baselines: Mamba-2, HGRN2, DeltaNet at all three sizes; Samba (Ren et al. 2024, arXiv:2406.07522) and the sliding-window
Transformer were trained at 760M only, the smaller ones follow the same recipe. Mamba-2's number of layers and Samba's
MLPs (ratio 3 behind Mamba, 4 behind attention) are those of the authors' public settings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from plait.spec.presets import Catalog, Preset


@dataclass(frozen=True)
class FoxSize:
    """A row of Table 4; `tokens` are those of the shorter run at 760M, `lr` its peak learning rate."""

    layers: int
    d: int
    heads: int
    transformer_heads: int  # the Transformer's heads at 760M are 128 wide, everyone else's 64
    tokens: int
    steps: int
    lr: float


SIZES = {
    "125m": FoxSize(12, 768, 12, 12, 2_684_354_560, 5120, 2e-3),
    "360m": FoxSize(24, 1024, 16, 16, 7_516_192_768, 14336, 2e-3),
    "760m": FoxSize(24, 1536, 24, 12, 16_106_127_360, 30720, 1e-3),
}

#: Table 5: peak learning rates of the long run (760M, 48.3B tokens in 92160 steps).
TABLE_5 = {
    "fox-pro-760m": 2e-3,
    "transformer-pro-760m": 1e-3,
    "fox-llama-760m": 1e-3,
    "transformer-llama-760m": 5e-4,
    "mamba2-760m": 2e-3,
    "hgrn2-760m": 2e-3,
    "deltanet-760m": 1e-3,
}


@dataclass(frozen=True)
class Ablation:
    """A row of Table 3: which components it has (the table's ticks), and its perplexity at 16384 tokens."""

    what: str
    ticks: str  # r RoPE, f forget gate, q QK-norm, g output gate, n output norm, s KV-shift
    perplexity: float


TABLE_3 = [
    Ablation("Transformer (LLaMA) w/o RoPE", "", 29.30),
    Ablation("Transformer (LLaMA)", "r", 7.49),
    Ablation("Transformer (LLaMA) + forget gate", "rf", 7.19),
    Ablation("FoX (LLaMA)", "f", 7.25),
    Ablation("FoX (LLaMA) + QK-norm", "fq", 7.08),
    Ablation("FoX (LLaMA) + QK-norm + output gate", "fqg", 6.88),
    Ablation("FoX (LLaMA) + QK-norm + output gate + output norm", "fqgn", 6.80),
    Ablation("FoX (Pro)", "fqgns", 6.62),
    Ablation("FoX (Pro) - QK-norm", "fgns", 6.79),
    Ablation("FoX (Pro) - output gate", "fqns", 6.86),
    Ablation("FoX (Pro) - output norm", "fqgs", 6.69),
    Ablation("FoX (Pro) - KV-shift", "fqgn", 6.80),
    Ablation("FoX (Pro) + RoPE", "rfqgns", 6.63),
    Ablation("FoX (Pro) - forget gate + RoPE, i.e. Transformer (Pro)", "rqgns", 6.82),
    Ablation("FoX (Pro) - forget gate", "qgns", 7.40),
]

_THETA = 500000
_WINDOW = 2048
_COMPONENTS = {"q": "qk_norm=per-head", "g": "out_gate", "n": "out_norm", "s": "kv_shift"}
_MODELS = {"fox-llama": "f", "fox-pro": "fqgns", "transformer-llama": "r", "transformer-pro": "rqgns"}
_TITLES = {
    "fox-llama": "FoX (LLaMA)",
    "fox-pro": "FoX (Pro)",
    "transformer-llama": "Transformer (LLaMA)",
    "transformer-pro": "Transformer (Pro)",
    "mamba2": "Mamba-2",
    "hgrn2": "HGRN2",
    "deltanet": "DeltaNet",
    "samba": "Samba, Mamba and attention over 2048 tokens in turn",
    "swa": "Transformer (LLaMA) with attention over 2048 tokens",
}


def catalog() -> Catalog:
    presets: dict[str, Callable[[], Preset]] = {
        f"{model}-{size}": partial(_model, model, size) for model in _TITLES for size in SIZES
    }
    return presets | {f"fox-ablation-{i}": partial(_ablation, i) for i in range(1, len(TABLE_3) + 1)}


def mlp_width(d: int, ratio: float) -> int:
    """2/3 of `ratio` times the width, rounded up to a multiple of 256."""
    return -(-int(d * ratio * 2 / 3) // 256) * 256


def _attention(ticks: str, heads: int) -> str:
    """Attention with the ticked components, written as `fox` or `attn` by whether it has the forget gate."""
    name, own_positions = ("fox", "none") if "f" in ticks else ("attn", "rope")
    positions = "rope" if "r" in ticks else "none"
    options = [f"heads={heads}"]
    if positions != own_positions:
        options.append(f"pos={positions}")
    if positions == "rope":
        options.append(f"theta={_THETA}")
    options += [option for tick, option in _COMPONENTS.items() if tick in ticks]
    return f"{name}[{','.join(options)}]"


def _transformer(ticks: str, s: FoxSize) -> str:
    heads = s.heads if "f" in ticks else s.transformer_heads
    width = mlp_width(s.d, 3.5 if "g" in ticks else 4)
    return f"d={s.d} vocab=50257 | ({_attention(ticks, heads)} swiglu[inner={width}])x{s.layers}"


def _baseline(model: str, s: FoxSize) -> str:
    header = f"d={s.d} vocab=50257"
    mlp = f"swiglu[inner={mlp_width(s.d, 4)}]"
    local = f"attn[heads={s.transformer_heads},theta={_THETA},window={_WINDOW}]"
    if model == "mamba2":  # 24, 48 and 48 layers: Mamba-2 has no MLPs, so it has twice the layers
        return f"{header} eps=1e-5 depth_scale=true | (mamba2[state=128,head_dim=64])x{2 * s.layers}"
    if model == "samba":
        behind_mamba = f"swiglu[inner={mlp_width(s.d, 3)}]"
        pair = f"mamba[state=16,expand=2,conv=4] {behind_mamba} {local} {mlp}"
        return f"{header} eps=1e-5 depth_scale=true | ({pair})x{s.layers // 2}"
    mixer = {"hgrn2": "hgrn2[head_dim=128]", "deltanet": "deltanet[head_dim=128,conv=4]", "swa": local}[model]
    return f"{header} | ({mixer} {mlp})x{s.layers}"


def _model(model: str, size: str) -> Preset:
    s = SIZES[size]
    text = _transformer(_MODELS[model], s) if model in _MODELS else _baseline(model, s)
    what = f"{_TITLES[model]}, {size.upper()}"
    if model in ("samba", "swa"):
        source = "Table 8"
        what += "" if size == "760m" else " (the paper has 760M only)"
    else:
        source = "Table 4"
    return Preset(f"{model}-{size}", text, "fox", source, what)


def _ablation(number: int) -> Preset:
    row = TABLE_3[number - 1]
    what = f"{row.what}, 360M; perplexity {row.perplexity:.2f} in the paper"
    return Preset(f"fox-ablation-{number}", _transformer(row.ticks, SIZES["360m"]), "fox", "Table 3", what)
