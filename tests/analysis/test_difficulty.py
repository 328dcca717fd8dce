"""Accuracy by difficulty: one variable at a time, the baseline found from the records themselves."""

from __future__ import annotations

from typing import Any

from plait.analysis.accuracy import architecture_text, difficulty_curves


def probe(name: str, *accuracies: float, batch: int = 128, **changed: int) -> dict[str, Any]:
    task = {"task": "copying", "vocab": 16, "length": 256, "variant": "seed", **changed}
    training = {"batch": batch, "grid": [[1e-3, 0.0]], "steps": 10}
    spec = f"d=128 vocab={task['vocab']} kind=lm | {name}"
    seeds = [{"accuracy": accuracy} for accuracy in accuracies]
    return {"config": {"task": task, "spec": spec, "training": training}, "result": {"seeds": seeds}}


def test_an_architecture_is_the_same_on_every_task() -> None:
    assert architecture_text("d=128 vocab=16 kind=lm | attn mlp") == architecture_text("d=128 vocab=64 | attn mlp")
    assert architecture_text("d=128 vocab=16 | attn") != architecture_text("d=64 vocab=16 | attn")


def test_one_variable_at_a_time() -> None:
    probes = [
        probe("attn", 0.9, 1.0), probe("attn", 0.5, length=512), probe("attn", 0.25, length=1024),
        probe("attn", 0.75, vocab=32), probe("gla", 0.5), probe("gla", 0.25, length=512),
        probe("attn", 0.0, length=64, batch=8),  # another protocol
    ]  # fmt: skip
    found = {(c.variable, c.architecture): c for c in difficulty_curves(probes, {"d=128 | attn": "attention"})}
    assert found.keys() == {("length", "attention"), ("length", "d=128 | gla"), ("vocab", "attention"),
                            ("vocab", "d=128 | gla")}  # fmt: skip
    length = found["length", "attention"]
    assert (length.values, length.accuracy, length.seeds) == ((256, 512, 1024), (0.95, 0.5, 0.25), (2, 1, 1))
    assert (length.low[0], length.high[0]) == (0.9, 1.0)
    assert found["vocab", "attention"].values == (16, 32)


def test_one_setting_has_no_curve() -> None:
    assert difficulty_curves([probe("attn", 0.9), probe("gla", 0.8)]) == []
