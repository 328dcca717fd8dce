"""The papers' own recipes by name, each with its source and its number of steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plait.core.registry import require_known
from plait.papers.fox.presets import SIZES, TABLE_5
from plait.papers.mad.scaling_presets import TABLE_C2
from plait.training.recipe import Recipe


@dataclass(frozen=True)
class Published:
    """A recipe with its paper's length of training."""

    recipe: Recipe
    steps: int
    source: str


def recipe(name: str) -> Published:
    require_known(name, RECIPES, "no recipe")
    return RECIPES[name]


# ---- LiteTransformerSearch
#
# Table 2, five rows, and the encoders of App. J.
#
# Sequences of 192 tokens on WikiText-103 and 32 on LM1B, as the paper evaluates; the Pile's 2048 are those of its
# comparison with OPT. LAMB is `lamb-xl`, the update of the training code that the paper names as its own.
# `lts-bert-wt103` is that of its 300 encoders: 40k steps with masked tokens and next-sentence prediction, all else as
# in BERT's paper (arXiv:1810.04805, App. A.2), with the longer of its two lengths.

XL = Recipe(batch=256, seq_len=192, optimizer="lamb-xl", lr=1e-2, warmup=1000, beta2=0.999, eps=1e-6,
            weight_decay=0.0, clip=0.25, dropout=0.1, memory=192)  # fmt: skip
GPT2 = Recipe(batch=256, seq_len=192, optimizer="lamb-xl", lr=1e-2, warmup=1000, beta2=0.999, eps=1e-6,
              weight_decay=0.0, clip=0.25, dropout=0.1, attn_dropout=0.1)  # fmt: skip

LTS_RECIPES = {
    "lts-xl-wt103": Published(XL, 40_000, "LTS Table 2"),
    "lts-xl-lm1b": Published(
        XL.with_values({"batch": 224, "seq_len": 32, "optimizer": "adam", "lr": 2.5e-4, "warmup": 20_000,
                        "dropout": 0.0, "eps": 1e-8, "memory": 32}), 100_000, "LTS Table 2",
    ),
    "lts-gpt2-wt103": Published(GPT2, 40_000, "LTS Table 2"),
    "lts-gpt2-lm1b": Published(
        GPT2.with_values({"batch": 224, "seq_len": 32, "lr": 2.5e-4, "warmup": 20_000}), 100_000, "LTS Table 2"
    ),
    "lts-bert-wt103": Published(
        Recipe(batch=256, seq_len=512, lr=1e-4, schedule="linear", warmup=10_000, beta2=0.999, eps=1e-6,
               weight_decay=0.01, dropout=0.1, attn_dropout=0.1, next_sentence=True), 40_000, "LTS App. J (encoders)",
    ),
    "lts-gpt2-pile": Published(
        GPT2.with_values({"seq_len": 2048, "optimizer": "adam", "lr": 3e-5, "schedule": "linear", "warmup": 715,
                          "attn_dropout": 0.0, "eps": 1e-8}), 54_800, "LTS Table 2",
    ),
}  # fmt: skip

# ---- PAR Transformer
#
# Base: Table A1 (segments and memory of 192) and §A.3 (batch 256, 40k steps). Large: §3.1 (segments and memory of 384,
# batch 128). 24B, for enwik8 and text8: §3.1 (segments and memory of 512, otherwise as Base). The paper names no
# optimizer for Transformer-XL; `lamb-xl` with 1e-2 is what the public Transformer-XL training code uses with Table A1's
# settings, and what LTS's row for it says. The paper does not say how long Large and 24B train: 40k steps, as Base.
# Evaluation memory (640, 1600, 2052) is given by `plait eval --memory`.
#
# BERT: §3.2, two phases of NVLAMB; the second starts from the first's weights (`--from`). The paper gives neither
# learning rates nor warm-up: these are those of the public recipe for LAMB's two-phase BERT.

BERT = Recipe(optimizer="nvlamb", batch=65536, seq_len=128, lr=6e-3, schedule="linear", warmup=0.2843, beta2=0.999,
              eps=1e-6, weight_decay=0.01, dropout=0.1)  # fmt: skip

PAR_RECIPES = {
    "par-base": Published(XL, 40_000, "PAR Table A1, A.3"),
    "par-search": Published(
        XL.with_values({"batch": 128, "weight_decay": 1e-4}), 40_000, "PAR 2.2 (weights of the search)"
    ),
    "par-large": Published(
        XL.with_values({"batch": 128, "seq_len": 384, "memory": 384}), 40_000, "PAR 3.1 (Large), A.3"
    ),
    "par-24b": Published(XL.with_values({"seq_len": 512, "memory": 512}), 40_000, "PAR 3.1 (24B), A.3"),
    "bert-phase1": Published(BERT, 7038, "PAR 3.2"),
    "bert-phase2": Published(
        BERT.with_values({"batch": 32768, "seq_len": 512, "lr": 4e-3, "warmup": 0.128}), 1563, "PAR 3.2"
    ),
}  # fmt: skip

# ---- Mechanistic Architecture Design
#
# §C.1–C.3 for text, Table B.1 for a task.

SCALING = Recipe(seq_len=8192, batch=64, lr=8e-4, warmup=0.01, min_lr_ratio=0.1, weight_decay=0.1,
                 no_weight_decay=("hyena", "mh-hyena", "hyena-experts"))  # fmt: skip

MAD_RECIPES = {
    "mad-synthetic": Published(
        Recipe(batch=128, seq_len=128, lr=1e-3, warmup=0, beta2=0.98, weight_decay=0.1, clip=0.0), 20_000,
        "MAD Table B.1",
    ),
    "mad-scaling": Published(SCALING, 10_000, "MAD C.1 to C.3, 150M"),
}  # fmt: skip

# ---- Forgetting Transformer
#
# Tables 4, 5 and 7.
#
# `fox-340m-2k` is Table 7's: sequences of 2048 tokens, 15B tokens of SlimPajama. The paper gives no more of it: tokens
# per step, learning rate and warm-up are taken from `fox-360m`.

FOX = Recipe(batch=32, seq_len=16384, lr=2e-3, warmup=512, weight_decay=0.1, clip=1.0)

FOX_RECIPES = {
    "fox-340m-2k": Published(FOX.with_values({"batch": 256, "seq_len": 2048}), 28_610, "FoX Table 7 (340M, 15B, 2k)"),
    **{
        f"fox-{size}": Published(FOX.with_values({"lr": row.lr}), row.steps, "FoX Table 4")
        for size, row in SIZES.items()
    },
    **{
        f"fox-48b-{name}": Published(FOX.with_values({"lr": lr}), 92_160, "FoX Table 5") for name, lr in TABLE_5.items()
    },
}

RECIPES: dict[str, Published] = {**LTS_RECIPES, **PAR_RECIPES, **MAD_RECIPES, **FOX_RECIPES}


def mad_recipe(params: float, flops: float, seq_len: int = 8192) -> Recipe:
    """MAD's recipe at a size and a FLOP budget, as `plait train SPEC --recipe mad-scaling --flops 4e18` resolves it.

    The learning rate is Table C.2's: as printed for the size of a row, interpolated between rows in the logarithm of
    the size, and constant beyond the first and last row. (The text calls the rates linear in the size; as printed they
    are linear in the row's index between the anchors.) The batch is Table C.1's for the largest budget listed that is
    not above `flops`, 524k tokens below the smallest, and 262k for models below 54M parameters."""
    sizes = np.array([1e6 * row.params_m for row in TABLE_C2], dtype=float)
    rates = np.array([row.lr for row in TABLE_C2], dtype=float)
    lr = float(np.interp(np.log(params), np.log(sizes), rates))
    tokens = 262_144 if params < 54e6 else 524_288 if flops < 2e20 else 2**20 if flops < 2e21 else 2**21
    return SCALING.with_values({"lr": lr, "seq_len": seq_len, "batch": max(1, tokens // seq_len)})
