"""Attention to a few chosen keys, against the papers' definitions written out query by query."""

from __future__ import annotations

import math

import pytest
import torch

from plait.core.errors import UserError
from plait.mixers.mixer import make_mixer
from plait.model.architecture import options_of
from plait.model.language_model import seed_mixer
from plait.ops.sparse_attention import best
from plait.spec import parse

D, T = 16, 29


def mixer(text):
    made = make_mixer(options_of(parse(text).layers[0]), D).double()
    seed_mixer(made, seed=0, std=0.4)
    return made


def heads(made, x_TD):
    q, k, v = made._project(x_TD[None], None)
    return q[0], k[0], v[0]


def attend(q_P, k_NP, v_NP):
    return (k_NP @ q_P / math.sqrt(len(q_P))).softmax(0) @ v_NP


@torch.no_grad()
def test_tokens_of_the_learned_index():
    made, x = mixer("sparse-attn[heads=2,kv_heads=1,top=5,index_heads=3,index_dim=4]"), torch.randn(T, D).double()
    q, k, v = heads(made, x)
    qi, ki, w = (part[0] for part in made.index(x[None], None))
    out = torch.zeros(T, 2, 8, dtype=torch.float64)
    for t in range(T):
        scores = [float(sum(w[t, j] * (qi[t, j] @ ki[s]).relu() for j in range(3))) for s in range(t + 1)]
        chosen = sorted(range(t + 1), key=lambda s: (-scores[s], -s))[:5]
        for h in range(2):
            out[t, h] = attend(q[t, h], k[chosen, 0], v[chosen, 0])
    torch.testing.assert_close(made(x[None])[0], made.output(out.flatten(1)))


def test_mobas_blocks():
    made, x = mixer("sparse-attn[heads=2,select=moba,top=12,block=4]"), torch.randn(T, D).double()
    q, k, v = heads(made, x)
    out = torch.zeros(T, 2, 8, dtype=torch.float64)
    for t in range(T):
        own = t // 4
        for h in range(2):
            gate = {i: float(q[t, h] @ k[4 * i : 4 * i + 4, h].mean(0)) for i in range(own)}
            blocks = [*sorted(gate, key=lambda i: -gate[i])[:2], own]
            chosen = [s for s in range(t + 1) if s // 4 in blocks]
            out[t, h] = attend(q[t, h], k[chosen, h], v[chosen, h])
    torch.testing.assert_close(made(x[None])[0], made.output(out.flatten(1)))


def test_nsas_three_kinds():
    made = mixer("sparse-attn[heads=4,kv_heads=2,head_dim=4,select=nsa,top=8,block=4,window=6]")
    x = torch.randn(T, D).double()
    q, k, v = heads(made, x)
    gates = made.gates(x).sigmoid().view(T, 3, 4)
    out = torch.zeros(T, 4, 4, dtype=torch.float64)
    for t in range(T):
        own = t // 4
        for g in range(2):
            k_mean = torch.stack([k[4 * i : 4 * i + 4, g].mean(0) for i in range(own)]) if own else None
            v_mean = torch.stack([v[4 * i : 4 * i + 4, g].mean(0) for i in range(own)]) if own else None
            weights = [] if k_mean is None else [(k_mean @ q[t, h] / 2).softmax(0) for h in (2 * g, 2 * g + 1)]
            blocks = [own] if not own else [int((weights[0] + weights[1]).argmax()), own]
            chosen = [s for s in range(t + 1) if s // 4 in blocks]
            near = slice(max(0, t - 5), t + 1)
            for at, h in enumerate((2 * g, 2 * g + 1)):
                coarse = weights[at] @ v_mean if own else torch.zeros(4, dtype=torch.float64)
                fine = attend(q[t, h], k[chosen, g], v[chosen, g])
                window = attend(q[t, h], k[near, g], v[near, g])
                out[t, h] = gates[t, 0, h] * coarse + gates[t, 1, h] * fine + gates[t, 2, h] * window
    torch.testing.assert_close(made(x[None])[0], made.output(out.flatten(1)))


def test_with_room_for_all_keys_it_is_attention():
    x = torch.randn(2, T, D).double()
    sparse, whole = mixer("sparse-attn[heads=2,top=64]"), mixer("attn[heads=2]")
    whole.load_state_dict({name: p for name, p in sparse.state_dict().items() if not name.startswith("index")})
    torch.testing.assert_close(sparse(x), whole(x))


def test_of_equal_scores_the_newest_is_chosen_however_many_there_are():
    for size in (5, 300, 3000):
        scores = torch.zeros(2, size)
        scores[:, 1] = 1.0
        assert best(scores, 3).tolist() == [[1, size - 1, size - 2]] * 2


def test_training_teaches_the_index_what_attention_looks_at():
    made, x = mixer("sparse-attn[heads=2,top=6,index_heads=2,index_dim=4]"), torch.randn(2, T, D).double()
    x.requires_grad_()
    y, loss = made.forward_with_loss(x)
    torch.testing.assert_close(y, made(x))
    through_index, through_input = torch.autograd.grad(
        loss, [made.index.input.weight, made.qkv.weight], allow_unused=True
    )
    assert through_index.abs().max() > 0
    assert through_input is None
    rate = torch.optim.Adam(made.index.parameters(), lr=1e-2)
    for _ in range(60):
        rate.zero_grad()
        _, now = made.forward_with_loss(x)
        now.backward()
        rate.step()
    assert 0 <= float(now) < 0.8 * float(loss)


def test_one_token_reads_its_chosen_keys_and_no_others():
    for text in ("sparse-attn[heads=2,top=4]", "sparse-attn[heads=2,select=moba,top=8,block=4]"):
        made, x = mixer(text), torch.randn(1, T, D).double()
        _, state = made.extend(x[:, :-1], made.init_state(1))
        y, _ = made.step(x[:, -1], state)
        poisoned = 0
        for at in range(T - 1):
            held = dict(state) | {"v": state["v"].index_fill(1, torch.tensor([at]), torch.nan)}
            again, _ = made.step(x[:, -1], held)
            poisoned += bool(again.isnan().any())
            assert again.isnan().any() or torch.equal(again, y)
        assert poisoned <= 7 * 2  # keys of both heads at most, the token's own not counted


def test_blocks_must_fit():
    with pytest.raises(UserError, match="not a multiple of block"):
        options_of(parse("sparse-attn[select=moba,top=10,block=4]").layers[0]).check(64)
