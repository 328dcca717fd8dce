"""Layers that share weights by name, and layers that read of earlier ones: the language, cost, and every way to run."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from plait.core.errors import UserError
from plait.model import build
from plait.model.architecture import architecture
from plait.model.compiled_blocks import compile_blocks
from plait.model.cost import model_cost
from plait.model.decoding import Decoder, decodes
from plait.model.generation import pad_left, prefill
from plait.model.resize import match
from plait.spec import SpecError, load, parse, to_yaml
from plait.spec.notations import written

MAMBA = "mamba[state=4]"
ZAMBA = "zamba2[head_dim=16,state=8,heads=4,inner=24,lora=4"
SPECS = {
    "sambay": f"d=32 vocab=13 | {MAMBA} mlp[inner=24] attn[heads=4,kv_heads=2,window=5,pos=none] {MAMBA} "
    "attn[heads=4,kv_heads=2,pos=none] (gmu mlp[inner=24] cross-attn[heads=4,pos=none])x2",
    "yoco": "d=32 vocab=13 | attn[heads=4,kv_heads=2] mlp[inner=24] (cross-attn[heads=4] mlp[inner=24])x2",
    "mamba2": "d=32 vocab=13 | mamba2[head_dim=16,state=8] (gmu[norm])x2",
    "zamba2": f"d=32 vocab=13 | mamba2[head_dim=16,state=8] {ZAMBA},share=a] {ZAMBA},share=b] {ZAMBA},share=a]",
    "albert": "d=32 vocab=13 | (attn[heads=4,share=a] mlp[inner=24,share=a])x3",
    "canon": "d=32 vocab=13 | mamba[state=4,canon=a,share=a] mamba[state=4,canon=a,share=a] gmu",
}


def model_of(name: str) -> torch.nn.Module:
    model = build(SPECS[name], seed=1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.2, generator=torch.Generator().manual_seed(parameter.numel()))
    return model.double().eval()


TOKENS = torch.randint(13, (3, 23), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", SPECS)
@torch.no_grad()
def test_all_ways_to_run_agree_and_hold_what_is_counted(name: str) -> None:
    model, cost = model_of(name), model_cost(SPECS[name], seq=23)
    assert sum(p.numel() for p in model.parameters()) == cost.total_params
    whole = model(TOKENS)
    state, stepped = model.init_state(3), []
    for tokens_B in TOKENS.unbind(1):
        logits, state = model.step(tokens_B, state)
        stepped.append(logits)
    torch.testing.assert_close(torch.stack(stepped, 1), whole)
    held = sum(value[0].numel() for layer in state.layers for value in layer.values() if value.is_floating_point())
    assert held == cost.fixed_state + cost.conv_state + cost.kv_cache
    hidden, state = model.backbone.extend(TOKENS[:, :9], model.backbone.init_state(3))
    rest, _ = model.backbone.extend(TOKENS[:, 9:], state)
    torch.testing.assert_close(torch.cat((hidden, rest), 1), model.backbone(TOKENS))


@pytest.mark.parametrize("name", SPECS)
@torch.no_grad()
def test_generation_with_buffers_and_prompts_of_several_lengths(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait.model.decoding.SMALLEST", 8)
    model = model_of(name)
    prompts = [row[: 7 + 2 * i].tolist() for i, row in enumerate(TOKENS)]
    tokens, pad_B = pad_left(prompts, torch.device("cpu"))
    hidden, state = prefill(model.backbone, tokens, pad_B)
    for row, prompt in enumerate(prompts):
        torch.testing.assert_close(hidden[row, -1], model.backbone(torch.tensor([prompt]))[0, -1])
    assert decodes(model)
    decoder = Decoder(model, state)
    for at in range(6):
        logits = decoder.step(TOKENS[:, at])
    for row, prompt in enumerate(prompts):
        alone = model(torch.tensor([prompt + TOKENS[row, :6].tolist()]))[0, -1]
        torch.testing.assert_close(logits[row], alone)


@torch.no_grad()
def test_sambay_as_its_equations_say() -> None:
    """One Mamba's output ahead of its gate, times silu of a map; queries alone against one layer's keys and values."""
    model = build(
        "d=8 vocab=5 final_norm=false | mamba[state=2] attn[heads=2,pos=none] gmu cross-attn[heads=2,pos=none]"
    )
    mamba, attn, gmu, cross = (block.mixer for block in model.backbone.blocks)
    norms = [block.norm for block in model.backbone.blocks]
    tokens = torch.tensor([[0, 3, 1, 4, 2]])
    x = model.backbone.embed(tokens, None, None)
    seen: dict[str, Tensor] = {}
    mamba.output.register_forward_pre_hook(lambda _, given: seen.update(gated=given[0]))
    y = x + mamba(norms[0](x))
    gate = mamba.input_gate(norms[0](x)).chunk(2, dim=-1)[1]
    memory = seen["gated"] / F.silu(gate)
    _, k, v = attn.qkv(norms[1](y)).unflatten(-1, (6, 4)).split(2, dim=-2)
    y = y + attn(norms[1](y))
    y = y + gmu.output(memory * F.silu(gmu.gate(norms[2](y))))
    q = cross.query(norms[3](y)).unflatten(-1, (2, 4))
    scores = torch.einsum("bmhp,bnhp->bhmn", q, k) / math.sqrt(4)
    scores = scores.masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf)
    y = y + cross.output(torch.einsum("bhmn,bnhp->bmhp", scores.softmax(-1), v).flatten(-2))
    torch.testing.assert_close(model.backbone(tokens), y, rtol=1e-4, atol=1e-6)


def test_gradients_reach_the_layer_that_is_read() -> None:
    model = build("d=16 vocab=13 | attn[heads=2] cross-attn[heads=2]")
    attn = model.backbone.blocks[0].mixer
    with torch.no_grad():
        attn.output.weight.zero_()  # what is left of it goes through its keys and values
    model.loss(TOKENS, TOKENS.roll(1, 1)).backward()
    assert attn.qkv.weight.grad is not None
    assert attn.qkv.weight.grad[16:].abs().sum() > 0


@pytest.mark.parametrize("name", SPECS)
def test_checkpointed_and_compiled_training_is_the_same(name: str) -> None:
    gradients = []
    for how in ("plain", "checkpointed", "compiled"):
        model = build(SPECS[name], seed=2)
        model.backbone.activation_checkpointing = how == "checkpointed"
        if how == "compiled":
            compile_blocks(model.backbone, 23, torch.float32, backend="eager")
        model.loss(TOKENS, TOKENS.roll(1, 1)).backward()
        gradients.append([p.grad for p in model.parameters()])
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0], rtol=1e-4, atol=1e-6)


PAIRS = {
    "another name": ("(attn[heads=4,share=b] mlp)x2", "(attn[heads=4,share=a] mlp)x2"),
    "names the other way round": (
        "attn[heads=4,share=b] attn[heads=4,share=a] attn[heads=4,share=b]",
        "attn[heads=4,share=a] attn[heads=4,share=b] attn[heads=4,share=a]",
    ),
    "each mixer has its own names": (
        "(attn[heads=4,share=x] mlp[share=y] mlp[share=z])x2",
        "(attn[heads=4,share=a] mlp[share=a] mlp[share=b])x2",
    ),
    "layers side by side": ("((attn[heads=4] | gla)[share=one])x2", "((attn[heads=4] | gla)[share=a])x2"),
}  # fmt: skip


@pytest.mark.parametrize("pair", PAIRS)
def test_the_name_that_layers_share_by_is_no_part_of_the_model(pair: str) -> None:
    written, canonical = (architecture(f"d=32 vocab=13 | {layers}") for layers in PAIRS[pair])
    assert written == canonical
    assert written.text == canonical.text == str(parse(f"d=32 vocab=13 | {PAIRS[pair][1]}"))
    assert (written.hash, written.identity()) == (canonical.hash, canonical.identity())
    first, second = (build(arch, seed=3).state_dict() for arch in (written, canonical))
    assert list(first) == list(second)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_which_layers_share_is_part_of_the_model_and_other_texts_stay() -> None:
    texts = [
        f"attn[heads=4,share={a}] attn[heads=4,share={b}] attn[heads=4,share={c}]" for a, b, c in ("aab", "aba", "abb")
    ]
    assert len({architecture(f"d=32 | {text}").hash for text in texts}) == 3
    assert architecture("d=32 | (attn[heads=4] mlp)x2").hash == "5fb2bf2c2e6eef07"
    many = architecture("d=32 | " + " ".join(f"attn[heads=4,share=n{i}]" for i in range(60)))
    assert len({options.share for options in many.layers}) == 60
    assert architecture(many.text) == many


def test_what_is_shared_counts_once_and_runs_every_time() -> None:
    shared, own = (model_cost(f"d=32 vocab=13 | (attn[heads=4{given}] mlp)x3", seq=8) for given in (",share=a", ""))
    attn = 4 * 32 * 32
    assert own.total_params - shared.total_params == 2 * attn
    assert own.flops == shared.flops
    assert own.kv_cache == shared.kv_cache
    two = model_cost("d=32 vocab=13 | attn[heads=4,share=a] mlp attn[heads=4,share=b] mlp attn[heads=4,share=a] mlp")
    assert own.total_params - two.total_params == attn


def test_one_cache_for_all_that_read_it() -> None:
    alone, read = (
        model_cost(f"d=32 vocab=13 | attn[heads=4]{more}", seq=8) for more in ("", " (cross-attn[heads=4])x5")
    )
    assert read.kv_cache == alone.kv_cache == 8 * 2 * 32
    assert read.total_params - alone.total_params == 5 * (2 * 32 * 32 + 32)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cross-attn[heads=4]", "reads the keys and values of an earlier attn without a window"),
        ("attn[heads=4,window=8] cross-attn[heads=4]", "reads the keys and values of an earlier attn without a window"),
        ("fox[heads=4] cross-attn[heads=4]", "reads the keys and values of an earlier attn without a window"),
        ("gla gmu", "reads the memory of an earlier mamba or mamba2"),
        ("mamba gmu[expand=1]", "width of 32, but the memory of mamba has 64"),
        ("attn[heads=4] cross-attn[heads=8]", "8 heads of width 4 cannot read the keys of attn"),
        ("attn[heads=4,pos=none] cross-attn[heads=4]", "give pos and theta of attn"),
        ("attn[heads=4,share=a] attn[heads=2,share=a]", "their options differ"),
        ("moe[share=a]", "no option 'share'"),
        ("attn[heads=4,share=3]", "this is a name"),
        ("(attn[heads=4,share=a] | gla)", "a branch shares no parameters"),
        ("mamba (gmu | attn[heads=4])", "a branch reads of no other layer"),
        ("zamba2[heads=4,lora_attn]", "lora_attn needs lora"),
    ],
)
def test_mistakes_are_said_with_their_place(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message) as wrong:
        architecture(f"d=32 vocab=13 | {text}")
    assert wrong.value.column is not None


def test_text_and_yaml_say_the_same(tmp_path: Path) -> None:
    for text in SPECS.values():
        arch = architecture(text)
        (tmp_path / "one.yaml").write_text(to_yaml(arch.spec))
        assert architecture(load(tmp_path / "one.yaml")) == arch == architecture(arch.text)


def test_fused_models_say_that_they_cannot() -> None:
    from plait.training.fusion import fuse

    with pytest.raises(UserError, match="fused models cannot share weights"):
        fuse([SPECS["albert"], SPECS["yoco"]])


def test_the_place_of_a_reader_that_does_not_fit() -> None:
    text = "d=32 | attn[heads=4] cross-attn[heads=4] mlp cross-attn[heads=8]"
    with pytest.raises(SpecError) as raised:
        architecture(text)
    assert raised.value.column == text.rindex("cross-attn") + 1


def test_resized_models_can_be_read_again() -> None:
    """A memory of another width would fit the state better, but nothing could read it."""
    with pytest.raises(UserError, match="640"):
        match("d=64 vocab=13 | mamba[state=4] gmu", state=650)
    made = match("d=64 vocab=13 | mamba[state=4] gmu", state=650, tolerance=0.02)
    assert architecture(made.text) == made


@pytest.mark.parametrize("notation", ["huggingface", "fla", "megatron"])
@pytest.mark.parametrize("layers", ["attn mlp cross-attn mlp", "(attn[share=a] mlp)x2"])
def test_notations_without_a_sign_for_sharing_say_so(layers: str, notation: str) -> None:
    with pytest.raises(UserError, match="share weights or read"):
        written(parse(f"d=64 | {layers}").layers, notation)
