"""The interface of evaluations (settings, measurement, display of the result), their table, and their records.

An evaluation is a frozen dataclass whose fields are its settings. An integer setting of 0 means a default that depends
on the subject; `resolved` replaces it before anything is measured, so that a stored result states what was done.
`measure` returns plain JSON, from which tables and figures are made without the model. A new evaluation is one file and
one line in `EVALUATIONS`.

Results are stored as records, so the same evaluation of the same weights on the same text is not measured again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from plait.core.errors import UserError
from plait.core.progress import OnCount, silent
from plait.core.registry import Table, accept_subclass, read_values

if TYPE_CHECKING:
    import numpy as np

    from plait.data import Tokenizer
    from plait.model.language_model import Encoder, LanguageModel
    from plait.records import Record, Store

#: The result of each run, by the run's name.
Results = Mapping[str, Mapping[str, Any]]
#: Columns (name → "left" or "right") and rows of text.
ResultTable = tuple[dict[str, str], list[list[str]]]

Self = TypeVar("Self", bound="Evaluation")


@dataclass(frozen=True)
class Subject:
    """What is evaluated: a model, and held-out text encoded by its tokenizer."""

    model: LanguageModel | Encoder
    tokens: np.ndarray  # one-dimensional, of one split
    trained_length: int  # tokens of a training sequence
    tokenizer: Tokenizer | None = None
    characters: int = 0  # of the split's text; 0 = not known
    bytes: int = 0  # of the split's text in UTF-8; 0 = not known
    entropy: float | None = None  # of the text's source, in nats per token, if known: a lower bound of the loss

    @property
    def language_model(self) -> LanguageModel:
        """The model, which must predict next tokens; an encoder is an error."""
        from plait.model.language_model import LanguageModel

        if not isinstance(self.model, LanguageModel):
            raise UserError("this evaluation is for language models; an encoder does not predict the next token.")
        return self.model


@dataclass(frozen=True)
class Evaluation(ABC):
    """Subclasses define `name`, `what`, `measure` and `table`; they may override `resolved` and `figures`."""

    name: ClassVar[str]
    what: ClassVar[str]  # one line for listings
    protocol: ClassVar[int] = 1  # incremented by hand when results change meaning

    @abstractmethod
    def measure(self, subject: Subject, progress: OnCount = silent) -> dict[str, Any]:
        """The result as plain JSON. The settings are `resolved`."""

    @abstractmethod
    def table(self, results: Results) -> ResultTable:
        """The results of one or more runs as a table for the terminal."""

    @property
    def needs_text(self) -> bool:
        """Whether it needs held-out text of a corpus; False if it brings its own."""
        return True

    @property
    def amount(self) -> str:
        """How much there is to do once `resolved`, for the progress bar, such as "200 questions"; may be empty."""
        return ""

    def resolved(self: Self, subject: Subject) -> Self:
        """These settings with every 0 that means "choose for me" replaced by the value chosen."""
        return self

    def figures(self, results: Results) -> dict[str, str]:
        """File name (without extension) → SVG document."""
        return {}

    def settings(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def with_settings(self: Self, changes: Mapping[str, Any]) -> Self:
        """The evaluation with settings changed; text (`--set documents=32`) is read as the setting's type."""
        kinds = {name: type(value) for name, value in self.settings().items()}
        return replace(self, **read_values(changes, kinds, self.name))

    def require(self, holds: bool, setting: str, allowed: str) -> None:
        """Raise a `UserError` unless `holds`; `allowed` states the values that `setting` may have."""
        if not holds:
            raise UserError(f"{self.name}: {setting}={getattr(self, setting)} given, but it must be {allowed}.")


EVALUATIONS: Table[type[Evaluation]] = Table(
    "evaluation",
    {
        "perplexity": "plait.evals.perplexity:PerplexityEvaluation",
        "per-token": "plait.evals.per_token:PerTokenEvaluation",
        "extrapolation": "plait.evals.per_token:ExtrapolationEvaluation",
        "needle": "plait.evals.needle:NeedleEvaluation",
        "ruler": "plait.evals.ruler:RulerEvaluation",
        "phonebook": "plait.evals.phonebook:PhonebookEvaluation",
        "maps": "plait.evals.maps:MapsEvaluation",
    },
    group="plait.evaluations",
    accept=accept_subclass("plait.evals.evaluation:Evaluation"),
)
names = EVALUATIONS.names


def load_evaluation(name: str) -> Evaluation:
    """An evaluation at its default settings; `with_settings` changes them."""
    return EVALUATIONS.load(name)()


KIND = "eval"


def weights_hash(model: LanguageModel | Encoder) -> str:
    """A hash of all parameters and buffers, 32 hex digits, which changes when the model is trained further."""
    import torch

    total = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        total.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()[:32]


def evaluated(
    evaluation: Evaluation,
    subject: Subject,
    *,
    data: dict[str, Any],
    store: Store,
    progress: OnCount = silent,
) -> tuple[Record, bool]:
    """The record of an evaluation, and whether it was in the store already; if not, it is measured and stored. `data`
    identifies the text of the subject's tokens, in plain JSON."""
    from plait.records import Record, provenance_of, record_key

    evaluation = evaluation.resolved(subject)
    config: dict[str, Any] = {
        "protocol": evaluation.protocol,
        "evaluation": evaluation.name,
        "settings": evaluation.settings(),
        **subject.model.arch.identity(),
        "weights": weights_hash(subject.model),
        "trained_length": subject.trained_length,
        "data": data,
    }
    known = store.get(record_key(KIND, config))
    if known is not None:
        return known, True
    started, clock = time.time(), time.perf_counter()
    result = evaluation.measure(subject, progress)
    record = Record.of(KIND, config, result, provenance_of(started, time.perf_counter() - clock))
    store.put(record)
    return record, False
