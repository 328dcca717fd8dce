"""The papers' own recipes by name, each with where it stands and how long it runs.

* `lts-…`: LiteTransformerSearch, Table 2 (five rows). Sequences of 192 tokens on WikiText-103 and 32 on LM1B, as the
  paper evaluates; the Pile's 2048 are those of its comparison with OPT.
* `par-…`: PAR Transformer. Base: Table A1 (segments and memory of 192) and §A.3 (batch 256, 40k steps). Large: §3.1
  (segments and memory of 384, batch 128). 24B, for enwik8 and text8: §3.1 (segments and memory of 512, else Base's).
  The paper names no optimizer for Transformer-XL; LAMB with 1e-2 is what the public Transformer-XL training code with
  Table A1's settings and LTS's row for it have. For how long Large and 24B train it does not say: 40k steps, as Base.
  Evaluation memory (640, 1600, 2052) is `plait eval --memory`'s.
* LAMB of `lts-…` and `par-…` is `lamb-xl`, the update of that training code, which LTS names as its own; of BERT, PAR
  names NVLAMB, `nvlamb`.
* `mad-…`: Mechanistic Architecture Design, §C.1–C.3. The learning rate follows the size (Table C.2), the batch the FLOP
  budget (Table C.1): see `mad_recipe`. `mad-synthetic` is Table B.1, for a task instead of text.
* `fox-…`: Forgetting Transformer, Tables 4 and 5. `fox-340m-2k` is Table 7's: sequences of 2048 tokens, 15B tokens of
  SlimPajama. The page gives no more of it: tokens per step, learning rate and warm-up are `fox-360m`'s.
* `bert-phase1`, `bert-phase2`: PAR's §3.2, two phases of NVLAMB, the second from the first's weights (`--from`).
  Learning rates and warm-up, which the paper does not give, are those of the public recipe for LAMB's two-phase BERT.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plait.core.errors import UserError, did_you_mean
from plait.papers.fox import presets as fox
from plait.papers.mad import scaling_presets as mad_scaling
from plait.training.recipe import Recipe


@dataclass(frozen=True)
class Published:
    """A recipe with its paper's length of training."""

    recipe: Recipe
    steps: int
    source: str


_LTS_XL = Recipe(batch=256, length=192, optimizer="lamb-xl", lr=1e-2, warmup=1000, beta2=0.999, eps=1e-6,
                 weight_decay=0.0, clip=0.25, dropout=0.1, memory=192)  # fmt: skip
_LTS_GPT2 = Recipe(batch=256, length=192, optimizer="lamb-xl", lr=1e-2, warmup=1000, beta2=0.999, eps=1e-6,
                   weight_decay=0.0, clip=0.25, dropout=0.1, attn_dropout=0.1)  # fmt: skip
_PAR = _LTS_XL
_FOX = Recipe(batch=32, length=16384, lr=2e-3, warmup=512, weight_decay=0.1, clip=1.0)
_BERT = Recipe(optimizer="nvlamb", batch=65536, length=128, lr=6e-3, schedule="linear", warmup=0.2843, beta2=0.999,
               eps=1e-6, weight_decay=0.01, dropout=0.1)  # fmt: skip
_MAD = Recipe(length=8192, batch=64, lr=8e-4, warmup=0.01, floor=0.1, weight_decay=0.1,
              no_weight_decay=("hyena", "mh-hyena", "hyena-experts"))  # fmt: skip

RECIPES: dict[str, Published] = {
    "lts-xl-wt103": Published(_LTS_XL, 40_000, "LTS Table 2"),
    "lts-xl-lm1b": Published(
        _LTS_XL.with_values({"batch": 224, "length": 32, "optimizer": "adam", "lr": 2.5e-4, "warmup": 20_000,
                             "dropout": 0.0, "eps": 1e-8, "memory": 32}), 100_000, "LTS Table 2",
    ),
    "lts-gpt2-wt103": Published(_LTS_GPT2, 40_000, "LTS Table 2"),
    "lts-gpt2-lm1b": Published(
        _LTS_GPT2.with_values({"batch": 224, "length": 32, "lr": 2.5e-4, "warmup": 20_000}), 100_000, "LTS Table 2"
    ),
    "lts-gpt2-pile": Published(
        _LTS_GPT2.with_values({"length": 2048, "optimizer": "adam", "lr": 3e-5, "schedule": "linear", "warmup": 715,
                               "attn_dropout": 0.0, "eps": 1e-8}), 54_800, "LTS Table 2",
    ),
    "par-base": Published(_PAR, 40_000, "PAR Table A1, A.3"),
    "par-search": Published(
        _PAR.with_values({"batch": 128, "weight_decay": 1e-4}), 40_000, "PAR 2.2 (weights of the search)"
    ),
    "par-large": Published(
        _PAR.with_values({"batch": 128, "length": 384, "memory": 384}), 40_000, "PAR 3.1 (Large), A.3"
    ),
    "par-24b": Published(_PAR.with_values({"length": 512, "memory": 512}), 40_000, "PAR 3.1 (24B), A.3"),
    "mad-synthetic": Published(
        Recipe(batch=128, length=128, lr=1e-3, warmup=0, beta2=0.98, weight_decay=0.1, clip=0.0), 20_000,
        "MAD Table B.1",
    ),
    "mad-scaling": Published(_MAD, 10_000, "MAD C.1 to C.3, 150M"),
    "bert-phase1": Published(_BERT, 7038, "PAR 3.2"),
    "bert-phase2": Published(
        _BERT.with_values({"batch": 32768, "length": 512, "lr": 4e-3, "warmup": 0.128}), 1563, "PAR 3.2"
    ),
    "fox-340m-2k": Published(_FOX.with_values({"batch": 256, "length": 2048}), 28_610, "FoX Table 7 (340M, 15B, 2k)"),
    **{
        f"fox-{size}": Published(_FOX.with_values({"lr": row.lr}), row.steps, "FoX Table 4")
        for size, row in fox.SIZES.items()
    },
    **{
        f"fox-48b-{name}": Published(_FOX.with_values({"lr": lr}), 92_160, "FoX Table 5")
        for name, lr in fox.TABLE_5.items()
    },
}  # fmt: skip


def recipe(name: str) -> Published:
    if name not in RECIPES:
        raise UserError(
            f"'{name}' is not a recipe.{did_you_mean(name, RECIPES) or ' Known: ' + ', '.join(RECIPES) + '.'}"
        )
    return RECIPES[name]


def mad_recipe(params: float, flops: float, length: int = 8192) -> Recipe:
    """MAD's recipe at a size and a FLOP budget, as `plait train SPEC --recipe mad-scaling --flops 4e18` resolves it.

    The learning rate is Table C.2's: at a row's size what is printed there, between rows along the logarithm of the
    size, beyond the first and the last row theirs. (The text calls the rates linear in the size; as printed they are
    linear in the row's index between the anchors.) The batch is Table C.1's for the largest budget listed that is not
    above `flops`, 524k tokens below the smallest, and 262k for models below 54M parameters."""
    sizes = np.array([1e6 * row.params_m for row in mad_scaling.TABLE_C2], dtype=float)
    rates = np.array([row.lr for row in mad_scaling.TABLE_C2], dtype=float)
    lr = float(np.interp(np.log(params), np.log(sizes), rates))
    tokens = 262_144 if params < 54e6 else 524_288 if flops < 2e20 else 2**20 if flops < 2e21 else 2**21
    return _MAD.with_values({"lr": lr, "length": length, "batch": max(1, tokens // length)})
