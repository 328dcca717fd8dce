"""Training that starts from the weights of a finished run (`--from RUN`)."""

from __future__ import annotations

import torch

from plait.core.errors import UserError
from plait.data import Corpus
from plait.model.language_model import Encoder, LanguageModel, fill
from plait.training.recipe import Start
from plait.training.run import NEXT_SENTENCE, WEIGHTS, Run

_POSITIONS = "backbone.position.weight"


def start_of(run: Run) -> Start:
    """The start for a job, from a finished run. An unfinished run is refused: its weights still change, so the same
    command would mean something else later."""
    if not (run.folder / WEIGHTS).exists():
        raise UserError(f"{run.name} has not finished: finish its training first.")
    return Start(run.folder, str(run.about["key"]), run.about.get("steps"))


def require_same_tokens(run: Run, corpus: Corpus) -> None:
    """`UserError` unless the corpus has the tokenizer that the run was trained with."""
    if run.tokenizer().as_dict() != corpus.tokenizer.as_dict():
        raise UserError(
            f"{corpus.name} is tokenised differently from what {run.name} was trained on; give the run's tokenizer "
            "with --tokenizer, or data with the same one."
        )


def load_start(model: LanguageModel | Encoder, start: Start) -> None:
    """Copy a run's weights into a model. Learned positions beyond the run's length keep their initial values; the head
    of next-sentence prediction is copied where both have one."""
    run = Run(start.folder)
    own = {name: p.detach() for name, p in model.named_parameters() if name.startswith(NEXT_SENTENCE)}
    weights = {
        name: value for name, value in run.weights().items() if name in own or not name.startswith(NEXT_SENTENCE)
    }
    weights = {**own, **weights}
    if model.arch.text != run.arch.text and model.backbone.position is not None and _POSITIONS in weights:
        ours, theirs = model.backbone.position.weight.detach(), weights[_POSITIONS]
        if len(theirs) < len(ours) and theirs.shape[1:] == ours.shape[1:]:
            weights = {**weights, _POSITIONS: torch.cat([theirs, ours[len(theirs) :].cpu()])}
    try:
        fill(model, weights, run.name)
    except UserError as wrong:
        raise UserError(f"the spec is not that of {run.name} ({run.arch.text}): {wrong}") from None
