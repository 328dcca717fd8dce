"""A mixer by name, or from a user's file; every mistake in that file is a clear message."""

from __future__ import annotations

from importlib.resources import files

import pytest
import torch

from plait.core.errors import UserError
from plait.mixers import table as arch
from plait.model import build
from plait.model.contract import run_checks
from plait.model.user_mixers import load_mixer

TEMPLATE = files("plait").joinpath("model/mixer_template.txt").read_text()


def written(tmp_path, text, name="mine.py"):
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def test_by_name_and_options():
    assert load_mixer("gla[heads=2]").heads == 2


def test_the_template_is_short_and_keeps_the_contract(tmp_path):
    assert len(TEMPLATE.splitlines()) < 60
    options = load_mixer(written(tmp_path, TEMPLATE))
    assert [v for v in run_checks(options) if v.status == "fail"] == []


def test_a_users_mixer_becomes_part_of_the_language(tmp_path):
    load_mixer(written(tmp_path, TEMPLATE))
    assert "my-mixer" in arch.names()
    model = build("d=16 vocab=11 | (my-mixer[memory=4] swiglu)x2")
    assert model(torch.zeros(1, 3, dtype=torch.long)).shape == (1, 3, 11)


def test_a_file_of_before_may_name_modules_as_they_were_called(tmp_path):
    """Run folders and records carry copies of users' files."""
    former = "from plait.mixers.cost import MIXING, Cost\nfrom plait.mixers.shared import RecurrentMixer\n"
    text = TEMPLATE.replace("import MIXING, Cost, Mixer,", "import Mixer,").replace(
        "from plait.ops", f"{former}from plait.ops"
    )
    assert former in text
    assert "MIXING, Cost, Mixer" not in text
    options = load_mixer(written(tmp_path, text))
    assert options.cost(16, 4).fixed_state == 16


def test_one_of_several_classes_is_named(tmp_path):
    two = TEMPLATE + "\n\nclass Other(MyMixer):\n    pass\n"
    path = written(tmp_path, two)
    with pytest.raises(UserError, match="found: MyMixer, Other"):
        load_mixer(path)
    assert load_mixer(f"{path}:Other").module.endswith(":Other")
    with pytest.raises(UserError, match="Did you mean 'Other'"):
        load_mixer(f"{path}:Othr")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import nothing_of_that_name", "does not run: ModuleNotFoundError"),
        ("x = (", "does not run: SyntaxError"),
        ("x = 1", "found: none"),
        (TEMPLATE.replace("    Options = Options\n", ""), "has no `Options`"),
        (TEMPLATE.replace('    kind: ClassVar[str] = "sequence"\n', ""), "has no `kind`"),
        (TEMPLATE.replace('"my-mixer"', '"gla"'), "is taken"),
    ],
)
def test_mistakes_in_the_file(tmp_path, text, message):
    with pytest.raises(UserError, match=message):
        load_mixer(written(tmp_path, text))


@pytest.mark.parametrize(
    ("given", "message"),
    [("nowhere.py", "no file"), ("gal", "Did you mean 'gla'"), ("attn mlp", "2 layers"), ("gla[heds=2]", "heads")],
)
def test_mistakes_in_the_name(given, message):
    with pytest.raises(UserError, match=message):
        load_mixer(given)
