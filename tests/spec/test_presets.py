"""Presets: complete, readable, and with exactly the sizes their papers print."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import process_time

import pytest

from plait.core.errors import UserError
from plait.mixers import table as arch
from plait.model.architecture import Architecture, architecture
from plait.model.cost import ModelCost, model_cost
from plait.papers.fox import presets as fox
from plait.papers.lts import presets as lts
from plait.papers.mad import presets as mad
from plait.papers.mad import scaling_presets as mad_scaling
from plait.papers.par import presets as par
from plait.spec import Spec, parse, presets

NAMES = presets.names()
ROWS = lts.rows()


def cost(name: str) -> ModelCost:
    """The preset's cost; the test is skipped where a mixer of it is not in the table."""
    text = presets.lookup(name)
    assert text is not None
    missing = {layer.name for layer in parse(text).layers} - set(arch.names())
    if missing:
        pytest.skip(f"no such mixer: {', '.join(sorted(missing))}")
    return model_cost(text)


# The set as a whole


def test_there_are_as_many_as_the_tables_have_rows() -> None:
    counts = {row["family"]: len(row["presets"]) for row in presets.families()}
    assert counts == {
        "gpt2": 4,
        "opt": 8,
        "open": 31,
        "par": 15,
        "fox": 9 * 3 + 15,
        "mad": 21 + 35 * (4 + 2 * 3) + 20 + 20 + 12,
        "lts": 257 + 236 + 2 * 16,
    }
    assert sum(counts.values()) == len(NAMES) == len({name.lower() for name in NAMES})


def test_every_text_parses_and_round_trips() -> None:
    for name in NAMES:
        spec = parse(presets.lookup(name))
        assert parse(spec.text) == spec, name


def test_a_name_stands_for_its_text_and_case_does_not_matter() -> None:
    for name in ("lts-gpt2-titanxp-M12", "par-base", "mad-mamba", "fox-pro-360m", "gpt2-124m"):
        assert parse(name.upper()) == parse(f"preset:{name}") == parse(presets.lookup(name.title()))


def test_every_layer_of_a_known_mixer_fits_its_options() -> None:
    known = set(arch.names())
    for name in NAMES:
        spec = parse(presets.lookup(name))
        if known >= {layer.name for layer in spec.layers}:
            architecture(Spec(spec.header, tuple(dict.fromkeys(spec.layers))))  # each different layer once


def test_every_preset_says_what_it_is() -> None:
    for name in NAMES:
        preset = presets.describe(name)
        assert preset.name == name
        assert preset.text == presets.lookup(name)
        where = ("arXiv:", "Qwen3-Next", "Olmo-Hybrid") if preset.family == "open" else ("Table", "Appendix")
        assert preset.source.startswith(where)
        assert 10 < len(preset.what) < 130, preset.what
    by_family = {row["family"]: row["presets"] for row in presets.families()}
    assert all(presets.describe(names[0]).family == family for family, names in by_family.items())


def test_what_is_not_there() -> None:
    assert presets.lookup("attn") is None
    with pytest.raises(UserError, match="Did you mean 'fox-pro-360m'"):
        presets.describe("fox-pr-360m")
    with pytest.raises(UserError, match="Did you mean 'mad21'"):
        presets.suite("mad22")


def test_lookup_is_cheap() -> None:
    presets.lookup("lts-xl-arm-M36")
    times = []
    for _ in range(20):
        start = process_time()
        presets.lookup("lts-xl-arm-M36")
        times.append(process_time() - start)
    assert median(times) < 1e-3


def test_needs_neither_torch_nor_numpy() -> None:
    code = "import sys; from plait.spec import presets; presets.names(); print({'torch', 'numpy'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"


# LiteTransformerSearch


def test_lts_tables_are_complete() -> None:
    tables = Counter((row.earlier, row.table, row.backbone, row.device) for row in ROWS)
    assert tables == {
        (False, 3, "opt", "a6000"): 21,
        (False, 4, "xl", "arm"): 39,
        (False, 4, "xl", "corei7"): 35,
        (False, 5, "xl", "titanxp"): 40,
        (False, 6, "gpt2", "titanxp"): 39,
        (False, 7, "gpt2", "arm"): 45,
        (False, 7, "gpt2", "corei7"): 38,
        (True, 3, "xl", "arm"): 39,
        (True, 3, "xl", "corei7"): 35,
        (True, 4, "xl", "titanxp"): 40,
        (True, 5, "gpt2", "titanxp"): 39,
        (True, 6, "gpt2", "arm"): 45,
        (True, 6, "gpt2", "corei7"): 38,
    }
    assert sum(row.clean for row in ROWS) == 199 + 225


def test_lts_versions_have_the_same_architectures() -> None:
    later = {row.name: row for row in ROWS if not row.earlier}
    for row in ROWS:
        if row.earlier and row.backbone == "gpt2":
            twin = later[row.name.replace("lts1-", "lts-")]
            assert (row.d, row.heads, row.inner) == (twin.d, twin.heads, twin.inner), row.name


def test_lts_row_in_full() -> None:
    row = lts.row("lts-opt-M17")
    assert row.d == 1480  # off the paper's own grid, and the count confirms it
    assert lts.row("lts1-xl-arm-M2") == lts.LtsRow(
        "lts1-xl-arm-M2", True, 3, "xl", "arm", 320, (2, 4, 2), (1472, 2368, 3392), 5.5, True
    )


@pytest.mark.parametrize("backbone", ["gpt2", "xl", "opt"])
@pytest.mark.parametrize("earlier", [False, True])
def test_lts_decoder_parameters(backbone: str, earlier: bool) -> None:
    rows = [row for row in ROWS if row.backbone == backbone and row.earlier == earlier]
    assert rows or (backbone == "opt" and earlier)
    for row in rows:
        counted = cost(row.name)
        params = counted.decoder_params
        if backbone == "opt":
            params += counted.parts["positions"]
        elif backbone == "xl" and earlier:
            # Heads of 64 but relative biases of the model's width: see the module.
            params += sum(2 * (row.d - 64 * heads) for heads in row.heads)
        assert abs(params / 1e6 - row.decoder_params_m) <= 0.05 + 1e-9, (row.name, params)


@pytest.mark.parametrize("backbone", ["gpt2", "xl"])
def test_lts_totals_are_the_authors(backbone: str) -> None:
    """Embeddings of the authors' own trained models, total less decoder: by their file, and worked out from it."""
    for device in ("arm", "corei7"):
        row = next(row for row in ROWS if not row.earlier and (row.backbone, row.device) == (backbone, device))
        found, d = cost(row.name), row.d
        positions = 1024 * d if backbone == "gpt2" else 0  # theirs has 32
        bands = {
            "gpt2": 50264 * d + 2 * d * d + 50264,
            "xl": d * 59997 + d // 4 * 40000 + d // 16 * 167738 + 2 * d * (d + d // 4 + d // 16) + 267735 + 2 * (d + 1),
        }
        assert found.embedding_params - positions == bands[backbone]


@pytest.mark.parametrize(
    "name", [f"pareto_{backbone}_lm1b_{device}" for backbone in ("GPT2", "TransXL") for device in ("arm", "corei7")]
)
def test_lts_totals_of_every_trained_model(name: str) -> None:
    path = Path(__file__).resolve().parents[3] / "shared" / "data" / "lts_trained_pareto.json"
    if not path.exists():
        pytest.skip(f"needs the authors' trained models, {path.name}")
    backbone = "gpt2" if "GPT2" in name else "xl"
    for theirs in json.loads(path.read_text())[name]:
        d = theirs["d_model"]
        base = cost(f"lts-{backbone}-base-1").arch
        found = model_cost(Architecture(base.header.replace({"d": d}), ()))
        positions = (1024 - 32) * d if backbone == "gpt2" else 0
        assert found.embedding_params - positions == theirs["total_params"] - theirs["decoder_params"]


@pytest.mark.parametrize(("kind", "rows"), [("moe", mad_scaling.TABLE_C3), ("experts", mad_scaling.TABLE_C4)])
def test_mad_expert_rows_say_what_is_printed_and_why_they_differ(kind: str, rows: list[mad_scaling.ExpertSize]) -> None:
    """A ninth expert of the same width explains both counts of C.3 and the totals of C.4, and nothing else does."""
    for row in rows:
        name = f"mad-striped-hyena-{kind}-{row.size}m"
        preset, found, shape = presets.describe(name), cost(name), mad_scaling.size(row.size)
        assert preset.printed == {"total": row.total_m, "active": row.active_m}
        assert "nin" in preset.erratum
        ninth = shape.layers * 3 * shape.d * round(row.moe_width / 3)
        assert (found.total_params + ninth) / 1e6 == pytest.approx(row.total_m, rel=0.01)
        if kind == "moe":
            assert (found.active_params + ninth) / 1e6 == pytest.approx(row.active_m, rel=0.031)
        assert found.total_params / 1e6 != pytest.approx(row.total_m, rel=0.07)
        assert found.active_params / 1e6 != pytest.approx(row.active_m, rel=0.07)


def test_lts_baselines_grow_by_one_layer() -> None:
    for backbone, layer in (("xl", 5 * 512**2 + 7 * 512 + 2 * 512 * 2048 + 2048), ("gpt2", None)):
        sizes = [cost(f"lts-{backbone}-base-{n}").decoder_params for n in range(1, 17)]
        steps = {b - a for a, b in pairwise(sizes)}
        assert len(steps) == 1
        assert layer is None or steps == {layer}
    assert len(parse("lts-gpt2-base-16").layers) == 32


# PAR Transformer


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("txl-base", 191_950_298),
        ("sandwich-base", 191_950_298),
        ("par-base", 199_840_218),
        ("bert-base", 109_514_298),
        ("distilbert", 66_985_530),
        ("gpt2-124m", 124_439_808),
        ("opt-125m", 125_237_760),
        ("gpt2-355m", 354_823_168),
        ("gpt2-774m", 774_030_080),
        ("gpt2-1558m", 1_557_611_200),
    ],
)
def test_exact_parameters(name: str, params: int) -> None:
    assert cost(name).total_params == params


def test_par_patterns_have_their_blocks() -> None:
    blocks = {}
    for name in par.ROWS:
        layers = parse(presets.lookup(name)).layers
        blocks[name] = len(layers), sum(layer.name in ("attn", "xl-attn") for layer in layers)
    assert blocks == {
        "txl-base": (32, 16),
        "sandwich-base": (32, 16),
        "par-base": (32, 6),
        "txl-large": (36, 18),
        "sandwich-large": (36, 18),
        "par-large": (36, 7),
        "txl-24b-enwik8": (24, 12),
        "sandwich-24b-enwik8": (24, 12),
        "par-24b-enwik8": (24, 5),
        "txl-24b-text8": (24, 12),
        "sandwich-24b-text8": (24, 12),
        "par-24b-text8": (24, 5),
        "distilbert": (12, 6),
        "bert-base": (24, 12),
        "par-bert-base": (24, 5),
    }


def test_par_rule_and_table_agree() -> None:
    header = presets.lookup("par-base").split("|")[0]
    blocks = "s=xl-attn[heads=8,shared_bias],f=mlp[inner=2048,act=relu]"
    assert parse(f"{header} | rule[{blocks}]:par(n=32,p=5)") == parse("par-base")
    assert parse(f"{header} | rule[{blocks}]:sandwich(k=6,n=16)") == parse("sandwich-base")


# Mechanistic Architecture Design


def test_mad_suite_is_the_papers_21() -> None:
    suite = presets.suite("mad21")
    assert len(set(suite)) == 21
    specs = [parse(presets.lookup(name)) for name in suite]
    assert len({spec.text for spec in specs}) == 21
    assert {len(spec.layers) for spec in specs} == {4}
    assert {spec.header.d for spec in specs} == {128}
    striped = [spec for name, spec in zip(suite, specs, strict=True) if "striped" in name]
    assert len(striped) == 10
    assert all(spec.layers[2].name == "attn" != spec.layers[0].name for spec in striped)


@pytest.mark.parametrize("name", [name for name in mad.suite() if "attn" not in name and "striped" not in name])
def test_mad_suite_has_the_same_state_without_attention(name: str) -> None:
    assert cost(name).fixed_state == 4096


def test_mad_table_c2_rules() -> None:
    for row in mad_scaling.TABLE_C2:
        assert row.ffw == 16 * round(8 * row.d / 3 / 16)
    assert [row.params_m for row in mad_scaling.TABLE_C2 if row.heads * row.kv != row.d] == [70]
    rates = [row.lr for row in mad_scaling.TABLE_C2]
    assert len(rates) == 35
    assert rates == sorted(rates, reverse=True)


def test_mad_transformers_have_the_printed_sizes() -> None:
    printed = {f"mad-transformer-{row.params_m}m": row.params_m for row in mad_scaling.TABLE_C2}
    off = {name: cost(name).total_params / 1e6 / millions - 1 for name, millions in printed.items()}
    assert all(abs(ratio) < 0.10 for ratio in off.values())
    # The table is rough where it is small: 8M would be 7.2M, and the 70M row's heads do not fill its width.
    far = [name for name, ratio in off.items() if abs(ratio) > 0.03]
    assert far == ["mad-transformer-8m", "mad-transformer-38m", "mad-transformer-70m"]


def test_mad_moe_widths_explain_the_printed_counts() -> None:
    for row in mad_scaling.TABLE_C3:
        s = mad_scaling.size(row.size)
        dense = s.layers * 4 * s.d**2 + mad_scaling.VOCAB * s.d
        wide = s.layers * s.d * row.moe_width
        assert (dense + 9 * wide) / 1e6 == pytest.approx(row.total_m, rel=0.005)
        assert (dense + 3 * wide) / 1e6 == pytest.approx(row.active_m, rel=0.03)


def test_mad_hyena_experts_share_the_width() -> None:
    assert len(mad_scaling.TABLE_C4) == 20
    for row in mad_scaling.TABLE_C4:
        assert 8 * row.mixer_width == mad_scaling.size(row.size).d


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("mad-striped-hyena-1-1-350m", ["attn", "hyena", "attn", "hyena"]),
        ("mad-striped-hyena-1-3-350m", ["attn", "hyena", "hyena", "hyena", "attn"]),
        ("mad-striped-mamba-1-1-350m", ["attn", "mamba", "mamba", "attn"]),
        ("mad-striped-hyena-moe-350m", ["attn", "hyena", "attn"]),
        ("mad-striped-hyena-experts-350m", ["attn", *["hyena-experts"] * 11, "attn"]),
    ],
)
def test_mad_stripes(name: str, first: list[str]) -> None:
    mixers = [layer.name for layer in parse(presets.lookup(name)).layers if layer.name not in ("swiglu", "moe")]
    assert mixers[: len(first)] == first


def test_mad_topologies_are_half_attention() -> None:
    for number in range(1, 13):
        layers = parse(presets.lookup(f"mad-topology-{number}")).layers
        assert Counter(layer.name for layer in layers) == {"hyena": 12, "attn": 12, "swiglu": 24}


# Forgetting Transformer


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("fox-llama-125m", 123.66),
        ("fox-llama-360m", 360.19),
        ("fox-llama-760m", 757.63),
        ("fox-pro-125m", 123.91),
        ("fox-pro-360m", 367.34),
        ("fox-pro-760m", 759.51),
        ("samba-760m", 765.85),
    ],
)
def test_fox_parameters(name: str, millions: float) -> None:
    assert round(cost(name).params_without_input_embedding / 1e6, 2) == millions


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("fox-pro-760m", 759),
        ("transformer-pro-760m", 757),
        ("fox-llama-760m", 757),
        ("transformer-llama-760m", 756),
        ("mamba2-760m", 780),
        ("hgrn2-760m", 756),
        ("deltanet-760m", 757),
    ],
)
def test_fox_table_6(name: str, millions: int) -> None:
    """The output layer included and the input table not. The paper cuts the decimals off: 759.51 is printed as 759."""
    assert int(cost(name).params_without_input_embedding / 1e6) == millions


def test_fox_mlp_widths() -> None:
    assert [(fox.mlp_width(d, 4), fox.mlp_width(d, 3.5)) for d in (768, 1024, 1536)] == [
        (2048, 1792),
        (2816, 2560),
        (4096, 3584),
    ]


def test_fox_ablations() -> None:
    texts = [presets.lookup(f"fox-ablation-{i}") for i in range(1, 16)]
    assert len(set(texts)) == 14  # row 12, Pro - KV-shift, is row 7
    assert texts[6] == texts[11]
    for number, name in ((2, "transformer-llama"), (4, "fox-llama"), (8, "fox-pro"), (14, "transformer-pro")):
        assert parse(f"fox-ablation-{number}") == parse(f"{name}-360m")
    for number in range(1, 16):
        assert 359.5e6 < cost(f"fox-ablation-{number}").params_without_input_embedding < 368e6
    assert fox.TABLE_3[7].perplexity == min(row.perplexity for row in fox.TABLE_3)


def test_fox_sizes_match_their_token_counts() -> None:
    for size in fox.SIZES.values():
        assert size.tokens == size.steps * 32 * 16384
