"""Forgetting Transformer (Lin et al. 2025, arXiv:2503.02130): its op, its models, and its Table 1.

Table 1 has the zero-shot results of 760M models after 48B tokens of LongCrawl64: perplexities, then accuracies in per
cent, then the printed average.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from plait.analysis.accuracy import SHORT_CONTEXT
from plait.model.architecture import Architecture, architecture
from plait.model.cost import model_cost
from plait.papers.conventions import fox_flops_per_token
from plait.papers.recipes import recipe
from plait.papers.verify import FactTable, tally

PERPLEXITIES = ("wikitext", "lambada_openai")
#: Model → WikiText and LAMBADA perplexity, the ten accuracies in the order of `SHORT_CONTEXT`, the average.
TABLE_1: dict[str, tuple[float, ...]] = {
    "FoX (Pro)": (23.04, 14.91, 42.75, 64.09, 38.39, 52.33, 52.23, 26.54, 71.00, 29.80, 85.10, 46.57, 50.88),
    "Transformer (Pro)": (24.12, 16.16, 41.47, 64.04, 36.60, 49.72, 51.98, 25.26, 62.00, 29.20, 82.80, 60.86, 50.39),
    "FoX (LLaMA)": (26.45, 18.27, 40.17, 63.44, 35.17, 51.78, 49.66, 25.09, 69.00, 28.00, 81.90, 54.04, 49.82),
    "Transformer (LLaMA)": (28.14, 22.34, 38.27, 63.22, 34.20, 49.49, 47.98, 24.49, 66.00, 29.40, 78.90, 58.93, 49.09),
    "Mamba-2": (28.20, 21.05, 36.50, 63.17, 35.86, 50.59, 49.96, 25.60, 71.00, 31.00, 80.90, 57.49, 50.21),
    "HGRN2": (30.57, 20.14, 38.60, 63.49, 34.94, 51.78, 50.13, 25.51, 66.00, 30.00, 75.60, 58.41, 49.45),
    "DeltaNet": (29.17, 29.14, 34.27, 62.73, 33.28, 50.28, 47.39, 24.32, 70.00, 29.00, 74.30, 54.37, 47.99),
}


def accuracies(model: str) -> dict[str, float]:
    """Task → accuracy in per cent."""
    first = len(PERPLEXITIES)
    return dict(zip(SHORT_CONTEXT, TABLE_1[model][first:-1], strict=True))


def printed_average(model: str) -> float:
    return TABLE_1[model][-1]


facts = FactTable()


@facts.fact("F01", "forgetting attention: f ≡ 1 is softmax attention, a fixed f is ALiBi")
def identities() -> tuple[str, str, bool]:
    import torch

    from plait.ops.attention import attention

    stream = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 65, 4, 8, generator=stream, dtype=torch.float64) for _ in range(3))
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625], dtype=torch.float64)
    ones = torch.zeros(2, 65, 4, dtype=torch.float64)
    softmax = float((attention(q, k, v, log_f_BNH=ones) - attention(q, k, v)).abs().max().detach())
    fixed = attention(q, k, v, log_f_BNH=(-slopes).expand(2, 65, 4))
    alibi = float((fixed - attention(q, k, v, slopes_H=slopes)).abs().max().detach())
    return "equal", f"largest gaps {softmax:.1g}, {alibi:.1g}", max(softmax, alibi) < 1e-10


@facts.fact("F02", "attention without N² memory equals the plain form, gradients too (fp32, 1e-5)")
def fast_equals_plain() -> tuple[str, str, bool]:
    import torch
    import torch.nn.functional as F

    from plait.ops.attention import attention, attention_path, attention_reference

    stream = torch.Generator().manual_seed(0)
    leaves = [torch.randn(1, 1025, 2, 16, generator=stream) for _ in range(3)]
    leaves.append(F.logsigmoid(torch.randn(1, 1025, 2, generator=stream) + 2))

    def run(op, dtype):  # type: ignore[no-untyped-def]
        q, k, v, g = (leaf.to(dtype).requires_grad_() for leaf in leaves)
        out = op(q, k, v, log_f_BNH=g)
        return out, *torch.autograd.grad(out.square().sum(), (q, k, v, g))

    ours, plain = run(attention, torch.float32), run(attention_reference, torch.float64)
    gap = max(float((a - b).detach().abs().max() / b.abs().max().detach()) for a, b in zip(ours, plain, strict=True))
    path = attention_path(*leaves[:2], log_f_BNH=leaves[3])
    return "relative gap < 1e-5", f"{gap:.1g} ({path}, 1025 tokens)", gap < 1e-5


def _millions(*names: str) -> list[float]:
    return [model_cost(name).params_without_input_embedding / 1e6 for name in names]


def _by_hand(*, pro: bool) -> list[int]:
    """Table 4's three sizes: projections, gates with their biases, MLP, norms; output layer and final norm.

    Pro has an output gate, two scalars per head for the shifted keys and values, and norms of queries, keys, output."""
    counts = []
    for layers, d, heads in ((12, 768, 12), (24, 1024, 16), (24, 1536, 24)):
        inner = 256 * math.ceil(int(d * (3.5 if pro else 4) * 2 / 3) / 256)
        layer = 4 * d * d + heads * (d + 1) + 3 * d * inner + 2 * d
        if pro:
            layer += d * d + 2 * heads * d + 3 * d
        counts.append(layers * layer + d + 50257 * d)
    return counts


def _counted(model: str, *, pro: bool) -> tuple[str, str, bool]:
    counts = [model_cost(f"{model}-{size}").params_without_input_embedding for size in ("125m", "360m", "760m")]
    published, ours = (", ".join(f"{n:,}" for n in values) for values in (_by_hand(pro=pro), counts))
    return published, ours, published == ours


@facts.fact("F03", "FoX (LLaMA) parameters without input embedding: 125M, 360M, 760M (printed 757M)")
def llama_counts() -> tuple[str, str, bool]:
    published, ours, good = _counted("fox-llama", pro=False)
    return published, ours, good and int(_millions("fox-llama-760m")[0]) == 757


@facts.fact("F04", "FoX (Pro) parameters without input embedding: 125M, 360M, 760M (printed 759M)")
def pro_counts() -> tuple[str, str, bool]:
    published, ours, good = _counted("fox-pro", pro=True)
    return published, ours, good and int(_millions("fox-pro-760m")[0]) == 759


@facts.fact("F05", "Transformer (LLaMA) and (Pro) at 760M")
def transformer_counts() -> tuple[str, str, bool]:
    ours = [int(n) for n in _millions("transformer-llama-760m", "transformer-pro-760m")]
    return "756M / 757M", " / ".join(f"{n}M" for n in ours), ours == [756, 757]


# Table 6: forward FLOPs per token at 16,384 tokens, in 1e9.
TABLE_6 = {
    "fox-pro-760m": 2.72,
    "transformer-pro-760m": 2.72,
    "fox-llama-760m": 2.72,
    "transformer-llama-760m": 2.72,
    "mamba2-760m": 1.65,
    "hgrn2-760m": 1.54,
    "deltanet-760m": 1.54,
}


@facts.fact("F06", "Table 6 forward FLOPs per token (±0.01e9)")
def flops() -> tuple[str, str, bool]:
    ours = {name: fox_flops_per_token(name) / 1e9 for name in TABLE_6}
    good = sum(abs(ours[name] - printed) <= 0.0101 for name, printed in TABLE_6.items())
    return ", ".join(map(str, TABLE_6.values())), f"{', '.join(f'{x:.3f}' for x in ours.values())} (1e9)", good == 7


@facts.fact(
    "F08", "Table 4: 24 × 1536, 24 × 1024, 12 × 768; head 64 (128 in the 760M Transformer); lr 1e-3, 2e-3, 2e-3"
)
def configurations() -> tuple[str, str, bool]:
    """MLPs are 2/3 of 4d (LLaMA) or 3.5d (Pro), up to a multiple of 256; a step has 32 × 16,384 tokens."""
    table = {"760m": (24, 1536, 1e-3, 16e9), "360m": (24, 1024, 2e-3, 7.5e9), "125m": (12, 768, 2e-3, 2.7e9)}
    good = of = 0
    for size, (blocks, d, lr, tokens) in table.items():
        published = recipe(f"fox-{size}")
        trained = published.steps * published.recipe.batch * published.recipe.seq_len
        of += 1
        good += (published.recipe.lr, published.recipe.batch, published.recipe.seq_len) == (lr, 32, 16384) and (
            abs(trained / tokens - 1) < 0.01
        )
        for model in ("fox-pro", "fox-llama", "transformer-pro", "transformer-llama"):
            arch = architecture(f"{model}-{size}")
            head = 128 if model.startswith("transformer") and size == "760m" else 64
            inner = 256 * math.ceil(int(d * (3.5 if model.endswith("pro") else 4) * 2 / 3) / 256)
            attention, mlp = _layer(arch, 0), _layer(arch, 1)
            of += 1
            good += (len(arch.layers) // 2, arch.header.d, attention.head_width(d), attention.heads * head) == (
                blocks, d, head, d,
            ) and mlp.inner_width(d) == inner  # fmt: skip
    return tally(of, of), tally(good, of), good == of == 15


@facts.fact("F10", "baselines: parallel = recurrent; 780M, 756M, 757M parameters")
def baselines() -> tuple[str, str, bool]:
    from plait.papers.mad.probe_facts import stepwise

    counts = [f"{n:.1f}" for n in _millions("mamba2-760m", "hgrn2-760m", "deltanet-760m")]
    _, ours, agrees = stepwise("mamba2", "hgrn2", "deltanet", "mamba", "attn[window=7]")
    near = all(abs(float(n) - printed) <= 1 for n, printed in zip(counts, (780, 756, 757), strict=True))
    return "equal; 780, 756, 757", f"{ours}; {', '.join(counts)}", agrees and near


# Table 3's ticks, row by row: RoPE, forget gate, QK-norm, output gate, output norm, KV-shift.
TICKS = ("......", "r.....", "rf....", ".f....", ".fq...", ".fqg..", ".fqgn.", ".fqgns", ".f.gns", ".fq.ns", ".fqg.s",
         ".fqgn.", "rfqgns", "r.qgns", "..qgns")  # fmt: skip


@facts.fact("F14", "Table 3: the fifteen ablation rows as architectures, tick by tick")
def ablations() -> tuple[str, str, bool]:
    archs = [architecture(f"fox-ablation-{row}") for row in range(1, 16)]
    good = sum(
        (_ticks(arch.layers[::2]), len(arch.layers), arch.header.d, _layer(arch, 0).heads) == ({ticks}, 48, 1024, 16)
        for arch, ticks in zip(archs, TICKS, strict=True)
    )
    # Rows 7 and 12 are the same model reached from two sides, and the table prints 6.80 for both.
    ours = f"{good} of 15 rows, {len({arch.hash for arch in archs})} architectures"
    return "15 of 15 rows, 14 architectures", ours, ours == "15 of 15 rows, 14 architectures"


def _ticks(layers: Sequence[Any]) -> set[str]:
    """Which components the attention layers have."""
    return {
        "".join(
            letter if has else "."
            for letter, has in zip(
                "rfqgns",
                (o.pos == "rope" and o.theta == 500_000, o.forget == "full", o.qk_norm == "per-head", o.out_gate,
                 o.out_norm, o.kv_shift),
                strict=True,
            )
        )
        for o in layers
    }  # fmt: skip


def _layer(arch: Architecture, at: int) -> Any:
    return arch.layers[at]


@facts.fact("F19", "Table 1: the average is the mean of the ten accuracies; FoX (LLaMA) rounds to its neighbour")
def table_1_averages() -> tuple[str, str, bool]:
    from decimal import ROUND_HALF_UP, Decimal

    from plait.analysis.accuracy import average

    ours = {model: Decimal(repr(round(average(accuracies(model)), 6))) for model in TABLE_1}
    rounded = {model: float(mean.quantize(Decimal("0.01"), ROUND_HALF_UP)) for model, mean in ours.items()}
    other = {model: mean for model, mean in rounded.items() if mean != printed_average(model)}
    differing = ", ".join(f"{model} {mean:.2f} (printed {printed_average(model):.2f})" for model, mean in other.items())
    return (
        "6 of 7; FoX (LLaMA) 49.83",
        f"{len(TABLE_1) - len(other)} of 7; {differing}",
        other == {"FoX (LLaMA)": 49.83},
    )


@facts.fact("F24", "decoding step by step, in chunks, and left-padded gives the parallel logits (FoX Pro)")
def decoding() -> tuple[str, str, bool]:
    import torch

    from plait.model import build

    model: Any = build("d=32 vocab=17 | (fox[heads=4,qk_norm=per-head,out_gate,out_norm,kv_shift] swiglu)x2").double()
    tokens = torch.randint(17, (3, 19), generator=torch.Generator().manual_seed(0))
    whole, state, steps = model(tokens), model.init_state(3), []
    first, state = model.extend(tokens[:, :7], state)
    for token in tokens[:, 7:].unbind(1):
        scores, state = model.step(token, state)
        steps.append(scores)
    stepped = float((torch.cat([first, torch.stack(steps, dim=1)], dim=1) - whole).abs().max().detach())
    pad = torch.tensor([0, 2, 5])
    padded = model(tokens, pad_B=pad)
    alone = [model(tokens[row : row + 1, skip:])[0] for row, skip in enumerate(pad.tolist())]
    left = max(float((padded[row, skip:] - alone[row]).abs().max().detach()) for row, skip in enumerate(pad.tolist()))
    return "equal", f"largest gaps {stepped:.1g} (steps), {left:.1g} (padding)", max(stepped, left) < 1e-10
