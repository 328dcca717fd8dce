"""Generation is the parallel form read off token by token, the same for a row alone and for a row among others."""

from __future__ import annotations

import pytest
import torch

from plait.core.errors import UserError
from plait.model import build
from plait.model.generation import GREEDY, Generation, Sampling

FOX_PRO = "fox[heads=2,qk_norm=per-head,out_gate,out_norm,kv_shift]"
SPECS = {
    "attn": "d=32 vocab=41 | (attn[heads=2] mlp)x2",
    "gpt2": "d=32 vocab=41 pos=learned max_len=64 tie=true norm=layer | (attn[heads=2,pos=none,bias] mlp)x2",
    "window": "d=32 vocab=41 | (attn[heads=2,window=5] mlp)x2",
    "fox-pro": f"d=32 vocab=41 | ({FOX_PRO} swiglu)x2",
    "xl": "d=32 vocab=41 | (xl-attn[heads=2] mlp)x2",
    "gla": "d=32 vocab=41 | (gla[heads=2] swiglu)x2",
    "hybrid": f"d=32 vocab=41 | mamba {FOX_PRO} hyena attn[heads=2,window=5] deltanet[head_dim=16] swiglu",
}
FIXED = {
    "mamba": "d=32 vocab=41 | (mamba swiglu)x2",
    "mamba2": "d=32 vocab=41 | (mamba2[head_dim=16] swiglu)x2",
    "hyena": "d=32 vocab=41 | (hyena swiglu)x2",
    "deltanet": "d=32 vocab=41 | (deltanet[head_dim=16] swiglu)x2",
}
LENGTHS = (7, 2, 11, 7, 1)
SAMPLING = {"greedy": GREEDY, "sampled": Sampling(temperature=0.8, top_k=20, top_p=0.95)}


def lively(text: str) -> torch.nn.Module:
    """Weights larger than a model starts with, so that tokens depend on what came before."""
    model = build(text, seed=3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(8.0)
    return model


def prompts(seed: int = 0) -> list[list[int]]:
    stream = torch.Generator().manual_seed(seed)
    return [torch.randint(41, (n,), generator=stream).tolist() for n in LENGTHS]


@pytest.mark.parametrize("name", {**SPECS, **FIXED})
@torch.no_grad()
def test_greedy_is_the_argmax_of_the_parallel_form(name):
    model = lively({**SPECS, **FIXED}[name])
    rows = Generation(model, prompts(), tokens=12).run().rows
    assert len({tuple(row) for row in rows}) > 1
    for prompt, row in zip(prompts(), rows, strict=True):
        scores_TV = model(torch.tensor([prompt + row]))[0, len(prompt) - 1 : -1]
        assert scores_TV.argmax(-1).tolist() == row


@pytest.mark.parametrize("sampling", SAMPLING.values(), ids=SAMPLING)
@pytest.mark.parametrize("name", SPECS)
def test_a_row_does_not_depend_on_its_neighbours(name, sampling):
    model, given = lively(SPECS[name]), prompts()
    together = Generation(model, given, tokens=12, sampling=sampling, seeds=range(5)).run().rows
    for row, prompt in enumerate(given):
        alone = Generation(model, [prompt], tokens=12, sampling=sampling, seeds=[row]).run().rows
        assert alone == [together[row]]
    turned = Generation(model, given[::-1], tokens=12, sampling=sampling, seeds=range(4, -1, -1)).run().rows
    assert turned == together[::-1]


def test_seeds():
    model, given = lively(SPECS["gla"]), [[1, 2, 3]] * 3
    runs = [
        Generation(model, given, tokens=12, sampling=Sampling(), seeds=seeds).run().rows
        for seeds in (5, [5, 6, 7], 6, [5, 5, 5])
    ]
    assert runs[0] == runs[1]
    assert runs[0][1:] == runs[2][:2]
    assert runs[3][0] == runs[3][1] == runs[0][0] != runs[0][1]
    large = Generation(model, given, tokens=12, sampling=Sampling(), seeds=10**20).run().rows
    assert len({tuple(row) for row in large}) == 3


@pytest.mark.parametrize("name", ["attn", "hybrid", "xl"])
def test_ended_rows_leave_and_the_others_go_on(name):
    model, given = lively(SPECS[name]), prompts()
    free = Generation(model, given, tokens=12).run().rows
    end = {free[0][4]}
    generation = Generation(model, given, tokens=12, end=end).run()
    for row, full in enumerate(free):
        cut = next((place + 1 for place, token in enumerate(full) if token in end), None)
        assert generation.rows[row] == full[:cut]
        assert generation.ended(row) == (cut is not None)
    assert any(len(row) == 12 for row in generation.rows)


def test_tokens_stream_as_they_are_made():
    model = lively(SPECS["attn"])
    generation = Generation(model, prompts(), tokens=4)
    events = iter(generation)
    first = [next(events) for _ in LENGTHS]
    assert sorted(event.row for event in first) == list(range(len(LENGTHS)))
    assert [len(row) for row in generation.rows] == [1] * len(LENGTHS)
    rest = list(events)
    assert len(rest) == 3 * len(LENGTHS)
    with pytest.raises(UserError, match="has been run"):
        generation.run()


def test_the_mode_of_the_model_is_given_back():
    model = lively(SPECS["attn"]).train()
    events = iter(Generation(model, [[1]], tokens=2))
    next(events)
    assert not model.training
    list(events)
    assert model.training


@pytest.mark.parametrize("name", FIXED)
def test_fixed_states_stay_as_large_as_they_are(name):
    model = lively(FIXED[name])
    short = Generation(model, [[1] * 3], tokens=2).run()
    long = Generation(model, [[1] * 30], tokens=60).run()
    assert long.peak_state_bytes == short.peak_state_bytes == long.state_bytes > 0


def test_a_cache_grows():
    model = lively(SPECS["attn"])
    sizes = [Generation(model, [[1] * 3], tokens=n).run().peak_state_bytes for n in (2, 12)]
    per_token = 2 * 2 * 32 * 4  # layers, keys and values, width, bytes
    assert sizes[1] - sizes[0] == 10 * per_token


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompts": []}, "no prompt"),
        ({"prompts": [[1], []]}, "prompt 2 is empty"),
        ({"prompts": [[1, 41]]}, "token 41"),
        ({"tokens": -1}, "tokens=-1"),
        ({"seeds": [1, 2]}, "2 seeds for 1 prompts"),
        ({"tokens": 65}, "ask for 64"),
        ({"forget": 1e-4}, "no layer of this model forgets"),
    ],
)
def test_senseless_requests_are_refused(change, message):
    with pytest.raises(UserError, match=message):
        Generation(build(SPECS["gpt2"]), **{"prompts": [[1]], "tokens": 3, **change})


def test_an_encoder_does_not_generate():
    with pytest.raises(UserError, match="kind=encoder"):
        Generation(build("d=32 vocab=41 kind=encoder | attn[heads=2,causal=false] mlp"), [[1]], tokens=3)


def test_no_tokens_asked_for():
    assert Generation(build(SPECS["attn"]), [[1]], tokens=0).run().rows == [[]]


@pytest.mark.parametrize("name", {**SPECS, **FIXED})
def test_states_in_buffers_give_the_same_rows_though_some_end_early(name):
    model = lively({**SPECS, **FIXED}[name])
    usual, buffered = (Generation(model, prompts(), tokens=20, end=(3, 7, 11)) for _ in range(2))
    buffered.buffered = True
    assert buffered.run().rows == usual.run().rows
