"""Settings and job of a differentiable search over a supernet; nothing here needs torch.

A search alternates between two stages (FBNet; eq. 7 of arXiv:2009.04534). During a warm-up only the weights are
trained, with all choices equally likely. After that, the last steps of every `cycle` train the architecture logits
with the weights frozen, on a part of the training text that the weights never see.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from plait.core.errors import UserError
from plait.core.registry import require_one_of, require_setting, with_fields
from plait.data import Corpus
from plait.device.quantities import PEAK, quantities
from plait.mixers.options import MixerOptions
from plait.space.declaration import ALWAYS_AVAILABLE
from plait.training.recipe import PRECISIONS, Recipe

if TYPE_CHECKING:
    from plait.algorithms.objectives import Objective
    from plait.algorithms.search import Search
    from plait.device.predictor import Predictor
    from plait.space.space import Space


WEIGHTS, ARCHITECTURE = "weights", "architecture"
#: soft: a weighted sum of all choices. straight-through: the output of one choice with the gradient of the weighted
#: sum. path: only one choice is computed, and the gradient is of that choice alone (Dong & Yang 2019,
#: arXiv:1910.04465).
SAMPLINGS = ("soft", "straight-through", "path")
#: Try every choice of a few layers of a sampled network (`plait.supernet.mixture`); only for steps of the logits.
SWAP = "swap"
PENALTIES = tuple(
    quantity.name for quantity in quantities() if quantity.predicted != PEAK
)  # quantities that are sums over layers


@dataclass(frozen=True)
class Settings:
    """
    steps         of both stages together
    warmup        share of them before the logits first move
    share         of the later steps, and of the training text, that is for the logits
    cycle         steps after which the stages begin again; 0: those of one epoch
    lr            of the logits: of their usual gradient with swap, otherwise by Adam
    weight_decay  of the logits: pulls choices together that make no difference
    start_temperature, end_temperature    at the beginning and end of the logits' stage, decaying exponentially
    weights       sampling in steps of the weights: path is cheapest, and trains the networks that will be extracted
    architecture  sampling in steps of the logits; swap tries the choices of some layers one by one, without mixing
    swaps         layers whose choices are compared in one such step
    patience      stop once the most likely architecture is unchanged for this fraction of the logits' stage; 1: never
    penalty       a quantity to minimise besides the loss, such as latency, flops, state; empty: none
    strength      initial penalty of the whole network, in nats, in the loss of the logits
    top           number of most likely architectures of every seed that are evaluated
    """

    steps: int = 2000
    warmup: float = field(default=0.25, metadata={"formerly": "frozen"})
    share: float = 0.2
    cycle: int = 10
    lr: float = 0.1
    weight_decay: float = 5e-4
    start_temperature: float = field(default=2.0, metadata={"formerly": "hot"})
    end_temperature: float = field(default=0.2, metadata={"formerly": "cold"})
    weights: str = "path"
    architecture: str = SWAP
    swaps: int = 4
    patience: float = 0.75
    penalty: str = ""
    strength: float = 0.2
    top: int = 4

    def __post_init__(self) -> None:
        for spec in fields(self):
            value = getattr(self, spec.name)
            finite = not isinstance(value, float) or math.isfinite(value)
            require_setting(self, spec.name, finite, "must be a finite number")
        for name in ("steps", "top", "swaps"):
            require_setting(self, name, getattr(self, name) >= 1, "must be at least 1")
        for name in ("lr", "start_temperature", "end_temperature"):
            require_setting(self, name, getattr(self, name) > 0, "must be greater than 0")
        for name in ("weight_decay", "strength"):
            require_setting(self, name, getattr(self, name) >= 0, "must not be negative")
        require_setting(self, "cycle", self.cycle >= 0 and self.cycle != 1, "must be 2 or more, or 0 for an epoch")
        require_setting(self, "warmup", 0 <= self.warmup < 1, "must be at least 0 and below 1")
        require_setting(self, "share", 0 < self.share < 1, "must be between 0 and 1")
        require_setting(self, "patience", 0 < self.patience <= 1, "must be above 0 and at most 1")
        require_one_of(self.weights, SAMPLINGS, f"weights={self.weights}")
        require_one_of(self.architecture, (SWAP, *SAMPLINGS), f"architecture={self.architecture}")
        if self.penalty:
            require_one_of(self.penalty, PENALTIES, f"penalty={self.penalty}")

    def with_values(self, values: Mapping[str, Any]) -> Settings:
        """These settings with some changed; unknown ones are refused."""
        return with_fields(self, values, "a supernet has no setting")

    def as_dict(self) -> dict[str, object]:
        """With the former names, which are part of the keys of records."""
        return {spec.metadata.get("formerly", spec.name): getattr(self, spec.name) for spec in fields(self)}


#: Section 2.2 of arXiv:2009.04534, for weights trained by the recipe `par-search`. The paper does not give the
#: temperature; FBNet's begins at 5.
PAR = Settings(
    steps=40_000,
    warmup=0.25,
    share=0.2,
    cycle=0,
    lr=1e-2,
    weight_decay=5e-4,
    start_temperature=5.0,
    weights="soft",
    architecture="soft",
    patience=0.75,
)


@dataclass(frozen=True)
class Turns:
    """The stage of every step, and how many steps of each stage came before it, as functions of the step number."""

    steps: int
    warmup: int
    of_weights: int  # steps of a cycle, the first ones
    of_logits: int

    @classmethod
    def of(cls, settings: Settings, epoch: int) -> Turns:
        warmup = min(round(settings.warmup * settings.steps), settings.steps - 1)
        # A cycle longer than what follows the warm-up (a long epoch, say) would never reach the logits.
        cycle = min(settings.cycle or epoch, settings.steps - warmup)
        logits = min(max(1, round(settings.share * cycle)), max(1, cycle - 1))
        return cls(settings.steps, warmup, cycle - logits, logits)

    def stage(self, step: int) -> str:
        return ARCHITECTURE if self.before(step + 1)[ARCHITECTURE] > self.before(step)[ARCHITECTURE] else WEIGHTS

    def before(self, step: int) -> dict[str, int]:
        """Steps of each stage among the first `step`."""
        cycles, rest = divmod(max(0, step - self.warmup), self.of_weights + self.of_logits)
        logits = cycles * self.of_logits + max(0, rest - self.of_weights)
        return {WEIGHTS: step - logits, ARCHITECTURE: logits}

    @property
    def total(self) -> dict[str, int]:
        return self.before(self.steps)


MOST_CHOICES = 64  # per layer


@dataclass(frozen=True)
class SupernetJob:
    corpus: Corpus
    recipe: Recipe = field(default_factory=Recipe)
    settings: Settings = field(default_factory=Settings)
    seeds: int = 1
    device: str = "cpu"
    precision: str = "fp32"

    def __post_init__(self) -> None:
        require_one_of(self.precision, PRECISIONS, f"precision {self.precision}")
        if self.recipe.gradient_accumulation > 1:
            raise UserError("a supernet does not support gradient accumulation; give a smaller batch.")
        if self.recipe.next_sentence:
            raise UserError("next_sentence=true works only with plait train; a supernet learns masked tokens only.")
        if self.seeds < 1:
            raise UserError(f"{self.seeds} seeds: at least one is needed.")

    def as_dict(self) -> dict[str, object]:
        """Everything that determines the result."""
        return {
            "data": self.corpus.as_dict(),
            "recipe": self.recipe.as_dict(),
            "supernet": self.settings.as_dict(),
            "seeds": self.seeds,
            "device": self.device.partition(":")[0],
            "precision": self.precision,
        }

    def check(self, space: Space) -> None:
        """Raise a `UserError` for jobs that could not be trained, before minutes are spent on profiling."""
        if self.recipe.seq_len > space.headers.positions:
            raise UserError(
                f"sequences of {self.recipe.seq_len} tokens given, but models of {space.name} have "
                f"{space.headers.positions:g} positions; write --set seq_len=…"
            )
        for stage, text in self.split().items():
            have, need = len(text.tokens("train")), self.recipe.batch * self.recipe.seq_len + 1
            if have < need:
                raise UserError(
                    f"a batch of {self.recipe.batch} × {self.recipe.seq_len} tokens needs {need:,} tokens, and "
                    f"{self.corpus.name} has {have:,} for the {stage}; make the batch or the length smaller."
                )

    def split(self) -> dict[str, Corpus]:
        """Split the training text: the logits must not be trained on text that the weights have memorised."""
        tokens = self.corpus.tokens("train")
        cut = round((1 - self.settings.share) * len(tokens))
        return {
            WEIGHTS: self.corpus.training_on(tokens[:cut]),
            ARCHITECTURE: self.corpus.training_on(tokens[cut:]),
        }

    def search(
        self, space: Space, objectives: Sequence[Objective], predictor: Predictor | None, **common: Any
    ) -> Search:
        from plait.supernet.search import GumbelSearch

        return GumbelSearch(space, objectives, self, predictor=predictor, **common)


def layer_choices(space: Space) -> list[list[int]]:
    """For every layer and slot in order, the indices of the slot's options that are allowed there."""
    varied = {key: values for key, values in space.choices.items() if len(values) > 1}
    if space.alike:
        raise UserError(
            f"{space.name}: all layers are the same, but gumbel chooses each layer separately; use another --method."
        )
    if len(space.depths) > 1 and None not in space.slots[0].index:
        varied = {"layers": space.depths, **varied}
    if varied:
        fix = " ".join(f"--fix {key}={values[-1]}" for key, values in varied.items())
        raise UserError(
            f"{space.name}: gumbel chooses layers of one network, but {', '.join(varied)} may vary; such as {fix}."
        )
    of_slot = [space.allowed.options(slot, 0) for slot in range(len(space.slots))]
    if max(map(len, of_slot)) > MOST_CHOICES:
        raise UserError(
            f"{space.name}: a layer has {max(map(len, of_slot))} choices, and a supernet holds all of them; "
            f"at most {MOST_CHOICES}: name fewer values in a space of your own."
        )
    refuse_readers(slot.options[place] for slot, places in zip(space.slots, of_slot, strict=True) for place in places)
    return of_slot * space.depths[-1]


def refuse_readers(choices: Iterable[MixerOptions | None]) -> None:
    """Raise a `UserError` if a choice reads from an earlier layer, which is itself still being searched."""
    for option in choices:
        if option is not None and option.reads not in ("", ALWAYS_AVAILABLE):
            raise UserError(
                f"{option.to_layer()} reads from an earlier layer, and in a supernet it is not known until the end "
                "which one that is; search this space with another method, such as --method lts."
            )
