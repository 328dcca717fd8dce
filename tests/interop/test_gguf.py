"""GGUF files: read back with the format's own reader, and by Hugging Face's, which knows nothing of plait."""

from __future__ import annotations

import pytest
import torch

from plait.core.errors import UserError
from plait.data.tokenizers import Bytes, Ids
from plait.interop.gguf_file import check_gguf, export_gguf, read_gguf
from plait.interop.native import export_native
from plait.model import build

gguf = pytest.importorskip("gguf")

MODELS = {
    "llama": "d=32 vocab=256 | (attn[heads=4] swiglu)x2",
    "grouped, tied": "d=32 vocab=256 tie=true eps=1e-5 | (attn[heads=4,kv_heads=2,theta=500] swiglu[inner=48])x3",
    "qwen2": "d=32 vocab=256 tie=true | (attn[heads=4,qkv_bias] swiglu)x2",
    "qwen3": "d=32 vocab=256 | (attn[heads=2,head_dim=128,qk_norm=shared,qk_eps=1e-6] swiglu)x2",
}


def shaken(text):
    model = build(text, seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model.eval()


@pytest.mark.parametrize("name", MODELS)
def test_it_is_read_back_exactly(name, tmp_path):
    model = shaken(MODELS[name])
    assert export_gguf(model, Bytes(), tmp_path / "m.gguf", name="mine")
    assert check_gguf(model, tmp_path / "m.gguf") == 0.0
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    assert reader.fields["general.name"].contents() == "mine"
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    assert len(tokens) == 256
    assert tokens[ord("a")] == "a"
    assert tokens[ord(" ")] == "Ġ"


@pytest.mark.parametrize("name", MODELS)
def test_another_program_gets_the_same_logits(name, tmp_path):
    """Hugging Face's reader of GGUF files undoes the interleaving by itself, for what llama.cpp expects."""
    transformers = pytest.importorskip("transformers")
    model = shaken(MODELS[name])
    export_gguf(model, Bytes(), tmp_path / "m.gguf")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="m.gguf", dtype=torch.float32)
    tokens_BT = torch.randint(256, (2, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected_BTV, found_BTV = model(tokens_BT), theirs.eval()(tokens_BT).logits
    torch.testing.assert_close(found_BTV, expected_BTV, atol=2e-5, rtol=1e-4)


def test_interleaving_is_that_of_the_format(tmp_path):
    """Row 2 i of a head is row i of its first half, row 2 i + 1 row i of its second."""
    model = shaken(MODELS["llama"])
    export_native(model, None, tmp_path / "native")
    from safetensors.torch import load_file

    halves = load_file(tmp_path / "native" / "model.safetensors")["model.layers.0.self_attn.q_proj.weight"]
    export_gguf(model, None, tmp_path / "m.gguf")
    (tensor,) = (one for one in gguf.GGUFReader(tmp_path / "m.gguf").tensors if one.name == "blk.0.attn_q.weight")
    written = torch.from_numpy(tensor.data.copy())
    head = slice(8, 16)  # the second of four
    torch.testing.assert_close(written[head][0::2], halves[head][:4])
    torch.testing.assert_close(written[head][1::2], halves[head][4:])
    torch.testing.assert_close(read_gguf(tmp_path / "m.gguf")["model.layers.0.self_attn.q_proj.weight"], halves)


def test_what_the_format_has_no_words_for_is_refused(tmp_path):
    for text in ("d=32 vocab=256 | (gla[heads=2] swiglu)x2", "d=32 vocab=256 | (attn[heads=4,window=9] swiglu)x2"):
        with pytest.raises(UserError, match=r"is not a Llama, Qwen2 or Qwen3|windows"):
            export_gguf(build(text), Bytes(), tmp_path / "m.gguf")
    assert not list(tmp_path.iterdir())


def test_a_tokenizer_without_a_form_is_left_out(tmp_path):
    assert not export_gguf(build(MODELS["llama"]), Ids(256), tmp_path / "m.gguf")
    assert gguf.GGUFReader(tmp_path / "m.gguf").fields["tokenizer.ggml.model"].contents() == "no_vocab"


def test_nothing_is_overwritten_unasked(tmp_path):
    (tmp_path / "m.gguf").write_text("mine")
    with pytest.raises(UserError, match=r"m\.gguf"):
        export_gguf(build(MODELS["llama"]), Bytes(), tmp_path / "m.gguf")
    export_gguf(build(MODELS["llama"]), Bytes(), tmp_path / "m.gguf", force=True)
