"""Evaluations as people read them: what is drawn over what, which way is better, how sure a number is."""

from __future__ import annotations

import json
import re
from typing import Any
from xml.etree import ElementTree

from plait.records import Record
from plait.reporting.page import text_of
from plait.reporting.summaries import summary
from plait.reporting.views import ALONE, View, making, view_of

SPEC = "d=16 vocab=64 | attn[heads=2] swiglu"


def evaluated(name: str, **result: Any) -> Record:
    config = {"protocol": 1, "evaluation": name, "spec": SPEC, "trained_length": 128, "data": {"split": "test"}}
    return Record.of("eval", config, result, {})


def drawn(view: View) -> list[dict[str, Any]]:
    """The numbers behind every chart of a view."""
    html = "".join(part if isinstance(part, str) else text_of(part) for part in view.parts)
    return [json.loads(one) for one in re.findall(r'<figure class="plot">.*?json">(.*?)</script>', html, re.DOTALL)]


def points(*scores: float) -> list[dict[str, Any]]:
    return [
        {
            "length": 128 * 2**at,
            "score": score,
            "interval": [round(score - 0.1, 6), round(score + 0.1, 6)],
            "chance": 0.2,
            "scores": [score],
        }
        for at, score in enumerate(scores)
    ]


def ruler() -> Record:
    tasks = {name: {"points": points(0.9, score), "shortest": 10} for name, score in (("niah", 0.7), ("vt", 0.5))}
    mean = {"points": points(0.9, 0.6), "effective_length": 128, "certain_length": 0}
    tasks["cwe"] = {"points": [], "shortest": 1479}
    return evaluated("ruler", trained_length=128, threshold=0.856, lengths=[128, 256, 512], mean=mean, tasks=tasks)


def test_long_context_tasks_are_accuracy_over_the_length_with_intervals_and_chance() -> None:
    view = view_of(ruler(), ALONE)
    (chart,) = drawn(view)
    assert chart["x"] == {"label": "sequence length, tokens", "log": True}
    assert chart["y"]["label"] == "accuracy (↑ better)"
    mean, chance = chart["series"]
    assert [(p["x"], p["y"], p["ends"]) for p in mean["points"]] == [(128, 0.9, [0.8, 1.0]), (256, 0.6, [0.5, 0.7])]
    assert [p["y"] for p in chance["points"]] == [0.2, 0.2]
    assert {(line["axis"], line["at"]) for line in chart["lines"]} == {("y", 0.856), ("x", 128)}
    words = "".join(text_of(part) for part in view.parts if not isinstance(part, str))
    assert "cwe (1,479)" in words, "a task that no length holds is named"
    assert {(row["task"], row["length"]) for row in view.rows} == {
        (task, length) for task in ("niah", "vt") for length in (128, 256)
    }
    assert "&lt; 128 tokens" in words, "the certain length"
    assert summary(ruler()).words == "effective length 128 tokens"


def test_losses_are_over_doubling_lengths_by_logarithm_and_over_positions_not() -> None:
    many = list(range(1, 401))
    record = evaluated(
        "per-token", loss=2.5, lengths=[8, 16, 32, 64], perplexity=[9.0, 8.0, 7.5, 7.4], positions=many,
        loss_at=[3.0 - n / 1000 for n in many], smooth_101=[3.0] * 400, smooth_1001=[3.0] * 400,
    )  # fmt: skip
    by_length, by_position = drawn(view_of(record, ALONE))
    assert (by_length["x"]["log"], by_position["x"]["log"]) == (True, False)
    assert by_length["y"]["label"] == "perplexity (↓ better)"
    assert [(one["name"], one["faint"]) for one in by_position["series"]] == [
        ("loss, nats per token (↓ better)", True),
        ("mean of 101 positions", None),
    ], "a mean over more positions than the curve has says nothing"
    assert summary(record).words == "2.5 nats per token"


def test_a_needle_is_a_grid_of_depths_and_lengths() -> None:
    grid = {"score": 0.5, "mean_log_likelihood": -1.0, "lengths": [64, 128], "depths": [0.0, 1.0],
            "exact": [[1.0, 0.0], [1.0, 0.0]], "log_likelihood": [[0.0, 0.0], [0.0, 0.0]]}  # fmt: skip
    view = view_of(evaluated("needle", trained_length=64, standard=grid), ALONE)
    picture = ElementTree.fromstring(view.figures["needle-standard"]())
    texts = [one.text for one in picture.iter() if one.tag.endswith("text")]
    assert {"64", "128", "0 %", "100 %", "depth", "text length, tokens"} <= set(texts)


def test_a_measurement_has_units_and_an_interval_and_says_when_it_is_rough() -> None:
    latency = {"seconds": 0.0147, "low": 0.0143, "high": 0.0151, "repeats": 56, "noisy": True}
    memory = {"peak": 8_000_000, "weights": 2_000_000, "state": 2_000_000, "activations": 4_000_000}
    config = {
        "protocol": 1,
        "spec": SPEC,
        "seq": 256,
        "batch": 1,
        "mode": "prefill",
        "device": "cpu",
        "dtype": "float32",
    }
    view = view_of(Record.of("measure", config, {"latency": latency, "memory": memory}, {}), ALONE)
    words = " ".join(text_of(part) for part in view.parts if not isinstance(part, str))
    for told in ("14.7 ms", "14.3 to 15.1 ms, 56 repeats", "8 MB", "50 %", "was busy"):
        assert told in words, told
    assert view.lead == "Prefill of 256 tokens, batch 1, float32, on cpu."


def test_what_was_spent_has_its_unit() -> None:
    record = Record.of(
        "train", {"protocol": 1}, {"seconds": 441.3, "tokens": 1664, "flops": 4.85622e12, "mfu": 0.123}, {}
    )
    words = text_of(making(record))
    for told in ("7 m 21 s", "1,664", "4.86 T", "12.3 %"):
        assert told in words, told


def test_the_same_cost_is_listed_once() -> None:
    result = {"cost": {"search_seconds": 2.0, "profile_seconds": 35.6}, "profile": {"seconds": 35.6}}
    words = text_of(making(Record.of("search", {"protocol": 1}, result, {})))
    assert words.count("35.6 s") == 1
    assert words.index("search<") < words.index("profile<")


def test_a_long_length_is_written_out() -> None:
    found = summary(evaluated("ruler", mean={"effective_length": 16384}))
    assert (found.words, found.unit) == ("effective length 16,384 tokens", "effective length tokens")
    none = summary(evaluated("ruler", mean={"effective_length": 0}))
    assert none.words == "effective length below the shortest tested"
