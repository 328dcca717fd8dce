"""Any torch optimizer's state in a checkpoint: tensors as pieces beside the parameters, everything else as plain data.

A tensor is named `optimizer/KEY/PARAMETER`. One that is sharded over the processes is saved and read by rows, as its
parameter is; any other is whole in every process, and the first writes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from plait.training.distributed import Processes
from plait.training.shards import Checkpoint, Piece, is_sharded, piece_of, read_into

_PREFIX = "optimizer"
#: What checkpoints kept before they kept everything.
_MOMENTS = ("exp_avg", "exp_avg_sq")

Named = Mapping[str, Tensor]


def state_pieces(optimizer: torch.optim.Optimizer, named: Named, dist: Processes) -> dict[str, Piece]:
    pieces = {}
    for name, parameter in named.items():
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor) and (dist.first or is_sharded(value)):
                pieces[f"{_PREFIX}/{key}/{name}"] = piece_of(value, dist)
    return pieces


def plain_state(optimizer: torch.optim.Optimizer, named: Named) -> dict[str, Any]:
    """What is no tensor: of each parameter, and of each group."""
    own = {
        name: {key: value for key, value in optimizer.state.get(parameter, {}).items() if not isinstance(value, Tensor)}
        for name, parameter in named.items()
    }
    groups = [
        {key: value for key, value in group.items() if key != "params" and _plain(value)}
        for group in optimizer.param_groups
    ]
    return {"state": {name: values for name, values in own.items() if values}, "groups": groups}


def restore_state(
    optimizer: torch.optim.Optimizer,
    named: Named,
    saved: Checkpoint,
    plain: Mapping[str, Any] | None,
    updates: int,
    dist: Processes,
) -> None:
    """Fill `optimizer` as it was saved; `plain` is None in a checkpoint that kept Adam's two moments alone."""
    names = {id(parameter): name for name, parameter in named.items()}
    whole = optimizer.state_dict()
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for at, parameter in enumerate(parameters):
        name = names[id(parameter)]
        if plain is None:
            kept: dict[str, Any] = {key: _read(saved, f"{key}/{name}", parameter, dist) for key in _MOMENTS if updates}
            state = {"step": torch.tensor(float(updates)), **kept} if kept else {}
        else:
            keys = saved.keys_of(_PREFIX, name)
            state = {key: _read(saved, f"{_PREFIX}/{key}/{name}", parameter, dist) for key in keys}
            state |= plain["state"].get(name, {})
        if state:
            whole["state"][at] = state
    for group, values in zip(whole["param_groups"], [] if plain is None else plain["groups"], strict=plain is not None):
        group |= {key: tuple(v) if isinstance(group.get(key), tuple) else v for key, v in values.items()}
    optimizer.load_state_dict(whole)


def _read(saved: Checkpoint, name: str, parameter: Tensor, dist: Processes) -> Tensor:
    if not is_sharded(parameter) or saved.shape(name) != tuple(parameter.shape):
        return saved.rows(name)
    like = torch.zeros_like(parameter)
    read_into(saved, name, like, dist)
    return like


def _plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(isinstance(part, bool | int | float | str) for part in value)
    return value is None or isinstance(value, bool | int | float | str)
