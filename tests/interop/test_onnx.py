"""ONNX Runtime gives our logits, for any batch and any length; a mixer that ONNX cannot express is named."""

from __future__ import annotations

import importlib
from importlib.resources import files

import pytest
import torch

from plait.core.errors import UserError
from plait.interop.onnx import NEEDED, check_onnx, export_onnx
from plait.model import build
from plait.model.user_mixers import load_mixer

for package in NEEDED:
    pytest.importorskip(package)

PRO = "fox[heads=2,qk_norm=per-head,out_gate,out_norm,kv_shift]"
SLOW = {
    "hyena": f"d=32 vocab=41 tie=true | {PRO} hyena swiglu",
    "encoder": "d=32 vocab=41 kind=encoder norm=layer | attn[heads=2,causal=false] mlp",
    "attn": "d=32 vocab=41 | attn[heads=2,window=5] attn[heads=2,pos=alibi] swiglu",
    "gpt2": "d=32 vocab=41 pos=learned max_len=64 tie=true norm=layer | (attn[heads=2,pos=none,bias] mlp)x2",
    "xl": "d=32 vocab=41 | xl-attn[heads=2] moe",
    "adaptive": "d=32 vocab=41 embed=adaptive cutoffs=10/20 div=2 tie=true | attn[heads=2] mlp",
    "gla": "d=32 vocab=41 | gla[heads=2] linear[heads=2] mlp",
    "mamba": "d=32 vocab=41 | mamba mamba2[head_dim=16] mlp",
    "deltanet": "d=32 vocab=41 | deltanet[head_dim=16] gated-deltanet[head_dim=16] mlp",
    "kda": "d=32 vocab=41 | kda[head_dim=16] deltaproduct[head_dim=16] mlp",
    "rwkv7": "d=32 vocab=41 | rwkv7[head_dim=16] retnet[heads=2] mlp",
    "mamba3": "d=32 vocab=41 | mamba3[head_dim=16,state=8] mla[heads=2] mlp",
    "rwkv6": "d=32 vocab=41 | rwkv6[head_dim=16] hgrn2[head_dim=16] mh-hyena mlp",
}


def lively(spec):
    model = build(spec, seed=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0 if parameter.dim() > 1 else 1.0)
    return model


def shapes(file):
    """As the file declares them: a number, or the name of a size that may be any."""
    graph = importlib.import_module("onnx").load(file).graph
    return {
        value.name: [size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.output)
    }


def test_the_file_gives_our_logits(tmp_path):
    model, file = lively(f"d=32 vocab=41 norm=layer tie=true | {PRO} mlp"), tmp_path / "model.onnx"
    export_onnx(model, file, 12)
    assert check_onnx(model, file, 12) <= 1e-4
    assert shapes(file) == {"tokens": ["batch", "time"], "logits": ["batch", "time", 41]}
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".data"] == ["model.onnx"]
    with torch.no_grad():
        model.output.weight.mul_(1.1)
    with pytest.raises(UserError, match="different logits"):
        check_onnx(model, file, 12)
    with pytest.raises(UserError, match="--force"):
        export_onnx(model, file, 12)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_every_mixer_that_has_a_form_in_onnx(name, tmp_path):
    model, file = lively(SLOW[name]), tmp_path / "model.onnx"
    export_onnx(model, file, 40)
    assert check_onnx(model, file, 40) <= 1e-4


def test_a_mixer_without_a_form_is_named(tmp_path):
    model = build("d=32 vocab=41 | hyena-experts[experts=2,active=1] mlp")
    with pytest.raises(UserError, match=r"hyena-experts.* cannot be expressed in ONNX"):
        export_onnx(model, tmp_path / "model.onnx", 8)
    assert not list(tmp_path.iterdir())


def test_the_mixer_of_plait_new_has_one_and_a_constant_batch_is_explained(tmp_path):
    template = files("plait").joinpath("model/mixer_template.txt").read_text()
    (tmp_path / "fits.py").write_text(template.replace('"my-mixer"', '"fits"'))
    (tmp_path / "fixed.py").write_text(
        template.replace('"my-mixer"', '"fixed"').replace("init_state(x_BTD.shape[0])", "init_state(len(x_BTD))")
    )
    for name in ("fits", "fixed"):
        load_mixer(tmp_path / f"{name}.py")
    file = tmp_path / "model.onnx"
    export_onnx(build("d=16 vocab=11 | fits"), file, 8)
    assert check_onnx(build("d=16 vocab=11 | fits"), file, 8) <= 1e-4
    with pytest.raises(UserError, match=r"fixed cannot be expressed in ONNX .* write x.shape\[0\], not len\(x\)"):
        export_onnx(build("d=16 vocab=11 | fixed"), tmp_path / "other.onnx", 8)


@pytest.mark.parametrize(
    ("spec", "length", "message"),
    [
        ("d=32 vocab=41 | mlp", 1, "at least 2"),
        ("d=32 vocab=41 pos=learned max_len=16 | mlp", 17, "max_len=16"),
        ("d=32 vocab=41 kind=autoencoder | attn[heads=2] mlp", 8, "kind=autoencoder"),
    ],
)
def test_senseless_requests_are_refused(spec, length, message, tmp_path):
    with pytest.raises(UserError, match=message):
        export_onnx(build(spec), tmp_path / "model.onnx", length)
