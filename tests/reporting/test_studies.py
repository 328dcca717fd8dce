"""The papers' figures hold what they were given."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest

from plait.analysis.accuracy import DifficultyCurve
from plait.reporting.charts import front_steps
from plait.reporting.studies import (
    Models,
    ProxyCost,
    accuracy_figure,
    aspect_figure,
    difficulty_figure,
    front_figure,
    loss_figure,
    proxy_cost_figure,
    src_figure,
)
from plait.reporting.svg import DIVERGING, shade

SVG = "{http://www.w3.org/2000/svg}"


def words(root: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in root.iter(f"{SVG}text")]


def lines(root: ElementTree.Element) -> list[list[tuple[float, float]]]:
    return [
        [(float(x), float(y)) for x, y in (pair.split(",") for pair in line.attrib["points"].split())]
        for line in root.iter(f"{SVG}polyline")
    ]


def test_a_front_is_a_staircase_through_what_is_not_dominated() -> None:
    assert front_steps([(0, 5), (2, 3), (4, 1)]) == [(0, 5), (2, 5), (2, 3), (4, 3), (4, 1)]
    costs = {"latency_ms": [1.0, 2.0, 2.5, 4.0], "memory_mb": [4.0, 3.0, 2.0, 1.0]}
    models = Models("found <&>", ["a", "b", "c", "d"], [60.0, 50.0, 55.0, 40.0], costs)
    base = Models("scaled", ["s"], [70.0], {"latency_ms": [3.0], "memory_mb": [3.0]})
    root = ElementTree.fromstring(front_figure([models, base], "ppl", lower=True, title="t"))
    latency, _, memory, _ = lines(root)
    assert len(latency) == 5  # a, b and d: c is slower than b and worse
    assert len(memory) == 1  # d is smallest and best
    assert {"found <&>", "found <&>, dominated", "scaled", "latency_ms", "memory_mb", "ppl"} <= set(words(root))
    up = front_figure([models], "accuracy", lower=False, title="t")
    assert len(lines(ElementTree.fromstring(up))[0]) == 1  # a is fastest and, where more is better, best


def test_proxies_stand_over_their_cost() -> None:
    proxies = [ProxyCost("params", 0.9, 0.8, 1.0, 0.0), ProxyCost("snip", 0.5, 0.4, 0.6, 0.01),
               ProxyCost("training", 0.99, 0.9, 1.0, 1.0)]  # fmt: skip
    root = ElementTree.fromstring(proxy_cost_figure(proxies, title="t"))
    at = {
        mark[0].text.split("\n")[0]: float(mark.attrib.get("cx") or mark.attrib["points"].split(",")[0])  # type: ignore[union-attr]
        for mark in (*root.iter(f"{SVG}circle"), *root.iter(f"{SVG}polygon"))
        if len(mark)
    }
    assert at["params"] < at["snip"] < at["training"]
    assert "free" in words(root)


def test_rank_correlations_of_both_signs() -> None:
    cells = [{"subset": s, "proxy": "params", "truth": "ppl", "src": v} for s, v in (("de-en", 1.0), ("so-en", -0.5))]
    root = ElementTree.fromstring(src_figure(cells, "pair"))
    filled = {str(rect[0].text): rect.attrib["fill"] for rect in root.iter(f"{SVG}rect") if len(rect)}
    assert sorted(filled.values()) == sorted([shade(1.0, DIVERGING), shade(0.25, DIVERGING)])
    assert {"params, ppl", "de-en", "so-en", "pair", "1", "−0.5"} <= set(words(root))
    one = [{"subset": "all", "proxy": "params", "truth": truth, "src": math.nan} for truth in ("ppl", "bleu")]
    assert {"params", "ppl", "bleu", "–"} <= set(words(ElementTree.fromstring(src_figure(one))))


def test_a_panel_per_variable_and_a_line_per_architecture() -> None:
    curves = [
        DifficultyCurve("recall", variable, name, (1, 2), (0.9, 0.5), (0.8, 0.5), (1.0, 0.5), (2, 1))
        for variable in ("length", "noise_vocab")
        for name in ("attn", "gla")
    ]
    root = ElementTree.fromstring(difficulty_figure("recall", curves))
    assert len(lines(root)) == 4
    assert {"length", "noise vocab", "attn", "gla"} <= set(words(root))
    assert words(root).count("attn") == 1  # one legend for both panels


def test_shapes_of_one_size_share_a_colour() -> None:
    metrics = {"ppl": [30.0, 31.0, 25.0], "latency_ms": [5.0, 6.0, 9.0]}
    root = ElementTree.fromstring(aspect_figure([8, 100, 50], [1e6, 1e6, 9e6], metrics, [[0, 1]]))
    said = words(root)
    assert {"1 M parameters", "other sizes", "aspect ratio, d_model / n_layer", "latency_ms"} <= set(said)


def test_losses_of_two_runs_in_one_picture() -> None:
    runs = {"bert": [(1, 9.0), (2, 3.0)], "par": [(1, 9.1), (2, 3.1)]}
    assert [len(line) for line in lines(ElementTree.fromstring(loss_figure(runs, title="t")))] == [2, 2]


@pytest.mark.parametrize("tasks", [1, 6])
def test_a_panel_per_task(tasks: int) -> None:
    accuracy = {f"task{k}": [50.0, math.nan] for k in range(tasks)}
    said = words(ElementTree.fromstring(accuracy_figure(["a", "b"], [10.0, 20.0], accuracy)))
    assert {f"task{k}" for k in range(tasks)} <= set(said)
