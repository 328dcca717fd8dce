"""A training small enough for a test, of any kind."""

from __future__ import annotations

from typing import Any

from plait.data import open_corpus
from plait.training.recipe import Budget, Job, Recipe, fitted

SPECS = {
    "attn": "d=16 | attn[heads=2] swiglu[inner=24]",
    "tied": "d=16 tie=true | attn[heads=2] swiglu[inner=24]",
    "moe": "d=16 | gla[heads=2] moe[experts=3,active=2,inner=8]",
    "xl": "d=16 | (xl-attn[heads=2,shared_bias=true] mlp[inner=24])x2",
    "encoder": "d=16 kind=encoder | attn[heads=2,causal=false] mlp[inner=24]",
    "pairs": "d=16 kind=encoder segments=2 | attn[heads=2,causal=false] mlp[inner=24]",
    "mamba": "d=16 | mamba[state=2]",
    # What tensor parallelism cuts in each of its ways, beside what every process has.
    "fox-pro": "d=16 | fox[heads=4,kv_heads=2,kv_shift=true,qk_norm=per-head,out_norm=true,out_gate=true] swiglu",
    "shared-norm": "d=16 tie=true | attn[heads=4,qk_norm=shared,qkv_bias=true] mlp[bias=true] gla[heads=2] swiglu",
    "canon": "d=16 | attn[heads=4,canon=ab,pos=alibi,head_gate=true] swiglu[inner=24,canon=cd]",
    "moe-swiglu": "d=16 | gla[heads=2] moe[experts=3,active=2,inner=8] hyena swiglu[inner=24]",
    "sinks": "d=16 | (attn[heads=2,sinks=true,share=one] mlp[inner=24])x2 fox[heads=2,forget=bias-only]",
}


def small_job(kind: str = "attn", steps: int = 12, *, seed: int = 0, validation: int = 512, **values: Any) -> Job:
    corpus = open_corpus("builtin:language")
    needed = {"xl": {"memory": 12}, "pairs": {"next_sentence": True}}.get(kind, {})
    recipe = Recipe(batch=4, seq_len=24, lr=1e-2).with_values({**needed, **values})
    return Job(fitted(SPECS[kind], corpus), corpus, recipe, Budget(steps=steps), seed, validation_tokens=validation)
