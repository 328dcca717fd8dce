"""Does it flatter `plait compare` that learning rates are chosen on the validation windows that the verdict uses?

    python benchmarks/rate_windows.py losses.npz [--device cuda] [--out FILE.md]

Every architecture is trained with five seeds at each rate that a search may try, and scored on eight times the usual
number of windows, after the search's steps and after all (losses.npz; trained if it is missing, four minutes of one
H200). Then comparisons are repeated with random draws of windows: the rate is chosen by the first seed's losses on
them, as `racing.rates` does. Optimism is how far the loss at that rate is lower on these windows than on all others,
beyond what the same draw does at the rate that all windows would choose; it is 0 for rates chosen on other windows.
"""

from __future__ import annotations

import argparse
import itertools
from datetime import date
from pathlib import Path

import numpy as np

from plait.data import open_corpus
from plait.racing.contenders import read_contenders
from plait.racing.leg import Course
from plait.racing.rates import FACTORS, FURTHER, best_rate, rate_steps, usual_rate
from plait.training.recipe import Recipe, decay_steps
from plait.training.track import Replica, Text, Track, track_recipe

MIXERS = ("attn", "gla", "mamba2", "hyena")
TEXT, BATCH, SEQ_LEN, WARMUP, HELD_OUT = "builtin:stdlib", 8, 256, 10, 2**14  # the defaults of `plait compare`
STEPS = (200, 800)
SEEDS = 5
DRAWS = 4000
POWERS = range(-1 - FURTHER, 2 + FURTHER)  # of two: the factors that a search may try


def course_on(device: str) -> Course:
    recipe = track_recipe(Recipe(batch=BATCH, seq_len=SEQ_LEN), WARMUP)
    return Course(TEXT, None, open_corpus(TEXT, None).fingerprint, recipe, 8 * HELD_OUT, device)


def trained(name: str, course: Course) -> dict[str, np.ndarray]:
    """Losses (rate, seed, window) as if the training ended after so many steps."""
    (contender,) = read_contenders([name], 256, None, Path("runs"))
    text = Text.of(open_corpus(TEXT, None), SEQ_LEN, course.held_out)
    rates = [2.0**power * usual_rate(contender, course) for power in POWERS]
    replicas = [Replica(lr, seed) for lr in rates for seed in range(SEEDS)]
    track = Track(contender.arch, replicas, [text], course.recipe, device=course.device)
    ends = sorted({*STEPS, *(rate_steps(steps * course.tokens_per_step, course) for steps in STEPS)})
    scored = {steps: track.annealed(steps, decay_steps(course.recipe, steps)) for steps in ends}
    return {f"{name}-{steps}": x.reshape(len(rates), SEEDS, -1).astype(np.float32) for steps, x in scored.items()}


def chosen(loss_R: np.ndarray) -> int:
    """The rate that a search chooses, as its place in `POWERS`."""
    tried = {POWERS.index(round(np.log2(factor))) for factor in FACTORS}
    for _ in range(1 + FURTHER):
        best = round(best_rate({place: loss_R[place] for place in tried}, 0.0))
        more = best - 1 if best == min(tried) else best + 1 if best == max(tried) else best
        if more in tried or len(tried) == len(FACTORS) + FURTHER:
            break
        tried.add(more)
    return best


def optimism(early_RSW: np.ndarray, late_RSW: np.ndarray, windows: int, rng: np.random.Generator) -> np.ndarray:
    """For each draw of windows: the optimism, and the place of the rate chosen."""
    usual_SW = late_RSW[chosen(early_RSW[:, 0].mean(-1))]
    rows = []
    for _ in range(DRAWS):
        own, others = np.split(rng.permutation(early_RSW.shape[-1]), [windows])
        rate = chosen(early_RSW[:, 0, own].mean(-1))
        beyond_W = (usual_SW - late_RSW[rate]).mean(0)
        rows.append([beyond_W[own].mean() - beyond_W[others].mean(), rate])
    return np.array(rows)


def report(losses: dict[str, np.ndarray], device: str) -> str:
    rng, course = np.random.default_rng(0), course_on(device)
    head = ("steps", "windows", "architecture", "rates chosen", "noise between seeds", "optimism, nats")
    lines, pairs = [f"| {' | '.join(head)} |", "|---:|---:|---|---|---:|---:|"], []
    for steps, windows in itertools.product(STEPS, (8, HELD_OUT // SEQ_LEN)):
        search, by_name = rate_steps(steps * course.tokens_per_step, course), []
        for name in MIXERS:
            early_RSW, late_RSW = (losses[f"{name}-{ends}"].astype(float) for ends in (search, steps))
            rows = optimism(early_RSW, late_RSW, windows, rng)
            place, count = np.unique(rows[:, 1].astype(int), return_counts=True)
            often = ", ".join(f"×{2.0 ** POWERS[p]:g}: {c / DRAWS:.0%}" for p, c in zip(place, count, strict=True))
            spread = late_RSW[place[count.argmax()]].mean(-1).std(ddof=1)
            by_name.append(rows[:, 0].mean())
            error = rows[:, 0].std() / DRAWS**0.5
            lines.append(f"| {steps} | {windows} | {name} | {often} | {spread:.4f} | {by_name[-1]:.5f} ± {error:.5f} |")
        apart = np.ptp(by_name)
        pairs.append(f"- {steps} steps, {windows} windows: two architectures' difference is off by {apart:.5f} at most")
    title = "# Choosing the learning rate on the windows of the verdict"
    seen = losses[f"{MIXERS[0]}-{STEPS[0]}"].shape[-1]
    made = f"`python benchmarks/rate_windows.py`, {date.today()}, {TEXT}, {SEEDS} seeds, {seen} windows in all."
    return "\n".join([title, "", made, "", *lines, "", *pairs]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("losses", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if not given.losses.exists():
        course = course_on(given.device)
        np.savez_compressed(given.losses, **{key: x for name in MIXERS for key, x in trained(name, course).items()})
    with np.load(given.losses) as losses:
        told = report(dict(losses), given.device)
    print(told)
    if given.out:
        given.out.write_text(told, encoding="utf-8")


if __name__ == "__main__":
    main()
