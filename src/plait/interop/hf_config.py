"""What families of Hugging Face models share: reading a config.json's fields, and refusing what has no counterpart."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from torch import Tensor

from plait.core.errors import UserError
from plait.model.architecture import Architecture

Weights = dict[str, Tensor]
Config = dict[str, Any]

ACTIVATIONS = {
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
}


@dataclass(frozen=True)
class Family:
    """One Hugging Face model_type: how its config and weights are converted to plait's."""

    spec: Callable[[Config], str]
    weights: Callable[[Config, Weights], Weights]  # removes what it uses from the given weights
    prefix: str  # of names in files that include the output layer
    ignored: tuple[str, ...] = ()  # suffixes of names of masks and tables, which are not weights


@dataclass(frozen=True)
class Native:
    """One Hugging Face class: how its config and weights are made from plait's."""

    class_name: str
    config: Callable[[Architecture], Config]  # raises UserError or KeyError if it cannot express the architecture
    weights: Callable[[Architecture, Weights], Weights]


def require(config: Config, key: str, value: object) -> None:
    if config.get(key, value) != value:
        raise UserError(f"{key}={config[key]!r} in the config: only {value!r} can be imported.")


def require_absent(config: Config, key: str) -> None:
    """Refuse a field that changes what the model computes, whatever its value."""
    if config.get(key):
        raise UserError(f"{key}={config[key]!r} in the config: no such model can be imported.")


def activation(config: Config, key: str, default: str) -> str:
    name = config.get(key, default)
    if name not in ACTIVATIONS:
        raise UserError(f"{key}={name!r} in the config: known: {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[name]


def number(value: Any) -> float:
    """A number of a config, in which infinity may be spelled in a way that JSON does not define."""
    return float(value["__float__"] if isinstance(value, dict) and "__float__" in value else value)


def tie(config: Config, default: bool) -> str:
    return str(bool(config.get("tie_word_embeddings", default))).lower()


def in_runs(layers: Iterable[str]) -> str:
    """The layers as spec text, with runs of equal layers written as groups."""
    runs = [(text, len(list(equal))) for text, equal in groupby(layers)]
    return " ".join(f"({text})x{count}" for text, count in runs)


def output_weights(arch: Architecture, ours: Weights) -> Weights:
    return {} if arch.header.tie else {"lm_head.weight": ours["output.weight"]}
