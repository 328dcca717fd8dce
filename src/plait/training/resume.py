"""Resuming: saving a trainer and its optimizer to a checkpoint and restoring them, and starting a training from the
weights of a finished run (`--from RUN`).

Weights, the optimizer's state and Transformer-XL's memory are pieces of tensors, named `params/NAME`,
`optimizer/KEY/NAME` and `memory/…`; everything else is plain data. This works for the state of any torch optimizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from plait.core.errors import UserError
from plait.data import Corpus
from plait.model.backbone import ModelState
from plait.model.language_model import Encoder, LanguageModel, fill
from plait.training.checkpoint import Checkpoint, Piece, piece_of, read_into, save_checkpoint, whole_of
from plait.training.distributed import Processes, is_sharded
from plait.training.recipe import Start
from plait.training.run import NEXT_SENTENCE, WEIGHTS, Run
from plait.training.tensor_parallel import CutParameter

if TYPE_CHECKING:
    from plait.training.trainer import Trainer

_PREFIX = "optimizer"  # name prefix of optimizer tensors in a checkpoint
_MOMENTS = ("exp_avg", "exp_avg_sq")  # older checkpoints contain only these


def save_trainer(trainer: Trainer, folder: Path, plain: Mapping[str, Any]) -> None:
    """Write a checkpoint, including the caller's `plain` data."""
    dist = trainer.dist
    pieces, optimizer = training_state(trainer.model, trainer.optimizer, dist)
    for key, value in _memory_tensors(trainer.memory).items():
        if dist.tensor_rank == 0:
            first = dist.data_rank * len(value)
            pieces[f"memory/{key}"] = Piece(value, first, dist.data_world * len(value))
    state = {
        "updates": trainer.updates,
        "skipped_in_a_row": trainer.skipped_in_a_row,
        "optimizer": optimizer,
    }
    save_checkpoint(folder, trainer.step, pieces, {**plain, "trainer": state}, dist)


def training_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, dist: Processes
) -> tuple[dict[str, Piece], dict[str, object]]:
    """The weights and the optimizer's state: pieces of tensors, and plain data."""
    named = dict(model.named_parameters())
    wholes = {name: whole_of(parameter, parameter) for name, parameter in named.items()}
    pieces = {
        f"params/{name}": piece_of(tensor, dist) for name, tensor in wholes.items() if dist.first or is_sharded(tensor)
    }
    return pieces | state_pieces(optimizer, named, dist), plain_state(optimizer, named)


def restore_trainer(trainer: Trainer, saved: Checkpoint) -> None:
    """Resume from a checkpoint of the same job, written by any number of processes."""
    dist = trainer.dist
    state = saved.plain["trainer"]
    trainer.step, trainer.updates = saved.step, int(state["updates"])
    trainer.skipped_in_a_row = int(state["skipped_in_a_row"])
    restore_training(trainer.model, trainer.optimizer, saved, state.get("optimizer"), trainer.updates, dist)
    if trainer.recipe.memory and trainer.step:
        _restore_memory(trainer, saved)


def restore_training(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    saved: Checkpoint,
    plain: Mapping[str, Any] | None,
    updates: int,
    dist: Processes,
) -> None:
    """Restore what `training_state` returned. `plain` is None for a checkpoint with only Adam's two moments."""
    named = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in named.items():
            read_into(saved, f"params/{name}", parameter, dist)
        restore_state(optimizer, named, saved, plain, updates, dist)


def _restore_memory(trainer: Trainer, saved: Checkpoint) -> None:
    recipe, dist, model = trainer.recipe, trainer.dist, trainer.model
    assert isinstance(model, LanguageModel)
    rows = recipe.batch // dist.data_world // recipe.gradient_accumulation
    trainer.memory = []
    for i in range(recipe.gradient_accumulation):
        first = (dist.data_rank * recipe.gradient_accumulation + i) * rows

        def kept(name: str, first: int = first) -> Tensor:
            return saved.rows(f"memory/{name}", first, first + rows).to(dist.device)

        empty = model.init_memory(rows, recipe.memory)
        layers = tuple({key: kept(f"{n}/{key}") for key in layer} for n, layer in enumerate(empty.layers))
        trainer.memory.append(ModelState(layers, kept("pos")))


def _memory_tensors(parts: list[ModelState]) -> dict[str, Tensor]:
    """The memory by layer and key, with the rows of all micro-batches in the order of the batch."""
    if not parts:
        return {}
    named = {
        f"{n}/{key}": torch.cat([memory.layers[n][key] for memory in parts])
        for n, layer in enumerate(parts[0].layers)
        for key in layer
    }
    return {**named, "pos": torch.cat([memory.pos_B for memory in parts])}


def state_pieces(optimizer: torch.optim.Optimizer, named: Mapping[str, Tensor], dist: Processes) -> dict[str, Piece]:
    """The tensors of the optimizer state that this process writes: its rows of sharded ones and, in the first process,
    all others."""
    pieces = {}
    for name, parameter in named.items():
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                value = whole_of(parameter, value)
                if dist.first or is_sharded(value):
                    pieces[f"{_PREFIX}/{key}/{name}"] = piece_of(value, dist)
    return pieces


def plain_state(optimizer: torch.optim.Optimizer, named: Mapping[str, Tensor]) -> dict[str, object]:
    """The non-tensor state of each parameter and each group."""
    own = {
        name: {key: value for key, value in optimizer.state.get(parameter, {}).items() if not isinstance(value, Tensor)}
        for name, parameter in named.items()
    }
    groups = [
        {key: value for key, value in group.items() if key != "params" and _is_plain(value)}
        for group in optimizer.param_groups
    ]
    return {"state": {name: values for name, values in own.items() if values}, "groups": groups}


def restore_state(
    optimizer: torch.optim.Optimizer,
    named: Mapping[str, Tensor],
    saved: Checkpoint,
    plain: Mapping[str, Any] | None,
    updates: int,
    dist: Processes,
) -> None:
    """Restore `optimizer` as it was saved."""
    names = {id(parameter): name for name, parameter in named.items()}
    state_dict = optimizer.state_dict()
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, parameter in enumerate(parameters):
        name = names[id(parameter)]
        if plain is None:
            kept: dict[str, Tensor] = {
                key: _read(saved, f"{key}/{name}", parameter, dist) for key in _MOMENTS if updates
            }
            state = {"step": torch.tensor(float(updates)), **kept} if kept else {}
        else:
            keys = saved.keys_of(_PREFIX, name)
            state = {key: _read(saved, f"{_PREFIX}/{key}/{name}", parameter, dist) for key in keys}
            state |= plain["state"].get(name, {})
        if state:
            state_dict["state"][index] = state
    if plain is not None:
        for group, values in zip(state_dict["param_groups"], plain["groups"], strict=True):
            group |= {key: tuple(v) if isinstance(group.get(key), tuple) else v for key, v in values.items()}
    optimizer.load_state_dict(state_dict)


def _read(saved: Checkpoint, name: str, parameter: Tensor, dist: Processes) -> Tensor:
    if isinstance(parameter, CutParameter):
        value = saved.rows(name)
        return parameter.part_of(value) if value.shape == parameter.whole_shape else value
    if not is_sharded(parameter) or saved.shape(name) != tuple(parameter.shape):
        return saved.rows(name)
    like = torch.zeros_like(parameter)
    read_into(saved, name, like, dist)
    return like


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(isinstance(part, bool | int | float | str) for part in value)
    return value is None or isinstance(value, bool | int | float | str)


_POSITIONS = "backbone.position.weight"


def start_of(run: Run) -> Start:
    """The start of a job from a finished run. An unfinished run is refused: its weights still change, so the same
    command would give another result later."""
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
    of next-sentence prediction is copied if both have one."""
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
