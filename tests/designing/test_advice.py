"""The advice says what the numbers say, and nothing else: a headline, and short points with a label each."""

from __future__ import annotations

from typing import Any

from made_document import document

from plait.designing.advice import POINTS, advice_points, labelled

EVEN = {"recall": 0.5, "copying": 0.5}


def clear(**changes: Any) -> dict[str, Any]:
    """A hybrid that wins beyond doubt, though it is the smaller one."""
    given: dict[str, Any] = {
        "accuracy": {
            "gla+attn": {"recall": 0.9, "copying": 0.7},
            "attn×2": EVEN,
            "gla×2": {"recall": 0.2, "copying": 0.6},
        },
        "params": {"attn×2": 1_000_000, "gla+attn": 900_000, "gla×2": 950_000},
        "loss": {"gla+attn": 1.5, "attn×2": 1.7, "gla×2": 1.9},
        "pick": "gla+attn",
        "equals": ["gla+attn"],
    }
    return document(**{**given, **changes})


def points(given: Any) -> dict[str, str]:
    """By label; the headline has none."""
    return dict(map(labelled, advice_points(given)))


def test_a_clear_winner() -> None:
    said = points(clear())
    assert said == {
        "": "Take gla+attn: P(best) 80 % of 3 candidates, better than every other.",
        "Why": "forecast to reach 1.500 nats per token (1.400 to 1.600) after 4 M tokens of builtin:stdlib.",
        "Limits": "latency 19 of 20 ms (95 %), memory 30 of 100 MB (30 %); a looser limit on latency would allow "
        "larger models.",
        "Cost": "900 k parameters in its layers, 901 k in total; 2.05 kB of state per sequence.",
        "Rejected": "attn×2 +0.200 nats (0.150 to 0.250) and gla×2 +0.400 nats (0.350 to 0.450).",
        "Transformer": "against the largest plain one within the limits (attn×2, 1 M) the pick has 10 % fewer "
        "parameters and takes the same time; -0.200 nats (-0.250 to -0.150).",
        "Skills": "probe accuracy 0.80 (0.78 to 0.82), rank 1 of 3 (it does not predict the loss).",
        "Trained": "2 nats per token, 2.9 bits per character on validation text after 500 k tokens of builtin:stdlib "
        "in 60 s.",
    }


def test_points_of_earlier_versions_have_no_label() -> None:
    assert labelled("It beats attn×2: by 0.2.") == ("", "It beats attn×2: by 0.2.")
    assert all(labelled(f"{label}: words") == (label, "words") for label in POINTS)


def test_a_tie_is_called_one() -> None:
    tie = {"gla+attn": 1.71, "attn×2": 1.7, "gla×2": 1.9}
    said = points(clear(equals=["gla+attn", "attn×2"], pick="attn×2", loss=tie))
    assert said[""] == "Take attn×2: P(best) 80 % of 3 candidates; gla+attn cannot be ruled out."
    assert said["Undecided"] == "gla+attn +0.010 nats (-0.040 to 0.060)."
    assert said["Rejected"] == "gla×2 +0.200 nats (0.150 to 0.250)."
    assert said["Transformer"].startswith("the pick is a plain Transformer; no hybrid was found that is clearly better")
    assert points(clear(equals=["gla+attn", "attn×2"]))["Transformer"].endswith("-0.150), not distinguishable.")


def test_where_none_can_be_told_from_another_the_headline_says_so() -> None:
    said = points(clear(equals=["gla+attn", "attn×2", "gla×2"]))
    assert said[""] == "Take gla+attn (P(best) 80 %), though this race cannot distinguish it from any of the others."
    assert "Rejected" not in said  # the headline has said it
    two = {"params": {"attn×2": 1_000_000, "gla+attn": 900_000}, "loss": {"gla+attn": 1.5, "attn×2": 1.7}}
    pair = clear(accuracy={"gla+attn": EVEN, "attn×2": EVEN}, equals=["gla+attn", "attn×2"], **two)
    assert points(pair)[""].endswith("cannot distinguish it from attn×2.")


def test_an_interval_that_alone_would_rule_out_is_explained() -> None:
    """The reader sees that it excludes zero."""
    given = clear(equals=["gla+attn", "attn×2", "gla×2"])
    assert "attn×2 +0.200 nats (0.150 to 0.250)" in points(given)["Undecided"]
    assert points(given)["Undecided"].endswith("as several would be together or by less than the noise.")
    given["race"]["verdict"] = "not distinguishable after so few steps; gla+attn has the lowest forecast"
    assert points(given)["Undecided"].endswith("; such intervals are too narrow, so nothing is ruled out by them.")


def test_a_forecast_without_an_interval_is_said_to_be_rough() -> None:
    given = clear(equals=["gla+attn", "attn×2", "gla×2"])
    for row in (*given["race"]["architectures"], *given["race"]["paired"]):
        row["interval"] = None
    assert points(given)["Why"] == (
        "the lowest forecast, about 1.50 nats per token after 4 M tokens of builtin:stdlib, which may be far off."
    )
    assert points(given)["Undecided"] == "attn×2 +0.200 nats and gla×2 +0.400 nats."


def test_who_diverged_is_rejected_as_that() -> None:
    given = clear()
    for pair in given["race"]["paired"]:
        if pair["b"] == "gla×2":
            pair["difference"] = pair["interval"] = None
    assert points(given)["Rejected"] == "attn×2 +0.200 nats (0.150 to 0.250) and gla×2 (diverged)."


def test_a_limit_that_binds_by_the_prediction_alone_is_told_as_that() -> None:
    wide = clear(ms=10.0)
    wide["pick"]["latency_ms"]["interval"] = [6.0, 19.4]
    assert points(wide)["Limits"] == (
        "latency 10 of 20 ms (50 %), memory 30 of 100 MB (30 %); a looser limit on latency (predicted up to 97 %) "
        "would allow larger models."
    )


def test_a_measurement_of_a_busy_machine_is_told_as_that() -> None:
    given = clear()
    given["pick"]["latency_ms"]["noisy"] = True
    assert "latency 19 of 20 ms (95 %, with noise: the machine was busy)" in points(given)["Limits"]


def test_a_measurement_close_to_its_limit_is_told_as_that() -> None:
    given = clear()
    given["pick"]["close"] = ["latency"]
    assert "latency 19 of 20 ms (95 %, close: measured again it may be above)" in points(given)["Limits"]


def test_the_probe_is_told_as_what_it_is() -> None:
    """It may be led by another: that decides nothing."""
    scores = {"gla+attn": {"recall": 0.9, "copying": 0.7}, "attn×2": {"recall": 0.95, "copying": 0.95}}
    two = {"params": {"attn×2": 1_000_000, "gla+attn": 900_000}, "loss": {"gla+attn": 1.5, "attn×2": 1.7}}
    said = points(clear(accuracy=scores, **two))
    assert said[""].startswith("Take gla+attn:")
    assert "probe accuracy 0.80 (0.78 to 0.82), rank 2 of 2 (it does not predict the loss)" in said["Skills"]
    assert "if copying is what matters, look at attn×2 (0.95 against 0.70)" in said["Skills"]
    assert "provisional, cut to 20 % of its steps" in " ".join(advice_points(clear(scale=0.2)))


def test_other_budgets_and_one_too_far() -> None:
    rows = [{"tokens": 1e6, "best": "attn×2", "p_best": {}}, {"tokens": 4e6, "best": "gla+attn", "p_best": {}}]
    assert points(clear(foresight=rows))["Other budgets"] == "attn×2 is best up to about 1 M tokens, then gla+attn."
    timed = clear(foresight=rows)
    timed["budget"]["stated"] = "42s"
    for row in timed["race"]["architectures"]:
        row["tokens"] = 300e3 if row["name"] == timed["pick"]["pattern"] else 200e3
    told = points(timed)
    assert told["Other budgets"].startswith("with equal tokens for all, attn×2 is best up to about 1 M tokens")
    assert "(in the same 42s the others see 200 k to 200 k)" in told["Why"]
    beyond = "the budget, 400 M tokens, is beyond the range of this race's forecasts."
    assert points(clear(beyond=100.0))["Caution"] == beyond


def test_a_race_of_few_steps_is_a_caution() -> None:
    given = clear()
    given["race"]["notes"] = ["the longest training has 50 steps"]
    assert points(given)["Caution"] == "the longest training has 50 steps."


def test_whether_there_was_a_screening_and_why_not() -> None:
    given = clear()
    assert "Screening" not in points(given)  # a design of an earlier version
    given["race"]["screening_left_out"] = "there is only one candidate"
    assert points(given)["Screening"] == "none: there is only one candidate."
    given["race"]["screening_left_out"] = ""
    assert points(given)["Screening"].startswith("every candidate first took all steps")


def test_room_below_the_limits() -> None:
    assert points(clear(ms=5.0))["Limits"] == (
        "latency 5 of 20 ms (25 %), memory 30 of 100 MB (30 %); looser ones hardly help: small-hybrid has no larger "
        "models."
    )


def test_known_entropy_and_a_single_model() -> None:
    said = points(
        document(accuracy={"gla×2": EVEN}, params={"gla×2": 950_000}, pick="gla×2", equals=["gla×2"], entropy=1.6)
    )
    assert said[""] == "Take gla×2: no other model met the limits."
    assert not {"Transformer", "Rejected", "Undecided"} & set(said)
    assert "+25 % against the text's true entropy" in said["Trained"]


def test_what_was_cut() -> None:
    assert points({**clear(), "cut": ["the training got 40 % of its tokens"]})["Cut short"] == (
        "the training got 40 % of its tokens; this machine, at its load, needs a longer --time."
    )


def test_a_training_is_held_against_its_forecast() -> None:
    """1.4 to 1.6 were forecast after 4 M tokens, on the race's text; the forecast says nothing about other numbers of
    tokens, or a loss on other text."""
    given = clear()

    def said(loss: float | None, tokens: float) -> str:
        train = {
            **given["train"],
            "loss": 9.0,
            "race_loss": loss,
            "tokens": tokens,
            "seconds": 60.0,
            "data": "text.txt",
        }
        return points({**given, "train": train})["Trained"]

    assert said(1.55, 4e6).endswith(
        " of text.txt in 60 s; 1.550 on the race's held-out text, within the forecast's interval."
    )
    assert said(None, 4e6).endswith(" of text.txt in 60 s.")
    assert "above the forecast's interval (1.400 to 1.600): the other forecasts may be as far off" in said(1.75, 4.1e6)
    assert "below the forecast's interval" in said(1.2, 4e6)
    assert "forecast" not in said(1.75, 2e6)
