"""A complete description of a training: architecture, data, recipe, length and seed. Its hash is the key of the record
and names the folder. The result is looked up by it before a training starts, and computed and stored at the end."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, cast

from plait.core.errors import UserError
from plait.data import Corpus
from plait.model import model_cost
from plait.model.architecture import Architecture, architecture
from plait.records import Record, Store, provenance_of, record_key
from plait.training.batches import perplexity_of
from plait.training.recipe import PRECISIONS, Recipe, revision_of

KIND = "train"
#: Raised by hand when results change meaning; part of every run's key.
PROTOCOL = 2
MOST_STEPS = 10**9
#: Of the validation text.
VALIDATION_TOKENS = 2**17
WEIGHTS = "weights.safetensors"  # in the run's folder, at the end

Curve = list[list[float]]  # of [step, loss]


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

    def mfu(self, tokens_per_second: float, peak: float | None) -> float | None:
        """Model FLOPs utilisation (see `speed`); None where the device's peak FLOPs per second are not known."""
        return None if peak is None else tokens_per_second * self.model_flops_per_token / peak

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


class _AlwaysThere(TypedDict):
    run: str
    folder: str
    spec: str
    data: str
    loss: float  # of the validation text, nats per token
    perplexity: float
    bits_per_character: float | None
    train_loss: float | None  # the last one logged
    steps: int
    skipped: int  # steps whose gradient was not finite
    tokens: int
    flops: float
    seconds: float
    tokens_per_second: float
    mfu: float | None
    params: int


class Result(_AlwaysThere, total=False):
    """A training's result as `result.json` and the record have it."""

    entropy: float  # of the data, where it is known
    above_entropy: float
    text_kept: bool  # False: the tokenizer drops characters
    trained_now: bool


def stored_result(job: Job, store: Store | None, folder: Path) -> Result | None:
    """What an earlier training of the same job gave, where its weights are still in its folder."""
    record = None if store is None else store.get(job.key)
    if record is not None and (folder / WEIGHTS).exists():
        found = cast("Result", record.result)
        return {**found, "trained_now": False}
    return None


def result_of(
    job: Job,
    folder: Path,
    *,
    steps: int,
    skipped: int,
    params: int,
    loss: float,
    train_loss: float | None,
    seconds: float,
    peak: float | None,
) -> Result:
    """`loss` is that of the validation text, `seconds` the time of the steps, `peak` the peak FLOPs per second."""
    corpus = job.corpus
    tokens = steps * job.tokens_per_step
    characters = corpus.characters("validation")
    speed = tokens / seconds if seconds else 0.0
    result: Result = {
        "run": folder.name,
        "folder": str(folder),
        "spec": job.arch.text,
        "data": corpus.name,
        "loss": loss,
        "perplexity": perplexity_of(loss),
        "bits_per_character": loss / math.log(2) * len(corpus.tokens("validation")) / characters
        if characters and job.arch.header.kind == "lm"
        else None,
        "train_loss": train_loss,
        "steps": steps,
        "skipped": skipped,
        "tokens": tokens,
        "flops": tokens * job.flops_per_token,
        "seconds": seconds,
        "tokens_per_second": speed,
        "mfu": job.mfu(speed, peak),
        "params": params,
    }
    if result["bits_per_character"] and not corpus.tokenizer.keeps_text(corpus.tokens("validation")):
        result["text_kept"] = False
    if corpus.entropy is not None:
        result |= {"entropy": corpus.entropy, "above_entropy": loss / corpus.entropy - 1}
    return result


def store_result(
    store: Store, job: Job, result: Result, curve: Curve, validation: Curve, *, began: float, seconds: float
) -> None:
    """The record: the result with its learning curves."""
    with_curves = {**result, "curve": curve, "held_out_curve": validation}
    store.put(Record.of(KIND, job.config(), with_curves, provenance_of(began, seconds)))
