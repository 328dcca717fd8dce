"""The paragraph says what the numbers say, and nothing else."""

from __future__ import annotations

from typing import Any

from made_document import document

from plait.designing.advice import advice

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


def test_a_clear_winner() -> None:
    said = advice(clear())
    assert said.startswith(
        "Take the gla+attn model: 900 k parameters in its layers, measured at 19 ms of the 20 allowed"
    )
    assert "30 MB of the 100" in said
    assert "1.500 nats per token (1.400 to 1.600) after 4 M tokens of builtin:stdlib" in said
    assert "the best of 3 with probability 80 %." in said
    assert "It beats attn×2 by 0.200 (0.150 to 0.250) and gla×2 by 0.400 (0.350 to 0.450)." in said
    assert "(attn×2, 1 M) it has 10 % fewer parameters and takes the same time, with -0.200 nats (-0.250 to" in said
    assert "cannot be told" not in said
    assert "a looser limit on latency, because it uses 95 % of the latency and 30 % of the memory" in said
    assert "entropy" not in said
    assert "other budgets" not in said
    assert "beyond the range of this race" not in said


def test_a_tie_is_called_one() -> None:
    tie = {"gla+attn": 1.71, "attn×2": 1.7, "gla×2": 1.9}
    said = advice(clear(equals=["gla+attn", "attn×2"], pick="attn×2", loss=tie))
    assert "probability 80 %; not distinguishable from gla+attn." in said
    assert "It beats gla×2 by 0.200" in said
    assert "That is a plain Transformer" in said
    assert "a longer --time, because the race left 1 of the others undecided;" in said
    assert "not distinguishable" in advice(clear(equals=["gla+attn", "attn×2"]))


def test_where_none_can_be_told_from_another_the_first_sentence_says_so() -> None:
    said = advice(clear(equals=["gla+attn", "attn×2", "gla×2"]))
    assert said.startswith("Take the gla+attn model, though this race cannot tell it from any of the others: 900 k")
    assert "It is not significantly better than any other." in said


def test_a_limit_that_binds_by_the_prediction_alone_is_told_as_that() -> None:
    wide = clear(ms=10.0)
    wide["pick"]["latency_ms"]["interval"] = [6.0, 19.4]
    assert (
        "a looser limit on latency, because it uses 50 % of the latency and 30 % of the memory allowed, and up to 97 % "
        in (advice(wide))
    )


def test_the_probe_is_told_as_what_it_is() -> None:
    """It may be led by another: that decides nothing."""
    scores = {"gla+attn": {"recall": 0.9, "copying": 0.7}, "attn×2": {"recall": 0.95, "copying": 0.95}}
    two = {"params": {"attn×2": 1_000_000, "gla+attn": 900_000}, "loss": {"gla+attn": 1.5, "attn×2": 1.7}}
    said = advice(clear(accuracy=scores, **two))
    assert said.startswith("Take the gla+attn model")
    assert "does not predict the loss, it scores 0.80 (0.78 to 0.82), rank 2 of 2" in said
    assert "if copying is what matters, look at attn×2 (0.95 against 0.70)" in said
    assert "provisional, cut to 20 % of its steps" in advice(clear(scale=0.2))


def test_other_budgets_and_one_too_far() -> None:
    rows = [{"tokens": 1e6, "best": "attn×2", "p_best": {}}, {"tokens": 4e6, "best": "gla+attn", "p_best": {}}]
    assert "At other budgets: attn×2 is best up to about 1 M tokens, then gla+attn." in advice(clear(foresight=rows))
    timed = clear(foresight=rows)
    timed["budget"]["stated"] = "42s"
    for row in timed["race"]["architectures"]:
        row["tokens"] = 300e3 if row["name"] == timed["pick"]["pattern"] else 200e3
    told = advice(timed)
    assert "With equal tokens for all: attn×2 is best up to about 1 M tokens" in told
    assert "(in the same 42s the others see 200 k to 200 k)" in told
    assert "The budget, 400 M tokens, is beyond the range of this race's forecasts." in advice(clear(beyond=100.0))


def test_room_below_the_limits() -> None:
    assert (
        "it uses only 25 % of the latency and 30 % of the memory allowed: the space small-hybrid has no larger models"
        in advice(clear(ms=5.0))
    )


def test_known_entropy_and_a_single_model() -> None:
    said = advice(
        document(accuracy={"gla×2": EVEN}, params={"gla×2": 950_000}, pick="gla×2", equals=["gla×2"], entropy=1.6)
    )
    assert "No other model met the limits" in said
    assert "Transformer" not in said
    assert "+25 % against the text's true entropy" in said


def test_a_training_is_held_against_its_forecast() -> None:
    """1.4 to 1.6 were forecast after 4 M tokens; after other numbers of tokens it foretells nothing."""
    given = clear()

    def said(loss: float, tokens: float) -> str:
        train = {**given["train"], "loss": loss, "tokens": tokens, "seconds": 60.0, "data": "text.txt"}
        return advice({**given, "train": train}).rpartition("Trained for")[2]

    assert said(1.55, 4e6).endswith(" on held-out text, within the forecast's interval.")
    assert "above the forecast's interval (1.400 to 1.600): the other forecasts may be as far off" in said(1.75, 4.1e6)
    assert "below the forecast's interval" in said(1.2, 4e6)
    assert "forecast" not in said(1.75, 2e6)
