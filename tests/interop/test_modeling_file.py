"""An exported folder runs in a program that has never heard of plait."""

from __future__ import annotations

import ast
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

from plait.data.tokenizers import Bytes
from plait.interop.hf import export_hf
from plait.interop.modeling_file import bundled, modeling_file
from plait.model import build

transformers = pytest.importorskip("transformers")

MIXED = "d=32 vocab=256 | gla[heads=2] swiglu attn[heads=4] mlp mamba2[state=8,head_dim=16] gated-deltanet[head_dim=16]"
PROGRAM = """
import importlib.util, sys
assert importlib.util.find_spec("plait") is None
import torch, transformers
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True)
tokens = torch.arange(40)[None]
torch.save({"logits": model(tokens).logits.detach(), "text": model.generate(tokens, max_new_tokens=4, do_sample=False)},
           sys.argv[2])
tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
assert tokenizer("ab")["input_ids"] == [97, 98]
loss = model(tokens, labels=tokens).loss
loss.backward()
assert all(parameter.grad is not None for parameter in model.parameters())
"""


def packages_without_plait(folder: Path) -> Path:
    """Links to everything that is installed here but plait; files that add to the path do not count in there."""
    folder.mkdir()
    places = [Path(transformers.__file__).parents[1], Path(sysconfig.get_paths()["purelib"])]
    for entry in (entry for place in dict.fromkeys(places) for entry in place.iterdir()):
        link = folder / entry.name
        if "plait" not in entry.name.lower() and entry.suffix != ".pth" and not link.exists():
            link.symlink_to(entry)
    return folder


def test_it_runs_without_plait(tmp_path):
    model = build(MIXED, seed=0).eval()
    export_hf(model, Bytes(), tmp_path / "out")
    path = packages_without_plait(tmp_path / "packages")
    environment = {"PYTHONPATH": str(path), "HF_MODULES_CACHE": str(tmp_path / "modules"), "PATH": "/usr/bin",
                   "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-S", "-c", PROGRAM, str(tmp_path / "out"), str(tmp_path / "found.pt")],
        capture_output=True, text=True, check=False, env=environment, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = torch.load(tmp_path / "found.pt")
    tokens_BT = torch.arange(40)[None]
    with torch.no_grad():
        expected_BTV = model(tokens_BT)
    torch.testing.assert_close(found["logits"], expected_BTV, atol=1e-5, rtol=1e-5)
    assert found["text"].shape == (1, 44)
    assert found["text"][0, 40] == expected_BTV[0, -1].argmax()


def test_only_what_the_model_needs_is_in_it():
    text = modeling_file(build("d=32 vocab=256 | (attn[heads=4] swiglu)x2"))
    tree = ast.parse(text)
    names = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    assert "plait.mixers.attn_module" in names
    assert "plait.mixers.gla_module" not in names
    assert not [name for name in names if name.startswith(("plait.training", "plait.cli", "plait.records"))]


def test_imports_inside_functions_count():
    """A kernel that only a GPU asks for comes along."""
    found = bundled(["plait.ops.gla"])
    assert "plait.ops" in found
    assert any(name.endswith("_triton") for name in found)
