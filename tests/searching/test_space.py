"""Genes: what they mean, how they change, and that equal networks are equal rows."""

from __future__ import annotations

import numpy as np
import pytest

from plait.core.errors import UserError
from plait.model.architecture import architecture
from plait.model.cost import model_cost
from plait.space.constraints import Constraint
from plait.space.declaration import Declaration
from plait.space.space import FITS, Space
from plait.space.table import load_space, names


def space(**changes: object) -> Space:
    given: dict[str, object] = {"name": "s", "layers": "2..4", "d": "64", "slots": [["attn"], ["mlp"]], "seq": 16}
    return Space(Declaration(**{**given, **changes}))  # type: ignore[arg-type]


#: Spaces that vary, one by one and together, every header key that a model's cost depends on.
VARYING: dict[str, dict[str, str]] = {
    "norm": {"norm": "rms|layer"},
    "around": {"norm": "rms|layer", "final_norm": "true|false", "embed_norm": "true|false", "segments": "0|2"},
    "output": {"tie": "true|false", "head_bias": "true|false", "vocab": "90|100", "d_embed": "0|16"},
    "bands": {"embed": "adaptive", "cutoffs": "20|20/40", "div": "1|2|4", "tie": "true|false", "norm": "layer|rms"},
    "positions": {"pos": "none|learned|sinusoidal", "max_len": "64|128", "norm": "rms|layer"},
}


def varied(key: str) -> Space:
    layers = [["attn[heads=2|4]", "moe[active=1]", "xl-attn[heads=2,shared_bias]"], ["mlp[inner=32|48]", "none"]]
    return space(d="32|64", slots=layers, header="vocab=100", vary=VARYING[key], alike=key == "around")


@pytest.mark.parametrize("name", [*names(), *VARYING])
def test_columns_are_the_models_cost(name: str) -> None:
    s, rng = varied(name) if name in VARYING else load_space(name), np.random.default_rng(7)
    genes = s.sample(rng, 40)
    genes = np.concatenate([genes, s.mutate(rng, genes, 0.3), s.crossover(rng, genes, genes[::-1])])
    genes = genes[s.passed(genes, s.columns(genes))[FITS]] if name in VARYING else genes
    assert len(genes) >= 40
    for seq, memory, number_bytes in ((s.seq, s.memory, 4), (33, 17, 2)):
        columns = s.columns(genes, seq=seq, memory=memory, number_bytes=number_bytes)
        for i, row in enumerate(genes):
            cost = model_cost(s.spec(row), seq=seq, memory=memory)
            assert {key: int(column[i]) for key, column in columns.items()} == {
                "decoder_params": cost.decoder_params,
                "total_params": cost.total_params,
                "active_params": cost.active_params,
                "flops": cost.flops,
                "fixed_state": number_bytes * cost.fixed_state,
                "conv_state": number_bytes * cost.conv_state,
                "kv_cache": number_bytes * cost.kv_cache,
                "state": cost.state_bytes(number_bytes),
                "weights": number_bytes * cost.total_params,
            }


@pytest.mark.parametrize("name", [*names(), *VARYING])
def test_text_and_genes_say_the_same(name: str) -> None:
    s, rng = varied(name) if name in VARYING else load_space(name), np.random.default_rng(8)
    genes = s.sample(rng, 30)
    genes = np.concatenate([genes, s.mutate(rng, genes, 0.5)])
    for row in genes[s.passed(genes, s.columns(genes))[FITS]] if name in VARYING else genes:
        text = s.spec(row)
        assert architecture(text).text == text
        assert s.from_spec(text).tobytes() == row.tobytes()


@pytest.mark.parametrize("name", names())
def test_canonical_rows_stay_as_they_are_and_samples_keep_layer_constraints(name: str) -> None:
    s, rng = load_space(name), np.random.default_rng(9)
    genes = s.sample(rng, 500)
    assert genes.dtype == np.int16
    assert (s.canonical(genes) == genes).all()
    passed = s.passed(genes, s.columns(genes))
    for constraint in s.layer_constraints:
        assert passed[constraint.text].all()
    for changed in (s.mutate(rng, genes, 0.4), s.crossover(rng, genes, genes[::-1])):
        assert (s.canonical(changed) == changed).all()


def test_genes_of_missing_layers_do_not_count() -> None:
    s = space(slots=[["attn[heads=2|4]"], ["mlp[inner=8|16]"]])
    shallow = s.from_spec("d=64 | (attn[heads=4] mlp[inner=16])x2")
    noisy = shallow.copy()
    noisy[-4:] = 1
    assert (s.canonical(noisy[None])[0] == shallow).all()
    assert (s.columns(noisy[None])["flops"] == s.columns(shallow[None])["flops"]).all()


def test_layers_that_are_nothing_move_to_the_end() -> None:
    s = space(layers="4", slots=[["attn", "mlp", "none"]])
    gaps, tight = np.array([[0, 0, 2, 1, 2, 0]]), np.array([[0, 0, 1, 0, 2, 2]])
    assert (s.canonical(gaps.astype(np.int16)) == tight).all()
    assert s.spec(s.canonical(gaps.astype(np.int16))[0]) == "d=64 vocab=50257 | mlp attn"
    empty = np.array([[0, 0, 2, 2, 2, 2]], dtype=np.int16)
    assert not s.valid(empty)[0]
    assert s.count == 2 + 4 + 8 + 16


def test_fewer_layers_than_the_fewest_are_filled_with_nothing() -> None:
    s = space(layers="3..4", slots=[["attn", "none"]])
    row = s.from_spec("d=64 | attn attn")
    assert s.depths[row[0]] == 3
    assert s.spec(row) == "d=64 vocab=50257 | (attn)x2"


def test_count_is_the_number_of_distinct_networks() -> None:
    s = space(layers="1..2", d="32|48", slots=[["attn[heads=2|4]", "gla[heads=3]"], ["mlp[inner=64|128]", "none"]])
    rng = np.random.default_rng(0)
    genes = s.sample(rng, 20_000)
    valid = genes[s.valid(genes)]
    texts = {s.spec(row) for row in np.unique(valid, axis=0)}
    # gla with 3 heads fits 48 alone: 6 layers at d=32, 9 at d=48.
    assert len(texts) == s.count == (6 + 36) + (9 + 81)


def test_every_mixer_is_drawn_equally_often() -> None:
    s = space(layers="1", slots=[["attn[heads=2|4|8|16]", "gla"]])
    drawn = s.sample(np.random.default_rng(0), 20_000)[:, 2]
    share = np.bincount(drawn) / len(drawn)
    assert share == pytest.approx([0.125] * 4 + [0.5], abs=0.015)


def test_mutation_draws_each_gene_anew_with_its_probability() -> None:
    s = space(layers="4", slots=[["mlp[inner=1..1000]"]])
    genes = s.sample(np.random.default_rng(0), 3000)
    changed = (s.mutate(np.random.default_rng(1), genes, 0.3) != genes)[:, 2:].mean()
    assert changed == pytest.approx(0.3, abs=0.02)
    assert (s.mutate(np.random.default_rng(1), genes, 0.0) == genes).all()


def test_a_child_has_its_parents_genes() -> None:
    s = space(layers="4", slots=[["mlp[inner=1..1000]"]])
    a, b = s.sample(np.random.default_rng(0), 500), s.sample(np.random.default_rng(1), 500)
    child = s.crossover(np.random.default_rng(2), a, b)
    assert ((child == a) | (child == b)).all()
    assert (child == a)[:, 2:].mean() == pytest.approx(0.5, abs=0.05)


def test_a_deeper_child_gets_layers_of_its_own() -> None:
    s = space(layers="1|8", slots=[["mlp[inner=1..1000]"]])
    genes = s.sample(np.random.default_rng(0), 2000)
    shallow = genes[genes[:, 0] == 0]
    deeper = s.mutate(np.random.default_rng(1), shallow, 0.5)
    deeper = deeper[deeper[:, 0] == 1]
    assert len(deeper) > 100
    assert (deeper[:, 3:] == 0).mean() < 0.01  # not the zeros that stand for missing layers


def test_repair_changes_only_what_is_not_allowed() -> None:
    s = space(layers="1..3", d="64|256", slots=[["mlp[inner=100..1000 step 100]"]], constraints=["inner >= 2 * d"])
    genes = s.sample(np.random.default_rng(0), 300)
    wider = genes.copy()
    wider[:, 1] = 1
    repaired = s.repair(np.random.default_rng(1), wider)
    assert s.valid(repaired).all()
    was_fine = s.valid(wider)
    assert 0 < was_fine.mean() < 1
    assert (repaired[was_fine] == wider[was_fine]).all()


def test_constraints_about_layers_and_candidates() -> None:
    s = space(
        slots=[["attn", "mamba[state=8]"], ["mlp[inner=64|256]", "none"]],
        constraints=["inner >= 100", "count(attn) <= 1", "layers <= 3", "state <= 40KB", "vocab == 50257"],
    )
    genes = np.stack([
        s.from_spec("d=64 | (mamba[state=8] mlp[inner=256])x3"),
        s.from_spec("d=64 | (mamba[state=8] mlp[inner=256])x2 mamba[state=8] mlp[inner=64]"),
        s.from_spec("d=64 | (attn)x2"),
        s.from_spec("d=64 | (mamba[state=8])x4"),
    ])  # fmt: skip
    passed = s.passed(genes, s.columns(genes))
    assert passed["inner >= 100"].tolist() == [True, False, True, True]  # says nothing about layers without it
    assert passed["count(attn) <= 1"].tolist() == [True, True, False, True]
    assert passed["layers <= 3"].tolist() == [True, True, True, False]
    assert s.valid(genes).tolist() == [True, False, False, False]
    states = s.columns(genes)["state"]
    assert passed["state <= 40KB"].tolist() == (states <= 40_000).tolist()


def test_an_inner_width_left_to_the_mixer_is_known_to_constraints() -> None:
    s = space(d="64|128", slots=[["mlp"]], constraints=["mlp.inner <= 256"])  # 4 d
    assert s.count == 3  # depths, at d=64 alone


def test_a_rule_in_python() -> None:
    constraint = Constraint.of("more state than weights", ["state", "weights"], lambda c: c["state"] > c["weights"])
    s = space(constraints=[constraint])
    genes = s.sample(np.random.default_rng(0), 10)
    assert not s.valid(genes).any()
    assert s.valid(genes, {**s.columns(genes), "state": s.columns(genes)["weights"] + 1}).all()


def test_layers_that_share_a_parameter_must_agree() -> None:
    s = space(slots=[["xl-attn[heads=2|4,shared_bias]"]], layers="2")
    genes = np.array([[0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 1]], dtype=np.int16)
    assert s.valid(genes).tolist() == [True, False, True]


def test_headers_that_make_no_sense_are_never_valid() -> None:
    s = space(header="vocab=100 embed=adaptive cutoffs=20/40", vary={"div": "2|9"})  # 64 / 9 / 9 leaves no width
    genes = s.sample(np.random.default_rng(0), 200)
    assert (s.valid(genes) == (genes[:, 2] == 0)).all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("d=80 | (attn mlp)x2", "d=80 is not one of its 1 values"),
        ("d=64 tie=true | (attn mlp)x2", "its header has tie=False, not True"),
        ("d=64 | (attn mlp)x9", "9 layers are not among 2..4"),
        ("d=64 | (gla mlp)x2", "gla is not one of its layers there"),
        ("d=64 | attn attn mlp", "lacks one of 1 that must follow"),
    ],
)
def test_what_lies_outside_is_told_why(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        space().from_spec(text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": "0..3"}, "at least one layer"),
        ({"slots": [["attn", "none"], ["mlp"]]}, "first of several slots"),
        ({"slots": []}, "at least one slot"),
        ({"slots": [["attn[causal=false]"]]}, "looks ahead"),
        ({"constraints": ["lattency <= 1ms"]}, "Did you mean 'latency'"),
        ({"constraints": ["count(atn) >= 1"]}, "no mixer 'atn'. Did you mean 'attn'"),
        ({"constraints": ["inner >= layers"]}, "cannot use layers"),
        ({"constraints": ["inner >= 1000"]}, "none of 1 layers is allowed"),
        ({"vary": {"d": "2|4"}}, "give the widths as d"),
        ({"vary": {"norm": "rms|leyer"}}, "s: norm=leyer: must be one of rms, layer. Did you mean 'layer'"),
        ({"vary": {"nrom": "rms"}}, "s: unknown header key 'nrom'. Did you mean 'norm'"),
        ({"vary": {"kind": "lm|encoder"}}, "attn in models of kind=encoder: it needs causal=false"),
        ({"header": "embed=adaptive cutoffs=20", "vary": {"div": "999"}}, "gives a valid header"),
        ({"d": "1..9000", "slots": [["mlp[inner=1..9000]"]]}, "coarser steps"),
    ],
)
def test_spaces_that_make_no_sense(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        space(**changes)
