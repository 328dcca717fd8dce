"""Experiment files supply options; the command line overrides them."""

from __future__ import annotations

import json
import sys

import pytest

from plait.cli.main import app
from plait.core.errors import UserError

YAML = """
command: train
spec: d=16 | attn[heads=2] swiglu[inner=16]
data: builtin:language
steps: 3
batch: 2
seq_len: 16
lr: 1e-3
set: {clip: 0.5, dropout: 0.1}
"""
TOML = """
command = "train"
spec = "d=16 | attn[heads=2] swiglu[inner=16]"
data = "builtin:language"
steps = 3
batch = 2
seq-len = 16
lr = 1e-3
set = {clip = 0.5, dropout = 0.1}
"""


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["plait", *arguments])
        capsys.readouterr()
        app(standalone_mode=False)
        return capsys.readouterr().out

    return run


def test_a_file_is_what_its_options_are(run, tmp_path):
    (tmp_path / "exp.yaml").write_text(YAML)
    (tmp_path / "exp.toml").write_text(TOML)
    typed = ["d=16 | attn[heads=2] swiglu[inner=16]", "--data", "builtin:language", "--steps", "3", "--batch", "2"]
    typed += ["--seq-len", "16", "--lr", "1e-3", "--set", "clip=0.5", "--set", "dropout=0.1"]
    found = json.loads(run("train", *typed, "--json"))
    again = [json.loads(run("train", name, "--json")) for name in ("exp.yaml", "exp.toml")]
    assert [one["key"] for one in again] == [found["key"]] * 2
    assert not any(one["trained_now"] for one in again)
    other = json.loads(run("train", "exp.yaml", "--lr", "2e-3", "--json"))
    assert other["key"] == json.loads(run("train", *typed, "--lr", "2e-3", "--json"))["key"] != found["key"]


def test_a_file_that_is_the_value_of_an_option_is_no_experiment(run, tmp_path):
    (tmp_path / "space.yaml").write_text("name: nothing")
    said = []
    for given in (["--space=space.yaml"], ["--space", "space.yaml"]):
        with pytest.raises(UserError) as refused:
            run("search", *given)
        said.append(str(refused.value))
    assert said[0] == said[1]
    assert "there is no file" not in said[0]


def test_what_it_means_is_shown(run, tmp_path):
    (tmp_path / "exp.yaml").write_text(YAML)
    found = json.loads(run("config", "show", "exp.yaml", "--json", "--lr", "0.5"))
    assert found["command"] == ["train"]
    assert found["options"]["lr"] == {"value": "0.5", "from": "command line"}
    assert found["options"]["batch"] == {"value": 2, "from": "file"}
    assert found["options"]["seed"] == {"value": 0, "from": "default"}
    assert {"compile", "activation-checkpointing", "seq-len"} <= set(found["options"])
    assert not {"no-compile", "no-activation-checkpointing", "length"} & set(found["options"])
    assert "plait train" in run("config", "show", "exp.yaml")


def test_mistakes(run, tmp_path):
    (tmp_path / "exp.yaml").write_text(YAML.replace("steps:", "stpes:"))
    with pytest.raises(UserError, match=r"exp\.yaml: train has no option 'stpes'. Did you mean 'steps'"):
        run("train", "exp.yaml")
    with pytest.raises(UserError, match=r"exp\.yaml is for `plait train`, not `plait eval`"):
        run("eval", "exp.yaml")
    (tmp_path / "bad.yaml").write_text("command: trian\n")
    with pytest.raises(UserError, match="no command `plait trian`"):
        run("trian", "bad.yaml")
    (tmp_path / "torn.yaml").write_text("command: [train\n")
    with pytest.raises(UserError, match=r"torn\.yaml is not YAML"):
        run("train", "torn.yaml")
    (tmp_path / "spec.yaml").write_text("d: 16\n")
    with pytest.raises(UserError, match="not an experiment file"):
        run("config", "show", "spec.yaml")
