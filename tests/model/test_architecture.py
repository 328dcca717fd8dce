"""Architectures: checked whole, one identity for every spelling, open to mixers from outside the table."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from plait.core.errors import UserError
from plait.mixers import table as arch
from plait.mixers.options import Cost, MixerOptions, option
from plait.model.architecture import architecture
from plait.spec import SpecError, parse, to_json, to_yaml


@pytest.mark.parametrize(
    ("text", "culprit", "message"),
    [
        ("d=60 | mlp attn", "attn", "d=60 is not a multiple of heads=8"),
        ("d=64 | attn[heads=4,kv_heads=3]", "attn", "heads=4 is not a multiple of kv_heads=3"),
        ("d=24 | attn", "attn", "pos=rope needs an even head width, not 3"),
        ("d=64 | mlp xl-attn[heads=7]", "xl-attn", "d=64 is not a multiple of heads=7"),
        ("d=64 | moe[experts=2,active=3]", "moe", "active=3 is more than experts=2"),
        ("d=64 | attn[t_min=8,t_max=4]", "attn", "t_min=8.0 is larger than t_max=4.0"),
        ("d=64 | attn mlp attn[causal=false,pos=none]", "attn[causal", "only kind=encoder looks ahead"),
        ("d=64 kind=encoder | mlp attn", "attn", "it needs causal=false"),
        ("d=64 kind=encoder | fox[causal=false]", "fox", "causal=false cannot be combined with forget gates"),
        ("d=100 | mlp deltanet", "deltanet", "d=100 is not a multiple of head_dim=128"),
        ("d=64 | mh-hyena[heads=5]", "mh-hyena", "d=64 is not a multiple of heads=5"),
        ("d=64 | (mlp gla[heads=3])x2", "gla", "is not a multiple of heads=3"),
        ("d=64\n| mlp\nmlp attn[heads=3]", "attn", "is not a multiple of heads=3"),
    ],
)
def test_a_layer_that_does_not_fit_is_refused_with_its_place(text: str, culprit: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        architecture(text)
    assert message in str(caught.value)
    before = text[: text.index(culprit)]
    assert (caught.value.line, caught.value.column) == (before.count("\n") + 1, len(before.split("\n")[-1]) + 1)
    shown, caret = str(caught.value).splitlines()[-2:]
    assert shown[caret.index("^") :].startswith(culprit)


def test_a_layer_without_a_place_in_a_text_is_quoted() -> None:
    data = {"d": 60, "vocab": 11, "layers": [{"mixer": "mlp"}, {"mixer": "attn", "heads": 7}]}
    with pytest.raises(SpecError, match=r"attn\[heads=7\].*d=60 is not a multiple of heads=7"):
        architecture(json.dumps(data))


def test_every_spelling_has_one_text_and_one_hash() -> None:
    spellings = [
        "(attn mlp)x2",
        "attn[heads=8] mlp attn mlp",
        "d=512 vocab=50257 | attn mlp[bias] attn[pos=rope,kv_heads=0] mlp[act=gelu]",
        "kind=lm d=512 | (attn[theta=10000])x1 mlp (attn mlp[inner=0])",
    ]
    made = [architecture(text) for text in spellings]
    assert {a.text for a in made} == {"d=512 vocab=50257 | (attn mlp)x2"}
    assert len({a.hash for a in made}) == 1
    assert len({parse(text).hash for text in spellings}) > 1, "the specs themselves are still as they were written"


@pytest.mark.parametrize(
    "other", ["(attn mlp)x3", "attn mlp mlp attn", "(attn[heads=4] mlp)x2", "d=256 | (attn mlp)x2"]
)
def test_other_architectures_have_other_hashes(other: str) -> None:
    assert architecture(other).hash != architecture("(attn mlp)x2").hash


@pytest.mark.parametrize("text", ["d=64 vocab=101 tie=true | (fox[heads=4,kv_shift] swiglu)x3 moe", "par-base"])
def test_json_and_yaml_give_the_same_hash(text: str, tmp_path: Path) -> None:
    expected = architecture(text)
    (tmp_path / "spec.json").write_text(to_json(parse(text)))
    (tmp_path / "spec.yaml").write_text(to_yaml(parse(text)))
    assert architecture(str(tmp_path / "spec.json")).hash == expected.hash
    assert architecture(str(tmp_path / "spec.yaml")).hash == expected.hash
    assert architecture(to_json(expected.spec)) == expected


def test_defaults_written_out_in_data_change_nothing(tmp_path: Path) -> None:
    plain: dict[str, Any] = {"d": 64, "vocab": 11, "layers": [{"mixer": "attn"}, {"mixer": "mlp"}]}
    spelled = plain | {"layers": [{"mixer": "attn", "heads": 8, "bias": False}, {"mixer": "mlp", "inner": 0}]}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spelled))
    assert architecture(str(tmp_path / "spec.yaml")).hash == architecture(json.dumps(plain)).hash


def test_the_canonical_text_reads_back_as_the_same_architecture() -> None:
    made = architecture("d=64 vocab=19 | (xl-attn[heads=4,clamp=7] mlp[act=relu])x2 identity")
    assert architecture(made.text) == made
    assert architecture(made.spec) == made
    assert architecture(made) is made
    assert str(made) == made.text


@dataclass(frozen=True)
class EchoOptions(MixerOptions):
    """Repeats itself."""

    name: ClassVar[str] = "echo"
    kind: ClassVar[str] = "sequence"
    module: ClassVar[str] = "nowhere:Echo"

    times: int = option(1, "how often", minimum=1)

    def cost(self, d: int, seq: int, memory: int = 0) -> Cost:
        return Cost(params={"weight": self.times * d}, flops={})


def test_a_registered_mixer_is_one_like_any_other() -> None:
    arch.register(EchoOptions)
    assert "echo" in arch.names()
    assert arch.names().count("echo") == 1
    assert arch.load("echo") is EchoOptions
    made = architecture("d=64 | echo[times=3] mlp echo[times=1]")
    assert made.layers[0] == EchoOptions(times=3)
    assert made.text.endswith("| echo[times=3] mlp echo")
    with pytest.raises(SpecError, match="Did you mean 'echo'"):
        architecture("d=64 | ecko")
    with pytest.raises(SpecError, match="least allowed is 1"):
        architecture("d=64 | echo[times=0]")


def test_an_unregistered_mixer_is_unknown() -> None:
    with pytest.raises(UserError, match="unknown mixer 'echo'"):
        architecture("d=64 | echo")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("gpt2", r"Presets: gpt2-124m, gpt2-355m, gpt2-774m and \d+ more: plait list presets --match gpt2\."),
        ("Llama", r"Presets: [a-z0-9.-]*llama"),
        ("mamba4", r"Did you mean 'mamba"),
    ],
)
def test_the_name_of_a_family_points_to_its_presets(name: str, hint: str) -> None:
    with pytest.raises(UserError, match=hint):
        architecture(name)


def test_layers_that_share_biases_must_have_equal_heads() -> None:
    with pytest.raises(SpecError, match="cannot share") as caught:
        architecture("d=64 norm=layer | xl-attn[heads=2,shared_bias] xl-attn[heads=4,shared_bias]")
    assert caught.value.column == 48


def test_a_prompt_shows_its_spec() -> None:
    """All fields of the header and of every layer were thousands of characters."""
    assert repr(architecture("d=8 vocab=9 | (attn[heads=2] mlp)x2")) == (
        "Architecture('d=8 vocab=9 | (attn[heads=2] mlp)x2')"
    )
