"""A complete description of a training: architecture, data, recipe, length and seed. Its hash is the key of the record
and names the folder."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from plait.core.errors import UserError
from plait.data import Corpus
from plait.model import model_cost
from plait.model.architecture import Architecture, architecture
from plait.records import record_key
from plait.training.recipe import PRECISIONS, Recipe, revision_of

KIND = "train"
#: Raised by hand when results change meaning; part of every run's key.
PROTOCOL = 2
MOST_STEPS = 10**9
#: Of the validation text.
VALIDATION_TOKENS = 2**17


@dataclass(frozen=True)
class Budget:
    """How long to train; exactly one is given."""

    steps: int | None = None
    tokens: float | None = None
    seconds: float | None = None
    flops: float | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if value is not None}
        if len(given) != 1:
            named = ", ".join(f"--{'time' if name == 'seconds' else name}" for name in given) or "none"
            raise UserError(f"give one of --steps, --tokens, --time and --flops; given: {named}.")
        ((name, value),) = given.items()
        if not 0 < value < math.inf:
            option = "time" if name == "seconds" else name
            raise UserError(f"--{option} {value:g}: the length of a training must be positive and finite.")
        if (self.steps or 0) > MOST_STEPS:
            raise UserError(f"--steps {self.steps}: at most {MOST_STEPS:,}.")


@dataclass(frozen=True)
class Start:
    """The finished run whose weights a training begins with; optimizer and schedule begin again."""

    folder: Path
    key: str
    steps: int | None


@dataclass(frozen=True)
class Job:
    arch: Architecture
    corpus: Corpus
    recipe: Recipe
    budget: Budget
    seed: int = 0
    precision: str = "fp32"
    validation_tokens: int = VALIDATION_TOKENS
    start: Start | None = None

    def __post_init__(self) -> None:
        kind, vocab = self.arch.header.kind, self.corpus.vocab
        if kind not in ("lm", "encoder"):
            raise UserError(f"kind={kind} is for probes; train a language model (kind=lm) or an encoder.")
        if self.precision not in PRECISIONS:
            raise UserError(f"precision {self.precision}: known: {', '.join(PRECISIONS)}.")
        needed = vocab + (kind == "encoder")
        if self.arch.header.vocab < needed:
            mask = " and one more for the mask" if kind == "encoder" else ""
            raise UserError(
                f"the model has vocab={self.arch.header.vocab}, but {self.corpus.name} has {vocab} tokens{mask}; "
                f"write vocab={needed} or leave it out."
            )
        header, length = self.arch.header, self.recipe.seq_len
        if header.pos == "learned" and length > header.max_len and not self.recipe.memory:
            raise UserError(
                f"sequences of {length} tokens, but the model has max_len={header.max_len} learned positions; write "
                f"max_len={length} in the spec or --seq-len {header.max_len}."
            )

    @property
    def tokens_per_step(self) -> int:
        return self.recipe.batch * self.recipe.seq_len

    @property
    def flops_per_token(self) -> float:
        """Forward and backward, as three times the forward pass."""
        cost = model_cost(self.arch, seq=self.recipe.seq_len, memory=self.recipe.memory)
        return 3 * cost.flops / self.recipe.seq_len

    @property
    def model_flops_per_token(self) -> float:
        """The same for MFU: without what causal masks leave out, and nothing of what activation checkpointing or
        chunked forms compute again or besides."""
        cost = model_cost(self.arch, seq=self.recipe.seq_len, memory=self.recipe.memory)
        return 3 * cost.unmasked_flops / self.recipe.seq_len

    @property
    def steps(self) -> int | None:
        """None where only the machine's speed can tell."""
        budget = self.budget
        if budget.seconds is not None:
            return None
        if budget.steps is not None:
            return budget.steps
        tokens = budget.tokens if budget.tokens is not None else (budget.flops or 0) / self.flops_per_token
        return max(1, round(tokens / self.tokens_per_step))

    def config(self) -> dict[str, object]:
        """All that decides the result, but for the machine's speed under a time budget."""
        revision = revision_of(self.recipe.optimizer)
        return {
            "protocol": PROTOCOL,
            **self.arch.identity(),
            "data": self.corpus.as_dict(),
            "recipe": self.recipe.as_dict(),
            "length": {"seconds": self.budget.seconds} if self.steps is None else {"steps": self.steps},
            "seed": self.seed,
            "precision": self.precision,
            "validation_tokens": self.validation_tokens,
            **({"from": {"key": self.start.key, "steps": self.start.steps}} if self.start else {}),
            **({"optimizer_revision": revision} if revision > 1 else {}),
        }

    @property
    def key(self) -> str:
        return record_key(KIND, self.config())


def fitted(given: str, corpus: Corpus) -> Architecture:
    """An architecture whose vocabulary is the corpus's, unless its text says `vocab=` itself. Encoders get one token
    more, the mask."""
    arch = architecture(given)
    if re.search(r"(^|\s)vocab\s*=", given):
        return arch
    vocab = corpus.vocab + (arch.header.kind == "encoder")
    return Architecture(arch.header.with_vocabulary(vocab), arch.layers)
