"""The page of a search."""

from __future__ import annotations

from xml.etree import ElementTree

from plait.records import Record
from plait.reporting.page import text_of
from plait.reporting.views import ALONE, view_of


def test_a_front_of_negative_scores_has_charts_and_figures() -> None:
    rows = [{"spec": f"d={8 * n} | attn", "short_training": -3.0 - n, "flops": 1e6 * n, "state": n} for n in (1, 2, 3)]
    objectives = [{"objective": "max:short_training", "maximise": True}, "min:flops", "min:state"]
    result = {"space": "tiny", "method": "nsga2", "objectives": objectives, "front": rows, "evaluated": 3}
    view = view_of(Record.of("search", {"protocol": 1}, result, {}), ALONE)
    words = "".join(text_of(part) for part in view.parts if not isinstance(part, str))
    assert "short training against FLOPs" in words
    assert set(view.figures) == {"front", "cube"}
    assert all(ElementTree.fromstring(draw()) is not None for draw in view.figures.values())
