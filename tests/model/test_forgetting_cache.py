"""What is dropped cannot matter: the bound holds for the worst query, over a long continuation, call after call."""

from __future__ import annotations

import math

import pytest
import torch

from plait.core.errors import UserError
from plait.model import build
from plait.model.forgetting_cache import drop_forgotten, forgotten, possible_queries
from plait.model.generation import Generation, Sampling

PRO = "fox[heads=4,qk_norm=per-head,out_gate,out_norm,kv_shift]"
KINDS = {
    "pro": PRO,
    "shared norm": "fox[heads=4,qk_norm=shared]",
    "no qk-norm": "fox[heads=4]",
    "grouped, shifted": "fox[heads=4,kv_heads=2,kv_shift]",
    "rotary": "fox[heads=4,pos=rope]",
    "biased": "fox[heads=4,bias]",
    "bias-only gates": "fox[heads=4,forget=bias-only,t_max=3]",
    "alibi": "attn[heads=4,pos=alibi]",
    "window": "fox[heads=4,window=90]",
}
LAYER_NORM = "norm=layer"


def model_of(layer: str, header: str = "", gate: float = 0.0, layers: int = 1):
    model = build(f"d=32 vocab=29 {header} | ({layer} mlp)x{layers}", seed=1, dtype=torch.float64)
    stream = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():  # every weight, bias and norm matters
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=stream, dtype=torch.float64))
        for block in model.backbone.blocks:
            if hasattr(block.mixer, "forget_gate"):
                # The first head is the slowest to forget, so that it, not the last, must decide.
                block.mixer.forget_gate.bias.copy_(gate + torch.linspace(1, -1, 4))
            if hasattr(block.mixer, "slopes_H"):
                block.mixer.slopes_H.mul_(60)  # the gentlest slope, 2⁻⁸, needs thousands of tokens to forget
    return model


def tokens_of(batch: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(29, (batch, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", [*KINDS, "layer norm"])
@torch.no_grad()
def test_no_possible_query_gives_the_dropped_more_than_the_bound(kind):
    """Future queries made as hostile as the layer allows: its inputs are turned towards the dropped keys."""
    layer, header = (KINDS["biased"], LAYER_NORM) if kind == "layer norm" else (KINDS[kind], "")
    model = model_of(layer, header)
    block, bound = model.backbone.blocks[0], 1e-3
    mixer = block.mixer
    _, state = model.extend(tokens_of(2, 80), model.init_state(2))
    held = state.layers[0]
    lost_B = forgotten(block, held, bound)
    assert lost_B.min() > 5, "nothing to test"
    assert lost_B.max() < 80
    heads_of = torch.arange(mixer.heads) * mixer.groups // mixer.heads
    k_BNHP = held["k"][:, :, heads_of]
    worst = 0.0
    for row, lost in enumerate(lost_B.tolist()):
        for target in range(lost):
            wish_HP = k_BNHP[row, target] - k_BNHP[row, -1]
            for head in range(mixer.heads):
                x_D = hostile_input(block, wish_HP, head)
                q_HP, k_HP = query_and_key(mixer, block.norm(x_D), held, row)
                s_NH = (torch.cat([k_BNHP[row], k_HP[None]]) * q_HP).sum(-1) / math.sqrt(mixer.width)
                p_N = (s_NH - age_penalty(mixer, held, row))[:, head].softmax(0)
                worst = max(worst, p_N[:lost].sum().item())
    assert worst <= bound
    assert worst > 1e-9, "the queries are not hostile at all"


def hostile_input(block, wish_HP, head):
    """An input of the layer whose query of one head points along its wish."""
    mixer = block.mixer
    inner = mixer.heads * mixer.width
    weight_PD = mixer.qkv.weight[:inner].unflatten(0, (mixer.heads, mixer.width))[head]
    pull_P = wish_HP[head]
    if mixer.query_norm is not None:
        return (
            100.0
            * torch.linalg.pinv(weight_PD * block.norm.weight)
            @ (mixer.query_norm.weight.expand(mixer.heads, -1)[head] * pull_P)
        )
    return 100.0 * block.norm.weight * (pull_P @ weight_PD)


def query_and_key(mixer, x_D, held, row):
    q, k, v = mixer._split(mixer._joint(x_D[None, None], {}))
    if mixer.kv_shift is not None:
        tails = (held[tail][row : row + 1, -1:] for tail in ("k_tail", "v_tail"))
        k, _ = mixer._shift(x_D[None, None], k, v, *tails)
    at = held["pos"][row : row + 1, None]
    q, k = mixer._placed(q, mixer.query_norm, at), mixer._placed(k, mixer.key_norm, at)
    return q[0, 0], k[0, 0, torch.arange(mixer.heads) * mixer.groups // mixer.heads]


def age_penalty(mixer, held, row):
    """−(c_i − c_j) for every entry j and the new token itself, the gate of the new token wide open (f = 1)."""
    penalty = torch.zeros(held["k"].shape[1] + 1, mixer.heads, dtype=torch.float64)
    if "log_f" in held:
        c = held["log_f"][row].double().cumsum(0)
        penalty[:-1] -= c[-1] - c
    if mixer.pos == "alibi":
        age = torch.arange(len(penalty) - 1, -1, -1)[:, None]
        penalty += mixer.slopes_H * age
    return penalty


@pytest.mark.parametrize("kind", ["pro", "shared norm", "no qk-norm", "biased"])
@torch.no_grad()
def test_the_ellipsoid_is_reached(kind):
    """The bound on q·Δ is not merely true but attained, so nothing is kept for no reason."""
    block = model_of(KINDS[kind]).backbone.blocks[0]
    delta_P = torch.randn(8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    reach = possible_queries(block).reach(delta_P[None, None], 1, turning=False).item()
    found = (query(block, hostile_input(block, delta_P.expand(4, 8), 1))[1] @ delta_P).item()
    assert found == pytest.approx(reach, rel=1e-5)  # a norm's eps takes a little
    assert found <= reach * (1 + 1e-12)


@torch.no_grad()
def test_a_turned_query_reaches_its_longest_axis():
    block = model_of(KINDS["rotary"]).backbone.blocks[0]
    queries = possible_queries(block)
    axis_P = torch.linalg.eigh(queries.gram_HPP[1])[1][:, -1]
    q_HP = query(block, hostile_input(block, axis_P.expand(4, 8), 1), position=5)
    reach = queries.reach(q_HP[1][None, None], 1, turning=True).item()
    assert (q_HP[1] @ q_HP[1]).item() == pytest.approx(reach)


@torch.no_grad()
def test_a_layer_norm_adds_its_bias_to_the_reach():
    block = model_of(KINDS["biased"], LAYER_NORM).backbone.blocks[0]
    stream = torch.Generator().manual_seed(0)
    queries, delta_P = possible_queries(block), torch.randn(8, dtype=torch.float64, generator=stream)
    inputs_ND = 50 * torch.randn(500, 32, dtype=torch.float64, generator=stream)
    found = torch.stack([query(block, x_D)[2] for x_D in inputs_ND]) @ delta_P
    assert found.max() <= queries.reach(delta_P[None, None], 2, turning=False).item()
    middle = block.mixer._split(block.mixer._joint(block.norm.bias[None, None], {}))[0][
        0, 0
    ]  # what the norm gives for no input at all
    torch.testing.assert_close(queries.offset_HP, middle)


def query(block, x_D, position=0):
    q, _, _ = block.mixer._split(block.mixer._joint(block.norm(x_D)[None, None], {}))
    return block.mixer._placed(q, block.mixer.query_norm, torch.tensor([[position]]))[0, 0]


@pytest.mark.parametrize("gate", [0.9, 0.7])
@torch.no_grad()
def test_with_equal_keys_the_prefix_is_exactly_the_longest(gate):
    """Where keys do not matter, a dropped prefix of n has Σ_{j<n} f^(m−j): the sum counts, not the largest term."""
    model, bound, held = model_of(KINDS["grouped, shifted"]), 1e-3, 150
    block = model.backbone.blocks[0]
    layer = {
        "k": torch.ones(1, held, 2, 8, dtype=torch.float64),
        "v": torch.ones(1, held, 2, 8, dtype=torch.float64),
        "log_f": torch.full((1, held, 4), math.log(gate), dtype=torch.float64),
    }
    weights = [gate ** (held - 1 - j) for j in range(held)]
    longest = max(n for n in range(held) if sum(weights[:n]) <= bound)
    assert forgotten(block, layer, bound).tolist() == [longest]
    # One key of the first group far from the newest: heads 0 and 1, which share it, could look for it.
    layer["k"][0, longest - 1, 0] = 100.0
    assert forgotten(block, layer, bound).tolist() == [longest - 1]
    layer["log_f"][..., :2] = -50.0  # they forget at once; heads 2 and 3 read the other group
    assert forgotten(block, layer, bound).tolist() == [longest]


@pytest.mark.parametrize("kind", ["pro", "no qk-norm", "alibi", "window"])
@torch.no_grad()
def test_dropping_again_and_again_stays_within_one_bound(kind):
    """A long continuation with a drop every 16 tokens: each head's output moves ≤ 2 · bound · max‖v‖."""
    model, bound = model_of(KINDS[kind]), 1e-3
    mixer = model.backbone.blocks[0].mixer
    tokens_BT = tokens_of(2, 400)
    _, state = model.extend(tokens_BT[:, :50], model.init_state(2))
    whole, dropped_entries, worst = state, 0, 0.0
    seen = {}
    original = mixer._combine
    mixer._combine = lambda x, mixed: (seen.__setitem__("mixed", mixed), original(x, mixed))[1]
    for t in range(50, 400):
        if t % 16 == 2:
            state, dropped = drop_forgotten(model, state, bound)
            dropped_entries += dropped.entries
        _, whole = model.step(tokens_BT[:, t], whole)
        exact = seen["mixed"]
        _, state = model.step(tokens_BT[:, t], state)
        largest = whole.layers[0]["v"].norm(dim=-1).max()
        worst = max(worst, ((seen["mixed"] - exact).norm(dim=-1).max() / largest).item())
    assert dropped_entries > 300
    assert 0 < worst <= 2 * bound
    assert state.nbytes < 0.7 * whole.nbytes or kind == "window"


@torch.no_grad()
def test_scores_of_a_deep_model_hardly_move():
    model = model_of(PRO, layers=3)
    tokens_BT = tokens_of(2, 300)
    _, state = model.extend(tokens_BT[:, :100], model.init_state(2))
    whole, gap = state, 0.0
    for t in range(100, 300):
        if t % 32 == 4:
            state, _ = drop_forgotten(model, state, 1e-6)
        expected, whole = model.step(tokens_BT[:, t], whole)
        scores, state = model.step(tokens_BT[:, t], state)
        gap = max(gap, (scores - expected).abs().max().item())
    assert 0 < gap < 1e-4
    assert state.nbytes < 0.7 * whole.nbytes


@torch.no_grad()
def test_each_row_forgets_by_itself():
    """Rows that may drop different amounts: the common part leaves memory, the rest becomes padding."""
    model = model_of(PRO)
    long, short = tokens_of(1, 120, seed=1), tokens_of(1, 40, seed=2)
    states = [model.extend(row, model.init_state(1))[1] for row in (long, short)]
    together, _ = drop_forgotten(model, model.merge(states), 1e-4)
    alone = [drop_forgotten(model, state, 1e-4)[0] for state in states]
    real = (together.layers[0]["k"].shape[1] - together.layers[0]["pad"]).tolist()
    assert real == [state.layers[0]["k"].shape[1] for state in alone]
    more_B = torch.tensor([3, 4])
    scores, _ = model.step(more_B, together)
    for row, state in enumerate(alone):
        torch.testing.assert_close(scores[row : row + 1], model.step(more_B[row : row + 1], state)[0])


@torch.no_grad()
def test_the_report_counts_what_left_and_the_old_state_stays_good():
    model = model_of(PRO, layers=2)
    tokens_BT = tokens_of(3, 100)
    _, before = model.extend(tokens_BT, model.init_state(3))
    after, dropped = drop_forgotten(model, before, 1e-4)
    lengths = [(b["k"].shape[1], a["k"].shape[1]) for b, a in zip(before.layers, after.layers, strict=True) if "k" in b]
    assert dropped.entries == sum(3 * (b - a) for b, a in lengths) > 0
    pads = sum(layer["pad"].nbytes for layer in after.layers if "pad" in layer)
    assert dropped.bytes == before.nbytes - after.nbytes + pads
    assert before.layers[0]["k"].shape[1] == 100
    assert after.pos_B.tolist() == before.pos_B.tolist()


@torch.no_grad()
def test_open_gates_forget_nothing():
    model = model_of(PRO, gate=20.0)
    _, state = model.extend(tokens_of(1, 200), model.init_state(1))
    after, dropped = drop_forgotten(model, state, 1e-2)
    assert dropped.entries == 0
    assert after.nbytes == state.nbytes


def test_the_generator_drops_and_reports():
    model = model_of(PRO, layers=2)
    given = [list(range(9)) * 12, list(range(20))]
    options = {"tokens": 80, "sampling": Sampling(0.9), "seeds": [3, 4]}
    whole = Generation(model, given, **options).run()
    lean = Generation(model, given, **options, forget=1e-6, forget_every=16).run()
    assert lean.rows == whole.rows
    assert lean.dropped.entries > 100
    assert lean.dropped.bytes > 0
    assert lean.state_bytes < 0.8 * whole.state_bytes
    alone = [
        Generation(model, [prompt], **{**options, "seeds": [seed]}, forget=1e-2, forget_every=16).run().rows[0]
        for prompt, seed in zip(given, (3, 4), strict=True)
    ]
    assert alone == Generation(model, given, **options, forget=1e-2, forget_every=16).run().rows


@pytest.mark.parametrize("bound", [0.0, 1.0, -1.0, math.nan])
def test_a_bound_is_a_probability(bound):
    model = model_of(PRO)
    with pytest.raises(UserError, match="forget="):
        drop_forgotten(model, model.init_state(1), bound)
