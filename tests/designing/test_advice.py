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
    assert "scores 0.80 (0.78 to 0.82), better beyond doubt than the other 2." in said
    assert "It beats attn×2 by 0.30 (0.26 to 0.34) and gla×2 by 0.40 (0.36 to 0.44)." in said
    assert "(attn×2, 1 M) it has 10% fewer parameters and takes the same time, with +0.30 (+0.26 to +0.34)" in said
    assert "cannot be told" not in said
    assert "a looser limit of latency, for it uses 95% of the latency and 30% of the memory" in said
    assert "training loss still falling (by 0.50 in the last fifth)." in said
    assert "entropy" not in said


def test_a_tie_is_called_one() -> None:
    said = advice(
        document(
            accuracy={
                "gla+attn": {"recall": 0.5, "copying": 0.52},
                "attn×2": EVEN,
                "gla×2": {"recall": 0.1, "copying": 0.1},
            },
            params={"attn×2": 1_000_000, "gla+attn": 900_000, "gla×2": 950_000},
            pick="attn×2",
            equals=["attn×2", "gla+attn"],
        )
    )
    assert "cannot be told from the best, gla+attn at 0.51 (0.49 to 0.53); of these it is the largest." in said
    assert "It beats gla×2 by 0.40" in said
    assert "That is a plain Transformer" in said
    assert "a longer --time, for one seed per task left 1 of the others undecided;" in said


def test_what_decided_among_equals() -> None:
    said = advice(clear(params={"attn×2": 905_000, "gla+attn": 900_000}, equals=["gla+attn", "attn×2"]))
    assert "though attn×2 cannot be told from it; of these it is as large as attn×2 and faster." in said


def test_a_task_on_which_another_is_better_is_named() -> None:
    scores = {"gla+attn": {"recall": 0.9, "copying": 0.7}, "attn×2": {"recall": 0.1, "copying": 0.95}}
    said = advice(clear(accuracy=scores, params={"attn×2": 1_000_000, "gla+attn": 900_000}))
    assert "if copying is what matters, take attn×2 (0.95 against 0.70)" in said
    assert "if recall" not in said


def test_a_probe_cut_short_and_room_below_the_limits() -> None:
    said = advice(clear(scale=0.2, ms=5.0))
    assert "a longer --time, for the probe's ranking is provisional, cut to 20% of its steps" in said
    assert (
        "it uses only 25% of the latency and 30% of the memory allowed: the space small-hybrid ends before them" in said
    )


def test_known_entropy_and_a_single_model() -> None:
    said = advice(
        document(accuracy={"gla×2": EVEN}, params={"gla×2": 950_000}, pick="gla×2", equals=["gla×2"], entropy=1.6)
    )
    assert "no other held the limits" in said
    assert "Transformer" not in said
    assert "+25% against the text's true entropy" in said
