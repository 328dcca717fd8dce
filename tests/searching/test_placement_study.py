"""The placement study: what is trained, that nothing is trained twice, and what the comparison says."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from plait.cli.study import group
from plait.core.errors import UserError
from plait.data import Corpus, open_corpus
from plait.records import Store
from plait.studies.placement import Change, Pattern, PlacementFindings, PlacementStudy, Row, Shape, patterns_of
from plait.training.fit import Interrupted
from plait.training.recipe import Recipe
from plait.training.run import Run

SHAPE = Shape(layers=4, width=16, heads=2, inner=16)
RECIPE = Recipe(batch=2, seq_len=8)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return open_corpus("builtin:language")


@pytest.fixture(autouse=True)
def _little_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait.studies.placement.VALIDATION_TOKENS", 64)


def small(corpus: Corpus, seeds: int = 2) -> PlacementStudy:
    return PlacementStudy(patterns_of(corpus, SHAPE, [4]), corpus, steps=3, seeds=seeds, recipe=RECIPE)


def test_patterns(corpus: Corpus) -> None:
    own = "d=16 | gla[heads=2] identity attn[heads=2] swiglu"
    found = patterns_of(corpus, Shape(layers=12, width=16, heads=2), [2, 3, 4.5], [own])
    assert {one.name: (one.letters, one.attention) for one in found} == {
        "interleaved": ("sfsfsfsfsfsf", 6),
        "sandwich k=2": ("sssfsfsfsfff", 6),
        "par p=2": ("ssssssffffff", 6),
        "par p=3": ("sfsfsfsfffff", 4),
        "par p=4.5": ("sffsffsfffff", 3),
        "given 1": ("g·af", 2),
    }
    assert [one.p for one in found] == [2, 2, 2, 3, 4, 2]
    assert {one.arch.header.vocab for one in found} == {32}
    first, second = found[0].arch.layers[:2]
    assert (first.name, first.heads) == ("xl-attn", 2)  # type: ignore[attr-defined]
    assert (second.name, second.inner, second.act) == ("mlp", 192, "relu")  # type: ignore[attr-defined]
    assert patterns_of(corpus, SHAPE, [], k=1)[1].letters == "ssff"


def test_seed_after_seed_and_nothing_twice(corpus: Corpus, store: Store, tmp_path: Path, steps: list[int]) -> None:
    study = small(corpus)
    told: list[tuple[float, str]] = []
    first = study.run(store, tmp_path, lambda what, done, _: told.append((done, what)))
    assert steps == 6 * [1, 2, 3]
    begun = dict(told)  # of what is said at a whole number, the last is what begins there
    assert [begun[place] for place in range(6)] == [one.name for one in study.patterns] * 2
    assert told[-1] == (6, "done")
    assert store.kinds() == {"train": 6}
    assert [len(row.losses) for row in first.rows] == [2, 2, 2]
    assert first.rows[0].losses[0] != first.rows[0].losses[1]
    steps.clear()
    assert study.run(store, tmp_path).as_dict() == first.as_dict()
    more = small(corpus, seeds=3).run(store, tmp_path)
    assert steps == 3 * [1, 2, 3], "only the new seed is trained"
    assert [row.losses[:2] for row in more.rows] == [row.losses for row in first.rows]


def test_a_killed_study_goes_on(corpus: Corpus, store: Store, tmp_path: Path, steps: list[int]) -> None:
    def killed(what: str, done: float, models: float | None) -> None:
        if done > 2.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small(corpus).run(store, tmp_path / "killed", killed)
    assert store.kinds() == {"train": 2}
    steps.clear()
    resumed = small(corpus).run(store, tmp_path / "killed")
    assert len(steps) <= 4 * 3
    with Store(f"sqlite:///{tmp_path}/whole.db") as other:
        whole = small(corpus).run(other, tmp_path / "whole")
    assert [row.losses for row in resumed.rows] == [row.losses for row in whole.rows]


def made_up(corpus: Corpus, *losses: list[float]) -> PlacementFindings:
    """Interleaved, a sandwich, and PAR at p = 4, whose FLOPs are 100, 100, 60."""
    study = small(corpus, seeds=len(losses[0]))
    flops = (100.0, 100.0, 60.0)
    return PlacementFindings(
        study, [Row(one, mine, cost, 1.0) for one, mine, cost in zip(study.patterns, losses, flops, strict=True)]
    )


def test_differences_are_paired_by_seed(corpus: Corpus) -> None:
    found = made_up(corpus, [2.0, 3.0, 4.0], [2.1, 3.1, 4.1], [2.3, 3.3, 4.3])
    alike = found.change(found.rows[1])
    assert alike.value == pytest.approx(math.expm1(0.1))
    assert alike.interval == pytest.approx((alike.value, alike.value))  # the spread of the seeds has cancelled
    assert found.change(found.baseline) == Change(0.0, None)
    assert found.rows[0].perplexity == pytest.approx(math.exp(3))


def test_a_clearly_worse_pattern_of_few_seeds_is_called_worse(corpus: Corpus) -> None:
    """By the pooled noise of all patterns; the three differences of one alone leave its interval four times as wide."""
    found = made_up(corpus, [2.0, 2.01, 2.02], [2.0, 2.02, 2.01], [2.03, 2.08, 2.05])
    assert found.change(found.rows[2]).surely_more
    assert not found.change(found.rows[1]).surely_more


def test_a_pattern_that_diverged_with_every_seed_is_worse(corpus: Corpus) -> None:
    found = made_up(corpus, [2.0, 2.01], [2.0, 2.02], [math.inf, math.inf])
    assert found.change(found.rows[2]).surely_more
    assert "Every pattern with less attention" in found.statement


def test_a_loss_beyond_all_numbers_is_still_told(corpus: Corpus) -> None:
    found = made_up(corpus, [2.0, 3.0], [2000.0, 3000.0], [2.0, 3.0])
    row = found.rows[1]
    assert 1e300 < row.perplexity < math.inf
    assert 1e300 < found.change(row).value < math.inf
    assert found.as_dict()["patterns"][1]["loss"] == 2500


def test_words(corpus: Corpus) -> None:
    undecided = made_up(corpus, [2.0, 3.0], [2.0, 3.0], [1.99, 2.99])
    assert undecided.statement == (
        "With 1 attention block instead of 2, par p=4 is not significantly worse than interleaved: "
        "perplexity -1.0 % (-1.0 … -1.0), 40 % fewer FLOPs."
    )
    dearer = PlacementFindings(undecided.study, [*undecided.rows[:2], replace(undecided.rows[2], flops=110.0)])
    assert dearer.statement.endswith("10 % more FLOPs.")
    below = made_up(corpus, [2.0, 3.0], [1.0, 2.0], [2.1, 3.1])  # always worse, but by less than seeds differ
    assert below.noise == pytest.approx(0.5**0.5)
    assert "is not significantly worse" in below.statement
    worse = made_up(corpus, [2.0, 2.05], [1.0, 1.05], [2.1, 2.15])
    assert (
        worse.statement == "Every pattern with less attention than interleaved has a significantly higher perplexity."
    )
    one = made_up(corpus, [2.0], [2.0], [2.0])
    assert "One seed cannot separate" in one.statement
    document = json.loads(json.dumps(one.as_dict(), allow_nan=False))
    assert document["patterns"][2]["interval"] is None
    assert [entry["attention"] for entry in document["patterns"]] == [2, 2, 1]


def test_what_cannot_be_studied_is_refused(corpus: Corpus) -> None:
    with pytest.raises(UserError, match=r"7 layers: .* even number"):
        Shape(layers=7)
    with pytest.raises(UserError, match="raise p"):
        patterns_of(corpus, SHAPE, [1])
    with pytest.raises(UserError, match="between 0 and n=2"):
        patterns_of(corpus, SHAPE, [4], k=3)
    with pytest.raises(UserError, match="0 seeds"):
        PlacementStudy([Pattern("x", patterns_of(corpus, SHAPE)[0].arch)], corpus, seeds=0)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["placement", "--p", "2,4", "--layers", "4", "--width", "16", "--heads", "2", "--inner", "16"]
    given += ["--data", "builtin:language", "--steps", "2", "--seeds", "2", "--batch", "2", "--seq-len", "8"]
    given += ["--spec", "d=16 | attn[heads=2] (mlp)x3"]
    shown = CliRunner().invoke(group, [*given, "--svg", "p.svg"], catch_exceptions=False)
    assert shown.exit_code == 0
    assert "10 trainings of 2 steps on builtin:language" in shown.output
    assert "par p=4" in shown.output
    assert "against interleaved" in shown.output
    assert "s attention or another sequence mixer, f feed-forward" in shown.output
    assert "given 1: d=16 vocab=32 | attn[heads=2] (mlp)x3" in " ".join(shown.output.split())
    drawn = Path("p.svg").read_text()
    assert all(f">{name}<" in drawn for name in ("interleaved", "par", "given 1", "attention blocks"))
    document = json.loads(CliRunner().invoke(group, [*given, "--json"], catch_exceptions=False).stdout)
    assert [entry["letters"] for entry in document["patterns"]] == ["sfsf", "ssff", "ssff", "sfff", "sfff"]
    assert document["patterns"][0]["against"] == 0
    assert document["statement"] in " ".join(shown.output.split())


def test_interrupted_it_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> None:
        raise Interrupted(Run(tmp_path / "abc123"), step=7)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(PlacementStudy, "run", stopped)
    shown = CliRunner().invoke(group, ["placement", "--data", "builtin:language"])
    assert shown.exit_code == 130
    assert "abc123 is saved at step 7. The same command resumes." in shown.stderr


def test_a_p_that_is_no_number() -> None:
    with pytest.raises(UserError, match="--p two"):
        CliRunner().invoke(group, ["placement", "--p", "two"], catch_exceptions=False)
