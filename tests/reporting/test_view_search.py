"""The page of a search."""

from __future__ import annotations

from xml.etree import ElementTree

from plait.records import Record
from plait.reporting.page import text_of
from plait.reporting.summaries import summary
from plait.reporting.view_search import _groups
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


def test_a_search_says_its_constraints_and_what_is_predicted() -> None:
    """A design's two searches had the same name, and nothing said that latencies of the page are predictions."""
    row = {"spec": "d=8 | attn", "decoder_params": 9, "latency": 1e-3}
    objectives = [{"objective": "decoder_params", "maximise": True}, {"objective": "latency", "maximise": False}]
    result = {"space": "tiny", "method": "nsga2", "objectives": objectives, "front": [row], "limits": {"latency": 0.02}}
    rules = ["count(attn) == 1 * layers", "latency_high <= 20ms"]
    record = Record.of("search", {"protocol": 1, "space": {"rules": rules}}, result, {})
    assert summary(record).name == "tiny by nsga2, count(attn) == 1 * layers"
    lead = view_of(record, ALONE).lead
    assert "Constraints: count(attn) == 1 * layers." in lead
    assert f"Predicted from a profile of the machine: latency. `plait front show {record.key[:10]}` has" in lead


def test_a_mixer_that_all_have_is_named_where_some_have_nothing_else() -> None:
    """Models of one's own mixer and a SwiGLU were called "swiglu", since all others had the mixer too."""
    plain, rest = "d=8 | attn", ("d=8 | attn swiglu", "d=8 | attn gla")
    named = _groups([{"spec": spec} for spec in (plain, *rest)])
    assert list(named.values()) == ["attn", "attn + swiglu", "attn + gla"]
    assert list(_groups([{"spec": spec} for spec in rest]).values()) == ["swiglu", "gla"]


def test_a_cache_has_its_unit() -> None:
    """786,432 bytes were 0.7864 M."""
    rows = [{"spec": f"d={8 * n} | attn", "decoder_params": n, "kv_cache": 786_432 * n} for n in (1, 2)]
    objectives = [{"objective": "decoder_params", "maximise": True}, {"objective": "kv_cache", "maximise": False}]
    result = {"space": "tiny", "method": "nsga2", "objectives": objectives, "front": rows, "evaluated": 2}
    view = view_of(Record.of("search", {"protocol": 1}, result, {}), ALONE)
    words = "".join(text_of(part) for part in view.parts if not isinstance(part, str))
    assert "KV cache, MB (↓ better)" in words
    assert "786 kB" in words
