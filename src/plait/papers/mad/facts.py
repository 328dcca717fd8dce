"""Mechanistic Architecture Design (Poli et al. 2024, arXiv:2403.17844): its scaled models, their sizes and FLOPs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from plait.core.units import percent
from plait.model.architecture import Architecture, architecture
from plait.model.cost import model_cost
from plait.papers.conventions import mad_flops, mad_terms
from plait.papers.mad.probe_facts import stepwise
from plait.papers.mad.scaling_presets import TABLE_C2, TABLE_C3, TABLE_C4, TABLE_D1, VOCAB, ExpertSize
from plait.papers.verify import FactTable, first_layer, tally
from plait.spec import parse, presets

facts = FactTable()


@facts.fact("M27", "Table C.2: n(4d² + 3df) + Vd within 2 % in 30 of 35 rows; worst the 8M row, −9.9 %")
def size_formula() -> tuple[str, str, bool]:
    gaps, same = {}, 0
    for s in TABLE_C2:
        formula = s.layers * (4 * s.d**2 + 3 * s.d * s.ffw) + VOCAB * s.d
        gaps[s.params_m] = formula / (s.params_m * 1e6) - 1
        counted = model_cost(f"mad-transformer-{s.params_m}m")
        same += counted.total_params - sum(counted.norms) - counted.parts["final norm"] == formula
    good = sum(abs(gap) <= 0.02 for gap in gaps.values())
    worst = max(gaps, key=lambda m: abs(gaps[m]))
    gap = percent(gaps[worst], 1, sign=True)
    ours = f"{tally(good, 35)}; worst {worst}M {gap}; the formula counts {same} presets exactly"
    # The one preset it does not count is the 70M row, whose heads do not fill its width (E06).
    return "30 of 35 rows; worst 8M −9.9 %", ours, good == 30 and worst == 8 and same == 34


@facts.fact("M28", "Table C.2 widths: f = round16(8d/3) in 35 of 35, heads × kv = d in 34 of 35")
def widths() -> tuple[str, str, bool]:
    inner, odd = 0, []
    for s in TABLE_C2:
        arch = architecture(f"mad-transformer-{s.params_m}m")
        d, (attention, glu) = arch.header.d, arch.layers[:2]
        inner += _inner(glu, d) == _inner(architecture(f"d={d} vocab=9 | swiglu").layers[0], d) == 16 * round(d / 6)
        if _heads(attention, d)[0] * _heads(attention, d)[1] != d:
            odd.append(s.params_m)
    return "35; all but 70M", f"{inner}; all but {', '.join(f'{m}M' for m in odd)}", inner == 35 and odd == [70]


@facts.fact("E06", "Table C.2's 70M row: 8 heads of 64 are not 576", erratum=True)
def odd_row() -> tuple[str, str, bool]:
    arch = architecture("mad-transformer-70m")
    (heads, width), d = _heads(arch.layers[0], arch.header.d), arch.header.d
    ours = f"{heads} × {width} = {heads * width}, d = {d}"
    return "heads × kv = d", ours, (heads, width, d) == (8, 64, 576)


def _inner(layer: Any, d: int) -> int:
    return int(layer.inner_width(d))


def _heads(layer: Any, d: int) -> tuple[int, int]:
    return int(layer.heads), int(layer.head_width(d))


def _counts(family: str, row: ExpertSize, *, experts: int = 8, active: int = 2, inner: int = 0) -> tuple[float, float]:
    """Total and active parameters of the preset, in millions, perhaps with other experts in its MoE layers."""
    arch = architecture(f"mad-{family}-{row.size}m")
    other: dict[str, Any] = {"experts": experts, "active": active, **({"inner": inner} if inner else {})}
    layers = [replace(layer, **other) if layer.name == "moe" else layer for layer in arch.layers]
    cost = model_cost(Architecture(arch.header, tuple(layers)))
    return cost.total_params / 1e6, cost.active_params / 1e6


@facts.fact(
    "M30", "Table C.3: total − active, six idle experts in every layer, within 4 %; the row 440 is repaired (E07)"
)
def moe_sizes() -> tuple[str, str, bool]:
    near = {}
    for row in TABLE_C3:
        total, active = _counts("striped-hyena-moe", row)
        near[row.size] = abs((total - active) / (row.total_m - row.active_m) - 1) <= 0.04
    repaired = near.pop(440)
    ours = f"{sum(near.values())} of 20 rows as printed, {int(repaired)} repaired"
    return "19 of 20 rows as printed, 1 repaired", ours, all(near.values()) and len(near) == 19 and repaired


@facts.fact("E07", "Table C.3: the MoE width is 3 × an expert's; row 440 should read 3072, not 2752", erratum=True)
def moe_row() -> tuple[str, str, bool]:
    row = next(row for row in TABLE_C3 if row.size == 440)
    printed, mended = (
        total - active
        for total, active in (_counts("striped-hyena-moe", row, inner=width // 3) for width in (2752, 3072))
    )
    ours = f"2752 gives {printed:.0f}M, 3072 gives {mended:.0f}M"
    return "total − active = 510M", ours, abs(mended / 510 - 1) <= 0.04 < abs(printed / 510 - 1)


@facts.fact(
    "E10", "Tables C.3 and C.4 count nine experts, one of them always active; the text has 8 and 2", erratum=True
)
def ninth_expert() -> tuple[str, str, bool]:
    def agreeing(family: str, table: list[ExpertSize], experts: int, active: int, within: float) -> int:
        counted = ((row, _counts(family, row, experts=experts, active=active)) for row in table)
        # Of Hyena experts' active parameters no number of experts gives the printed ones.
        return sum(
            abs(total / row.total_m - 1) <= within and (row.mixer_width > 0 or abs(here / row.active_m - 1) <= within)
            for row, (total, here) in counted
        )

    c3, c4 = ("striped-hyena-moe", TABLE_C3), ("striped-hyena-experts", TABLE_C4)
    text = [agreeing(*table, 8, 2, 0.035) for table in (c3, c4)]
    nine = [agreeing(*c3, 9, 3, 0.035), agreeing(*c4, 9, 3, 0.01)]
    ours = f"with 8: {text[0]} and {text[1]} of 20 rows; with 9: {nine[0]} and {nine[1]}"
    return "the printed totals and active counts, with 8 experts", ours, text == [0, 0] and nine == [20, 20]


@facts.fact(
    "M31", "Table C.4: expert width = d / 8; one attention to 11 expert blocks; totals within 1 % (nine experts, E10)"
)
def expert_sizes() -> tuple[str, str, bool]:
    widths = totals = blocks = 0
    for row in TABLE_C4:
        arch = architecture(f"mad-striped-hyena-experts-{row.size}m")
        mixers = [layer for layer in arch.layers if layer.name != "moe"]
        hyena: list[Any] = [layer for layer in mixers if layer.name == "hyena-experts"]
        widths += {layer.expert_width(arch.header.d) * 8 for layer in hyena} == {arch.header.d}
        blocks += all((layer.name == "attn") == (at % 12 == 0) for at, layer in enumerate(mixers))
        totals += abs(_counts("striped-hyena-experts", row, experts=9, active=3)[0] / row.total_m - 1) <= 0.01
    ours = f"widths {widths}, stripes {blocks}, totals {totals} of 20 rows"
    return "widths 20, stripes 20, totals 20 of 20 rows", ours, widths == blocks == totals == 20


# App. C.4's constants: projections and out layer cost 8LD² in every sequence mixer but Mamba.
D, L, V = 64, 256, 1000


@facts.fact("M32", "FLOP calculators C.4.1-3 and C.4.5, term by term")
def calculators() -> tuple[str, str, bool]:
    log, E, S, rank = math.log2(L), 2, 16, 4
    wanted: dict[str, dict[str, float]] = {
        "attn[heads=4]": {
            "projections": 6 * L * D**2,
            "attention": 4 * L**2 * D + 2 * 4 * L**2,
            "out layer": 2 * L * D**2,
        },
        "swiglu[inner=96]": {"glu": 6 * L * D * 96},
        "hyena[state=16]": {
            "projections": 6 * L * D**2,
            "convs on projections": 18 * L * D,
            "featurization": 16 * L * D,
            "convolution and gates": 10 * L * log * D + 4 * L * D,
            "out layer": 2 * L * D**2,
        },
        "mh-hyena[heads=8,state=2]": {
            "projections": 6 * L * D**2,
            "convs on projections": 18 * L * D,
            "featurization": 2 * L * 8,
            "convolution and gates": 10 * L * log * D**2 / 8 + 4 * L * D**2 / 8,
            "out layer": 2 * L * D**2,
        },
        "mamba[state=16,expand=2,dt_rank=4]": {
            "projections": 4 * L * D**2 * E,
            "short conv": 6 * L * D * E,
            "featurization": 2 * L * D * E * (rank + 2 * S) + 2 * L * D * E * rank,
            "associative scan": 2 * L * D * E * S,
            "out layer": 2 * L * D**2 * E,
        },
    }
    good = of = 0
    for text, terms in wanted.items():
        ours = mad_terms(f"d={D} vocab={V} | {text}", length=L)
        name = text.partition("[")[0]
        of += len(terms) + 1
        good += sum(ours[f"{name}: {term}"] == flops for term, flops in terms.items()) + (
            ours["embedding"] == 4 * L * D * V and len(ours) == len(terms) + 1
        )
    return f"{of} of {of} terms", f"{good} of {of} terms", good == of


@facts.fact("M33", "FLOP calculators C.4.4, C.4.6-8: striped models are sums by ratio; expert layers term by term")
def striped_calculators() -> tuple[str, str, bool]:
    def flops(text: str) -> float:
        return mad_flops(f"d={D} vocab={V} | {text}", length=L) - 4 * L * D * V

    log = math.log2(L)
    attention, glu = 8 * L * D**2 + 4 * L**2 * D + 8 * L**2, 6 * L * D * 96
    hyena = 8 * L * D**2 + 18 * L * D + 16 * L * D + 10 * L * log * D + 4 * L * D
    experts = {"router": L * D * 8, "projections": 6 * L * D**2, "convs on projections": 18 * L * D,
               "featurization": 16 * L * 8 * 2, "convolution and gates": 10 * L * log * 16 + 4 * L * 16,
               "out layer": 2 * L * 8 * D}  # fmt: skip
    moe = {"router": L * D * 8, "up projections": 4 * L * D * 16 * 8, "down projection": 2 * L * D * 16 * 2}
    a, h = "attn[heads=4]", "hyena[state=16]"
    e, m = "hyena-experts[experts=8,active=2,width=8,state=16]", "moe[experts=8,active=2,inner=16]"
    g = "swiglu[inner=96]"
    wanted = {
        f"rule[a=({a} {g}),h=({h} {g})]:stripe(1A:3H,n=8)": 2 * attention + 6 * hyena + 8 * glu,
        f"rule[a=({a} {g}),h=({h} {g})]:stripe(1A:1H,n=8)": 4 * attention + 4 * hyena + 8 * glu,
        f"rule[a=({a} {m}),h=({h} {m})]:stripe(1A:1H,n=4)": 2 * attention + 2 * hyena + 4 * sum(moe.values()),
        f"rule[a=({a} {m}),h=({e} {m})]:stripe(1A:11H,n=12)":
            attention + 11 * sum(experts.values()) + 12 * sum(moe.values()),
    }  # fmt: skip
    good = sum(math.isclose(flops(text), total) for text, total in wanted.items())
    mamba = [flops(f"rule[a=({a} {g}),h=(mamba mamba)]:stripe(1A:{n}H,n={n + 1})") for n in (1, 3)]
    good += math.isclose(mamba[1] - mamba[0], 2 * flops("mamba mamba"))
    terms = {"moe": m, "hyena-experts": e}
    actual = {name: mad_terms(f"d={D} vocab={V} | {text}", length=L) for name, text in terms.items()}
    same = sum(
        actual[name] == {"embedding": 4 * L * D * V, **{f"{name}: {term}": value for term, value in expected.items()}}
        for name, expected in (("moe", moe), ("hyena-experts", experts))
    )
    ours = f"{good} of 5 striped models; {same} of 2 expert layers"
    return "5 of 5 striped models; 2 of 2 expert layers", ours, good == 5 and same == 2


@facts.fact(
    "E11", "C.4.7: MoE FLOPs drop L in the projections and charge the up projections to all experts", erratum=True
)
def moe_flops() -> tuple[str, str, bool]:
    """Against the exact count of the same layer: 8 experts, 2 active, gates and up projections 4·L·D·width each."""
    exact = float(architecture(f"d={D} vocab={V} | moe[experts=8,active=2,inner=16]").layers[0].cost(D, L).total_flops)
    up = mad_terms(f"d={D} vocab={V} | moe[experts=8,active=2,inner=16]", length=L)["moe: up projections"]
    active, printed = 4 * L * D * 16 * 2, 4 * D * 16 * 8
    shares = f"{active / exact:.2f} (active experts), {up / exact:.2f} (all), {printed / exact:.3f} (as printed)"
    ours = f"of the exact count {shares}"
    return "the up projections of the active experts", ours, active < exact < up and printed * L == up == 4 * active


@facts.fact("E08", "Table D.1's last row prints 8H:12A:4A, 8 H and 16 A; every other has 12 and 12", erratum=True)
def topology_row() -> tuple[str, str, bool]:
    letters = _letters("mad:8H:12A:4A")
    layouts = [_letters(f"mad-topology-{i}") for i in range(1, 13)]
    printed, read = (f"{text.count('H')} H and {text.count('A')} A" for text in (letters, layouts[-1]))
    ours = f"{printed} as printed; {read} as read"
    balanced = all(text.count("H") == text.count("A") == 12 for text in layouts)
    return "12 H and 12 A", ours, letters.count("A") == 16 and balanced


@facts.fact("M34", "striping schedules 1A:1H, 1A:3H, 1A:11H, repeated to any depth; the presets' own")
def stripes() -> tuple[str, str, bool]:
    good = 0
    for hyenas in (1, 3, 11):
        for depth in (5, 24, 41):
            good += _letters(f"rule:stripe(1A:{hyenas}H,n={depth})") == (("A" + hyenas * "H") * depth)[:depth]
        good += _letters(f"mad-striped-hyena-1-{hyenas}-350m") == (("A" + hyenas * "H") * 24)[:24]
    return tally(12, 12), tally(good, 12), good == 12


# Table D.1, block by block, and the printed perplexities.
TOPOLOGIES = {
    "HA" * 12: 9.52, "HHAA" * 6: 9.32, "HHHAAA" * 4: 9.33, "HHHHAAAA" * 3: 9.37, ("H" * 6 + "A" * 6) * 2: 9.28,
    "H" * 12 + "A" * 12: 9.41, "HHAAAAHHHHAA" * 2: 9.25, "HAAAAAHHHHHA" * 2: 9.31,
    "H" * 4 + "A" * 10 + "H" * 8 + "A" * 2: 9.33, "H" * 4 + "A" * 12 + "H" * 8: 9.31,
    "H" * 6 + "A" * 12 + "H" * 6: 9.30,
    "H" * 8 + "A" * 12 + "H" * 4: 9.35,
}  # fmt: skip


@facts.fact("M35", "Table D.1: twelve topologies expand to their 24 blocks, in order; widths of the 756M row")
def topologies() -> tuple[str, str, bool]:
    names = [f"mad-topology-{i}" for i in range(1, 13)]
    good = sum(_letters(name) == letters for name, letters in zip(names, TOPOLOGIES, strict=True))
    dialect = sum(_letters(f"mad:{text}") == letters for (text, _), letters in zip(TABLE_D1, TOPOLOGIES, strict=True))
    wide = sum(
        (arch.header.d, *_heads(first_layer(arch, "attn"), 1536), _inner(first_layer(arch, "swiglu"), 1536))
        == (1536, 12, 128, 4096)
        for arch in map(architecture, names)
    )
    ours = f"{good} presets, {dialect} of 12 strings, {wide} of the right width"
    return "12 presets, 12 of 12 strings, 12 of the right width", ours, good == dialect == wide == 12


@facts.fact(
    "M36", "Table D.1's perplexities are kept with their presets: 9.52 for (1H:1A)x12 … 9.25 for (2H:4A:4H:2A)x2"
)
def topology_scores() -> tuple[str, str, bool]:
    said = {_letters(f"mad-topology-{i}"): presets.describe(f"mad-topology-{i}").what for i in range(1, 13)}
    kept = sum(f"{value:.2f}" in said[letters] for letters, value in TOPOLOGIES.items())
    best = min(TABLE_D1, key=lambda row: row[1])[0]
    return (
        "12 of 12 kept; best (2H:4A:4H:2A)x2",
        f"{kept} of 12 kept; best {best}",
        kept == 12 and best == "(2H:4A:4H:2A)x2",
    )


@facts.fact("M39", "reference blocks: Transformer++, Hyena, Mamba as the paper describes them")
def reference_blocks() -> tuple[str, str, bool]:
    transformer, hyena, mamba = (architecture(f"mad-{family}-350m") for family in ("transformer", "hyena", "mamba"))
    described = [
        all(a.header.tie and a.header.norm == "rms" for a in (transformer, hyena, mamba)),
        all(getattr(o, "pos", "rope") == "rope" for o in transformer.layers),
        {o.name for o in transformer.layers} == {"attn", "swiglu"},
        {o.name for o in hyena.layers} == {"hyena", "swiglu"},
        {o.name for o in mamba.layers} == {"mamba"} and len(mamba.layers) == 2 * 24,
    ]
    _, ours, agrees = stepwise("hyena", "mamba", "attn")
    said = "tied, RMSNorm, RoPE, SwiGLU; Mamba doubled, no GLU; parallel = recurrent"
    return said, f"{sum(described)} of 5 descriptions; {ours}", all(described) and agrees


def _letters(text: str) -> str:
    """A topology as letters: the mixer of every block."""
    return "".join({"attn": "A", "hyena": "H"}[layer.name] for layer in parse(text).layers if layer.name != "swiglu")
