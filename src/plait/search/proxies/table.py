"""The table of proxies: name → where it is defined. Adding a proxy adds one line here and one among the objectives."""

from __future__ import annotations

from importlib import import_module

from plait.core.errors import UserError, did_you_mean
from plait.search.proxies.proxy import Proxy

PROXIES: dict[str, str] = {
    "snip": "plait.search.proxies.snip:Snip",
    "grad_norm": "plait.search.proxies.grad_norm:GradNorm",
    "fisher": "plait.search.proxies.fisher:Fisher",
    "grasp": "plait.search.proxies.grasp:Grasp",
    "jacob_cov": "plait.search.proxies.jacob_cov:JacobCov",
    "relu_log_det": "plait.search.proxies.relu_log_det:ReluLogDet",
    "synflow": "plait.search.proxies.synflow:Synflow",
    "short_training": "plait.search.proxies.short_training:ShortTraining",
}


def load_proxy(name: str) -> Proxy:
    if name not in PROXIES:
        raise UserError(f"unknown proxy '{name}'.{did_you_mean(name, PROXIES)} Known: {', '.join(PROXIES)}.")
    module, _, attribute = PROXIES[name].partition(":")
    found: type[Proxy] = getattr(import_module(module), attribute)
    return found()
