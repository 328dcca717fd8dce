"""RULER's questions that need no download, by generation, at multiples of the trained length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plait.core.errors import UserError, did_you_mean
from plait.evals.evaluation import Subject
from plait.evals.long_context import LongContextEvaluation
from plait.evals.questions import Asks
from plait.evals.ruler_questions import NOISE, QUESTIONS

HAYSTACKS = ("noise", "text")


@dataclass(frozen=True)
class RulerEvaluation(LongContextEvaluation):
    name = "ruler"
    what = "needles, variable tracking and word counts in long texts, by generation"

    tasks: str = "all"  # or some of them, separated by commas
    haystack: str = "noise"  # what needles are hidden in: plait's own noise, or text, the corpus

    @property
    def needs_text(self) -> bool:
        return self.haystack == "text"

    def asked(self) -> dict[str, Asks]:
        names = list(QUESTIONS) if self.tasks == "all" else [name.strip() for name in self.tasks.split(",")]
        for name in names:
            if name not in QUESTIONS:
                near = did_you_mean(name, QUESTIONS)
                raise UserError(f"ruler has no task '{name}'.{near} Known: {', '.join(QUESTIONS)}.")
        return {name: QUESTIONS[name] for name in names}

    def filler(self, subject: Subject) -> np.ndarray:
        self.require(self.haystack in HAYSTACKS, "haystack", "noise or text")
        if self.haystack == "text":
            if not len(subject.tokens):
                raise UserError("ruler: haystack=text hides needles in a corpus: give one by --data.")
            return subject.tokens[: 2**20]
        assert subject.tokenizer is not None
        return np.asarray(subject.tokenizer.encode(NOISE))
