"""Every mixer of the table keeps the same contract, the clauses of `plait check`, with default and other options."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from _pytest.mark import ParameterSet

from plait.mixers.table import names
from plait.model.contract import CHECKS, compiles, run_checks
from plait.model.user_mixers import load_mixer

# Beside every mixer's defaults: options that take another way through its code.
VARIANTS = [
    "attn[heads=4,kv_heads=2,window=9]",
    "attn[heads=4,pos=alibi,bias]",
    "attn[heads=4,pos=none,causal=false]",
    "attn[heads=3,head_dim=10,qk_norm=shared]",
    "attn[heads=4,kv_heads=2,sinks,window=9,head_gate]",
    "attn[heads=4,sinks,rotary=0.25]",
    "attn[heads=4,qkv_bias,rope_scaling=llama3,rope_factor=4,rope_len=16,theta=50]",
    "attn[heads=4,rope_scaling=yarn,rope_factor=4,rope_len=16,rope_high=8,theta=50]",
    "gla[heads=4,conv=4,out_gate=sigmoid]",
    "deltanet[head_dim=16,neg_eigval]",
    "gated-deltanet[head_dim=16,neg_eigval,out_gate=sigmoid]",
    "gated-deltanet[head_dim=16,out_gate=none]",
    "moe[experts=4,active=2,inner=24,shared=1,router=sigmoid,bias,scale=2.5]",
    "mlp[inner=40,act=relu2]",
    "fox[heads=4,qk_norm=per-head,out_gate,out_norm,kv_shift]",
    "fox[heads=4,forget=bias-only]",
    "fox[heads=4,forget=fixed,pos=rope]",
    "fox[heads=4,forget=none,kv_shift]",
    "xl-attn[heads=4,head_dim=6,clamp=5,window=11,shared_bias]",
    "deltaproduct[head_dim=16,steps=3,neg_eigval=false,forget,out_gate=silu]",
    "kda[heads=3,head_dim=16,neg_eigval,out_gate=none]",
    "kda[head_dim=32,write=channel,out_gate=silu]",
    "rwkv7[head_dim=16,neg_eigval]",
    "mamba3[state=16,head_dim=32,rotate=1]",
    "mamba3[state=16,head_dim=32,rotate=0,groups=2,rank=3]",
    "mamba3[state=16,head_dim=32,rotate=1,turn=held]",
    "cross-attn[heads=4,head_dim=6,pos=none,bias]",
    "gmu[norm,expand=1.5]",
    "zamba2[heads=4,lora=5,lora_attn,inner=24,head_dim=32,groups=2,pos=none]",
    "attn[heads=4,share=a]",
    "retnet[decay=alibi,act=silu,out_gate=sigmoid,expand_v=1,pos=none,head_dim=12]",
    "mla[heads=4,q_rank=24,out_gate=per-head,pos=none,v_dim=32]",
    "mla[heads=4,out_gate=per-element,kv_rank=9,nope_dim=20]",
    "mlp[inner=40,act=relu,bias=false]",
    "moe[experts=3,active=1,inner=24]",
    "attn[heads=4,kv_heads=2,window=9,canon=ab]",
    "fox[heads=4,kv_shift,canon=b]",
    "gla[heads=4,conv=4,canon=ab]",
    "linear[heads=4,canon=ab]",
    "mamba2[canon=a]",
    "mlp[inner=40,canon=cd]",
    "swiglu[canon=d]",
    "moe[experts=4,active=2,inner=24,canon=c]",
    "(attn[heads=4] | gla[heads=4,canon=a])[norm]",
    "(attn[heads=4,canon=b] | mlp[inner=40] | rwkv7[head_dim=16])[canon=a]",
    "sparse-attn[heads=4,kv_heads=2,top=9,index_heads=2,index_dim=6]",
    "sparse-attn[heads=4,kv_heads=2,select=moba,top=12,block=4]",
    "sparse-attn[heads=4,select=moba,top=5,block=5,pos=none]",
    "sparse-attn[heads=4,kv_heads=2,select=nsa,top=12,block=4,window=7]",
]
# Tracing a mixer's backward, too, takes five times as long as finding its graph. Every run does it for one mixer of
# each kind (operations with a backward of their own are compiled in tests/ops), `make test-all` for all.
TRACED = ["attn", "gla", "deltanet", "mamba", "hyena", "moe"]
FOUND = {**CHECKS, "torch.compile": partial(compiles, backend="eager"), "torch.compile, backward": compiles}


def cases() -> Iterator[ParameterSet]:
    for mixer in [*names(), *VARIANTS]:
        for check in FOUND:
            slow = check == "torch.compile, backward" and mixer not in TRACED
            slow |= check == "torch.compile" and mixer in VARIANTS
            yield pytest.param(mixer, check, marks=[pytest.mark.slow] if slow else [])


@pytest.mark.parametrize(("mixer", "check"), list(cases()))
def test_clause(mixer, check):
    options = load_mixer(mixer)
    # Mixers whose heads are 128 wide by default need that width.
    d = 128 if getattr(options, "head_dim", 0) >= 128 or mixer == "mamba2" else 64
    (verdict,) = run_checks(options, d=d, checks={check: FOUND[check]})
    assert verdict.status != "fail", verdict.detail
    if verdict.status == "skip":
        assert options.bidirectional or options.name == "identity"
