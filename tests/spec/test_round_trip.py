"""Random specs survive text, JSON and YAML; random text gives a spec or a `SpecError`, nothing else."""

from __future__ import annotations

import contextlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.spec import Header, Layer, Spec, SpecError, from_json, from_yaml, load, parse, to_json, to_yaml
from plait.spec.nodes import RESERVED_KEY, RESERVED_NAMES

# Pieces of the language: far more of their random sequences get deep into the parser than of random characters.
PIECES = [
    *"()[]|=:,#/ \n×x", "x2", "x3", ")x2", "(", " ", "attn", "mlp", "a", "B", "heads", "=8", "=true", "=1e-5", "=0.5",
    "=7/", "=1/2", "d=64", "vocab=9", "tie=true", "pos=learned", "max_len=5", "norm=layer", "eps=0", "par:", "mad:",
    "rule:", "par(", "n=5", "k=2", "sandwich(", "stripe(", "2A", ":3H", "sf", "i", "par[", "s=", "preset:", "[a]", "-1",
    "1_0", "é", "\t",
]  # fmt: skip

names = st.from_regex(r"[a-z][a-z0-9_.-]{0,5}", fullmatch=True)
layer_names = names.filter(lambda name: name not in RESERVED_NAMES)
keys = names.filter(lambda name: name != RESERVED_KEY)
integers = st.integers(-(10**12), 10**12)
values = st.one_of(
    st.booleans(),
    integers,
    st.floats(allow_nan=False, allow_infinity=False),
    names.filter(lambda name: name not in ("true", "false")),
    st.lists(integers, min_size=1, max_size=4).map(tuple),
)
layers = st.builds(
    lambda name, options: Layer(name, tuple(options.items())), layer_names, st.dictionaries(keys, values, max_size=4)
)


@st.composite
def headers(draw: st.DrawFn) -> Header:
    adaptive = draw(st.booleans())
    return Header(
        d=draw(st.integers(64, 8192)),
        vocab=draw(st.integers(1000, 10**6)),
        kind=draw(st.sampled_from(["lm", "encoder", "autoencoder"])),
        pos=draw(st.sampled_from(["none", "learned", "sinusoidal"])),
        max_len=draw(st.integers(1, 10**6)),
        tie=draw(st.booleans()),
        embed="adaptive" if adaptive else "plain",
        cutoffs=tuple(sorted(draw(st.sets(st.integers(1, 999), min_size=1, max_size=3)))) if adaptive else (),
        div=draw(st.integers(1, 4)) if adaptive else 1,
        norm=draw(st.sampled_from(["rms", "layer"])),
        eps=draw(st.floats(1e-300, 1.0)),
        final_norm=draw(st.booleans()),
        segments=draw(st.integers(0, 4)),
        init=draw(st.floats(0, 10)),
    )


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    """Layers from a small pool, so that runs and nested runs are frequent."""
    pool = draw(st.lists(layers, min_size=1, max_size=3))
    flat = draw(st.lists(st.sampled_from(pool), min_size=1, max_size=12))
    return Spec(draw(headers()), tuple(flat * draw(st.integers(1, 4))))


@given(specs())
def test_specs_round_trip(spec: Spec) -> None:
    again = parse(spec.text)
    assert again == spec
    assert again.text == spec.text
    # Python holds 1, 1.0 and True equal; the text does not, and neither may the values.
    assert [repr(layer.options) for layer in again.layers] == [repr(layer.options) for layer in spec.layers]


@given(specs())
def test_specs_survive_json_and_yaml(spec: Spec) -> None:
    for again in (from_json(to_json(spec)), load(to_json(spec)), from_yaml(to_yaml(spec))):
        assert again == spec
        assert again.hash == spec.hash


def read(text: str) -> Spec | None:
    """The spec, which then round-trips, or None for a `SpecError`, which can be shown; anything else escapes."""
    try:
        spec = parse(text)
    except SpecError as error:
        shown = str(error)
    else:
        assert parse(spec.text) == spec
        assert parse(spec.text).text == spec.text
        return spec
    assert shown.startswith("spec:")
    return None


@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
@settings(max_examples=500)
def test_pieces_of_the_language(text: str) -> None:
    read(text)


@given(st.text(max_size=80))
def test_any_text(text: str) -> None:
    read(text)


@given(specs(), st.data())
def test_a_character_changed(spec: Spec, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(spec.text)))
    read(spec.text[:at] + data.draw(st.text(max_size=2)) + spec.text[at + 1 :])


YAML_PIECES = [
    "\n", "  ", "- ", "layers:", "mixer: ", "a", "repeat: ", "2", "{", "}", "[", "]", ", ", "&x ", "*x", "!!int ", "'",
    "|", "d: 8", "layers: [{mixer: a}]\n",
]  # fmt: skip
JSON_PIECES = [
    "{", "}", "[", "]", ",", ":", '"layers"', '"mixer"', '"a"', '"repeat"', "2", "1e999", "NaN", "true", "null", '"d"',
    '"layers": [{"mixer": "a"}]',
]  # fmt: skip


@given(st.lists(st.sampled_from(YAML_PIECES), max_size=20).map("".join) | st.text(max_size=40))
def test_yaml_text(text: str) -> None:
    with contextlib.suppress(SpecError):
        assert isinstance(from_yaml(text), Spec)


@given(st.lists(st.sampled_from(JSON_PIECES), max_size=20).map("".join) | st.text(max_size=40))
def test_json_text(text: str) -> None:
    with contextlib.suppress(SpecError):
        assert isinstance(from_json(text), Spec)


@pytest.mark.slow
def test_a_million_strings() -> None:
    rng = random.Random(0)
    specs_seen = 0
    for _ in range(1_000_000):
        specs_seen += read("".join(rng.choices(PIECES, k=rng.randrange(1, 16)))) is not None
    assert specs_seen > 10_000  # the strings reach the whole way through
