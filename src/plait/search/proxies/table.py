"""The table of proxies: name → where it is defined. Adding a proxy adds one line here and one among the objectives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plait.core.registry import Entry, Table

if TYPE_CHECKING:
    from plait.search.proxies.proxy import Proxy

PROXIES: Table[type[Proxy]] = Table(
    "proxy",
    {
        "snip": Entry("plait.search.proxies.snip:Snip", "how much removing each weight would change the loss"),
        "grad_norm": Entry(
            "plait.search.proxies.grad_norm:GradNorm", "norm of the loss's gradient over the weight matrices"
        ),
        "fisher": Entry("plait.search.proxies.fisher:Fisher", "how much the loss would change without each channel"),
        "grasp": Entry(
            "plait.search.proxies.grasp:Grasp", "how much removing weights would weaken the flow of gradients"
        ),
        "jacob_cov": Entry(
            "plait.search.proxies.jacob_cov:JacobCov", "how differently a model responds to different inputs"
        ),
        "relu_log_det": Entry(
            "plait.search.proxies.relu_log_det:ReluLogDet",
            "in how many ways a batch switches the model's nonlinearities",
        ),
        "synflow": Entry(
            "plait.search.proxies.synflow:Synflow", "flow through the paths of a model with weights |w|; needs no data"
        ),
        "short_training": Entry(
            "plait.search.proxies.short_training:ShortTraining",
            "minus the loss after a few steps of training; the dearest, the most direct",
        ),
    },
    group="plait.proxies",
)


def load_proxy(name: str) -> Proxy:
    return PROXIES.load(name)()
