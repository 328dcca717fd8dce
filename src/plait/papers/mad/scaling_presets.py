"""Mechanistic Architecture Design (Poli et al. 2024, arXiv:2403.17844): the models of its scaling laws and topologies.

`mad-transformer-350m`, `mad-striped-hyena-1-3-350m` (1 attention to 3 Hyena blocks), `mad-striped-hyena-moe-350m` are
named by the size in Table C.2 (for experts: active parameters); `mad-topology-7` is the seventh row of Table D.1.

Where the paper needs reading:
  - Table C.2's 70M row has 8 heads of 64, which is 512, in a model of 576; taken as printed.
  - D.1 says that everything outside it uses 1H:1A, but C.2 describes three ratios, 1A:1H, 1A:3H and 1A:11H; all three
    are here, beginning with attention as written there. No ratio is given for StripedHyena-MoE: 1A:1H.
  - The MoE width W of Tables C.3 and C.4 is three times an expert's, rounded here. C.3's totals are n(4d² + 9dW) + Vd
    to 0.3 % in all rows: nine experts of width W/3, where the text has 8, of which 2 are active. The presets follow the
    text, so they count 8 to 9 % less than the table, and 13 to 21 % fewer active parameters; with a ninth expert that
    every token meets, both would agree to 3 %. C.4's totals, too, are those of nine experts (to 0.7 %), but its active
    counts are neither those of two nor of three of them: the presets have 7 to 11 % fewer. `plait show` says by how
    much, row by row.
  - C.3's row 440 prints the width of the row above it, 2752; only 3072 gives its counts.
  - Table D.1's last row prints 8H:12A:4A; all other rows have as many H as A, so it is read as 8H:12A:4H.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

from plait.spec.presets import Catalog, Preset

VOCAB = 50257  # tied; the parameter counts of Table C.2 are those of this vocabulary


@dataclass(frozen=True)
class Size:
    """A row of Table C.2."""

    params_m: int
    d: int
    ffw: int
    kv: int
    heads: int
    layers: int
    lr: float


@dataclass(frozen=True)
class ExpertSize:
    """A row of Table C.3 or C.4. `size` is the Table C.2 row it goes with; `mixer_width` one Hyena expert's (C.4)."""

    size: int
    total_m: int
    active_m: int
    moe_width: int
    mixer_width: int = 0


TABLE_C2 = [
    Size(8, 128, 336, 64, 2, 4, 9.77e-4),
    Size(22, 320, 848, 64, 5, 5, 9.57e-4),
    Size(38, 448, 1200, 64, 7, 7, 9.36e-4),
    Size(54, 512, 1360, 64, 8, 9, 9.15e-4),
    Size(70, 576, 1536, 64, 8, 10, 8.95e-4),
    Size(102, 640, 1712, 64, 10, 14, 8.56e-4),
    Size(118, 704, 1872, 64, 11, 14, 8.37e-4),
    Size(134, 768, 2048, 64, 12, 14, 8.18e-4),
    Size(150, 768, 2048, 64, 12, 16, 8.00e-4),
    Size(163, 768, 2048, 64, 12, 17, 7.75e-4),
    Size(175, 768, 2048, 64, 12, 19, 7.50e-4),
    Size(196, 832, 2224, 64, 13, 19, 7.25e-4),
    Size(217, 832, 2224, 64, 13, 21, 7.00e-4),
    Size(251, 896, 2384, 64, 14, 21, 6.75e-4),
    Size(278, 896, 2384, 64, 14, 24, 6.50e-4),
    Size(306, 960, 2560, 64, 15, 24, 6.25e-4),
    Size(350, 1024, 2736, 64, 16, 24, 6.00e-4),
    Size(440, 1152, 3072, 64, 18, 24, 5.66e-4),
    Size(536, 1280, 3408, 64, 20, 24, 5.33e-4),
    Size(641, 1408, 3760, 128, 11, 24, 5.00e-4),
    Size(756, 1536, 4096, 128, 12, 24, 4.75e-4),
    Size(881, 1664, 4432, 128, 13, 24, 4.55e-4),
    Size(1010, 1792, 4784, 128, 14, 24, 4.33e-4),
    Size(1160, 1920, 5120, 128, 15, 24, 4.15e-4),
    Size(1200, 1920, 5120, 128, 15, 25, 4.11e-4),
    Size(1300, 2048, 5456, 128, 16, 24, 4.00e-4),
    Size(1600, 2176, 5808, 128, 17, 26, 3.84e-4),
    Size(1900, 2304, 6144, 128, 18, 28, 3.67e-4),
    Size(2250, 2432, 6480, 128, 19, 30, 3.47e-4),
    Size(2400, 2560, 6832, 128, 20, 29, 3.39e-4),
    Size(2640, 2560, 6832, 128, 20, 32, 3.25e-4),
    Size(3100, 2688, 7168, 128, 21, 34, 3.00e-4),
    Size(4200, 3072, 8192, 128, 24, 36, 2.72e-4),
    Size(5200, 3328, 8880, 128, 26, 38, 2.46e-4),
    Size(7000, 3712, 9904, 128, 29, 41, 2.00e-4),
]

TABLE_C3 = [
    ExpertSize(102, 194, 102, 1728),
    ExpertSize(118, 228, 118, 1856),
    ExpertSize(134, 270, 134, 2048),
    ExpertSize(150, 303, 150, 2048),
    ExpertSize(163, 319, 163, 2048),
    ExpertSize(175, 352, 175, 2048),
    ExpertSize(196, 404, 196, 2176),
    ExpertSize(217, 452, 217, 2240),
    ExpertSize(251, 512, 251, 2368),
    ExpertSize(278, 580, 278, 2368),
    ExpertSize(306, 667, 306, 2560),
    ExpertSize(350, 761, 350, 2752),
    ExpertSize(440, 950, 440, 3072),  # printed: 2752
    ExpertSize(536, 1160, 536, 3392),
    ExpertSize(641, 1390, 641, 3712),
    ExpertSize(756, 1660, 756, 4096),
    ExpertSize(881, 1940, 881, 4416),
    ExpertSize(1010, 2230, 1010, 4736),
    ExpertSize(1160, 2550, 1160, 5056),
    ExpertSize(1300, 2910, 1300, 5440),
]

TABLE_C4 = [
    ExpertSize(102, 241, 101, 2368, 80),
    ExpertSize(118, 290, 119, 2624, 88),
    ExpertSize(134, 337, 137, 2816, 96),
    ExpertSize(150, 386, 153, 2880, 96),
    ExpertSize(163, 408, 160, 2880, 96),
    ExpertSize(175, 452, 174, 2880, 96),
    ExpertSize(196, 520, 199, 3072, 104),
    ExpertSize(217, 570, 215, 3072, 104),
    ExpertSize(251, 661, 248, 3328, 112),
    ExpertSize(278, 749, 277, 3328, 112),
    ExpertSize(306, 860, 315, 3584, 120),
    ExpertSize(350, 965, 352, 3776, 128),
    ExpertSize(440, 1220, 441, 4288, 144),
    ExpertSize(536, 1500, 535, 4736, 160),
    ExpertSize(641, 1810, 641, 5216, 176),
    ExpertSize(756, 2140, 757, 5696, 192),
    ExpertSize(881, 2510, 882, 6176, 208),
    ExpertSize(1010, 2880, 1010, 6592, 224),
    ExpertSize(1160, 3320, 1160, 7104, 240),
    ExpertSize(1300, 3790, 1310, 7616, 256),
]

#: Table D.1: topology at 750M parameters and 2e19 FLOPs, and its perplexity on The Pile.
TABLE_D1 = [
    ("(1H:1A)x12", 9.52),
    ("(2H:2A)x6", 9.32),
    ("(3H:3A)x4", 9.33),
    ("(4H:4A)x3", 9.37),
    ("(6H:6A)x2", 9.28),
    ("12H:12A", 9.41),
    ("(2H:4A:4H:2A)x2", 9.25),
    ("(1H:5A:5H:1A)x2", 9.31),
    ("4H:10A:8H:2A", 9.33),
    ("4H:12A:8H", 9.31),
    ("6H:12A:6H", 9.30),
    ("8H:12A:4H", 9.35),  # printed: 8H:12A:4A
]

RATIOS = {"1-1": "1A:1H", "1-3": "1A:3H", "1-11": "1A:11H"}

_MAMBA = "mamba[state=16,expand=2,conv=4]"


def catalog() -> Catalog:
    """Eight families; those with stripes at three ratios. Then the topologies."""
    presets: dict[str, Callable[[], Preset]] = {}
    for family in ("transformer", "hyena", "mh-hyena", "mamba"):
        presets |= {_named(family, s.params_m): partial(_uniform, family, s) for s in TABLE_C2}
    for family in ("striped-hyena", "striped-mamba"):
        for ratio in RATIOS:
            presets |= {_named(f"{family}-{ratio}", s.params_m): partial(_striped, family, ratio, s) for s in TABLE_C2}
    presets |= {_named("striped-hyena-moe", row.size): partial(_moe, row) for row in TABLE_C3}
    presets |= {_named("striped-hyena-experts", row.size): partial(_experts, row) for row in TABLE_C4}
    return presets | {f"mad-topology-{i}": partial(_topology, i) for i in range(1, len(TABLE_D1) + 1)}


@cache
def size(params_m: int) -> Size:
    """Table C.2's row of that size."""
    return next(s for s in TABLE_C2 if s.params_m == params_m)


def _named(family: str, params_m: int) -> str:
    return f"mad-{family}-{params_m}m"


def _header(s: Size) -> str:
    return f"d={s.d} vocab={VOCAB} tie=true"


def _attention(s: Size) -> str:
    head_dim = f",head_dim={s.kv}" if s.heads * s.kv != s.d else ""
    return f"attn[heads={s.heads}{head_dim}]"


def _glu(s: Size) -> str:
    return f"swiglu[inner={s.ffw}]"


def _block(family: str, s: Size) -> str:
    """The block that a family repeats, or the one it puts between attention blocks."""
    mixers = {
        "transformer": _attention(s),
        "hyena": "hyena",
        "mh-hyena": f"mh-hyena[heads={s.d // 8}]",  # head dimension 8, the best at 2e19 FLOPs
    }
    return f"{_MAMBA} {_MAMBA}" if family == "mamba" else f"{mixers[family]} {_glu(s)}"


def _stripes(ratio: str, n: int, attention: str, other: str) -> str:
    return f"rule[a=({attention}),h=({other})]:stripe({ratio},n={n})"


def _uniform(family: str, s: Size) -> Preset:
    title = {"transformer": "Transformer++", "hyena": "Hyena", "mh-hyena": "multi-head Hyena", "mamba": "Mamba"}[family]
    text = f"{_header(s)} | ({_block(family, s)})x{s.layers}"
    return Preset(_named(family, s.params_m), text, "mad", "Table C.2", f"{title}, {s.layers} blocks of width {s.d}")


def _striped(family: str, ratio: str, s: Size) -> Preset:
    other = family.removeprefix("striped-")
    stripes = _stripes(RATIOS[ratio], s.layers, _block("transformer", s), _block(other, s))
    title = other.title()
    what = f"Striped{title}, one attention block to {ratio[2:]} of {title}, {s.layers} blocks of width {s.d}"
    return Preset(_named(f"{family}-{ratio}", s.params_m), f"{_header(s)} | {stripes}", "mad", "Table C.2", what)


def _moe(row: ExpertSize) -> Preset:
    s = size(row.size)
    experts = f"moe[experts=8,active=2,inner={round(row.moe_width / 3)}]"
    stripes = _stripes(RATIOS["1-1"], s.layers, f"{_attention(s)} {experts}", f"hyena {experts}")
    what = f"StripedHyena-MoE, the paper prints {row.total_m}M, {row.active_m}M active"
    return Preset(
        _named("striped-hyena-moe", row.size), f"{_header(s)} | {stripes}", "mad", "Table C.3", what, _printed(row),
        "8 experts, 2 active, as the text has it; the printed counts include a ninth that every token uses",
    )  # fmt: skip


def _experts(row: ExpertSize) -> Preset:
    s = size(row.size)
    experts = f"moe[experts=8,active=2,inner={round(row.moe_width / 3)}]"
    mixer = f"hyena-experts[experts=8,active=2,width={row.mixer_width}]"
    stripes = _stripes(RATIOS["1-11"], s.layers, f"{_attention(s)} {experts}", f"{mixer} {experts}")
    what = f"StripedHyena Experts-MoE, the paper prints {row.total_m}M, {row.active_m}M active"
    return Preset(
        _named("striped-hyena-experts", row.size), f"{_header(s)} | {stripes}", "mad", "Table C.4", what, _printed(row),
        "8 experts, 2 active, as the text has it; the printed total is that of nine, the active count of neither",
    )  # fmt: skip


def _printed(row: ExpertSize) -> dict[str, int]:
    return {"total": row.total_m, "active": row.active_m}


def _topology(number: int) -> Preset:
    s = size(756)
    topology, perplexity = TABLE_D1[number - 1]
    letters = f"a=({_block('transformer', s)}),h=({_block('hyena', s)})"
    note = "; printed as 8H:12A:4A" if number == len(TABLE_D1) else ""
    what = f"topology {topology}, perplexity {perplexity:.2f} in the paper{note}"
    return Preset(f"mad-topology-{number}", f"{_header(s)} | mad[{letters}]:{topology}", "mad", "Table D.1", what)
