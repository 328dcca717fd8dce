"""What a user's mixer must declare is checked when its file is loaded, before anything is trained with it."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

import plait
from plait.core.errors import UserError
from plait.mixers import table
from plait.mixers.options import Cost

TEMPLATE = files("plait").joinpath("model/mixer_template.txt").read_text()
COST = TEMPLATE[TEMPLATE.index("    def cost(") : TEMPLATE.index("\n\nclass MyMixer")]
STEP = TEMPLATE[TEMPLATE.index("    def step(") : TEMPLATE.index("    def _project(")]


@pytest.mark.parametrize(
    ("text", "instead", "message"),
    [
        (
            'kind: ClassVar[str] = "sequence"',
            'kind: ClassVar[str] = "sequences"',
            "'sequences'. Did you mean 'sequence'?",
        ),
        (COST, "", "MyMixer.Options has no `cost`; add cost(self, d, seq, memory=0)"),
        (
            "def cost(self, d, seq, memory=0)",
            "def cost(self, d, seq)",
            "Options.cost cannot be called as (self, d, seq, ",
        ),
        (STEP, "", "MyMixer lacks step(self, x_BD, state); add it."),
        (
            "def init_state(self, batch, *, rollback=0)",
            "def init_state(self, batch)",
            "init_state cannot be called as ",
        ),
        ("def __init__(self, d, options)", "def __init__(self, d)", "MyMixer.__init__ cannot be called as (self, d, "),
    ],
    ids=["kind", "no cost", "cost", "no step", "init_state", "__init__"],
)
def test_a_missing_or_wrong_declaration_is_named_with_its_remedy(
    tmp_path: Path, text: str, instead: str, message: str
) -> None:
    """`plait check` said "the contract holds" of a mixer whose `init_state` took no `rollback`, which every `generate`
    passes; without a `cost`, `plait show` ended in a traceback."""
    assert text in TEMPLATE
    file = tmp_path / "mine.py"
    file.write_text(TEMPLATE.replace(text, instead))
    with pytest.raises(UserError, match=re.escape(message)):
        plait.load_mixer(file)
    assert table.registered("my-mixer") is None


def test_a_cost_must_be_a_cost_and_its_parts_named(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(TEMPLATE.replace("return Cost(", "return dict("))
    mixer = plait.load_mixer(file)
    with pytest.raises(UserError, match="`cost` of my-mixer returns a dict; return"):
        plait.cost(f"d=16 vocab=8 | {mixer.name}")
    with pytest.raises(UserError, match=r"Cost\(params=12\): give numbers by name"):
        Cost(params=12, flops={})  # type: ignore[arg-type]
