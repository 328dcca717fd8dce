"""What a differentiable search trains on (data, recipe, settings, seeds) and chooses among; known without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from plait.core.errors import UserError
from plait.data import Corpus
from plait.supernet.settings import ARCHITECTURE, WEIGHTS, Settings
from plait.training.recipe import PRECISIONS, Recipe

if TYPE_CHECKING:
    from plait.algorithms.objectives import Objective
    from plait.algorithms.search import Search
    from plait.device.predictor import Predictor
    from plait.space.space import Space


MOST_CHOICES = 64  # of a layer


@dataclass(frozen=True)
class SupernetJob:
    corpus: Corpus
    recipe: Recipe = field(default_factory=Recipe)
    settings: Settings = field(default_factory=Settings)
    seeds: int = 1
    device: str = "cpu"
    precision: str = "fp32"

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise UserError(f"precision {self.precision}: known are {', '.join(PRECISIONS)}.")
        if self.recipe.gradient_accumulation > 1:
            raise UserError("a supernet does not accumulate gradients; give a smaller batch.")
        if self.recipe.next_sentence:
            raise UserError("next_sentence=true is for plait train; a supernet learns the masked tokens alone.")
        if self.seeds < 1:
            raise UserError(f"{self.seeds} seeds: at least one is needed.")

    def as_dict(self) -> dict[str, Any]:
        """All that decides the result."""
        return {
            "data": self.corpus.as_dict(),
            "recipe": self.recipe.as_dict(),
            "supernet": self.settings.as_dict(),
            "seeds": self.seeds,
            "device": self.device.partition(":")[0],
            "precision": self.precision,
        }

    def check(self, space: Space) -> None:
        """Refuse what could not be trained: now, not after minutes of profiling."""
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
        """The training text in two: the logits must not be tuned on what the weights have learnt by heart."""
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
    """For every layer and slot in order, the places of the slot's options that may stand there."""
    varied = {key: values for key, values in space.choices.items() if len(values) > 1}
    if space.alike:
        raise UserError(f"{space.name}: all its layers are alike, and gumbel chooses layer by layer.")
    if len(space.depths) > 1 and None not in space.slots[0].places:
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
    return of_slot * space.depths[-1]
