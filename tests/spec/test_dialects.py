"""Dialects against the tables of the papers they come from."""

from __future__ import annotations

import pytest

from plait.spec import Layer, SpecError, parse

PAR_TABLES = [
    # Tables 1-3 of the PAR Transformer: pattern, blocks, attention blocks
    ("(sf)x16", 32, 16),
    ("(s)x6 (sf)x10 (f)x6", 32, 16),
    ("(sfff)x6 (f)x8", 32, 6),
    ("(sf)x18", 36, 18),
    ("(s)x6 (sf)x12 (f)x6", 36, 18),
    ("(sfff)x7 (f)x8", 36, 7),
    ("(sf)x12", 24, 12),
    ("(s)x5 (sf)x7 (f)x5", 24, 12),
    ("(sff)x5 (f)x9", 24, 5),
    ("(s)x3 (sf)x9 (f)x3", 24, 12),
    ("(sf)x6", 12, 6),
]

MAD_TABLE = [
    # Table D.1 of Mechanistic Architecture Design: topology, attention blocks of 24
    ("(1H:1A) ×12", 12),
    ("(2H:2A) ×6", 12),
    ("(3H:3A) ×4", 12),
    ("(4H:4A) ×3", 12),
    ("(6H:6A) ×2", 12),
    ("12H:12A", 12),
    ("(2H:4A:4H:2A) ×2", 12),
    ("(H:5A:5H:A) ×2", 12),
    ("4H:10A:8H:2A", 12),
    ("4H:12A:8H", 12),
    ("6H:12A:6H", 12),
    ("8H:12A:4A", 16),
]


def names(text: str) -> list[str]:
    return [layer.text for layer in parse(text).layers]


@pytest.mark.parametrize(("pattern", "blocks", "attention"), PAR_TABLES)
def test_par_tables(pattern: str, blocks: int, attention: int) -> None:
    layers = parse(f"par:{pattern}").layers
    assert len(layers) == blocks
    assert layers.count(Layer("xl-attn")) == attention
    assert layers.count(Layer.of("mlp", act="relu")) == blocks - attention


@pytest.mark.parametrize(("topology", "attention"), MAD_TABLE)
def test_mad_table(topology: str, attention: int) -> None:
    layers = parse(f"mad:{topology}").layers
    assert len(layers) == 2 * 24  # every block is a mixer and a SwiGLU
    assert set(layers[1::2]) == {Layer("swiglu")}
    assert layers.count(Layer("attn")) == attention
    assert layers.count(Layer("hyena")) == 24 - attention


def test_par_keeps_the_order() -> None:
    assert names("par: s(fi)x2 S") == ["xl-attn", *["mlp[act=relu]", "identity"] * 2, "xl-attn"]


def test_mad_letters() -> None:
    assert names("mad:A:2M:mH:G") == [
        "attn",
        "swiglu",
        "mamba",
        "mamba",
        "mamba",
        "mamba",
        "mh-hyena",
        "swiglu",
        "gla",
        "swiglu",
    ]


def test_letters_defined_in_place() -> None:
    assert names("par[s=attn[heads=8],f=swiglu]:(sf)x2") == ["attn[heads=8]", "swiglu"] * 2
    assert names("mad[A=(attn (mlp)x2) Q=conv]:2A:Q") == ["attn", "mlp", "mlp"] * 2 + ["conv"]
    assert names("rule[f=swiglu]:sandwich(k=1,n=2)") == ["xl-attn", "xl-attn", "swiglu", "swiglu"]
    assert names("rule[Q=conv]:stripe(2Q:1A, n=2)") == ["conv", "conv"]


def test_dialects_within_a_body() -> None:
    sf = ["xl-attn", "mlp[act=relu]"]
    assert names("d=8 | conv par:(sf)x2") == ["conv", *sf * 2]
    assert names("(par:sf)x2 conv (mad:A)x1") == [*sf * 2, "conv", "attn", "swiglu"]
    assert names("rule:sandwich(k=0,n=1) conv") == [*sf, "conv"]


def test_layers_point_at_their_text() -> None:
    layers = parse("conv par[s=attn]:sf").layers
    assert [layer.where.column for layer in layers] == [1, 12, 6]


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("par:(sq)x2", 7, "the letters are f, i, s"),
        ("par:", 1, "without blocks"),
        ("par:(sf", 5, "never closed"),
        ("par:sx6", 6, "unknown block 'x'"),
        ("par[s=attn:sf", 7, "unknown dialect"),
        ("par[s=attn", 4, "never closed"),
        ("par[ss=attn]:s", 5, "one letter"),
        ("par[x=attn]:s", 5, "not x"),
        ("par[s=attn,s=mlp]:s", 12, "defined twice"),
        ("par[s]:s", 6, "expected '='"),
        ("mad:2Z", 5, "unknown block 'z'"),
        ("mad:2", 5, "expected a count and a letter"),
        ("mad:0A", 5, "at least once"),
        ("mad:2A-", 5, "expected a count and a letter"),
        ("rule:foo(n=3)", 6, "par, sandwich, stripe"),
        ("rule:par(p=5)", 6, "needs n="),
        ("rule:par(n=5,q=5)", 14, "not an argument of par"),
        ("rule:par(n=5,n=5)", 14, "twice"),
        ("rule:par(n=1.5)", 10, "n takes a whole number"),
        ("rule:par(n=10, p=true)", 16, "p takes a number"),
        ("rule:par(n=10,p=1)", 6, "raise p"),
        ("rule:par(n=10,p=0)", 6, "greater than 0"),
        ("rule:par(n=10,p=1,within=1.0) rule:par(n=9,p=1)", 36, "raise p or within"),
        ("rule:par(n=10,within=0)", 6, "above 0 and at most 1"),
        ("rule:par(n=10,within=1.5)", 6, "above 0 and at most 1"),
        ("rule:par(n=10,within=true)", 15, "within takes a number"),
        ("rule:par n=10", 9, "expected '('"),
        ("rule:par(n=10", 14, "an argument of par"),
        ("rule:sandwich(k=7,n=6)", 6, "between 0 and n=6"),
        ("rule:stripe(1A:3Z,n=4)", 16, "unknown block 'z'"),
        ("rule:stripe(n=4)", 13, "begins with its ratio"),
        ("rule:stripe(1A:3H,n=0)", 6, "0 blocks"),
    ],
)
def test_errors_point_at_the_column(text: str, column: int, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(text)
    assert message in caught.value.message
    assert caught.value.column == column
