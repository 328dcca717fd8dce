"""Training recipes, perplexities and losses along the context: the papers' tables and definitions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

import numpy as np

from plait.evals.per_token import context_perplexity, smooth
from plait.evals.perplexity import Perplexity
from plait.papers.recipes import mad_recipe, recipe
from plait.papers.verify import FactTable
from plait.training.recipe import Recipe, rate

if TYPE_CHECKING:
    import torch

    from plait.model.language_model import Encoder
    from plait.training.recipe import Job, Start

facts = FactTable()

#: Table 2: optimizer, steps, batch, learning rate, schedule, warm-up, dropout, attention dropout.
TABLE_2 = {
    "lts-xl-wt103": ("lamb", 40_000, 256, 1e-2, "cosine", 1000, 0.1, 0.0),
    "lts-xl-lm1b": ("adam", 100_000, 224, 2.5e-4, "cosine", 20_000, 0.0, 0.0),
    "lts-gpt2-wt103": ("lamb", 40_000, 256, 1e-2, "cosine", 1000, 0.1, 0.1),
    "lts-gpt2-lm1b": ("lamb", 100_000, 224, 2.5e-4, "cosine", 20_000, 0.1, 0.1),
    "lts-gpt2-pile": ("adam", 54_800, 256, 3e-5, "linear", 715, 0.1, 0.0),
}


@facts.fact("L01", "perplexity = 2^H = exp(cross-entropy in nats)")
def perplexity() -> tuple[str, str, bool]:
    """Four tokens of probability 1/2, 1/4, 1/8, 1/8: 2.25 bits each."""
    value = Perplexity(nats=sum(math.log(1 / p) for p in (1 / 2, 1 / 4, 1 / 8, 1 / 8)), tokens=4).perplexity
    return f"2^2.25 = {2**2.25:.6f}", f"{value:.6f}", abs(value - 2**2.25) < 1e-12


@facts.fact("L28", "training recipes (Table 2)")
def lts_recipes() -> tuple[str, str, bool]:
    good = 0
    for name, row in TABLE_2.items():
        p, r = recipe(name), recipe(name).recipe
        # LAMB as in the training code that LTS names.
        good += (
            r.optimizer.removesuffix("-xl"),
            p.steps,
            r.batch,
            r.lr,
            r.schedule,
            r.warmup,
            r.dropout,
            r.attn_dropout,
        ) == row
    return "5 of 5 rows", f"{good} of 5 rows", good == 5


@facts.fact("L29", "LAMB (with and without weight decay) and Adam step by step, schedules with warm-up, as defined")
def optimizers() -> tuple[str, str, bool]:
    gap = max(_optimizer_gap(name, decay) for name, decay in (("lamb", 0.0), ("lamb", 0.01), ("adam", 0.0)))
    recipe = Recipe(warmup=10)
    rates = [rate(recipe, step, 110) for step in (0, 5, 10, 60, 110)]
    line = rate(Recipe(warmup=0, schedule="linear"), 25, 100)
    shown = f"largest gap {gap:.1g}; cosine {', '.join(f'{r:.3g}' for r in rates)}; linear {line:g}"
    good = gap < 1e-10 and np.allclose(rates, [0, 0.5, 1, 0.5, 0], atol=1e-12) and line == 0.75
    return "equal; cosine 0, 0.5, 1, 0.5, 0; linear 0.75", shown, good


def _optimizer_gap(name: str, decay: float) -> float:
    """Seven steps of a recipe's optimizer against a plain implementation: LAMB's has a trust ratio throughout."""
    import torch

    from plait.training.recipe import OPTIMIZERS

    stream = np.random.default_rng(0)
    p, grads = stream.normal(size=(4, 3)), stream.normal(size=(7, 4, 3))
    parameter = torch.nn.Parameter(torch.tensor(p))
    recipe = Recipe(optimizer=name, lr=0.02, beta1=0.9, beta2=0.99, eps=1e-6)
    optimizer = OPTIMIZERS.load(name)([{"params": [parameter], "weight_decay": decay}], recipe)
    mean, square = np.zeros_like(p), np.zeros_like(p)
    for t, g in enumerate(grads, start=1):
        parameter.grad = torch.tensor(g)
        optimizer.step()
        mean, square = 0.9 * mean + 0.1 * g, 0.99 * square + 0.01 * g * g
        r = (mean / (1 - 0.9**t)) / (np.sqrt(square / (1 - 0.99**t)) + 1e-6) + decay * p
        p = p - 0.02 * (np.linalg.norm(p) / np.linalg.norm(r) if name == "lamb" else 1.0) * r
    return float(np.abs(parameter.detach().numpy() - p).max())


@facts.fact("P21", "bits per character = cross-entropy / ln 2")
def bits_per_character() -> tuple[str, str, bool]:
    """Three tokens of 1.1 nats that spell five characters."""
    bits = Perplexity(nats=3.3, tokens=3).bits_per(5)
    return f"{3.3 / 5 / math.log(2):.6f}", f"{bits:.6f}", abs(bits - 3.3 / 5 / math.log(2)) < 1e-12


@facts.fact(
    "L33", "encoders learn masked tokens and whether a text follows (App. J): 40k steps, all else as BERT's paper"
)
def encoders() -> tuple[str, str, bool]:
    """One batch of pairs: about half of them consecutive, and a loss that is the sum of the two cross-entropies."""
    import torch
    import torch.nn.functional as F

    from plait.training.distributed import Processes
    from plait.training.trainer import Trainer

    published = recipe("lts-bert-wt103")
    r = published.recipe
    setup = (r.batch, r.seq_len, r.lr, r.schedule, r.warmup, r.beta2, r.weight_decay, r.dropout, published.steps)
    job = _tiny_bert("next_sentence", batch=256, seq_len=16)
    trainer = Trainer(job, 1, Processes(0, 1, torch.device("cpu")))
    batch, model = trainer.batches(0), cast("Encoder", trainer.model)
    assert batch.follows_B is not None
    assert model.next_sentence is not None
    loss = trainer.objective(batch.tokens_BT, batch.targets_BT, None, batch.segments_BT, batch.follows_B)[0]
    hidden = model.backbone(batch.tokens_BT, segments_BT=batch.segments_BT)
    log_p = model.output(model.transform(hidden)).log_softmax(-1)
    chosen = batch.targets_BT >= 0
    masked = -log_p[chosen].gather(1, batch.targets_BT[chosen][:, None]).mean()
    first, _, second = cast("torch.nn.Sequential", model.next_sentence)
    follows = F.logsigmoid(
        (second(torch.tanh(first(hidden[:, 0]))) @ torch.tensor([-1.0, 1.0])) * (2 * batch.follows_B - 1)
    )
    gap = abs(float((loss - (masked - follows.mean())).detach()))
    half = float(batch.follows_B.float().mean())
    ours = f"{setup}; {half:.2f} follow, gap {gap:.1g}"
    good = setup == (256, 512, 1e-4, "linear", 10_000, 0.999, 0.01, 0.1, 40_000) and r.next_sentence
    return "256 × 512, 1e-4, 40k; half follow; equal", ours, good and 0.4 < half < 0.6 and gap < 1e-5


@facts.fact("P22", "BERT's two phases: 128 / 64k / 7038, then 512 / 32k / 1563 from the first's weights")
def bert_phases() -> tuple[str, str, bool]:
    phases = [recipe(f"bert-phase{i}") for i in (1, 2)]
    ours = "; ".join(
        f"{p.recipe.seq_len} / {p.recipe.batch // 1024}k / {p.steps}, {p.recipe.optimizer}" for p in phases
    )
    same, longer = _second_phase(phases[0].recipe, phases[1].recipe)
    ours += f"; phase 2 begins with phase 1's weights: {same}; sequences {longer} times as long"
    expected = "128 / 64k / 7038, nvlamb; 512 / 32k / 1563, nvlamb"
    return expected, ours, ours.startswith(expected) and same and longer == 4


def _second_phase(phase_1: Recipe, phase_2: Recipe) -> tuple[bool, int]:
    """Two tiny runs, the second from the first (`--from`): whether every weight is copied before training continues."""
    from pathlib import Path
    from tempfile import TemporaryDirectory

    import torch

    from plait.training.distributed import Processes
    from plait.training.fit import Options, fit
    from plait.training.resume import start_of
    from plait.training.run import open_run
    from plait.training.trainer import Trainer

    alone, small = Processes(0, 1, torch.device("cpu")), {"batch": 2, "warmup": 0}
    with TemporaryDirectory(prefix="plait-verify-") as folder:
        first = _tiny_bert(recipe=phase_1.with_values({**small, "seq_len": phase_1.seq_len // 16}))
        run = open_run(fit(first, alone, None, Options(Path(folder))).folder)
        second = _tiny_bert(
            recipe=phase_2.with_values({**small, "seq_len": phase_2.seq_len // 16}), start=start_of(run)
        )
        trainer, weights = Trainer(second, 1, alone), run.weights()
        same = all(torch.equal(p.detach(), weights[name]) for name, p in trainer.model.named_parameters())
        trainer.advance()
        moved = any(not torch.equal(p.detach(), weights[name]) for name, p in trainer.model.named_parameters())
    return same and moved, second.recipe.seq_len // first.recipe.seq_len


def _tiny_bert(*flags: str, recipe: Recipe | None = None, start: Start | None = None, **values: int) -> Job:
    """One step of a BERT of two blocks on a little text."""
    from plait.data import open_corpus
    from plait.training.recipe import Budget, Job, fitted

    spec = "d=8 kind=encoder segments=2 pos=learned max_len=32 | attn[heads=2,causal=false] mlp[inner=16]"
    corpus = open_corpus("builtin:language")
    chosen = (recipe or Recipe()).with_values({**values, **dict.fromkeys(flags, True)})
    return Job(fitted(spec, corpus), corpus, chosen, Budget(steps=1), validation_tokens=64, start=start)


@facts.fact("M26", "Table C.1: batch sizes by FLOP budget; 262k tokens below 54M parameters")
def batch_sizes() -> tuple[str, str, bool]:
    budgets = (4e18, 8e18, 2e19, 4e19, 8e19, 2e20, 5e20, 2e21)
    batches = [mad_recipe(350e6, flops).batch * 8192 for flops in budgets]
    small = mad_recipe(38e6, 4e18).batch * 8192
    expected = [2**19] * 5 + [2**20] * 2 + [2**21]
    ours = f"{', '.join(f'{n // 1024}k' for n in batches)}; small {small // 1024}k"
    return "512k × 5, 1024k × 2, 2048k; small 256k", ours, batches == expected and small == 2**18


@facts.fact("M29", "learning rates 8e-4, 6e-4, 4e-4, 3e-4, 2e-4 at 150M … 7B; cosine to 10 %, warm-up 1 %")
def learning_rates() -> tuple[str, str, bool]:
    rates = [mad_recipe(size, 8e19).lr for size in (150e6, 350e6, 1.3e9, 3.1e9, 7e9)]
    recipe = mad_recipe(150e6, 8e19)
    ends = [rate(recipe, step, 1000) for step in (0, 10, 1000)]
    fixed = (recipe.beta1, recipe.beta2, recipe.weight_decay, "hyena" in recipe.no_weight_decay)
    ours = f"{', '.join(f'{lr:.0e}' for lr in rates)}; {', '.join(f'{r:.2g}' for r in ends)}"
    good = np.allclose(rates, [8e-4, 6e-4, 4e-4, 3e-4, 2e-4], rtol=1e-9) and np.allclose(ends, [0, 1, 0.1])
    return "8e-04, 6e-04, 4e-04, 3e-04, 2e-04; 0, 1, 0.1", ours, good and fixed == (0.9, 0.95, 0.1, True)


@facts.fact("F09", "Table 5: learning rates of the 48B-token runs")
def fox_rates() -> tuple[str, str, bool]:
    expected = {
        "fox-pro": 2e-3, "transformer-pro": 1e-3, "fox-llama": 1e-3, "transformer-llama": 5e-4, "mamba2": 2e-3,
        "hgrn2": 2e-3, "deltanet": 1e-3,
    }  # fmt: skip
    good = sum(recipe(f"fox-48b-{name}-760m").recipe.lr == lr for name, lr in expected.items())
    return "7 of 7 rows", f"{good} of 7 rows", good == 7


@facts.fact("F11", "per-token loss L(i), smoothed over 101 and 1001 positions")
def smoothing() -> tuple[str, str, bool]:
    """A straight line stays one, and a single spike spreads over the window."""
    line, spike = np.linspace(3, 1, 4001), np.zeros(4001)
    spike[2000] = 1.0
    gap = max(float(np.abs(smooth(line, window) - line).max()) for window in (101, 1001))
    widths = [int(np.count_nonzero(smooth(spike, window) > 0)) for window in (101, 1001)]
    return "a line stays; 101, 1001", f"gap {gap:.1g}; {widths[0]}, {widths[1]}", gap < 1e-12 and widths == [101, 1001]


@facts.fact("F12", "P(l) = exp(mean of L(i) over i ≤ l)")
def context() -> tuple[str, str, bool]:
    loss = np.array([3.0, 2.0, 2.0, 1.0])
    perplexities = context_perplexity(loss, [1, 2, 4])
    expected = np.exp([3.0, 2.5, 2.0])
    published, ours = (", ".join(f"{value:.4f}" for value in values) for values in (expected, perplexities))
    return published, ours, np.allclose(perplexities, expected, rtol=1e-12)
