"""The table of proxies: name → where it is defined. Adding a proxy adds one line here and one among the objectives."""

from __future__ import annotations

from plait.core.registry import Table
from plait.search.proxies.proxy import Proxy

PROXIES: Table[type[Proxy]] = Table(
    "proxy",
    {
        "snip": "plait.search.proxies.snip:Snip",
        "grad_norm": "plait.search.proxies.grad_norm:GradNorm",
        "fisher": "plait.search.proxies.fisher:Fisher",
        "grasp": "plait.search.proxies.grasp:Grasp",
        "jacob_cov": "plait.search.proxies.jacob_cov:JacobCov",
        "relu_log_det": "plait.search.proxies.relu_log_det:ReluLogDet",
        "synflow": "plait.search.proxies.synflow:Synflow",
        "short_training": "plait.search.proxies.short_training:ShortTraining",
    },
    group="plait.proxies",
)


def load_proxy(name: str) -> Proxy:
    return PROXIES.load(name)()
