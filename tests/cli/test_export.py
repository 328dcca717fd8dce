"""`plait export` and `plait import`: written, read again, compared; nothing overwritten."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from plait.cli import export
from plait.core.errors import UserError
from plait.data import trained_tokenizers as bpe
from plait.data.tokenizers import Bytes
from plait.model import build
from plait.training.run import Run, open_run

transformers = pytest.importorskip("transformers")

app = typer.Typer()
app.command("export")(export.command)
app.command("import")(export.import_command)


def plait(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.fixture
def run(tmp_path) -> Path:
    folder, spec = tmp_path / "run", "d=32 vocab=256 pos=learned max_len=8 | attn[heads=2,pos=none] mlp"
    folder.mkdir()
    made = Run(folder)
    made.write_about({"key": "0" * 64, "config": {"spec": spec, "recipe": {"seq_len": 8}}, "tokenizer": "bytes"})
    made.save_weights(dict(build(spec, seed=1).named_parameters()))
    Bytes().save(folder / "tokenizer")
    return folder


def test_hf(run, tmp_path):
    target = tmp_path / "out"
    said = plait("export", run, "--to", "hf", "-o", target)
    assert said.stdout.count("checked") == 2
    loaded = transformers.AutoModelForCausalLM.from_pretrained(target)
    tokens = torch.tensor([[1, 2, 3]])
    torch.testing.assert_close(loaded(tokens).logits, open_run(str(run)).model()(tokens), rtol=0, atol=1e-5)
    assert transformers.AutoTokenizer.from_pretrained(target)("ab")["input_ids"] == [97, 98]
    with pytest.raises(UserError, match="--force"):
        plait("export", run, "--to", "hf", "-o", target)
    found = json.loads(plait("export", run, "--to", "hf", "-o", target, "--force", "--json").stdout)
    assert found["largest_difference"] <= 1e-5
    assert found["output"] == str(target)
    assert found["load_with"] == f'AutoModelForCausalLM.from_pretrained("{target}", trust_remote_code=True)'
    assert f"load with: {found['load_with']}" in said.stdout


@pytest.mark.slow
def test_onnx(run, tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    target = tmp_path / "model.onnx"
    found = json.loads(plait("export", run, "--to", "onnx", "-o", target, "--json").stdout)
    assert found["length"] == 8
    assert found["largest_difference"] <= 1e-4
    assert found["load_with"] == f'onnxruntime.InferenceSession("{target}")'
    assert target.is_file()


def test_an_unknown_format_is_refused(run):
    with pytest.raises(UserError, match="must be one of hf, native, gguf, onnx"):
        plait("export", run, "--to", "ggml")


@pytest.mark.parametrize(
    ("to", "length", "message"),
    [("onnx", 0, "at least 2"), ("hf", 5, "only an ONNX file has a longest input; leave it out with --to hf")],
)
def test_a_length_that_means_nothing_is_refused(run, tmp_path, to, length, message):
    pytest.importorskip("onnxscript")
    with pytest.raises(UserError, match=message):
        plait("export", run, "--to", to, "--length", length, "-o", tmp_path / "out")


def test_a_file_is_no_hugging_face_folder(tmp_path):
    (tmp_path / "model.gguf").touch()
    with pytest.raises(UserError, match=r"model\.gguf is not a Hugging Face folder: it has no config\.json\.$"):
        plait("import", tmp_path / "model.gguf", "-o", tmp_path / "out")


def test_import_makes_a_run(tmp_path):
    theirs_folder, target = tmp_path / "theirs", tmp_path / "gpt2"
    config = transformers.GPT2Config(vocab_size=300, n_positions=24, n_embd=32, n_layer=2, n_head=4)
    theirs = transformers.GPT2LMHeadModel(config).eval()
    theirs.save_pretrained(theirs_folder)
    with pytest.raises(UserError, match=r"no tokenizer\.json"):
        plait("import", theirs_folder, "-o", target)
    assert not target.exists()
    tokenizer = bpe.learn_bpe(["the cat sat on the mat " * 9], size=270)
    tokenizer.save(theirs_folder)
    found = json.loads(plait("import", theirs_folder, "-o", target, "--json").stdout)
    assert found["params"] == theirs.num_parameters()
    run = open_run(str(target))
    assert run.seq_len == 24
    assert run.tokenizer().as_dict() == tokenizer.as_dict()
    tokens = torch.randint(300, (2, 9))
    torch.testing.assert_close(run.model()(tokens), theirs(tokens).logits, rtol=0, atol=1e-5)
    with pytest.raises(UserError, match="not empty"):
        plait("import", theirs_folder, "-o", target)
    plait("import", theirs_folder, "-o", target, "--force")
    assert open_run(str(target)).tokenizer().as_dict() == tokenizer.as_dict()
