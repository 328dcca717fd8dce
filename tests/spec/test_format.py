"""Canonical text: one text a spec, a fixed point, and fast."""

from __future__ import annotations

import hashlib
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.spec import Header, Layer, Spec, SpecError, parse
from plait.spec.nodes import Repeat, compress, expand


def body(text: str) -> str:
    return parse(text).text.split(" | ")[1]


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("a", "a"),
        ("a a", "(a)x2"),
        ("a b a b a b", "(a b)x3"),
        ("(a b)x2 a b", "(a b)x3"),
        ("(a)x2 (a)x3", "(a)x5"),
        ("a a b a a b", "((a)x2 b)x2"),
        ("a b a b a", "(a b)x2 a"),
        ("(a s (h s)x3)x6", "(a s (h s)x3)x6"),
        ("par:(sfff)x6 (f)x8", "(xl-attn (mlp[act=relu])x3)x6 (mlp[act=relu])x8"),
        ("a[z=1,b=true,c=false]", "a[b,c=false,z=1]"),
        ("a[x=1_0,y=.50,z=1E-5,w=7/]", "a[w=7/,x=10,y=0.5,z=1e-05]"),
        ("a[k=1] a[k=1.0] a[k]", "a[k=1] a[k=1.0] a[k]"),
    ],
)
def test_body(text: str, canonical: str) -> None:
    assert body(text) == canonical


def test_header_order_and_defaults() -> None:
    spec = parse("norm=rms tie=true vocab=50257 eps=1e-5 cutoffs=10/ embed=adaptive | a")
    assert spec.header.text == "d=512 vocab=50257 tie=true embed=adaptive cutoffs=10/ eps=1e-05"


def test_hash_is_of_the_canonical_text() -> None:
    flat, grouped = parse("d=8 | a b a b"), parse("# the same\nd=8 vocab=50257 | (a b)x2")
    assert flat == grouped
    assert flat.hash == grouped.hash
    assert flat.hash == hashlib.sha256(b"d=8 vocab=50257 | (a b)x2").hexdigest()[:16]
    assert str(flat) == flat.text
    assert flat.hash != parse("d=9 | (a b)x2").hash


@given(st.text("abc", max_size=60))
def test_compress_loses_nothing(leaves: str) -> None:
    assert expand(compress(leaves)) == list(leaves)


@given(st.text("ab", min_size=1, max_size=6), st.integers(2, 5))
def test_compress_finds_repetition(unit: str, count: int) -> None:
    """A repeated stretch is one group, however it was written."""
    nodes = compress(unit * count)
    assert len(nodes) == 1
    assert isinstance(nodes[0], Repeat)
    assert nodes[0].count >= count


@pytest.mark.parametrize("alphabet", [1, 2, 3, 100, 9000])
def test_compress_is_fast(alphabet: int) -> None:
    rng = random.Random(alphabet)
    leaves = [str(rng.randrange(alphabet)) for _ in range(10_000)]
    start = time.process_time()
    nodes = compress(leaves)
    assert time.process_time() - start < 2
    assert expand(nodes) == leaves


def test_layers_built_in_code_are_checked() -> None:
    assert Layer("Attn", (("B", [1, 2]), ("a", "X"))).options == (("a", "x"), ("b", (1, 2)))
    assert Layer.of("attn", heads=8).replace(heads=4, rope=True).text == "attn[heads=4,rope]"
    assert Layer.of("attn", heads=8).get("rope", False) is False
    for name, options in [
        ("par", ()),
        ("8a", ()),
        ("a\n", ()),
        ("a", (("k", 1), ("K", "b"))),
        ("a", (("mixer", 1),)),
        ("a", (("k", "true"),)),
        ("a", (("k", float("nan")),)),
        ("a", (("k", 10**13),)),
        ("a", (("k", ()),)),
        ("a", (("k", (True,)),)),
        ("a", (("k", None),)),
        ("a", tuple((f"k{i}", 1) for i in range(65))),
    ]:
        with pytest.raises(ValueError, match=r"."):
            Layer(name, options)
    with pytest.raises(SpecError, match="no layers"):
        Spec(Header(), ())
    with pytest.raises(SpecError, match="10,001 layers"):
        Spec(Header(), (Layer("a"),) * 10_001)
