"""`d_ff` is another word for `inner`, and leaves no trace: canonical text and hash are those of `inner`."""

from __future__ import annotations

import pytest

from plait.core.errors import UserError
from plait.model.architecture import architecture
from plait.space.constraints import Constraint
from plait.space.declaration import layers_of
from plait.spec import Layer, parse


@pytest.mark.parametrize("mixer", ["mlp", "swiglu", "moe"])
def test_d_ff_is_inner(mixer: str) -> None:
    spec, same = (parse(f"d=64 vocab=100 | attn {mixer}[{key}=128]") for key in ("d_ff", "inner"))
    assert (spec, spec.text, spec.hash) == (same, same.text, same.hash)
    assert architecture(spec).text == architecture(same).text
    layer = spec.layers[1]
    assert layer.get("d_ff", 0) == layer.get("inner", 0) == 128
    assert layer.replace(d_ff=256) == Layer.of(mixer, inner=256)
    assert layers_of(f"{mixer}[d_ff=64|128]") == layers_of(f"{mixer}[inner=64|128]")


def test_constraints_take_either_word() -> None:
    for text in ("d_ff >= 2 * d", "d_inner >= 2 * d_model"):
        assert Constraint.parse(text).names == {"inner", "d"}
    assert Constraint.parse("mlp.d_ff <= 256").names == {"mlp.inner"}


def test_both_words_at_once_are_refused_and_others_do_not_take_it() -> None:
    with pytest.raises(UserError, match="'inner' is given twice"):
        parse("mlp[d_ff=128, inner=128]")
    with pytest.raises(UserError, match="attn has no option 'd_ff'"):
        architecture("d=64 vocab=100 | attn[d_ff=128]")


def test_a_mistake_is_pointed_at() -> None:
    with pytest.raises(UserError, match=r"mlp\[inner\]: .*least allowed is 0") as raised:
        architecture("d=64 vocab=100 | mlp[d_ff=-1]")
    assert "column 21" in str(raised.value) or "^" in str(raised.value)
