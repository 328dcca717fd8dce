"""How a supernet is searched: every choice but the space, the data, the recipe of the weights and the seed.

A search has two stages that take turns (FBNet; eq. 7 of arXiv:2009.04534). For a while only the weights are trained,
all choices being equally likely. Then, of every `cycle` steps, the last share trains the logits, on text of its own and
with the weights held.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from plait.core.errors import UserError, did_you_mean
from plait.core.settings import kinds_of, require_known
from plait.device.quantities import PEAK, quantities

WEIGHTS, ARCHITECTURE = "weights", "architecture"
#: soft: a little of every choice. straight-through: one choice, with the soft mixture's gradient.
#: path: one choice, and no other is computed; its gradient knows of that choice only (Dong & Yang 2019,
#: arXiv:1910.04465).
SAMPLINGS = ("soft", "straight-through", "path")
#: Every choice in turn in a few layers of a drawn network (`plait.supernet.choices`): for the logits alone.
SWAP = "swap"
PENALTIES = tuple(each.name for each in quantities() if each.predicted != PEAK)  # what has a share in every layer
#: Field → its name in stored results and in earlier releases, which is accepted, too.
STORED = {"warmup": "frozen", "start_temperature": "hot", "end_temperature": "cold"}


@dataclass(frozen=True)
class Settings:
    """
    steps         of both stages together
    warmup        share of them before the logits first move
    share         of the later steps, and of the training text, that is for the logits
    cycle         steps after which the stages begin again; 0: those of one epoch
    lr            of the logits: of their usual gradient with swap, otherwise by Adam
    weight_decay  of the logits: pulls choices together that make no difference
    start_temperature, end_temperature    at the beginning and at the end of the logits' stage, falling exponentially
    weights       how a step of the weights mixes: path costs least, and trains what will be extracted
    architecture  how a step of the logits mixes; swap: not at all, it tries the choices of some layers one by one
    swaps         layers whose choices are compared in one such step
    patience      stop once the likeliest architecture has stayed for this share of the logits' stage; 1: never
    penalty       a quantity that is to be low as well, such as latency, flops, state; empty: the loss alone
    strength      nats that the whole network's quantity costs, at the start, in the loss of the logits
    top           likeliest architectures of every seed that are looked at
    """

    steps: int = 2000
    warmup: float = 0.25
    share: float = 0.2
    cycle: int = 10
    lr: float = 0.1
    weight_decay: float = 5e-4
    start_temperature: float = 2.0
    end_temperature: float = 0.2
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
            self._require(spec.name, not isinstance(value, float) or math.isfinite(value), "must be a finite number")
        for name in ("steps", "top", "swaps"):
            self._require(name, getattr(self, name) >= 1, "must be at least 1")
        for name in ("lr", "start_temperature", "end_temperature"):
            self._require(name, getattr(self, name) > 0, "must be greater than 0")
        for name in ("weight_decay", "strength"):
            self._require(name, getattr(self, name) >= 0, "must not be negative")
        self._require("cycle", self.cycle >= 0 and self.cycle != 1, "must be 2 or more, or 0 for an epoch")
        self._require("warmup", 0 <= self.warmup < 1, "must be from 0 up to, but not, 1")
        self._require("share", 0 < self.share < 1, "must lie between 0 and 1")
        self._require("patience", 0 < self.patience <= 1, "must be above 0, at most 1")
        self._choose(WEIGHTS, SAMPLINGS)
        self._choose(ARCHITECTURE, (SWAP, *SAMPLINGS))
        if self.penalty:
            self._choose("penalty", PENALTIES)

    def with_values(self, values: Mapping[str, Any]) -> Settings:
        """These settings with some changed; unknown ones are refused."""
        named = {
            next((new for new, old in STORED.items() if old == name), name): value for name, value in values.items()
        }
        for name in named:
            require_known(name, kinds_of(self), "a supernet")
        return replace(self, **named)

    def as_dict(self) -> dict[str, Any]:
        """By the names under which results are stored: they are part of every key."""
        return {STORED.get(name, name): value for name, value in asdict(self).items()}

    def _choose(self, name: str, allowed: tuple[str, ...]) -> None:
        value = getattr(self, name)
        if value not in allowed:
            raise UserError(f"{name}={value}: must be one of {', '.join(allowed)}.{did_you_mean(value, allowed)}")

    def _require(self, name: str, holds: bool, rule: str) -> None:
        if not holds:
            raise UserError(f"{name}={getattr(self, name)}: {rule}.")


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
    """Which stage a step belongs to, and how many of each came before: pure functions of the step."""

    steps: int
    warmup: int
    of_weights: int  # steps of a cycle, the first ones
    of_logits: int

    @classmethod
    def of(cls, settings: Settings, epoch: int) -> Turns:
        warmup = min(round(settings.warmup * settings.steps), settings.steps - 1)
        # A cycle that did not fit behind the warm-up, such as a long epoch, would never come to the logits.
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
