"""The Hugging Face round trip: the same logits, `generate` equal to ours token by token, nothing overwritten."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from plait.core.errors import UserError
from plait.data.tokenizers import Bytes, Words
from plait.interop import hf
from plait.interop.hf import check_hf, export_hf
from plait.model import build
from plait.model.generation import Generation

transformers = pytest.importorskip("transformers")
hf_model = pytest.importorskip("plait.interop.hf_model")

PRO = "fox[heads=2,qk_norm=per-head,out_gate,out_norm,kv_shift]"
SPECS = {
    "attn": "d=32 vocab=41 tie=true | (attn[heads=2] mlp)x2",
    "gpt2": "d=32 vocab=41 pos=learned max_len=64 tie=true norm=layer | (attn[heads=2,pos=none,bias] mlp)x2",
    "alibi": "d=32 vocab=41 | (attn[heads=2,pos=alibi] mlp)x2",
    "fox-pro": f"d=32 vocab=41 | ({PRO} swiglu)x2",
    "fixed-gates": "d=32 vocab=41 | (fox[heads=2,forget=fixed,t_max=9] swiglu)x2",
    "gla": "d=32 vocab=41 | (gla[heads=2] swiglu)x2",
    "mamba": "d=32 vocab=41 | (mamba swiglu)x2",
    "mamba2": "d=32 vocab=41 | (mamba2[head_dim=16] swiglu)x2",
    "hyena": "d=32 vocab=41 | (hyena swiglu)x2",
    "deltanet": "d=32 vocab=41 | (deltanet[head_dim=16] swiglu)x2",
    "hybrid": f"d=32 vocab=41 tie=true | mamba {PRO} hyena attn[heads=2,window=5] gla[heads=2] swiglu",
    "adaptive": "d=32 vocab=41 embed=adaptive cutoffs=10/20 div=2 tie=true | (attn[heads=2] mlp)x2",
    "xl": "d=32 vocab=41 | (xl-attn[heads=2] mlp)x2",
    "xl, window and clamp": "d=32 vocab=41 | (xl-attn[heads=2,window=6,clamp=4] mamba mlp)x2",
}
LENGTHS = (7, 2, 11)


def lively(text: str):
    model = build(text, seed=3).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(8.0)
    return model


def round_trip(model, folder):
    export_hf(model, None, folder)
    return transformers.AutoModelForCausalLM.from_pretrained(folder)


def padded(prompts):
    longest = max(map(len, prompts))
    tokens = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    return tokens, mask


def prompts():
    stream = torch.Generator().manual_seed(0)
    return [torch.randint(41, (n,), generator=stream).tolist() for n in LENGTHS]


@pytest.mark.parametrize("name", SPECS)
@torch.no_grad()
def test_round_trip(name, tmp_path):
    ours = lively(SPECS[name])
    theirs = round_trip(ours, tmp_path / "out")
    tokens = torch.randint(41, (2, 19), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(theirs(tokens).logits, ours(tokens), rtol=0, atol=1e-5)
    # Token by token, one prompt and a left-padded batch.
    given = prompts()
    expected = Generation(ours, given, tokens=10).run().rows
    inputs, mask = padded(given)
    options = {"max_new_tokens": 10, "do_sample": False, "pad_token_id": 0}
    out = theirs.generate(inputs, attention_mask=mask, **options)
    assert out[:, inputs.shape[1] :].tolist() == expected
    assert theirs.generate(torch.tensor([given[0]]), **options)[0, len(given[0]) :].tolist() == expected[0]
    assert theirs.generate(inputs, attention_mask=mask, use_cache=False, **options).tolist() == out.tolist()


@pytest.mark.parametrize("name", ["fox-pro", "hybrid"])
@torch.no_grad()
def test_beams_with_a_cache_are_beams_without(name, tmp_path):
    theirs = round_trip(lively(SPECS[name]), tmp_path / "out")
    inputs, mask = padded(prompts())
    options = {"attention_mask": mask, "max_new_tokens": 8, "num_beams": 4, "do_sample": False, "pad_token_id": 0}
    found = theirs.generate(inputs, **options)
    assert found.tolist() == theirs.generate(inputs, use_cache=False, **options).tolist()
    greedy = theirs.generate(inputs, **{**options, "num_beams": 1})
    assert found.tolist() != greedy.tolist()


@torch.no_grad()
def test_sampling_repeats_and_several_answers(tmp_path):
    theirs = round_trip(lively(SPECS["hybrid"]), tmp_path / "out")
    options = {"max_new_tokens": 6, "do_sample": True, "pad_token_id": 0, "num_return_sequences": 3}
    runs = []
    for use_cache in (True, False):
        torch.manual_seed(5)
        runs.append(theirs.generate(torch.tensor([[1, 2, 3]]), use_cache=use_cache, **options).tolist())
    assert runs[0] == runs[1]
    assert len({tuple(row) for row in runs[0]}) > 1


@torch.no_grad()
def test_a_conversation_continues_its_cache(tmp_path):
    theirs = round_trip(lively(SPECS["hybrid"]), tmp_path / "out")
    tokens = torch.tensor([[5, 6, 7, 8, 9, 10, 11]])
    first = theirs(tokens[:, :4], use_cache=True)
    then = theirs(tokens[:, 4:], past_key_values=first.past_key_values)
    torch.testing.assert_close(then.logits, theirs(tokens).logits[:, 4:], rtol=1e-4, atol=1e-5)
    again = theirs.generate(
        tokens, past_key_values=theirs(tokens[:, :4], use_cache=True).past_key_values, max_new_tokens=4, do_sample=False
    )
    assert again.tolist() == theirs.generate(tokens, max_new_tokens=4, do_sample=False).tolist()


def test_it_trains_and_right_padding_changes_nothing(tmp_path):
    theirs = round_trip(lively(SPECS["hybrid"]), tmp_path / "out").train()
    tokens = torch.randint(41, (2, 9), generator=torch.Generator().manual_seed(1))
    labels = tokens.clone()
    labels[1, 6:] = -100
    mask = (labels != -100).long()
    out = theirs(tokens, attention_mask=mask, labels=labels)
    assert theirs(tokens, labels=labels).past_key_values is None, "nobody continues a training step"
    logits = theirs(tokens).logits
    expected = torch.nn.functional.cross_entropy(
        torch.cat([logits[0, :-1], logits[1, :5]]), torch.cat([tokens[0, 1:], tokens[1, 1:6]])
    )
    torch.testing.assert_close(out.loss, expected)
    out.loss.backward()
    assert all(p.grad is not None for p in theirs.parameters())


@torch.no_grad()
def test_an_encoder_takes_padding_on_either_side(tmp_path):
    ours = lively("d=32 vocab=41 kind=encoder pos=learned max_len=16 segments=2 | (attn[heads=2,causal=false] mlp)x2")
    export_hf(ours, None, tmp_path / "out")
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    tokens = torch.randint(41, (1, 7), generator=torch.Generator().manual_seed(1))
    types = torch.tensor([[0, 0, 0, 1, 1, 1, 1]])
    alone = theirs(tokens, token_type_ids=types).logits
    torch.testing.assert_close(alone, ours(tokens, segments_BT=types), rtol=0, atol=1e-5)
    zeros, fill = torch.zeros(1, 3, dtype=torch.long), torch.full((1, 3), 9)
    for order in ((fill, tokens), (tokens, fill)):
        given = torch.cat(order, 1)
        mask, kinds = (
            torch.cat([zeros if part is fill else new for part in order], 1) for new in (tokens * 0 + 1, types)
        )
        logits = theirs(given, attention_mask=mask, token_type_ids=kinds).logits
        torch.testing.assert_close(logits[mask.bool()], alone[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["hole", "empty", "shape"])
def test_senseless_masks_are_refused(kind):
    model = hf_model.PlaitForCausalLM(hf_model.PlaitConfig.of(build(SPECS["attn"]).arch))
    mask = {"hole": [[1, 0, 1]], "empty": [[0, 0, 0]], "shape": [[1, 1]]}[kind]
    with pytest.raises(UserError, match="mask"):
        model(torch.tensor([[1, 2, 3]]), attention_mask=torch.tensor(mask))


def test_weights_keep_their_names_and_are_stored_once(tmp_path):
    from safetensors import safe_open

    ours = lively(SPECS["attn"])
    export_hf(ours, None, tmp_path / "out")
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as opened:
        assert set(opened.keys()) == set(dict(ours.named_parameters()))
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert loaded.output.weight is loaded.backbone.embedding.tables[0].weight
    loaded.save_pretrained(tmp_path / "again")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "again")
    tokens = torch.tensor([[1, 2, 3]])
    torch.testing.assert_close(again(tokens).logits, ours(tokens))


def test_config_and_fresh_weights():
    config = hf_model.PlaitConfig.of(build(SPECS["hybrid"]).arch)
    assert (config.vocab_size, config.hidden_size, config.num_hidden_layers) == (41, 32, 5)
    fresh = transformers.AutoModelForCausalLM.from_config(config)
    tokens = torch.tensor([[1, 2, 3]])
    torch.testing.assert_close(fresh(tokens).logits, build(SPECS["hybrid"])(tokens))


@pytest.mark.slow
def test_without_importing_plait(tmp_path):
    """What `trust_remote_code=True` does, in a process that has never heard of plait."""
    export_hf(lively(SPECS["fox-pro"]), None, tmp_path / "out")
    program = (
        "import sys, transformers\n"
        "assert not any(name.startswith('plait') for name in sys.modules)\n"
        "model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True)\n"
        "print(type(model).__name__)"
    )
    environment = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1", "PATH": ""}
    ran = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "out")],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert ran.stdout.strip() == "PlaitForCausalLM", ran.stderr


def test_the_end_of_text_ends_generation(tmp_path):
    ours = lively(SPECS["attn"])
    free = Generation(ours, [[1, 2]], tokens=10).run().rows[0]
    words = Words([f"w{i}" for i in range(39)])
    words.end = free[3]
    export_hf(ours, words, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text())["eos_token_id"] == free[3]
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    out = theirs.generate(torch.tensor([[1, 2]]), max_new_tokens=10, do_sample=False)[0, 2:].tolist()
    assert out == free[: free.index(free[3]) + 1]


def test_the_check_sees_what_is_wrong(tmp_path, monkeypatch):
    ours, tokenizer = lively("d=32 vocab=256 | attn[heads=2] swiglu"), Bytes()
    export_hf(ours, tokenizer, tmp_path / "out")
    found = check_hf(ours, tokenizer, tmp_path / "out")
    assert found.logits_gap <= hf.TOLERANCE
    assert found.text_tokens_compared > 200
    monkeypatch.setattr(Bytes, "encode", lambda self, text: np.zeros(3, dtype=np.int64))
    with pytest.raises(UserError, match="different ids"):
        check_hf(ours, tokenizer, tmp_path / "out")
    with torch.no_grad():
        ours.output.weight.add_(0.01)
    with pytest.raises(UserError, match="different logits"):
        check_hf(ours, None, tmp_path / "out")


@pytest.mark.parametrize("name", SPECS)
def test_the_check_takes_good_models_of_any_scale(name, tmp_path):
    ours = lively(SPECS[name])
    with torch.no_grad():
        ours.output.projections[0].weight.mul_(50) if name == "adaptive" else ours.output.weight.mul_(50)
    export_hf(ours, None, tmp_path / "out")
    assert check_hf(ours, None, tmp_path / "out").logits_gap < 1e-10


def test_the_check_takes_a_wide_llama_whose_logits_are_large(tmp_path):
    """In float32 its two ways of computing are more than 1e-5 apart, as float32 itself is from float64."""
    ours = lively("d=256 vocab=512 | (attn[heads=4] swiglu[inner=688])x4")
    with torch.no_grad():
        ours.output.weight.mul_(2)
    export_hf(ours, None, tmp_path / "out")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    tokens = torch.randint(512, (2, 64), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert (theirs(tokens).logits - ours(tokens)).abs().max() > 1e-5
    assert check_hf(ours, None, tmp_path / "out").logits_gap < 1e-10


@pytest.mark.parametrize("weight", ["backbone.blocks.0.mixer.qkv.weight", "backbone.blocks.3.mixer.down.weight"])
def test_the_check_sees_one_weight_off_by_a_thousandth(weight, tmp_path):
    ours = lively("d=32 vocab=41 | (attn[heads=2] mlp)x2")
    export_hf(ours, None, tmp_path / "out")
    with torch.no_grad():
        ours.get_parameter(weight)[3, 5].mul_(1.001)
    with pytest.raises(UserError, match="different logits"):
        check_hf(ours, None, tmp_path / "out")


def test_nothing_is_overwritten_unasked(tmp_path):
    model = build(SPECS["attn"])
    target = tmp_path / "out"
    target.mkdir()
    (target / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="--force"):
        export_hf(model, None, target)
    assert [path.name for path in target.iterdir()] == ["notes.txt"]
    export_hf(model, None, target, force=True)
    assert (target / "notes.txt").read_text() == "mine"
    assert (target / "config.json").exists()
    with pytest.raises(UserError, match="256 ids"):
        export_hf(model, Bytes(), tmp_path / "other")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
