"""The table of objectives: name → where it is defined. Adding an objective adds one line here."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from plait.core.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from plait.search.objectives.objective import Objective

OBJECTIVES: dict[str, str] = {
    # exact, for millions of candidates
    "decoder_params": "plait.search.objectives.decoder_params:DecoderParams",
    "active_decoder_params": "plait.search.objectives.active_decoder_params:ActiveDecoderParams",
    "total_params": "plait.search.objectives.total_params:TotalParams",
    "active_params": "plait.search.objectives.active_params:ActiveParams",
    "flops": "plait.search.objectives.flops:Flops",
    "fixed_state": "plait.search.objectives.fixed_state:FixedState",
    "dynamic_state": "plait.search.objectives.dynamic_state:DynamicState",
    # predicted from a profile of the device
    "latency": "plait.search.objectives.latency:Latency",
    "memory": "plait.search.objectives.memory:Memory",
    # measured by the probe, or predicted from its records
    "capability": "plait.search.objectives.capability:Capability",
    # of a path through a trained supernet
    "loss": "plait.search.supernet.loss:SupernetLoss",
    # computed on a built model and a text: tenths of a second per candidate
    "snip": "plait.search.objectives.proxy:ProxyObjective",
    "grad_norm": "plait.search.objectives.proxy:ProxyObjective",
    "fisher": "plait.search.objectives.proxy:ProxyObjective",
    "grasp": "plait.search.objectives.proxy:ProxyObjective",
    "jacob_cov": "plait.search.objectives.proxy:ProxyObjective",
    "relu_log_det": "plait.search.objectives.proxy:ProxyObjective",
    "synflow": "plait.search.objectives.proxy:ProxyObjective",
    "short_training": "plait.search.objectives.proxy:ProxyObjective",
}
#: Those that score a built model on text.
PROXIES = tuple(name for name, where in OBJECTIVES.items() if where.endswith(":ProxyObjective"))


def names() -> list[str]:
    return list(OBJECTIVES)


def load(name: str) -> type[Objective]:
    if name not in OBJECTIVES:
        raise UserError(f"unknown objective '{name}'.{did_you_mean(name, OBJECTIVES)} Known: {', '.join(OBJECTIVES)}.")
    module, _, attribute = OBJECTIVES[name].partition(":")
    found: type[Objective] = getattr(import_module(module), attribute)
    return found


def exact(wanted: Sequence[str]) -> list[Objective]:
    """Objectives that need nothing but the candidate: `decoder_params`, `min:decoder_params`, …"""
    from plait.search.objectives.exact import Exact

    found: list[Objective] = []
    for text in wanted:
        direction, _, name = text.rpartition(":")
        if direction not in ("", "min", "max"):
            raise UserError(f"'{text}' given; write an objective's name, or min:NAME or max:NAME.")
        kind = load(name)
        if not issubclass(kind, Exact):
            raise UserError(
                f"{name} is not known from the architecture alone; make a {kind.__name__} and hand it over."
            )
        found.append(kind(maximise=kind.maximise if not direction else direction == "max"))
    return found
