"""LiteTransformerSearch (Javaheripi et al. 2022, arXiv:2203.02094): every architecture in its tables.

`lts-gpt2-titanxp-M12` is row M12 for the TITAN Xp with the GPT-2 backbone; `lts-xl-…` has the Transformer-XL backbone,
`lts-opt-…` is the comparison with OPT-350M, `lts-xl-base-4` the scaled baseline of 4 layers. `lts1-…` are the tables of
the paper's earlier version. Their printed decoder parameters (d width, f inner width, h heads; sums over layers) are

    GPT-2                 Σ(4d² + 9d + 2df + f) + 2d
    Transformer-XL        Σ(5d² + 7d + 2df + f)
    the same, earlier     Σ(5·d·64h + 7d + 2df + f)
    OPT                   Σ(4d² + 9d + 2df + f) + 2050d

The earlier version counts heads 64 wide although its text says d / h, so its presets have head_dim=64. Its 7d holds
position and content biases of width d where heads of that width have 64h, so `plait` counts 2(64h - d) more per layer.
OPT's count includes the learned positions (2048d), against the paper's own definition of decoder parameters.

From the paper: widths, heads, vocabularies, adaptive embeddings that get 4 times narrower band by band, as wide as the
model in the first band (none in OPT). Where the bands end is not in the paper. The authors' code (archai) ends them at
59997, 99997 and 639997 for LM1B, as Transformer-XL's does, and the totals of their trained models are those:
Transformer-XL has three bands, and GPT-2's vocabulary lies all in the first, which still has its projections,

    Transformer-XL        d(59997 + 40000/4 + 167738/16) + 2d(d + d/4 + d/16) + 267735 + 2(d + 1)
    GPT-2                 50264d + 2d² + 50264 + positions

beside the decoder. They trained GPT-2 on LM1B with 32 positions; here it has 1024, so that it can be run on longer
text. Not stated, so the usual choice: nonlinearities, tied tables, ε.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files

from plait.spec.presets import Catalog, Preset

_BACKBONES = {"gpt2": "GPT-2", "xl": "Transformer-XL", "opt": "OPT"}
_DEVICES = {"arm": "ARM CPU", "corei7": "Core i7", "titanxp": "TITAN Xp", "a6000": "A6000"}
_DEPTHS = range(1, 17)  # of the scaled baselines


@dataclass(frozen=True)
class LtsRow:
    """One row of the paper's tables.

    earlier           from the paper's earlier version
    backbone, device  gpt2, xl or opt; arm, corei7, titanxp or a6000
    decoder_params_m  millions, as printed
    clean             as printed; a row that is not was unreadable somewhere and is restored from the other version
    """

    name: str
    earlier: bool
    table: int
    backbone: str
    device: str
    d: int
    heads: tuple[int, ...]
    inner: tuple[int, ...]
    decoder_params_m: float
    clean: bool


def catalog() -> Catalog:
    baselines = {f"lts-{backbone}-base-{n}": partial(_baseline, backbone, n) for backbone in _BASE for n in _DEPTHS}
    return {**{name: partial(_preset, name) for name in _lines()}, **baselines}


def rows() -> list[LtsRow]:
    """Every row of both versions' tables."""
    return [row(name) for name in _lines()]


def row(name: str) -> LtsRow:
    """The table's row behind a preset's name."""
    _, table, d, heads, inner, params, state = _lines()[name].split()
    version, backbone, device = name.split("-")[:3]
    return LtsRow(
        name=name,
        earlier=version == "lts1",
        table=int(table),
        backbone=backbone,
        device="a6000" if backbone == "opt" else device,
        d=int(d),
        heads=_numbers(heads),
        inner=_numbers(inner),
        decoder_params_m=float(params),
        clean=state == "printed",
    )


@cache
def _lines() -> dict[str, str]:
    text = files(__package__).joinpath("rows.txt").read_text(encoding="utf-8")
    return {line[: line.index(" ")]: line for line in text.splitlines() if not line.startswith("#")}


def _numbers(text: str) -> tuple[int, ...]:
    """`2,8x3` is (2, 8, 8, 8)."""
    numbers: list[int] = []
    for run in text.split(","):
        value, _, count = run.partition("x")
        numbers += [int(value)] * int(count or 1)
    return tuple(numbers)


def _preset(name: str) -> Preset:
    r = row(name)
    head_dim = 64 if r.earlier and r.backbone == "xl" else 0
    layers = [_layer_pair(r.backbone, heads, inner, head_dim) for heads, inner in zip(r.heads, r.inner, strict=True)]
    of = "the baseline, OPT-350M" if name.endswith("-baseline") else f"found for the {_DEVICES[r.device]}"
    repaired = "" if r.clean else "; row restored from the other version"
    what = f"{_BACKBONES[r.backbone]}, {len(layers)} layers, {r.decoder_params_m}M decoder parameters, {of}{repaired}"
    source = f"Table {r.table}" + (" (earlier version)" if r.earlier else "")
    return Preset(name, f"{_header(r.backbone, r.d, r.earlier)} | {' '.join(layers)}", "lts", source, what)


def _header(backbone: str, d: int, earlier: bool = False) -> str:
    if backbone == "opt":
        return f"d={d} vocab=50272 pos=learned max_len=2048 tie=true norm=layer eps=1e-5"
    if backbone == "gpt2":
        vocab = 50257 if earlier else 50264
        adaptive = "tie=true embed=adaptive div=4"  # its one band ends beyond the vocabulary
        return f"d={d} vocab={vocab} pos=learned max_len=1024 {adaptive} norm=layer eps=1e-5"
    adaptive = "tie=true embed=adaptive cutoffs=59997/99997 div=4"
    return f"d={d} vocab=267735 {adaptive} norm=layer eps=1e-5 final_norm=false"


def _layer_pair(backbone: str, heads: int, inner: int, head_dim: int = 0) -> str:
    width = f",head_dim={head_dim}" if head_dim else ""
    if backbone == "xl":
        return f"xl-attn[heads={heads}{width}] mlp[inner={inner},act=relu]"
    act = "relu" if backbone == "opt" else "gelu-tanh"
    return f"attn[heads={heads}{width},pos=none,bias] mlp[inner={inner},act={act}]"


# Scaled baselines: one shape at 1 to 16 layers. 1024 / 12 is not a whole number, so GPT-2's "d_head = d_model / n_head"
# cannot hold for its own baseline; the nearest width below is taken.
_BASE = {"xl": (512, 8, 2048, 0), "gpt2": (1024, 12, 3072, 85)}  # width, heads, inner width, head width


def _baseline(backbone: str, n: int) -> Preset:
    d, heads, inner, head_dim = _BASE[backbone]
    text = f"{_header(backbone, d)} | ({_layer_pair(backbone, heads, inner, head_dim)})x{n}"
    tables = "Tables 4 and 5" if backbone == "xl" else "Tables 6 and 7"
    note = "; heads of 85, since 1024 / 12 is not a whole number" if head_dim else ""
    what = f"{_BACKBONES[backbone]} baseline scaled to {n} layer{'s' if n > 1 else ''}{note}"
    return Preset(f"lts-{backbone}-base-{n}", text, "lts", tables, what)
