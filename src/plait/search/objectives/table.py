"""The table of objectives: name → where it is defined. Adding an objective adds one line here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from plait.core.errors import UserError
from plait.core.registry import Entry, Table

if TYPE_CHECKING:
    from plait.search.objectives.objective import Objective

OBJECTIVES: Table[type[Objective]] = Table(
    "objective",
    {
        # exact, for millions of candidates
        "decoder_params": Entry(
            "plait.search.objectives.decoder_params:DecoderParams",
            "parameters of the layers, embeddings left out; more is better",
        ),
        "active_decoder_params": Entry(
            "plait.search.objectives.active_decoder_params:ActiveDecoderParams",
            "parameters of the layers that one token uses; more is better",
        ),
        "total_params": Entry(
            "plait.search.objectives.total_params:TotalParams", "all parameters, embeddings included"
        ),
        "active_params": Entry("plait.search.objectives.active_params:ActiveParams", "parameters that one token meets"),
        "flops": Entry("plait.search.objectives.flops:Flops", "forward FLOPs for the space's sequence length"),
        "fixed_state": Entry(
            "plait.search.objectives.fixed_state:FixedState",
            "state that does not grow with the sequence, for one sequence",
        ),
        "dynamic_state": Entry(
            "plait.search.objectives.dynamic_state:DynamicState",
            "state that grows with the sequence (KV cache), for one sequence",
        ),
        # predicted from a profile of the device
        "latency": Entry("plait.search.objectives.latency:Latency", "predicted seconds on the profiled device"),
        "memory": Entry(
            "plait.search.objectives.memory:Memory", "predicted peak memory in bytes on the profiled device"
        ),
        # measured by the probe, or predicted from its records
        "capability": Entry(
            "plait.search.objectives.capability:Capability",
            "mean accuracy over the probe's tasks, measured or predicted",
        ),
        # of a path through a trained supernet
        "loss": Entry(
            "plait.search.supernet.loss:SupernetLoss",
            "loss of a path through a trained supernet; --method gumbel alone",
        ),
        # computed on a built model and a text: tenths of a second per candidate
        "snip": Entry(
            "plait.search.objectives.proxy:ProxyObjective", "how much removing each weight would change the loss"
        ),
        "grad_norm": Entry(
            "plait.search.objectives.proxy:ProxyObjective", "norm of the loss's gradient over the weight matrices"
        ),
        "fisher": Entry(
            "plait.search.objectives.proxy:ProxyObjective", "how much the loss would change without each channel"
        ),
        "grasp": Entry(
            "plait.search.objectives.proxy:ProxyObjective",
            "how much removing weights would weaken the flow of gradients",
        ),
        "jacob_cov": Entry(
            "plait.search.objectives.proxy:ProxyObjective", "how differently a model responds to different inputs"
        ),
        "relu_log_det": Entry(
            "plait.search.objectives.proxy:ProxyObjective",
            "in how many ways a batch switches the model's nonlinearities",
        ),
        "synflow": Entry(
            "plait.search.objectives.proxy:ProxyObjective",
            "flow through the paths of a model with weights |w|; needs no data",
        ),
        "short_training": Entry(
            "plait.search.objectives.proxy:ProxyObjective",
            "minus the loss after a few steps of training; the dearest, the most direct",
        ),
    },
)
names, load = OBJECTIVES.names, OBJECTIVES.load
#: Those that score a built model on text.
PROXIES = tuple(name for name in OBJECTIVES if OBJECTIVES.entry(name).where.endswith(":ProxyObjective"))


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
