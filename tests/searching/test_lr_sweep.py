"""The sweep of learning rates: replicas are found again, and the table says which rate wins."""

from __future__ import annotations

import math
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from plait.core.errors import UserError
from plait.core.progress import Stopped
from plait.data import Corpus, open_corpus
from plait.model.architecture import architecture
from plait.records import Store, open_store
from plait.studies import lr_sweep
from plait.studies.lr_sweep import KIND, RateSweep, SweepFindings

SPECS = [f"d=16 vocab=32 tie=true | (attn[heads=2] mlp[inner={inner}])x1" for inner in (16, 32, 64)]


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return open_corpus("builtin:language")


def sweep(corpus: Corpus, rates: tuple[float, ...] = (1e-3, 1e-2), seeds: int = 1) -> RateSweep:
    return RateSweep([architecture(spec) for spec in SPECS], corpus, rates, seeds, steps=4, batch=2, seq_len=8)


def test_only_what_is_new_is_trained(corpus: Corpus, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[tuple[float, int]] = []
    train = RateSweep._train

    def counted(self: RateSweep, arch: object, replicas: list[tuple[float, int]], *rest: object) -> None:
        trained.extend(replicas)
        train(self, arch, replicas, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(RateSweep, "_train", counted)
    first = sweep(corpus).run(store)
    assert trained == 3 * [(1e-3, 0), (1e-2, 0)]
    trained.clear()
    more = sweep(corpus, (1e-3, 1e-2, 1e-1), seeds=1).run(store)
    assert trained == 3 * [(1e-1, 0)]
    kept = [row for row in more.rows if row["lr"] < 0.1]
    assert kept == first.rows
    assert store.kinds() == {KIND: 9}
    assert all(row["loss"] is not None and 0 < row["loss"] < 10 for row in first.rows)


def test_interrupted_within_an_architecture_it_goes_on_there(corpus: Corpus, store: Store, tmp_path: Path) -> None:
    """All replicas of an architecture train together, so the records alone lose every one of them."""
    steps: list[float] = []

    def told(what: str, done: float, total: float | None) -> None:
        steps.append(done)
        if done == 1.25:  # after the second architecture's first step
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Stopped):
        sweep(corpus).run(store, told)
    assert store.kinds() == {KIND: 2}
    assert steps[-1] == 1.25
    steps.clear()
    resumed = sweep(corpus).run(store, lambda what, done, total: steps.append(done))
    assert steps[0] == 1.5
    with open_store(f"sqlite:///{tmp_path}/whole.db") as other:
        assert resumed.rows == sweep(corpus).run(other).rows
    assert not list(tmp_path.rglob("*.safetensors"))


def made_up(corpus: Corpus, losses: list[tuple[float, float | None]]) -> SweepFindings:
    rows = [
        {"spec": spec, "lr": rate, "seed": 0, "loss": loss, "decoder_params": 100 * (at + 1)}
        for at, spec in enumerate(SPECS)
        for rate, loss in zip((1e-3, 1e-2), losses[at], strict=True)
    ]
    return SweepFindings(sweep(corpus), rows)


def test_the_best_rate_of_each_and_the_ranking_at_one(corpus: Corpus) -> None:
    """The larger the better at each one's best; at 0.01 the largest diverges, so that it comes last there."""
    found = made_up(corpus, [(3.0, 2.9), (2.8, 2.7), (2.5, None)])
    assert found.study.best_rate.tolist() == [1e-2, 1e-2, 1e-3]
    assert found.winner == 1e-2
    document = found.as_dict()
    assert [one["wins"] for one in document["rates"]] == [1, 2]
    assert document["src_best"] == 1
    assert document["rates"][1]["src"] == pytest.approx(-0.5)
    assert found.statement().startswith(
        "67 % of 3 architectures do best at a rate of 0.01; SRC of decoder parameters is -0.50"
    )


def test_a_best_rate_at_the_end_of_those_tried_is_noted(corpus: Corpus) -> None:
    """All that did best at the largest rate might do better beyond it."""
    ends = made_up(corpus, [(3.0, 2.9), (2.8, 2.7), (2.5, None)]).statement()
    assert ends.endswith(
        ". The best rate is for 1 the smallest and for 2 the largest of those tried, so better ones may lie beyond: "
        "add to --rates"
    )
    rows = [
        {"spec": spec, "lr": lr, "seed": 0, "loss": abs(place - 1.0), "decoder_params": n}
        for n, spec in enumerate(SPECS)
        for place, lr in enumerate((1e-3, 1e-2, 1e-1))
    ]
    assert "beyond" not in SweepFindings(sweep(corpus, (1e-3, 1e-2, 1e-1)), rows).statement()


def test_seeds_are_averaged(corpus: Corpus) -> None:
    rows = [
        {"spec": SPECS[0], "lr": 1e-3, "seed": seed, "loss": loss, "decoder_params": 1}
        for seed, loss in enumerate((2.0, 3.0))
    ]
    rows.append({"spec": SPECS[0], "lr": 1e-2, "seed": 0, "loss": None, "decoder_params": 1})
    means = SweepFindings(sweep(corpus), rows).means
    assert [row["loss"] for row in means] == [2.5, math.inf]


def test_mistakes(corpus: Corpus) -> None:
    with pytest.raises(UserError, match="at least two learning rates"):
        sweep(corpus, (1e-3,))
    with pytest.raises(UserError, match="give at least 3 different ones, not 2"):
        RateSweep([architecture(spec) for spec in SPECS[:2]], corpus)


def test_the_text_of_a_seed_is_its_own(corpus: Corpus, tmp_path: Path) -> None:
    train, _, test = sweep(corpus, seeds=2)._splits
    assert not (train.inputs_DNT[0] == train.inputs_DNT[1]).all()
    assert (test.inputs_DNT[0] == test.inputs_DNT[1]).all()
    assert test.inputs_DNT.shape[1:] == (lr_sweep.EVALUATED, 8)


def test_a_rate_is_better_only_if_the_seeds_show_it(corpus: Corpus) -> None:
    """Equal rates with two seeds each: the better one was said to be ahead by more than the noise for a third of the
    architectures."""
    rng = np.random.default_rng(0)
    clear = 0
    for _ in range(100):
        rows = [
            {"spec": spec, "lr": rate, "seed": seed, "loss": float(rng.normal(2, 0.01)), "decoder_params": 1}
            for spec in SPECS
            for rate in (1e-3, 1e-2)
            for seed in range(2)
        ]
        clear += SweepFindings(sweep(corpus), rows).clear
    assert clear <= 300 * 0.05 + 3 * math.sqrt(300 * 0.05 * 0.95)
    rows = [{**row, "loss": row["loss"] + (row["lr"] > 1e-3)} for row in rows]
    found = SweepFindings(sweep(corpus), rows)
    assert found.clear == 3
    assert "for 3 of them the best rate is significantly better" in found.statement()
    assert found.as_dict()["rates"][0]["clear"] == 3
