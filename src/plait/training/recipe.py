"""The definition of a training: how a model is trained (`Recipe`), for how long (`Budget`), which model on which data
(`Job`), and the result (`Trained`).

A recipe holds every setting except the architecture, the data, the duration and the seed; `plait.papers.recipes` has
those of the papers. Steps are optimizer steps, and a batch is counted in sequences over all processes. A job's hash is
the key of its record and names its folder.

`OPTIMIZERS` has the optimizers by name. To add one, write a builder and a line here (or, in another package, an entry
point). A builder takes torch's parameter groups, each with its weight decay, and the recipe, and returns a torch
optimizer, whose state is saved in checkpoints and restored.

`rate` is the learning rate schedule: linear warm-up from zero (the first step has rate 0), then a cosine, a line, or
constant; or warm-up, stable, decay (WSD: Hu et al. 2024, arXiv:2404.06395; decaying as 1 − √progress: Hägele et al.
2024, arXiv:2405.18392). It depends only on the step, so a resumed run has the same rates as an uninterrupted one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.core.errors import UserError
from plait.core.registry import Entry, Table, require_one_of, require_setting, with_fields
from plait.core.result import StoredResult
from plait.model.architecture import Architecture, architecture
from plait.model.cost import ModelCost, model_cost

if TYPE_CHECKING:
    import torch

    from plait.data import Corpus

    Builder = Callable[["Groups", "Recipe"], torch.optim.Optimizer]

KIND = "train"
#: Raised by hand when results change meaning; part of every run's key.
PROTOCOL = 2
MOST_STEPS = 10**9
#: Tokens of the validation text.
VALIDATION_TOKENS = 2**17

#: Parameter groups as torch takes them.
Groups = list[dict[str, Any]]


@dataclass(frozen=True)
class OptimizerEntry(Entry):
    revision: int = 1  # raised when the update changes for the same recipe
    splits_matrices: bool = False  # matrices of blocks are in separate groups, marked `hidden`


OPTIMIZERS: Table[Builder] = Table(
    "optimizer",
    {
        "adamw": OptimizerEntry("plait.training.optimizer:adamw", "Adam with decoupled weight decay"),
        "muon": OptimizerEntry(
            "plait.training.muon:muon",
            "orthogonalised momentum for the blocks' matrices, AdamW for the rest",
            splits_matrices=True,
        ),
        "adam": OptimizerEntry("plait.training.optimizer:adam", "Adam; weight decay is added to the gradient"),
        "lamb": OptimizerEntry("plait.training.lamb:lamb", "LAMB, Algorithm 2 of its paper", revision=2),
        "lamb-xl": OptimizerEntry("plait.training.lamb:lamb_xl", "LAMB as in the public Transformer-XL training code"),
        "nvlamb": OptimizerEntry(
            "plait.training.lamb:nvlamb", "NVLAMB: LAMB after clipping the whole gradient to norm 1"
        ),
        "sgd": OptimizerEntry("plait.training.optimizer:sgd", "gradient descent with momentum beta1"),
        "rmsprop": OptimizerEntry("plait.training.optimizer:rmsprop", "RMSprop, squared gradients decay by beta2"),
        "adagrad": OptimizerEntry("plait.training.optimizer:adagrad", "Adagrad"),
    },
    group="plait.optimizers",
)


def splits_matrices(name: str) -> bool:
    entry = OPTIMIZERS.lines.get(name)
    return isinstance(entry, OptimizerEntry) and entry.splits_matrices


def revision_of(name: str) -> int:
    """1 for an optimizer of another package, which has its own versions."""
    entry = OPTIMIZERS.lines.get(name)
    return entry.revision if isinstance(entry, OptimizerEntry) else 1


SCHEDULES = ("cosine", "linear", "constant", "wsd")
PRECISIONS = ("fp32", "bf16")
MOST_TOKENS = 2**40  # per step


def _key(default: Any, about: str, choices: tuple[str, ...] = (), formerly: str = "") -> Any:
    return field(default=default, metadata={"about": about, "choices": choices, "formerly": formerly})


@dataclass(frozen=True)
class Recipe:
    """The keys with their defaults; `metadata` of each field holds its explanation and allowed values."""

    batch: int = _key(8, "sequences per step, over all processes")
    seq_len: int = _key(256, "tokens of a sequence", formerly="length")
    optimizer: str = _key("adamw", "the update rule", tuple(OPTIMIZERS))
    lr: float = _key(2e-3, "peak learning rate")
    schedule: str = _key("cosine", "decay of the learning rate after the warm-up", SCHEDULES)
    warmup: float = _key(0.02, "steps of linear warm-up from zero; below 1, a fraction of all steps")
    decay: float = _key(0.2, "schedule=wsd: the last fraction of the steps, in which the rate decays (as 1 − √)")
    min_lr_ratio: float = _key(0.0, "final learning rate, as a fraction of the peak", formerly="floor")
    beta1: float = _key(0.9, "decay of the mean gradient")
    momentum: float = _key(0.95, "optimizer=muon: decay of the mean gradient of the blocks' matrices")
    beta2: float = _key(0.95, "decay of the mean squared gradient")
    eps: float = _key(1e-8, "added to the root of the mean squared gradient")
    weight_decay: float = _key(0.1, "on matrices and embeddings; never on biases, norms and gates")
    no_weight_decay: tuple[str, ...] = _key((), "mixers whose parameters have no weight decay", formerly="undecayed")
    clip: float = _key(1.0, "largest norm of the whole gradient; 0 = no clipping")
    dropout: float = _key(0.0, "on embeddings and on every layer's output")
    attn_dropout: float = _key(0.0, "on the attention probabilities of attn layers")
    memory: int = _key(0, "Transformer-XL: tokens of earlier segments every layer sees")
    mask_share: float = _key(0.15, "encoders: fraction of the tokens that are masked")
    next_sentence: bool = _key(
        False, "encoders: rows are pairs of texts, with a second loss for predicting whether the second text follows"
    )
    gradient_accumulation: int = _key(1, "micro-batches per step, to save memory", formerly="accumulate")

    def __post_init__(self) -> None:
        for spec in fields(self):
            value, choices = getattr(self, spec.name), spec.metadata["choices"]
            if spec.name == "optimizer":
                OPTIMIZERS.require(value)
            elif choices:
                require_one_of(value, choices, f"{spec.name}={value}")
        for name in ("batch", "seq_len", "gradient_accumulation"):
            require_setting(self, name, getattr(self, name) >= 1, "must be at least 1")
        if self.batch * self.seq_len > MOST_TOKENS:
            raise UserError(f"a step of {self.batch} × {self.seq_len} tokens fits no machine; make the batch smaller.")
        for name in ("lr", "eps"):
            require_setting(self, name, getattr(self, name) > 0, "must be greater than 0")
        for name in ("warmup", "weight_decay", "clip", "memory"):
            require_setting(self, name, getattr(self, name) >= 0, "must not be negative")
        require_setting(self, "decay", 0 < self.decay <= 1, "must be above 0 and at most 1")
        for name in ("min_lr_ratio", "momentum", "beta1", "beta2", "dropout", "attn_dropout", "mask_share"):
            require_setting(self, name, 0 <= getattr(self, name) < 1, "must be at least 0 and below 1")

    def with_values(self, values: Mapping[str, Any]) -> Recipe:
        """This recipe with some keys set; unknown ones are refused."""
        return with_fields(self, values, "a recipe has no key")

    def as_dict(self) -> dict[str, object]:
        values = {**asdict(self), "no_weight_decay": list(self.no_weight_decay)}
        # Omitted where they have no effect, so that trainings stored before these keys existed are still found.
        if not self.next_sentence:
            del values["next_sentence"]
        if self.schedule != "wsd":
            del values["decay"]
        if self.optimizer != "muon":
            del values["momentum"]
        return values


def warmup_steps(recipe: Recipe, steps: int) -> int:
    """`warmup` is a fraction of the run if below 1, otherwise a number of steps; never more than the run has."""
    return min(steps, round(recipe.warmup * steps if recipe.warmup < 1 else recipe.warmup))


def decay_steps(recipe: Recipe, steps: int) -> int:
    """The number of decay steps at the end of a WSD run."""
    return max(1, round(recipe.decay * steps))


def rate(recipe: Recipe, step: int, steps: int) -> float:
    """The learning rate at a step, counted from 0, in a run of `steps`, as a fraction of the peak."""
    warmup = warmup_steps(recipe, steps)
    if step < warmup:
        return step / warmup
    if recipe.schedule == "constant":
        return 1.0
    if recipe.schedule == "wsd":
        decaying = decay_steps(recipe, steps)
        height = 1 - math.sqrt(max(0, step - (steps - decaying)) / decaying)
    else:
        progress = (step - warmup) / max(1, steps - warmup)
        height = 0.5 * (1 + math.cos(math.pi * progress)) if recipe.schedule == "cosine" else 1 - progress
    return recipe.min_lr_ratio + (1 - recipe.min_lr_ratio) * height


@dataclass(frozen=True)
class Budget:
    """How long to train; exactly one is given."""

    steps: int | None = None
    tokens: float | None = None
    seconds: float | None = None
    flops: float | None = None

    def __post_init__(self) -> None:
        limits = {name: value for name, value in vars(self).items() if value is not None}
        if len(limits) != 1:
            named = ", ".join(f"--{'time' if name == 'seconds' else name}" for name in limits) or "none"
            example = "" if limits else " For example --time 10m, --tokens 20M or --steps 1000."
            raise UserError(f"give one of --steps, --tokens, --time and --flops; given: {named}.{example}")
        ((name, value),) = limits.items()
        if not isinstance(value, int | float) or (name == "steps" and value % 1):
            whole = "a whole number" if name == "steps" else "a number"
            raise UserError(f"--{name} {value!r}: write {whole}.")
        if not 0 < value < math.inf:
            option = "time" if name == "seconds" else name
            raise UserError(f"--{option} {value:g}: the length of a training must be positive and finite.")
        if (self.steps or 0) > MOST_STEPS:
            raise UserError(f"--steps {self.steps}: at most {MOST_STEPS:,}.")


@dataclass(frozen=True)
class Start:
    """The finished run whose weights a training starts from; optimizer and schedule start fresh."""

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
        require_one_of(self.precision, PRECISIONS, f"precision {self.precision}")
        needed = vocab + (kind == "encoder")
        if self.arch.header.vocab < needed:
            mask = " and one more for the mask" if kind == "encoder" else ""
            raise UserError(
                f"the model has vocab={self.arch.header.vocab}, but {self.corpus.name} has {vocab} tokens{mask}; "
                f"write vocab={needed} or leave it out."
            )
        require_setting(self, "validation_tokens", self.validation_tokens >= 1, "must be at least 1")
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
        return 3 * self._cost().flops / self.recipe.seq_len

    @property
    def model_flops_per_token(self) -> float:
        """The same for MFU: without masked-out work, and without the recomputation of activation checkpointing or the
        overhead of chunked forms."""
        return 3 * self._cost().unmasked_flops / self.recipe.seq_len

    def _cost(self) -> ModelCost:
        return model_cost(self.arch, seq=self.recipe.seq_len, memory=self.recipe.memory)

    def mfu(self, tokens_per_second: float, peak: float | None) -> float | None:
        """Model FLOPs utilisation (see `speed`); None if the device's peak FLOPs per second are not known."""
        return None if peak is None else tokens_per_second * self.model_flops_per_token / peak

    @property
    def steps(self) -> int | None:
        """The number of steps; None if it depends on the machine's speed."""
        budget = self.budget
        if budget.seconds is not None:
            return None
        if budget.steps is not None:
            return budget.steps
        tokens = budget.tokens if budget.tokens is not None else (budget.flops or 0) / self.flops_per_token
        return max(1, round(tokens / self.tokens_per_step))

    def config(self) -> dict[str, object]:
        """Everything that determines the result, except the machine's speed under a time budget."""
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
        from plait.records.record import record_key  # this imports SQLAlchemy

        return record_key(KIND, self.config())


def fitted(spec: str, corpus: Corpus) -> Architecture:
    """The architecture with the corpus's vocabulary, unless its spec sets `vocab=`. Encoders get one more token, the
    mask."""
    arch = architecture(spec)
    if re.search(r"(^|\s)vocab\s*=", spec):
        return arch
    return arch.with_vocabulary(corpus.vocab + (arch.header.kind == "encoder"))


@dataclass(frozen=True)
class Trained(StoredResult):
    """The result of a training. Losses are in nats per token: `loss` on the validation text, `train_loss` the last one
    logged."""

    key: str
    run: str
    folder: str
    spec: str
    data: str
    loss: float
    perplexity: float
    bits_per_character: float | None
    train_loss: float | None
    steps: int
    skipped: int  # steps whose gradient was not finite
    tokens: int
    flops: float
    seconds: float  # of the steps
    tokens_per_second: float
    mfu: float | None  # model FLOPs utilisation; None if the device's peak is not known
    params: int
    trained_now: bool  # False: it had been trained before
    entropy: float | None = None  # of the data, if known
    above_entropy: float | None = None
    text_kept: bool = True  # False: the tokenizer drops characters, so bits per character are a lower bound

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in super().as_dict().items() if (name, value) not in _ABSENT}

    def stored(self) -> dict[str, Any]:
        """In the format of result.json and of the record."""
        left_out = (("key", self.key), ("trained_now", self.trained_now), *_ABSENT)
        return {name: value for name, value in vars(self).items() if (name, value) not in left_out}


#: Fields that are not part of stored results.
_ABSENT = (("entropy", None), ("above_entropy", None), ("text_kept", True))
