"""LiteTransformerSearch (Javaheripi et al. 2022, arXiv:2203.02094), both versions of its tables."""

from __future__ import annotations

from dataclasses import replace

from plait.analysis.table import Table
from plait.model.architecture import Architecture, architecture
from plait.model.cost import model_cost
from plait.papers.lts.presets import LtsRow, rows
from plait.papers.verify import FactTable, tally
from plait.searching.missing_field import MissingField
from plait.spec import presets

facts = FactTable()

#: A row of the earlier version's Table 3 without its width, which was lost.
XL_ROW = "d={d_model} norm=layer final_norm=false | xl-attn[heads={n_head},head_dim=64] mlp[inner={d_inner},act=relu]"
#: Its count has two biases as wide as the model where heads of 64 have their own: the most they differ on the grid.
BIASES = 16 * 2 * (960 - 2 * 64)
#: Decoder parameters are printed in millions with one digit.
HALF_A_DIGIT = 0.05 + 1e-9


def decoder_millions(row: LtsRow) -> float:
    """As the paper counts. OPT's learned positions are in, against the paper's own definition; the earlier version's
    heads of 64 come with biases of the model's width rather than the heads'."""
    cost = model_cost(row.name)
    extra = cost.parts["positions"] if row.backbone == "opt" else 0
    if row.backbone == "xl" and row.earlier:
        extra += sum(2 * (row.d - 64 * heads) for heads in row.heads)
    return (cost.decoder_params + extra) / 1e6


def _agreeing(chosen: list[LtsRow]) -> int:
    return sum(abs(decoder_millions(row) - row.decoder_params_m) <= HALF_A_DIGIT for row in chosen)


def _table(backbone: str, *, earlier: bool) -> tuple[str, str, bool]:
    chosen = [row for row in rows() if row.backbone == backbone and row.earlier == earlier]
    clean, repaired = ([row for row in chosen if row.clean == state] for state in (True, False))
    published, ours = (
        f"{good} of {len(chosen)} rows as printed" + (f", {mended} of {len(repaired)} repaired" if repaired else "")
        for good, mended in ((len(clean), len(repaired)), (_agreeing(clean), _agreeing(repaired)))
    )
    return published, ours, published == ours and bool(clean)


@facts.fact("L02", "decoder parameters do not change with the vocabulary, embedding parameters do")
def split() -> tuple[str, str, bool]:
    arch = architecture("lts-gpt2-titanxp-M12")
    small, large = (model_cost(Architecture(replace(arch.header, vocab=v), arch.layers)) for v in (50_000, 100_000))
    same = small.decoder_params == large.decoder_params
    grown = large.embedding_params - small.embedding_params
    ours = f"decoder {small.decoder_params:,} = {large.decoder_params:,}; embedding + {grown:,}"
    return "decoder equal, embedding larger", ours, same and grown > 0


@facts.fact("L03", "GPT-2 rows: decoder parameters (Tables 6, 7)")
def gpt2() -> tuple[str, str, bool]:
    return _table("gpt2", earlier=False)


@facts.fact("L03.1", "GPT-2 rows of the earlier version (Tables 5, 6)")
def gpt2_earlier() -> tuple[str, str, bool]:
    return _table("gpt2", earlier=True)


@facts.fact("L04", "Transformer-XL rows, head width d / heads (Tables 4, 5)")
def xl() -> tuple[str, str, bool]:
    return _table("xl", earlier=False)


@facts.fact("E01", "Transformer-XL rows of the earlier version fit only heads of 64, against its text", erratum=True)
def xl_earlier() -> tuple[str, str, bool]:
    chosen = [row for row in rows() if row.backbone == "xl" and row.earlier]
    good = _agreeing(chosen)
    stated = sum(
        abs(sum(5 * row.d**2 + 7 * row.d + 2 * row.d * f + f for f in row.inner) / 1e6 - row.decoder_params_m)
        <= HALF_A_DIGIT
        for row in chosen
    )
    ours = f"heads of 64: {tally(good, len(chosen))}; d / heads as stated: {stated}"
    return "d_head = d_model / n_head", ours, good == len(chosen) and stated < len(chosen)


@facts.fact("L05", "OPT rows with learned positions (Table 3)")
def opt() -> tuple[str, str, bool]:
    return _table("opt", earlier=False)


@facts.fact(
    "E03", "OPT's count includes 2048 learned positions, against App. A; M17 is 1480 wide, off the grid", erratum=True
)
def opt_positions() -> tuple[str, str, bool]:
    chosen = [row for row in rows() if row.backbone == "opt"]
    without = sum(
        abs(model_cost(row.name).decoder_params / 1e6 - row.decoder_params_m) <= HALF_A_DIGIT for row in chosen
    )
    off_grid = [f"{row.name.rpartition('-')[2]} d={row.d}" for row in chosen if row.d % 64]
    ours = f"without positions {tally(without, len(chosen))}; off the 64-grid: {', '.join(off_grid)}"
    return "hidden layers only; d a multiple of 64", ours, without == 0 and off_grid == ["M17 d=1480"]


@facts.fact("L06", "a lost d_model column (earlier Table 3) is recovered from the printed count")
def recovery() -> tuple[str, str, bool]:
    chosen = [row for row in rows() if row.earlier and row.table == 3]
    table = Table.of(
        "Table 3",
        [{"n_head": list(row.heads), "d_inner": list(row.inner), "printed": row.decoder_params_m} for row in chosen],
    )
    question = MissingField(table, XL_ROW, "d_model", range(128, 961, 64), "printed", allowance=BIASES)
    answers = question.infer()
    good = sum(answer.values == (row.d,) for answer, row in zip(answers, chosen, strict=True))
    return "a unique d in 68 of 74 rows or more", tally(good, len(chosen)), good >= 68 and len(chosen) == 74


@facts.fact("L07", "adaptive embedding factor 4 in Tables 4-7, 1 in OPT's space; d_embed = d_model")
def adaptive() -> tuple[str, str, bool]:
    chosen = [row for row in rows() if not row.earlier]
    good = 0
    for row in chosen:
        header = architecture(row.name).header
        good += header.div == (1 if row.backbone == "opt" else 4) and header.d_embed in (0, header.d)
    return tally(len(chosen), len(chosen)), tally(good, len(chosen)), good == len(chosen)


@facts.fact("L24", "models of each device: Transformer-XL 39, 35, 40; GPT-2 45, 38, 39; M1, M2 … by decoder parameters")
def per_device() -> tuple[str, str, bool]:
    """The presets by name: so many of each, numbered without a gap, and none has fewer parameters than the last."""
    known, counts, ordered = set(presets.names()), [], 0
    for backbone in ("xl", "gpt2"):
        for device in ("arm", "corei7", "titanxp"):
            names = [f"lts-{backbone}-{device}-M{number}" for number in range(1, 99)]
            there = [name for name in names if name in known]
            sizes = [round(model_cost(name).decoder_params / 1e6, 1) for name in there]
            counts.append(len(there))
            ordered += there == names[: len(there)] and sizes == sorted(sizes)
    expected = [39, 35, 40, 45, 38, 39]
    published, ours = (f"{', '.join(map(str, n))}; in order {k} of 6" for n, k in ((expected, 6), (counts, ordered)))
    return published, ours, published == ours


@facts.fact("L27", "scaled baselines: Transformer-XL d512 h8 f2048, GPT-2 d1024 h12 f3072, 1 to 16 layers")
def baselines() -> tuple[str, str, bool]:
    good = 0
    for backbone, (d, heads, inner) in {"xl": (512, 8, 2048), "gpt2": (1024, 12, 3072)}.items():
        for depth in range(1, 17):
            arch = architecture(f"lts-{backbone}-base-{depth}")
            mixer, mlp = arch.layers[0], arch.layers[1]
            sizes = (arch.header.d, getattr(mixer, "heads", 0), getattr(mlp, "inner", 0), len(arch.layers))
            good += sizes == (d, heads, inner, 2 * depth)
    return tally(32, 32), tally(good, 32), good == 32


@facts.fact("E02", "GPT-2 baseline: d_head = d_model / n_head cannot hold for 1024 / 12", erratum=True)
def baseline_heads() -> tuple[str, str, bool]:
    mixer = architecture("lts-gpt2-base-16").layers[0]
    return (
        "a whole head width",
        f"1024 / 12 = {1024 / 12:.2f}; heads of {getattr(mixer, 'head_dim', 0)}",
        1024 % 12 != 0,
    )


@facts.fact("E04", "vocabulary 50,264 in the later version, 50,257 in the earlier", erratum=True)
def vocabulary() -> tuple[str, str, bool]:
    vocabularies = [architecture(name).header.vocab for name in ("lts-gpt2-arm-M1", "lts1-gpt2-arm-M1")]
    return "one vocabulary", f"{vocabularies[0]:,} and {vocabularies[1]:,}", vocabularies == [50264, 50257]


@facts.fact("L35", "every row of both versions is a preset: 257 + 236")
def all_rows() -> tuple[str, str, bool]:
    known = set(presets.names())
    counts = [sum(row.name in known for row in rows() if row.earlier == earlier) for earlier in (False, True)]
    return "257 + 236", f"{counts[0]} + {counts[1]}", counts == [257, 236]
