"""The screening: before a race, every candidate trains for all steps with a sixteenth of the tokens, on repeated text.

What separates architectures in the end is often learnt late, after many optimizer steps, and a race that may spend a
tenth of the full cost sees only the first steps. A screening takes all of them at a sixteenth of the cost: with fewer
sequences per step or, if one sequence is more than a sixteenth of a step, a shorter sequence. Pieces of 8 to 32 tokens
of its text are repeated, so that copying from the context is learnt sooner. The score is the loss on held-out tokens of
the original text that repeat the context.

A screening predicts the ranking after sixteen times as many tokens. For the 29 reference architectures on three texts,
its Spearman correlation with the losses after 34 million tokens is 0.83 to 0.91 for single seeds (two sequences of 256
tokens per step, every second piece repeated; 0.74 to 0.89 with all repeated), against about 0.4 for the same number of
tokens of the full training (benchmarks/results/2026-11-18-screening.md; its effect on a race is in
2026-11-18-verdict.md). In a screening of half as many tokens, repeating all pieces is more informative. The curve
library contains screenings of its architectures with 512 tokens per step (`analysis.curve_screening`); a screening with
other steps is compared with those of the same number of tokens: screenings of 128 tokens and 4096 steps correlate with
those of 512 tokens and 1024 steps by 0.95 and 0.94. Races of fewer than 1024 steps have no screening.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from plait.analysis.curve_library import Known, Library
from plait.core.errors import UserError
from plait.core.units import PREFIXES, percent
from plait.model.architecture import Architecture
from plait.model.reference_curves import TRAITS, screened_known, traits
from plait.racing.contenders import Contender
from plait.racing.leg import Course, loss_of
from plait.records import Record
from plait.training.track import Text

PART = 16  # the tokens of a step are divided by this
SHORTEST = 128  # tokens of a sequence
RATE = 0.35  # factor on the learning rate for a sixteenth of the tokens, as in the library's screenings
LIBRARY_TOKENS = 512  # per step of the library's screenings
ALL_HALF = (2048, 4096)  # library steps up to which all pieces are repeated, and from which on every second one is
FEWEST_STEPS = 1024  # the shortest screening that was validated
AT_MOST = 0.7  # largest fraction of a race's cost limit; a screening that would cost more is skipped
PIECES = (8, 33)  # tokens of a piece: lower end, and upper end (exclusive)
SOURCE = 4_000_000  # most tokens of the text that are used
CONTEXT = 3  # tokens that must match for a token to repeat the context
SEED = 7  # for drawing the pieces


def screening_course(course: Course, steps: int) -> Course:
    """The screening's course: the same data and held-out tokens, but fewer tokens per step, on text with repeated
    pieces."""
    batch, seq_len = course.recipe.batch, course.recipe.seq_len
    fewer = max(1, batch // PART)
    shorter = min(seq_len, max(SHORTEST, batch * seq_len // (PART * fewer)))
    share = copies_share(steps * fewer * shorter)
    return replace(course, recipe=replace(course.recipe, batch=fewer, seq_len=shorter), screening=share)


def copies_share(tokens: float) -> float:
    """The fraction of pieces that are repeated in a screening of so many tokens. In a short one all are, so that some
    architectures learn to copy at all; in a long one every second, which separates models that merely repeat the last
    piece from models that find what to copy."""
    first, last = (math.log(steps * LIBRARY_TOKENS) for steps in ALL_HALF)
    return float(np.interp(math.log(tokens), [first, last], [1.0, 0.5]))


def screening_rate(rate: float, course: Course) -> float:
    """The learning rate for the screening's step size, interpolated by a power law between the race's rate and the
    factor `RATE` at a sixteenth of the tokens."""
    small = screening_course(course, FEWEST_STEPS).tokens_per_step / course.tokens_per_step
    return rate * math.pow(RATE, math.log(small) / math.log(1 / PART))


def screening_text(text: Text, share: float) -> Text:
    """The text with this fraction of its pieces repeated, scored on held-out tokens that repeat the context."""
    repeats_NT = repeats(text.inputs_NT, text.targets_NT)
    if not repeats_NT.any():
        raise UserError("none of the held-out tokens repeat the context: the text is too short.")
    weights_NT = repeats_NT * (len(repeats_NT) / repeats_NT.sum())
    return Text(copied(text.train, share), text.inputs_NT, text.targets_NT, weights_NT)


def copied(tokens: np.ndarray, share: float) -> np.ndarray:
    """The text cut into pieces, of which a random fraction `share` is followed by a copy of itself."""
    source = np.asarray(tokens[:SOURCE])
    rng = np.random.default_rng(SEED)
    lengths = rng.integers(*PIECES, size=len(source) // PIECES[0] + 1)
    begins = np.concatenate([[0], np.cumsum(lengths)])
    begins = np.append(begins[begins < len(source)], len(source))
    pieces = [source[a:b] for a, b in itertools.pairwise(begins.tolist())]
    twice = (rng.random(len(pieces)) < share).tolist()
    return np.concatenate([piece for piece, again in zip(pieces, twice, strict=True) for _ in range(1 + again)])


def repeats(inputs_NT: np.ndarray, targets_NT: np.ndarray) -> np.ndarray:
    """Which targets occur earlier in their window after the same preceding tokens."""
    found_NT = np.zeros(targets_NT.shape, bool)
    for row, (inputs, targets) in enumerate(zip(inputs_NT.tolist(), targets_NT.tolist(), strict=True)):
        seen: set[tuple[int, ...]] = set()
        for at in range(CONTEXT - 1, len(inputs)):
            pattern = (*inputs[at - CONTEXT + 1 : at + 1], targets[at])
            found_NT[row, at] = pattern in seen
            seen.add(pattern)
    return found_NT


def known_after(contenders: Sequence[Contender], records: Mapping[str, Record]) -> Known:
    """Prior knowledge from the library given these screenings; diverged ones are left out."""
    losses = {name: loss_of(record) for name, record in records.items()}
    finite = {name: math.log(loss) for name, loss in losses.items() if math.isfinite(loss) and loss > 0}
    tokens = max(float(record.result["tokens"]) for record in records.values())
    return screened_known({c.name: c.arch for c in contenders}, round(tokens / LIBRARY_TOKENS), finite)


# ---- why there is none, and what would give one: ends of the sentence "No screening: …"

COMPARED = "a comparison trains every architecture to its budget; only the races of plait design start with one"


def too_short(steps: int, needed: float) -> str:
    """`needed`: tokens of a race that is long enough."""
    return (
        f"it needs a race to {FEWEST_STEPS:,} steps, and this one goes to {steps:,}; use --train-for "
        f"'{at_least(needed)} tokens' or more, with a --time that allows for it"
    )


def unlike_library(architectures: Sequence[Architecture], library: Library) -> str:
    """Of the traits, only depth and state have ranges that a model can leave."""
    ranges = []
    for what, trait, counted in (("mixers", "depth", math.exp), ("numbers of state per channel", "state", math.expm1)):
        place = TRAITS.index(trait)
        here = [round(counted(traits(arch)[place])) for arch in architectures]
        low, high = (
            round(counted(end)) for end in (min(library.traits_AF[:, place]), max(library.traits_AF[:, place]))
        )
        if min(here) < low or max(here) > high:
            ranges.append(f"{low} to {high} {what} (these have {_range(here)})")
    return (
        f"most candidates are unlike the architectures that it was tested on, which have {' and '.join(ranges)}; "
        "use a --space of such models"
    )


def too_dear(share: float, most: float) -> str:
    """`share`, `most`: what it would cost and what it may cost."""
    if most <= 0:
        return "there was no time for it; use a longer --time"
    factor = math.ceil(10 * share / most) / 10
    return (
        f"it would take {percent(AT_MOST * share / most)} of what this race may cost, more than {percent(AT_MOST)}; "
        f"use {factor:.1f} times the --time at the same --train-for, or a shorter --train-for"
    )


def at_least(tokens: float) -> str:
    """Rounded up to two digits, as --train-for reads it: 2.1M."""
    size, prefix = next(((size, prefix) for size, prefix in PREFIXES if tokens >= size), (1.0, ""))
    digit = 10.0 ** (math.floor(math.log10(tokens / size)) - 1)
    return f"{math.ceil(tokens / size / digit - 1e-9) * digit:g}{prefix}"


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low}" if low == high else f"{low} to {high}"
