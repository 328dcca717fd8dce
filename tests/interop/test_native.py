"""Pure attention models as Hugging Face's own classes, loaded without plait; and what plait exported, read back."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from plait.core.errors import UserError
from plait.data.tokenizers import Bytes
from plait.interop.hf import check_hf, export_hf
from plait.interop.import_hf import import_hf
from plait.interop.native import TOLERANCE, export_native, native_class
from plait.model import build
from plait.model.architecture import architecture

pytest.importorskip("transformers")

LLAMA = "d=32 vocab=256 | (attn[heads=4] swiglu)x2"
LEARNED = "d=32 vocab=256 pos=learned max_len=70 norm=layer"
NATIVE = {
    "llama": (LLAMA, "LlamaForCausalLM"),
    "grouped, tied": (
        "d=32 vocab=256 tie=true eps=1e-5 | (attn[heads=4,kv_heads=2,theta=500] swiglu[inner=48])x3",
        "LlamaForCausalLM",
    ),
    "wide heads, biased": ("d=32 vocab=256 | (attn[heads=2,head_dim=24,bias] swiglu[inner=48])x1", "LlamaForCausalLM"),
    "llama 3": (
        "d=32 vocab=256 | (attn[heads=2,theta=50,rope_scaling=llama3,rope_factor=8,rope_len=64] swiglu)x2",
        "LlamaForCausalLM",
    ),
    "mistral": ("d=32 vocab=256 | (attn[heads=4,window=9] swiglu)x2", "MistralForCausalLM"),
    "qwen2": ("d=32 vocab=256 tie=true | (attn[heads=4,qkv_bias] swiglu)x2", "Qwen2ForCausalLM"),
    "qwen2, windows by turns": (
        "d=32 vocab=256 | (attn[heads=4,qkv_bias,window=9] swiglu attn[heads=4,qkv_bias] swiglu)x2",
        "Qwen2ForCausalLM",
    ),
    "qwen3": ("d=32 vocab=256 | (attn[heads=4,head_dim=12,qk_norm=shared,qk_eps=1e-6] swiglu)x2", "Qwen3ForCausalLM"),
    "mamba": ("d=32 vocab=256 | (mamba[state=4])x3", "MambaForCausalLM"),
    "mamba, narrow": ("d=32 vocab=256 tie=true | (mamba[state=4,expand=1,conv_bias=false,bias])x2", "MambaForCausalLM"),
    "mamba2": ("d=32 vocab=256 eps=1e-5 | (mamba2[state=8,head_dim=16,groups=2])x3", "Mamba2ForCausalLM"),
    "gpt2": (f"{LEARNED} tie=true eps=1e-5 | (attn[heads=4,pos=none,bias] mlp[act=gelu-tanh])x2", "GPT2LMHeadModel"),
    "gpt2, untied, narrow": (f"{LEARNED} | (attn[heads=4,pos=none,bias] mlp[inner=40,act=relu])x2", "GPT2LMHeadModel"),
}


def shaken(text):
    model = build(text, seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model.eval()


@pytest.mark.parametrize("name", NATIVE)
def test_the_class_is_theirs_and_the_logits_are_ours(name, tmp_path):
    text, expected = NATIVE[name]
    model = shaken(text)
    assert export_native(model, Bytes(), tmp_path / "out") == expected
    assert check_hf(model, Bytes(), tmp_path / "out", tolerance=TOLERANCE).logits_gap < 1e-5
    again, tokenizer = import_hf(tmp_path / "out")
    assert tokenizer is not None
    tokens = torch.randint(256, (2, 17))
    with torch.no_grad():
        torch.testing.assert_close(again(tokens), model(tokens), rtol=0, atol=1e-5)


def test_it_loads_where_there_is_no_plait(tmp_path):
    export_native(shaken(LLAMA), Bytes(), tmp_path / "out")
    script = (
        "import sys; sys.modules['plait'] = None\n"
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n"
        "model, tokenizer = (auto.from_pretrained(sys.argv[1]) for auto in (AutoModelForCausalLM, AutoTokenizer))\n"
        "tokens = tokenizer('ab', return_tensors='pt')['input_ids']\n"
        "out = model.generate(tokens, max_new_tokens=3, do_sample=False)\n"
        "print(type(model).__name__, out.shape[1])\n"
    )
    program = [sys.executable, "-c", script, str(tmp_path / "out")]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.stdout == "LlamaForCausalLM 5\n", done.stderr


@pytest.mark.parametrize(
    "text",
    [
        "d=32 vocab=256 | (gla[heads=2] swiglu)x2",
        "d=32 vocab=256 | (attn[heads=4,window=8,qkv_bias] swiglu attn[heads=4,window=9,qkv_bias] swiglu)x2",
        "d=32 vocab=256 | (attn[heads=4,qk_norm=shared,qk_eps=1e-5] swiglu)x2",
        "d=32 vocab=256 | (attn[heads=4,rotary=0.5] swiglu)x2",
        "d=32 vocab=256 | mamba[state=4] mlp",
        "d=32 vocab=256 | (mamba2[state=8,head_dim=16])x2",
        "d=32 vocab=256 | attn[heads=4] swiglu attn[heads=2] swiglu",
        "d=32 vocab=256 | (attn[heads=4] mlp)x2",
        "d=32 vocab=256 | (fox[heads=4] swiglu)x2",
        "d=32 vocab=256 | attn[heads=4] swiglu attn[heads=4]",
    ],
)
def test_anything_else_is_refused(text, tmp_path):
    assert native_class(architecture(text)) is None
    with pytest.raises(UserError, match=r"neither a Llama.*--to hf"):
        export_native(build(text), None, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_plait_exported_is_imported_again(tmp_path):
    model = shaken("d=32 vocab=256 tie=true | gla[heads=2] swiglu fox[heads=2] swiglu")
    export_hf(model, Bytes(), tmp_path / "out")
    again, tokenizer = import_hf(tmp_path / "out")
    assert again.arch.text == model.arch.text
    assert tokenizer.as_dict() == Bytes().as_dict()
    tokens = torch.randint(256, (2, 17))
    with torch.no_grad():
        torch.testing.assert_close(again(tokens), model(tokens), rtol=0, atol=0)
    config = tmp_path / "out" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "spec": 3}))
    with pytest.raises(UserError, match="has no 'spec'"):
        import_hf(tmp_path / "out")
