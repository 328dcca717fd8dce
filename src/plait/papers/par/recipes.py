"""PAR Transformer's trainings.

Base: Table A1 (segments and memory of 192) and §A.3 (batch 256, 40k steps). Large: §3.1 (segments and memory of 384,
batch 128). 24B, for enwik8 and text8: §3.1 (segments and memory of 512, else Base's). The paper names no optimizer for
Transformer-XL; `lamb-xl` with 1e-2 is what the public Transformer-XL training code with Table A1's settings and LTS's
row for it have. For how long Large and 24B train it does not say: 40k steps, as Base. Evaluation memory (640, 1600,
2052) is `plait eval --memory`'s.

BERT: §3.2, two phases of NVLAMB, the second from the first's weights (`--from`). Learning rates and warm-up, which the
paper does not give, are those of the public recipe for LAMB's two-phase BERT.
"""

from __future__ import annotations

from plait.papers.lts.recipes import XL
from plait.papers.recipes import Published
from plait.training.recipe import Recipe

BERT = Recipe(optimizer="nvlamb", batch=65536, seq_len=128, lr=6e-3, schedule="linear", warmup=0.2843, beta2=0.999,
              eps=1e-6, weight_decay=0.01, dropout=0.1)  # fmt: skip

RECIPES = {
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
