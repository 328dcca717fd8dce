"""Models from close, for a page: what each costs, its drawing, and what to do with it. A click on a mark or a row opens
it. Drawings and the document behind the page are packed (zlib, in base64): they are alike, and there are many."""

from __future__ import annotations

import base64
import json
import shlex
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree.ElementTree import Element

from plait.core.errors import UserError
from plait.core.units import short
from plait.model.cost import ModelCost, model_cost
from plait.reporting.diagram import diagram
from plait.reporting.page import held, tag


@dataclass(frozen=True)
class ModelSheet:
    """`key` is what it is called by wherever it is on the page; `facts` what is known beside its exact cost."""

    key: str
    name: str
    spec: str
    facts: Sequence[tuple[str, str]] = ()


def model_sheets(sheets: Sequence[ModelSheet], document: Mapping[str, Any], *, seq: int, data: str) -> list[Element]:
    """For `page`: what opens, with the command that trains it on `data`, and what can be saved. A spec that cannot be
    read here, as one with a mixer of somebody else's, has no drawing."""
    costs = {sheet.key: _cost(sheet.spec, seq) for sheet in sheets}
    shown = {
        sheet.key: {
            "name": sheet.name,
            "spec": sheet.spec,
            "facts": [*sheet.facts, *_facts(costs[sheet.key])],
            "commands": [
                f"plait show {shlex.quote(sheet.spec)}",
                f"plait train {shlex.quote(sheet.spec)} --data {shlex.quote(data)} --time 10m",
            ],
        }
        for sheet in sheets
    }
    drawings = {key: diagram(cost, narrow=True) for key, cost in costs.items() if cost is not None}
    packed = {"document": document, "drawings": drawings}
    whole = base64.b64encode(zlib.compress(json.dumps(packed).encode(), 9)).decode("ascii")
    return [held(shown, id="models"), tag("script", whole, type="text/plain", id="packed")]


def _cost(spec: str, seq: int) -> ModelCost | None:
    try:
        return model_cost(spec, seq=seq)
    except UserError:
        return None


def _facts(cost: ModelCost | None) -> list[tuple[str, str]]:
    if cost is None:
        return []
    return [
        ("parameters", f"{short(cost.total_params)} ({short(cost.decoder_params)} in the layers)"),
        (f"FLOPs for {cost.seq:,} tokens", short(cost.flops)),
        ("fixed state per sequence", short(4 * (cost.fixed_state + cost.conv_state), "B")),
        (f"KV cache after {cost.seq:,} tokens", short(4 * cost.kv_cache, "B")),
    ]
