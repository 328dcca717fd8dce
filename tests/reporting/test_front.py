"""A front as a picture: what stands where, what is marked, what it says when pointed at."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from plait.core.errors import UserError
from plait.reporting.front import front_chart, search_cube

SVG = "{http://www.w3.org/2000/svg}"


def entry(predicted: float, measured: float | None = None, **more: Any) -> dict[str, Any]:
    return {"predicted": predicted, "interval": [0.9 * predicted, 1.1 * predicted], "measured": measured, **more}


def row(
    spec: str, params: int, ms: dict[str, Any], within: bool | None, exceeded: tuple[str, ...] = ()
) -> dict[str, Any]:
    key = "key" if ms["measured"] else None
    return {"spec": spec, "decoder_params": params, "flops": 7 * params, "latency_ms": ms, "memory_mb": entry(30.0),
            "within": within, "exceeded": list(exceeded), "measurement": key}  # fmt: skip


def document(**changes: Any) -> dict[str, Any]:
    rows = [
        row("d=8 | <attn>", 4_100_000, entry(50.0, 40.0, measured_interval=[39.0, 42.0], noisy=True), True),
        row("d=8 | mlp", 1_000_000, entry(20.0), None),
        row("d=8 | gla", 5_000_000, entry(75.0, 90.0), False, ("latency 90ms, not 80ms",)),
    ]
    objectives = ["max:decoder_params", "min:memory", "min:latency"]
    return {"space": "mine", "method": "lts", "objectives": objectives, "limits": {"latency": 0.08},
            "front": rows[:2], "over_limit": rows[2:], "on_front": 9, **changes}  # fmt: skip


def drawn(found: dict[str, Any]) -> tuple[ElementTree.Element, dict[str, ElementTree.Element]]:
    """The picture, and its marks by the first line of what they say."""
    root = ElementTree.fromstring(front_chart(found))
    marks = {}
    for mark in root.iter():
        title = mark.find(f"{SVG}title")
        if mark.get("class") == "hover" and title is not None:
            marks[str(title.text).splitlines()[0]] = mark
    return root, marks


def test_measured_predicted_and_flagged() -> None:
    root, marks = drawn(document())
    measured, predicted, flagged = (marks[f"d=8 | {name}"] for name in ("<attn>", "mlp", "gla"))
    assert measured.tag == predicted.tag == f"{SVG}circle"
    assert flagged.tag == f"{SVG}polygon"
    assert measured.get("fill") != predicted.get("fill")  # hollow
    # Up by parameters, to the right by what was measured, else predicted: 40 ms beside 20.
    assert float(measured.get("cy", 0)) < float(predicted.get("cy", 0))
    left = 52.0  # of the axis at 0
    assert (float(measured.get("cx", 0)) - left) / (float(predicted.get("cx", 0)) - left) == pytest.approx(2, abs=0.01)
    words = {text.text for text in root.iter(f"{SVG}text")}
    assert {"limit 80 ms", "latency, ms", "decoder params, M", "measured above a limit", "predicted only"} <= words
    assert "var(" not in ElementTree.tostring(root, encoding="unicode")


def test_what_a_mark_says() -> None:
    _, marks = drawn(document())
    title = marks["d=8 | <attn>"].find(f"{SVG}title")
    assert title is not None
    assert str(title.text).splitlines()[1:] == [
        "decoder params: 4.1 M",
        "latency: 40 ms measured (39 to 42), 50 ± 5 ms predicted, noisy",
        "memory: 30 ± 3 MB predicted",
    ]
    flagged = marks["d=8 | gla"].find(f"{SVG}title")
    assert flagged is not None
    assert str(flagged.text).endswith("above a limit: latency 90ms, not 80ms")


def test_intervals_are_drawn_as_far_as_they_reach() -> None:
    root, marks = drawn(document())
    mark = marks["d=8 | <attn>"]
    a_millisecond = (float(mark.get("cx", 0)) - 52.0) / 40.0
    spans = [line for line in root.iter(f"{SVG}line") if line.get("y1") == line.get("y2") == mark.get("cy")]
    (span,) = spans
    reach = [(float(span.get(end, 0)) - 52.0) / a_millisecond for end in ("x1", "x2")]
    assert reach == pytest.approx([39.0, 42.0], abs=0.05)


def test_without_latency_the_second_objective_is_the_other_axis() -> None:
    root, _ = drawn(document(objectives=["max:decoder_params", "min:flops"], limits={}))
    assert "flops, M" in {text.text for text in root.iter(f"{SVG}text")}
    limited, _ = drawn(document(objectives=["max:decoder_params", "min:flops"], limits={"flops": 30_000_000}))
    assert "limit 30 M" in {text.text for text in limited.iter(f"{SVG}text")}
    with pytest.raises(UserError, match="this search had one, flops"):
        front_chart(document(objectives=["min:flops"]))


def test_losses_near_each_other_are_told_apart() -> None:
    rows = [{**one, "loss": loss} for one, loss in zip(document()["front"], (2.31, 2.36), strict=True)]
    _, marks = drawn(document(objectives=["min:loss", "min:flops"], limits={}, front=rows, over_limit=[]))
    worse, better = (float(marks[f"d=8 | {name}"].get("cy", 0)) for name in ("mlp", "<attn>"))
    assert better - worse > 100


@pytest.mark.parametrize("scores", [(-2.36, -2.31), (-2.0, 1.0), (-2.31, -2.31)])
def test_negative_scores_are_above_the_axis(scores: tuple[float, float]) -> None:
    rows = [{**one, "short_training": value} for one, value in zip(document()["front"], scores, strict=True)]
    of = document(objectives=["max:short_training", "min:flops", "min:latency"], limits={}, front=rows, over_limit=[])
    _, marks = drawn(of)
    lower, higher = (float(marks[f"d=8 | {name}"].get("cy", 0)) for name in ("<attn>", "mlp"))
    assert 16 < higher <= lower < 292  # pixels of the chart's area
    assert (higher < lower) == (scores[0] < scores[1])
    assert search_cube(of)


def test_an_empty_front_is_no_picture() -> None:
    for draw in (front_chart, search_cube):
        with pytest.raises(UserError, match="the front is empty"):
            draw(document(front=[], over_limit=[]))


def test_a_name_that_looks_like_a_colour_stays() -> None:
    assert "var(--mine)" in front_chart(document(space="var(--mine)"))
