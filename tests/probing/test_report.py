"""What a report says beside the scores: what was asked and what ran, and who is best at which task."""

from __future__ import annotations

import pytest

from plait.model.architecture import architecture
from plait.probing.report import Asked, Ran, _on_task, _shortfall
from plait.probing.verdict import Comparison, Score, by_task


def test_fewer_seeds_than_asked_are_said() -> None:
    ran = Ran({"recall": 2, "copying": 1}, 1.0)
    assert _shortfall(Asked(None, 60.0), ran) == []
    assert _shortfall(Asked(1, 60.0), ran) == []
    (said,) = _shortfall(Asked(8, 120.0), ran)
    assert said.startswith("of 8 seeds asked for, ran 2 on recall; 1 on copying: ")
    assert said.endswith("give a longer --time")
    (said,) = _shortfall(Asked(3, None), Ran({"recall": 1, "copying": 1}, 1.0))
    assert said == "of 3 seeds asked for, ran 1 on every task"


def test_who_is_best_at_which_task() -> None:
    """By accuracy, by loss, and by the mixer's mean over the architectures that hold it."""
    made = {
        "a": architecture("d=8 vocab=16 | attn[heads=1] mlp"),
        "b": architecture("d=8 vocab=16 | gla[heads=1] mlp"),
        "both": architecture("d=8 vocab=16 | attn[heads=1] mlp gla[heads=1] mlp"),
    }
    values = {"recall": {"a": (0.9, 0.3), "b": (0.2, 0.1), "both": (0.8, 0.5)},
              "copying": {"a": (0.1, 2.0), "b": (0.4, 1.0), "both": (0.5, 3.0)}}  # fmt: skip
    found = [
        Score(name, task, "only", 0, accuracy, loss, 100)
        for task, row in values.items()
        for name, (accuracy, loss) in row.items()
    ]
    recall, copying = by_task(Comparison(list(made), list(values), found), made)
    assert (recall.best, recall.best_by_loss, recall.best_mixer) == ("a", "b", "attn")
    assert recall.mixers == pytest.approx({"attn": 0.85, "gla": 0.5})
    assert (copying.best, copying.best_by_loss, copying.best_mixer) == ("both", "b", "gla")


def test_scaled_accuracy_is_of_what_can_be_known() -> None:
    """Half the way from chance, 0.3, to the ceiling, 0.9; without longer lengths there is none."""
    comparison = Comparison(["a"], ["regbench"], [Score("a", "regbench", "only", 0, 0.6, 1.0, 100)])
    seed = {"seed": 0, "ceiling": 0.9, "accuracy": 0.6, "loss": 1.0, "chosen": 0}
    found = _on_task(comparison, "a", "regbench", [seed | {"chance": 0.3, "lengths": {"2": 0.5}}])
    assert (found.scaled, found.ceiling, found.chance) == (pytest.approx(0.5), 0.9, 0.3)
    assert _on_task(comparison, "a", "regbench", [seed]).scaled is None
