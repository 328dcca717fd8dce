"""The table of objectives: name → where it is defined. Adding an objective adds one line here."""

from __future__ import annotations

from typing import Any

from plait.core.registry import Entry, Table, accept_subclass
from plait.device.quantities import on_device

OBJECTIVES: Table[type[Any]] = Table(
    "objective",
    {
        # exact, cheap enough for millions of candidates
        "decoder_params": Entry(
            "plait.algorithms.objectives:DecoderParams",
            "parameters of the layers, embeddings left out; more is better",
        ),
        "active_decoder_params": Entry(
            "plait.algorithms.objectives:ActiveDecoderParams",
            "parameters of the layers that one token uses; more is better",
        ),
        "total_params": Entry("plait.algorithms.objectives:TotalParams", "all parameters, embeddings included"),
        "active_params": Entry("plait.algorithms.objectives:ActiveParams", "parameters that one token uses"),
        "flops": Entry("plait.algorithms.objectives:Flops", "forward FLOPs for the space's sequence length"),
        "fixed_state": Entry(
            "plait.algorithms.objectives:FixedState",
            "state that does not grow with the sequence, for one sequence",
        ),
        "kv_cache": Entry(
            "plait.algorithms.objectives:KvCache",
            "state that grows with the sequence (KV cache), for one sequence",
        ),
        # predicted from a profile of the device
        **{
            name: Entry("plait.algorithms.objectives:Predicted", f"{quantity.what}; predicted, in {quantity.dimension}")
            for name, quantity in on_device().items()
        },
        # measured by the probe, or predicted from its records
        "capability": Entry(
            "plait.searching.capability:Capability",
            "mean accuracy over the probe's tasks, measured or predicted",
        ),
        # measured on a trained supernet
        "loss": Entry(
            "plait.supernet.loss:SupernetLoss",
            "loss of a path through a trained supernet; only with --method gumbel",
        ),
        # computed by building the model and running it on text: tenths of a second per candidate
        "snip": Entry(
            "plait.algorithms.objectives:ProxyObjective", "how much removing each weight would change the loss"
        ),
        "grad_norm": Entry(
            "plait.algorithms.objectives:ProxyObjective", "norm of the loss's gradient over the weight matrices"
        ),
        "fisher": Entry(
            "plait.algorithms.objectives:ProxyObjective", "how much the loss would change without each channel"
        ),
        "grasp": Entry(
            "plait.algorithms.objectives:ProxyObjective",
            "how much removing weights would weaken the flow of gradients",
        ),
        "jacob_cov": Entry(
            "plait.algorithms.objectives:ProxyObjective", "how differently a model responds to different inputs"
        ),
        "relu_log_det": Entry(
            "plait.algorithms.objectives:ProxyObjective",
            "in how many ways a batch switches the model's nonlinearities",
        ),
        "synflow": Entry(
            "plait.algorithms.objectives:ProxyObjective",
            "flow through the paths of a model with weights |w|; needs no data",
        ),
        "short_training": Entry(
            "plait.algorithms.objectives:ProxyObjective",
            "minus the loss after a few steps of training; the most expensive and most direct",
        ),
    },
    group="plait.objectives",
    accept=accept_subclass("plait.algorithms.objectives:Objective"),
)
names, load = OBJECTIVES.names, OBJECTIVES.load
#: The objectives that score a built model on text.
PROXIES = tuple(name for name in OBJECTIVES if OBJECTIVES.entry(name).where.endswith(":ProxyObjective"))
