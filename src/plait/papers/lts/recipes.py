"""LiteTransformerSearch's trainings: Table 2, five rows, and the encoders of App. J.

Sequences of 192 tokens on WikiText-103 and 32 on LM1B, as the paper evaluates; the Pile's 2048 are those of its
comparison with OPT. LAMB is `lamb-xl`, the update of the training code that the paper names as its own.
`lts-bert-wt103` is that of its 300 encoders: 40k steps with masked tokens and next-sentence prediction, all else as
BERT's paper has it (arXiv:1810.04805, App. A.2), of whose two lengths it is the longer.
"""

from __future__ import annotations

from plait.papers.recipes import Published
from plait.training.recipe import Recipe

XL = Recipe(batch=256, seq_len=192, optimizer="lamb-xl", lr=1e-2, warmup=1000, beta2=0.999, eps=1e-6,
            weight_decay=0.0, clip=0.25, dropout=0.1, memory=192)  # fmt: skip
GPT2 = Recipe(batch=256, seq_len=192, optimizer="lamb-xl", lr=1e-2, warmup=1000, beta2=0.999, eps=1e-6,
              weight_decay=0.0, clip=0.25, dropout=0.1, attn_dropout=0.1)  # fmt: skip

RECIPES = {
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
