"""Open models by name: widely used architectures, at the sizes published by their authors.

`PUBLISHED` has the parameters that model cards and reports give, total and active in millions, to the digits they give.
Features that a spec leaves out (single biases, norms after a layer, multi-token prediction) are noted in its line.

Two families are common baselines. GPT-2 (Radford et al. 2019), Table 2: four sizes. Parameters: 124,439,808;
354,823,168; 774,030,080; 1,557,611,200 (the paper prints smaller, miscounted figures).

OPT (Zhang et al. 2022, arXiv:2205.01068), Table 1: all sizes but 350M. From the paper: layers, width, heads, ReLU,
inner width 4 d. From its published weights: norms before the layers, a vocabulary of 50272, 2048 learned positions,
tied tables, biases everywhere. (The weights have two more rows of positions, which no token uses.) Their 350M model
differs: norms after the layers, embeddings of 512.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from plait.spec.presets import Catalog, Preset

#: name → (total, active) parameters in millions, as published; active is None if all are.
PUBLISHED: dict[str, tuple[float, float | None]] = {
    "smollm2-135m": (134.515, None),
    "smollm2-360m": (361.821, None),
    "smollm2-1.7b": (1711.376, None),
    "llama-3.2-1b": (1235.814, None),
    "llama-3.1-8b": (8030.261, None),
    "mistral-7b": (7241.732, None),
    "qwen2.5-1.5b": (1543.714, None),
    "qwen3-0.6b": (596.05, None),
    "qwen3-8b": (8190.735, None),
    "gemma-3-1b": (999.886, None),
    "mamba-130m": (129.135, None),
    "mamba2-1.3b": (1340, None),
    "mamba3-187m": (187, None),
    "mamba3-1.5b": (1500, None),
    "rwkv-7-1.5b": (1527, None),
    "gpt-oss-20b": (20_910, 3_610),
    "gpt-oss-120b": (116_830, 5_130),
    "nemotron-h-8b": (8_100, None),
    "nemotron-nano-2-12b": (12_310, None),
    "olmo-hybrid-7b": (7_000, None),
    "falcon-h1-7b": (7_590, None),
    "hymba-1.5b": (1_520, None),
    "samba-421m": (421, None),
    "sambay-3.8b": (3_850, None),
    "zamba2-1.2b": (1215.065, None),
    "zamba2-2.7b": (2662.215, None),
    "zamba2-7b": (7356.750, None),
    "qwen3-next": (80_000, 3_000),
    "kimi-linear": (48_000, 3_000),
    "minimax-01": (456_000, 45_900),
    "deepseek-v3": (671_000, 37_000),
}


def _dense(d: int, layers: int, attention: str, inner: int, vocab: int, header: str = "") -> str:
    return f"d={d} vocab={vocab} {header} | (attn[{attention}] swiglu[inner={inner}])x{layers}"


def _gqa(heads: int, kv_heads: int, theta: int, more: str = "") -> str:
    return f"heads={heads},kv_heads={kv_heads},theta={theta}{more}"


def _llama3(factor: int) -> str:
    """Rotary frequencies scaled for 131,072 tokens, from 8,192."""
    return f",rope_scaling=llama3,rope_factor={factor},rope_len=8192"


_QK_NORM = ",head_dim=128,qk_norm=shared,qk_eps=1e-6"


def _gemma() -> str:
    local, whole = (
        f"attn[heads=4,kv_heads=1,head_dim=256,qk_norm=shared,qk_eps=1e-6,theta={theta}{window}] swiglu[inner=6912]"
        for theta, window in ((10_000, ",window=512"), (1_000_000, ""))
    )
    return f"d=1152 vocab=262144 tie=true embed_scale=true eps=1e-6 | (({local})x5 {whole})x4 ({local})x2"


def _gpt_oss(layers: int, experts: int) -> str:
    attention = "heads=64,kv_heads=8,head_dim=64,theta=150000,bias,sinks"
    moe = f"moe[experts={experts},active=4,inner=2880]"
    return f"d=2880 vocab=201088 | (attn[{attention},window=128] {moe} attn[{attention}] {moe})x{layers // 2}"


def _nemotron_h() -> str:
    mamba, attention = "mamba2[groups=8,state=128,head_dim=64]", "attn[heads=32,kv_heads=8,pos=none]"
    mlp = "mlp[inner=21504,act=relu2,bias=false]"
    first, middle = f"({mamba} {mlp})x3 {mamba} {attention} {mlp}", f"({mamba} {mlp})x4 {mamba} {attention} {mlp}"
    return f"d=4096 vocab=131072 | {first} ({middle})x3 ({mamba} {mlp})x5"


def _nemotron_nano() -> str:
    mamba, mlp = "mamba2[groups=8,state=128,head_dim=80]", "mlp[inner=20480,act=relu2,bias=false]"
    attention = "attn[heads=40,kv_heads=8,pos=none]"
    block = f"({mamba} {mlp})x3 {mamba} {attention} {mlp}"
    return f"d=5120 vocab=131072 | ({block})x6 ({mamba} {mlp})x4"


def _olmo_hybrid() -> str:
    gdn = "gated-deltanet[heads=30,head_dim=96,expand_v=1.5,neg_eigval]"
    attention, mlp = "attn[heads=30,qk_norm=per-head,qk_eps=1e-6,pos=none]", "swiglu[inner=11008]"
    return f"d=3840 vocab=100352 eps=1e-6 | (({gdn} {mlp})x3 {attention} {mlp})x8"


def _falcon_h1() -> str:
    heads = "(attn[heads=12,kv_heads=2,head_dim=128,theta=1e11] | mamba2[expand=1,state=256,head_dim=128])"
    return f"d=3072 vocab=130048 | ({heads} swiglu[inner=12288])x44"


def _hymba() -> str:
    local, whole = (
        f"(attn[heads=25,kv_heads=5{window}] | mamba)[norm] swiglu[inner=5504]" for window in (",window=1024", "")
    )
    return f"d=1600 vocab=32001 tie=true eps=1e-6 | {whole} ({local})x14 {whole} ({local})x15 {whole}"


def _samba() -> str:
    mlp = "swiglu[inner=4096]"
    return f"d=1536 vocab=32000 tie=true eps=1e-5 | (mamba {mlp} attn[heads=12,window=2048] {mlp})x6"


def _sambay() -> str:
    """Phi-4-mini-flash: the second half reads one Mamba's memory and one attention layer's keys and values."""
    heads, mlp = "heads=40,kv_heads=20,head_dim=64,pos=none,bias", "swiglu[inner=10240]"
    first = f"(mamba {mlp} attn[{heads},window=512] {mlp})x8 mamba {mlp} attn[{heads}] {mlp}"
    second = f"(gmu {mlp} cross-attn[heads=40,head_dim=64,pos=none,bias] {mlp})x7"
    return f"d=2560 vocab=200064 tie=true norm=layer eps=1e-5 | {first} {second}"


def _zamba2(d: int, runs: tuple[int, ...], names: str, mamba: str, block: str) -> str:
    """Runs of Mamba-2 layers, the shared blocks called in turn between them."""
    calls = [f"zamba2[{mamba},heads=32,lora=128{block},share={names[i % len(names)]}]" for i in range(len(runs) - 1)]
    between = [f"(mamba2[{mamba}])x{run} {call}" for run, call in zip(runs, calls, strict=False)]
    return f"d={d} vocab=32000 tie=true eps=1e-5 | {' '.join(between)} (mamba2[{mamba}])x{runs[-1]}"


def _qwen3_next() -> str:
    moe = "moe[experts=512,active=10,inner=512,shared=1]"
    attention = "attn[heads=16,kv_heads=2,head_dim=256,rotary=0.25,theta=10000000,qk_norm=shared,qk_eps=1e-6,out_gate]"
    gdn = "gated-deltanet[head_dim=128,expand_v=2]"
    return f"d=2048 vocab=151936 eps=1e-6 | (({gdn} {moe})x3 {attention} {moe})x12"


def _kimi_linear() -> str:
    moe = "moe[experts=256,active=8,inner=1024,shared=1,router=sigmoid,bias,scale=2.446]"
    mla = "mla[heads=32,kv_rank=512,nope_dim=128,rope_dim=64,v_dim=128,pos=none]"
    kda = "kda[heads=32,head_dim=128]"
    layers = f"{kda} swiglu[inner=9216] ({kda} {moe})x2 {mla} {moe} (({kda} {moe})x3 {mla} {moe})x5"
    return f"d=2304 vocab=163840 | {layers} ({kda} {moe})x2 {mla} {moe}"


def _minimax() -> str:
    moe, heads = "moe[experts=32,active=2,inner=9216]", "heads=64,head_dim=128"
    lightning = f"retnet[{heads},decay=alibi,act=silu,out_gate=sigmoid,expand_v=1,pos=none]"
    softmax = f"attn[{heads},kv_heads=8,rotary=0.5,theta=10000000]"
    return f"d=6144 vocab=200064 | (({lightning} {moe})x7 {softmax} {moe})x10"


def _deepseek() -> str:
    mla = "mla[heads=128,q_rank=1536,kv_rank=512,nope_dim=128,rope_dim=64,v_dim=128]"
    moe = "moe[experts=256,active=8,inner=2048,shared=1,router=sigmoid,bias,scale=2.5]"
    return f"d=7168 vocab=129280 | ({mla} swiglu[inner=18432])x3 ({mla} {moe})x58"


_SMOL = partial(_dense, vocab=49152, header="tie=true")
_RWKV = "rwkv7[head_dim=64,decay_rank=96,rate_rank=96,gate_rank=256] mlp[inner=8192,act=relu2,bias=false]"
_MAMBA3 = "mamba3[state=128,head_dim=64]"

# name -> (text, source, what)
_MODELS: dict[str, tuple[Callable[[], str], str, str]] = {
    "smollm2-135m": (lambda: _SMOL(576, 30, _gqa(9, 3, 100_000), 1536), "arXiv:2502.02737", "SmolLM2, 135M"),
    "smollm2-360m": (lambda: _SMOL(960, 32, _gqa(15, 5, 100_000), 2560), "arXiv:2502.02737", "SmolLM2 360M"),
    "smollm2-1.7b": (lambda: _SMOL(2048, 24, _gqa(32, 32, 130_000), 8192), "arXiv:2502.02737", "SmolLM2 1.7B"),
    "llama-3.2-1b": (
        lambda: _dense(2048, 16, _gqa(32, 8, 500_000, _llama3(32)), 8192, 128_256, "tie=true eps=1e-5"),
        "arXiv:2407.21783",
        "Llama 3.2 1B",
    ),
    "llama-3.1-8b": (
        lambda: _dense(4096, 32, _gqa(32, 8, 500_000, _llama3(8)), 14_336, 128_256, "eps=1e-5"),
        "arXiv:2407.21783",
        "Llama 3.1 8B",
    ),
    "mistral-7b": (
        lambda: _dense(4096, 32, _gqa(32, 8, 10_000, ",window=4096"), 14_336, 32_000),
        "arXiv:2310.06825",
        "Mistral 7B v0.1, a window of 4,096 in every layer",
    ),
    "qwen2.5-1.5b": (
        lambda: _dense(1536, 28, _gqa(12, 2, 1_000_000, ",qkv_bias"), 8960, 151_936, "tie=true eps=1e-6"),
        "arXiv:2412.15115",
        "Qwen2.5 1.5B: biases on queries, keys and values",
    ),
    "qwen3-0.6b": (
        lambda: _dense(1024, 28, _gqa(16, 8, 1_000_000, _QK_NORM), 3072, 151_936, "tie=true eps=1e-6"),
        "arXiv:2505.09388",
        "Qwen3 0.6B: QK-norm, heads wider than d / heads",
    ),
    "qwen3-8b": (
        lambda: _dense(4096, 36, _gqa(32, 8, 1_000_000, _QK_NORM), 12_288, 151_936, "eps=1e-6"),
        "arXiv:2505.09388",
        "Qwen3, 8 billion parameters",
    ),
    "gemma-3-1b": (
        _gemma,
        "arXiv:2503.19786",
        "Gemma 3 1B: 5 windows of 512 to 1 whole; silu for gelu, no norms after layers",
    ),
    "mamba-130m": (lambda: "d=768 vocab=50280 tie=true | (mamba)x24", "arXiv:2312.00752", "Mamba in its smallest size"),
    "mamba2-1.3b": (lambda: "d=2048 vocab=50288 tie=true | (mamba2)x48", "arXiv:2405.21060", "Mamba-2 1.3B"),
    "mamba3-187m": (
        lambda: f"d=768 vocab=128256 tie=true | ({_MAMBA3} swiglu[inner=1536])x12",
        "arXiv:2603.15569",
        "Mamba-3 187M, rank 1; depth and MLP are those that make its count",
    ),
    "mamba3-1.5b": (
        lambda: f"d=2048 vocab=128256 tie=true | ({_MAMBA3} swiglu[inner=4096])x24",
        "arXiv:2603.15569",
        "Mamba-3 1.5B, rank 1; depth and MLP are those that make its count",
    ),
    "rwkv-7-1.5b": (
        lambda: f"d=2048 vocab=65536 norm=layer | ({_RWKV})x24",
        "arXiv:2503.14456",
        "RWKV-7 World 1.5B; without value residuals and the MLP's token shift",
    ),
    "gpt-oss-20b": (
        lambda: _gpt_oss(24, 32),
        "arXiv:2508.10925",
        "gpt-oss 20B: windows of 128 in every other layer, sinks, 4 of 32 experts, which have no biases here",
    ),
    "gpt-oss-120b": (lambda: _gpt_oss(36, 128), "arXiv:2508.10925", "gpt-oss 120B: 4 of 128 experts"),
    "nemotron-h-8b": (
        _nemotron_h,
        "arXiv:2504.03624",
        "Nemotron-H 8B: 24 Mamba-2, 24 MLPs with relu², 4 attention layers without positions",
    ),
    "nemotron-nano-2-12b": (
        _nemotron_nano,
        "arXiv:2508.14444",
        "Nemotron Nano 2 12B: 28 Mamba-2, 28 MLPs with relu², 6 attention layers without positions",
    ),
    "olmo-hybrid-7b": (
        _olmo_hybrid,
        "Olmo-Hybrid-7B's configuration",
        "Olmo-Hybrid 7B: 3 GDN with negative eigenvalues to 1 attention; 7.4B, which its name rounds down",
    ),
    "falcon-h1-7b": (
        _falcon_h1,
        "arXiv:2507.22448",
        "Falcon-H1 7B: attention and Mamba-2 side by side in every layer; without its fixed multipliers",
    ),
    "hymba-1.5b": (
        _hymba,
        "arXiv:2411.13676",
        "Hymba 1.5B: attention and Mamba side by side; each with an output map and keys of its own: 1.61B for 1.52B",
    ),
    "samba-421m": (_samba, "arXiv:2406.07522", "Samba 421M: Mamba, MLP, a window of 2,048, MLP"),
    "sambay-3.8b": (
        _sambay,
        "arXiv:2507.06607",
        "SambaY 3.8B: 7 gated memory units and 7 cross-attentions, one memory, one cache; no differential attention",
    ),
    "zamba2-1.2b": (
        lambda: _zamba2(2048, (5, 5, 5, 5, 5, 5, 2), "a", "state=128", ",lora_attn"),
        "arXiv:2411.15242",
        "Zamba2 1.2B: 38 Mamba-2, one block of attention and MLP called 6 times, adapters on both",
    ),
    "zamba2-2.7b": (
        lambda: _zamba2(2560, (6, 5, 5, 5, 5, 5, 5, 4, 3, 2), "ab", "state=64", ",pos=none"),
        "arXiv:2411.15242",
        "Zamba2 2.7B: 54 Mamba-2, two blocks of attention and MLP called 9 times in turn",
    ),
    "zamba2-7b": (
        lambda: _zamba2(3584, (6, 4, *(5,) * 11, 3), "ab", "state=64,groups=2", ""),
        "arXiv:2411.15242",
        "Zamba2 7B: 81 Mamba-2, two blocks of attention and MLP called 13 times in turn; one norm for both groups",
    ),
    "qwen3-next": (
        _qwen3_next,
        "Qwen3-Next-80B-A3B's configuration",
        "Qwen3-Next 80B-A3B: 3 GDN to 1 gated attention, 10 of 512 experts; value heads of 256 for 128, no MTP",
    ),
    "kimi-linear": (
        _kimi_linear,
        "arXiv:2510.26692",
        "Kimi Linear 48B-A3B: 3 KDA to 1 latent attention, 8 of 256 experts; 49.1B, which its name rounds down",
    ),
    "minimax-01": (
        _minimax,
        "arXiv:2501.08313",
        "MiniMax-01 456B-A46B: 7 lightning to 1 softmax attention, 2 of 32 experts",
    ),
    "deepseek-v3": (
        _deepseek,
        "arXiv:2412.19437",
        "DeepSeek-V3 671B-A37B: latent attention, 8 of 256 experts by sigmoid; without multi-token prediction",
    ),
}


def catalog() -> Catalog:
    return {name: partial(_preset, name) for name in _MODELS}


def _preset(name: str) -> Preset:
    text, source, what = _MODELS[name]
    return Preset(name, text(), "open", source, what)


# size -> (layers, width, heads)
GPT2 = {"124m": (12, 768, 12), "355m": (24, 1024, 16), "774m": (36, 1280, 20), "1558m": (48, 1600, 25)}
OPT = {
    "125m": (12, 768, 12),
    "1.3b": (24, 2048, 32),
    "2.7b": (32, 2560, 32),
    "6.7b": (32, 4096, 32),
    "13b": (40, 5120, 40),
    "30b": (48, 7168, 56),
    "66b": (64, 9216, 72),
    "175b": (96, 12288, 96),
}


def gpt2() -> Catalog:
    header = "vocab=50257 pos=learned max_len=1024 tie=true norm=layer eps=1e-5 depth_scale=true"
    return {
        f"gpt2-{size}": partial(_baseline, "gpt2", f"gpt2-{size}", *GPT2[size], header, "gelu-tanh") for size in GPT2
    }


def opt() -> Catalog:
    header = "vocab=50272 pos=learned max_len=2048 tie=true norm=layer eps=1e-5"
    return {f"opt-{size}": partial(_baseline, "opt", f"opt-{size}", *OPT[size], header, "relu") for size in OPT}


def _baseline(family: str, name: str, n: int, d: int, heads: int, header: str, act: str) -> Preset:
    text = f"d={d} {header} | (attn[heads={heads},pos=none,bias] mlp[inner={4 * d},act={act}])x{n}"
    title, table = {"gpt2": ("GPT-2", "Table 2"), "opt": ("OPT", "Table 1")}[family]
    return Preset(name, text, family, table, f"{title} with {n} layers of width {d}")
