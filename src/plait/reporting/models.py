"""Details of single models for a page: cost, drawing and the commands to use it, in a dialog that a click on a mark or
a row opens. Drawings and the page's JSON document are compressed (zlib, base64), since they are many and similar."""

from __future__ import annotations

import base64
import json
import shlex
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypedDict
from xml.etree.ElementTree import Element

from plait.core.errors import UserError
from plait.core.units import short
from plait.model.cost import ModelCost, model_cost
from plait.model.user_mixers import mixers_option
from plait.reporting.diagram import diagram
from plait.reporting.page import json_script, tag


@dataclass(frozen=True)
class ModelSheet:
    """`key` identifies the model on the page, together with `scope` if a page has several records. `facts` are shown
    next to the exact cost for `seq` tokens; `data` is the corpus in the suggested training command."""

    key: str
    name: str
    spec: str
    facts: Sequence[tuple[str, str]] = ()
    seq: int = 1024
    data: str = "builtin:stdlib"
    scope: str = ""


def model_sheets(sheets: Sequence[ModelSheet], document: Mapping[str, Any]) -> list[Element]:
    """For an offline page: the details of all models, and the document that the reader can save. A spec that cannot be
    read here, such as one with an unknown mixer, has no drawing."""
    shown, drawings = {}, {}
    for sheet in sheets:
        key, more = sheet.scope + sheet.key, sheet_details(sheet)
        shown[key] = {**_plain(sheet), "facts": more["facts"]}
        if more["drawing"]:
            drawings[key] = more["drawing"]
    packed = {"document": document, "drawings": drawings}
    whole = base64.b64encode(zlib.compress(json.dumps(packed).encode(), 6)).decode("ascii")
    return [json_script(shown, id="models"), tag("script", whole, type="text/plain", id="packed")]


def linked_sheets(sheets: Sequence[ModelSheet], address: Callable[[int], str]) -> list[Element]:
    """The same for the dashboard: cost and drawing are loaded from an address when a model is opened."""
    shown = {
        sheet.scope + sheet.key: {**_plain(sheet), "facts": list(sheet.facts), "more": address(place)}
        for place, sheet in enumerate(sheets)
    }
    return [json_script(shown, id="models")]


def _plain(sheet: ModelSheet) -> dict[str, str | list[str]]:
    spec = shlex.quote(sheet.spec)
    mixers = mixers_option([sheet.spec])
    commands = [f"plait show {spec}{mixers}", f"plait train {spec} --data {shlex.quote(sheet.data)} --time 10m{mixers}"]
    return {"name": sheet.name, "spec": sheet.spec, "commands": commands}


class SheetDetails(TypedDict):
    facts: list[tuple[str, str]]
    drawing: str


def sheet_details(sheet: ModelSheet) -> SheetDetails:
    """Facts with the exact cost, and the drawing."""
    cost = cost_of(sheet.spec, sheet.seq)
    return {"facts": [*sheet.facts, *cost_facts(cost)], "drawing": drawing_of(sheet.spec, sheet.seq)}


def cost_of(spec: str, seq: int) -> ModelCost | None:
    """None if the spec cannot be read here, which is not cached, since its mixer's file may be loaded later."""
    try:
        return _cost(spec, seq)
    except UserError:
        return None


@lru_cache(maxsize=4096)
def _cost(spec: str, seq: int) -> ModelCost:
    return model_cost(spec, seq=seq)


def drawing_of(spec: str, seq: int) -> str:
    """The narrow drawing; empty if the spec cannot be read here."""
    return _drawing(spec, seq) if cost_of(spec, seq) else ""


@lru_cache(maxsize=4096)
def _drawing(spec: str, seq: int) -> str:
    return diagram(_cost(spec, seq), narrow=True)


def cost_facts(cost: ModelCost | None) -> list[tuple[str, str]]:
    if cost is None:
        return []
    return [
        ("parameters", f"{short(cost.total_params)} ({short(cost.decoder_params)} in the layers)"),
        (f"FLOPs for {cost.seq:,} tokens", short(cost.flops)),
        ("fixed state per sequence", short(4 * (cost.fixed_state + cost.conv_state), "B")),
        (f"KV cache after {cost.seq:,} tokens", short(4 * cost.kv_cache, "B")),
    ]
