"""The proxy study: what is drawn, that nothing is computed twice, and what the table says."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from plait.cli.study import group
from plait.core.errors import UserError
from plait.data import Corpus, open_corpus
from plait.device.quantities import Setting
from plait.model.cost import model_cost
from plait.records import Store
from plait.space.space import Space
from plait.studies.proxies import COUNTS, SHIPPED, Findings, Study, best, cost_text, drawn, study_space
from plait.studies.shapes import ShapeFindings, ShapeStudy
from plait.training.recipe import Recipe

RECIPE = Recipe(batch=2, seq_len=8)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return open_corpus("builtin:language")


@pytest.fixture
def study(small: Space, corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> Study:
    monkeypatch.setattr("plait.studies.proxies.VALIDATION_TOKENS", 64)
    return Study(small, corpus, models=3, steps=4, proxies=("grad_norm", "relu_log_det"), recipe=RECIPE)


def test_nothing_is_computed_twice(study: Study, store: Store, tmp_path: Path, steps: list[int]) -> None:
    first = study.run(store, tmp_path)
    assert steps == 3 * [1, 2, 3, 4]
    assert store.kinds() == {"proxy": 6, "train": 3}
    steps.clear()
    again = study.run(store, tmp_path)
    assert steps == []
    assert again.as_dict() == first.as_dict()


def test_a_killed_study_goes_on(
    study: Study, store: Store, tmp_path: Path, steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = study.run(store, tmp_path / "whole").as_dict()
    steps.clear()
    with Store(f"sqlite:///{tmp_path}/other.db") as other:

        def killed(what: str, done: float, models: float | None) -> None:
            if done > 1.5:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            study.run(other, tmp_path / "killed", killed)
        assert other.kinds()["train"] == 1
        steps.clear()
        resumed = study.run(other, tmp_path / "killed").as_dict()
    assert len(steps) <= 2 * 4
    assert [row["loss"] for row in resumed["models"]] == [row["loss"] for row in whole["models"]]
    assert resumed["rankings"] == whole["rankings"]


def test_models_have_the_vocabulary_of_the_data_and_are_trained_alike(study: Study, small: Space) -> None:
    assert [job.arch.header.vocab for job in study.jobs] == [32, 32, 32]
    assert len({job.arch for job in study.jobs}) == 3
    rows = drawn(small, 3, seed=0)
    assert [job.arch.layers for job in study.jobs] == [_layers(small, row) for row in rows]
    assert len({(job.steps, job.seed, job.recipe) for job in study.jobs}) == 1


@pytest.mark.parametrize("name", ["lts-gpt2", "lts-xl", "lts-proxy", "par"])
def test_an_adaptive_softmax_shrinks_with_the_vocabulary(name: str, corpus: Corpus) -> None:
    jobs = Study(study_space(name), corpus, models=3).jobs
    assert [(job.arch.header.vocab, job.arch.header.cutoffs) for job in jobs] == 3 * [(32, ())]


def test_an_encoder_has_room_for_the_mask(small: Space, corpus: Corpus) -> None:
    slots = [["attn[heads=2|4,causal=false]"], ["mlp[inner=64|128]"]]
    encoders = Space(replace(small.declared, header="kind=encoder vocab=64", slots=slots))
    assert [job.arch.header.vocab for job in Study(encoders, corpus, models=3).jobs] == 3 * [33]


def test_constraints_hold_for_what_is_trained(small: Space, corpus: Corpus) -> None:
    """With the space's own vocabulary all of them would be too large."""
    most = 10_000_000
    space = Space(replace(small.declared, header="vocab=1000000")).with_constraints([f"total_params <= {most}"])
    jobs = Study(space, corpus, models=3).jobs
    assert all(model_cost(job.arch, seq=8).total_params <= most for job in jobs)


def _layers(space: Space, row: np.ndarray) -> Any:
    from plait.model.architecture import architecture

    return architecture(space.spec(row)).layers


def made_up(study: Study, **columns: list[float]) -> Findings:
    """As many models as a column has values (4 without one), with losses 1, 2, 3, …, so the first is the best."""
    names = (*COUNTS, *study.proxies)
    rows = [
        {
            "spec": "",
            **dict.fromkeys(names, 0.0),
            "loss": 1.0 + i,
            "losses": [1.0 + i],
            "train_flops": 1000,
            "seconds": 1.0,
        }
        | {name: values[i] for name, values in columns.items()}
        for i in range(len(next(iter(columns.values()), range(4))))
    ]
    return Findings(study, rows)


def test_rankings_are_known_where_the_truth_is(study: Study) -> None:
    found = made_up(
        study, decoder_params=[4, 3, 2, 1], flops=[1, 2, 3, 4], width=[3, 4, 2, 1], grad_norm=[9, 7, 8, -math.inf],
        grad_norm_flops=[30, 30, 30, 30],
    )  # fmt: skip
    by_name = {one.proxy: one for one in found.rankings}
    assert by_name["decoder_params"].src == 1
    assert by_name["decoder_params"].common == {10: 1, 20: 1, 50: 1}
    assert by_name["flops"].src == -1
    assert by_name["flops"].common[50] == 0
    assert by_name["width"].src == pytest.approx(0.8)
    assert by_name["width"].common == {10: 0, 20: 0, 50: 1}
    assert by_name["grad_norm"].src == pytest.approx(0.8)
    assert by_name["grad_norm"].cost == pytest.approx(0.03)
    assert math.isnan(by_name["state"].src)
    assert [one.src for one in found.rankings[:4]] == sorted((one.src for one in found.rankings[:4]), reverse=True)
    assert all(math.isnan(one.src) for one in found.rankings[4:])
    document = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert document["rankings"][-1]["src"] is None
    assert document["models"][3]["grad_norm"] is None


def test_differences_below_the_noise_are_counted(study: Study) -> None:
    """Seeds 0.02 apart: a standard deviation of 0.0141, below which one of three neighbours is."""
    found = made_up(study)
    assert found.noise is None
    assert "unknown" in found.noise_statement
    rows = [
        {**row, "loss": loss, "losses": [loss - 0.01, loss + 0.01]}
        for row, loss in zip(found.rows, (1, 1.01, 2, 3), strict=True)
    ]
    two = Findings(study, rows)
    assert two.noise == pytest.approx(0.02 / math.sqrt(2))
    assert "1 of 3 adjacent pairs" in two.noise_statement


@pytest.mark.parametrize(("losses", "told"), [((1.0, 1.5), "nats"), ((1.0, 1.01), "not distinguishable")])
def test_shapes_within_the_noise_are_not_called_different(losses: tuple[float, float], told: str) -> None:
    rows = [
        {"d_model": 32 * (1 + i), "n_layer": 4, "decoder_params": 1000, "loss": loss, "perplexity": math.exp(loss),
         "losses": [loss - 0.05, loss + 0.05]}
        for i, loss in enumerate(losses)
    ]  # fmt: skip
    found = ShapeFindings(ShapeStudy(study_space("study-gpt2"), Setting(seq=32), models=2), rows)
    assert found.noise == pytest.approx(0.1 / math.sqrt(2))
    assert found.statement().endswith(told)
    assert "standard deviation between seeds 0.0707 nats" in found.statement()


def test_the_range_of_many_shapes_is_not_compared_with_the_noise_of_one() -> None:
    """Eight equal shapes with two seeds each are spread over twice the noise: their perplexities were not called
    indistinguishable in any of these draws."""
    rng = np.random.default_rng(0)
    told = []
    for _ in range(50):
        rows = [
            {"d_model": 32 * (1 + i), "n_layer": 4, "decoder_params": 1000, "loss": losses.mean(),
             "perplexity": math.exp(losses.mean()), "losses": losses.tolist()}
            for i, losses in enumerate(rng.normal(2, 0.01, (8, 2)))
        ]  # fmt: skip
        found = ShapeFindings(ShapeStudy(study_space("study-gpt2"), Setting(seq=32), models=8), rows)
        told.append(found.statement().endswith("not distinguishable"))
    assert np.mean(told) >= 0.85


def test_words(study: Study) -> None:
    found = made_up(
        study, grad_norm=[4, 3, 2, 1], grad_norm_flops=[30] * 4, width=[3, 4, 2, 1], decoder_params=[1, 2, 3, 4]
    )
    assert best(found) == (
        "grad_norm ranks models best (SRC 1.00) at 3 % of the training FLOPs; of the free ones, width does (SRC 0.80). "
        "The best of 3 proxies that know nothing would often look as good: give more --models. "
        "Decoder parameters are number 3 of 8 (SRC -1.00)."
    )
    assert found.as_dict()["best"]["proxy"] == "grad_norm"


def test_the_best_proxy_of_many_models_is_told_with_those_that_may_be_as_good(small: Space, corpus: Corpus) -> None:
    rng, models = np.random.default_rng(0), 60
    loss = np.sort(rng.normal(3, 0.1, models))
    scores = {name: -loss + 0.02 * rng.normal(size=models) for name in ("width", "layers")}
    columns = {name: np.ones(models) for name in COUNTS} | scores | {"loss": loss}
    rows: list[dict[str, Any]] = [
        {name: float(values[at]) for name, values in columns.items()}
        | {"losses": [float(loss[at])], "train_flops": 1, "seconds": 1.0}
        for at in range(models)
    ]
    found = Findings(Study(small, corpus, models=models, proxies=()), rows)
    assert ". The other one is not distinguishable from it. Decoder" in best(found)
    assert found.as_dict()["best"]["related"]
    assert [cost_text(cost) for cost in (0.0025, 0.17, 8.37)] == ["0.25 %", "17 %", "837 %"]


def test_what_may_be_chance_is_called_that(study: Study) -> None:
    """With four models even a perfect order may be chance; with ten it is not. Equal scores rank nothing."""
    order = list(range(10, 0, -1))
    sure = made_up(study, grad_norm=order, decoder_params=[1] * 10)
    assert best(sure) == (
        "grad_norm ranks models best (SRC 1.00) at 0 % of the training FLOPs. Decoder parameters are the same for all."
    )
    equal = made_up(study, decoder_params=[1] * 10)
    assert best(equal) == "Every proxy gives all of these models the same score, so none ranks them."


def test_the_spaces_made_for_studies() -> None:
    sizes = {}
    for name in SHIPPED:
        space = study_space(name)
        genes_NG = np.stack(drawn(space, 200, seed=0))
        assert len(np.unique(genes_NG, axis=0)) == 200
        sizes[name] = space.columns(genes_NG)["decoder_params"]
    assert sizes["study-gpt2"].max() > 10 * sizes["study-gpt2"].min()
    equal = sizes["study-hybrid"]
    assert (np.abs(equal / np.sqrt(equal.min() * equal.max()) - 1) < 0.15).all()
    assert {option.name for option in study_space("study-gpt2").slots[0].options if option} == {"attn"}
    assert len({option.name for option in study_space("study-hybrid").slots[0].options if option}) >= 4


def test_what_cannot_be_studied_is_refused(small: Space, corpus: Corpus) -> None:
    with pytest.raises(
        UserError, match=r"different models that satisfy every constraint, not 5:\n.*decoder_params <= 10"
    ):
        drawn(small.with_constraints(["decoder_params <= 10"]), 5, seed=0)
    with pytest.raises(UserError, match="constraints about latency"):
        drawn(small.with_constraints(["latency <= 1ms"]), 5, seed=0)
    with pytest.raises(UserError, match="2 models cannot be ranked"):
        Study(small, corpus, models=2)
    with pytest.raises(UserError, match="Did you mean 'fisher'"):
        Study(small, corpus, proxies=("fischer",))
    with pytest.raises(UserError, match="no space or file 'study-gpt3'"):
        study_space("study-gpt3")


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("plait.studies.proxies.VALIDATION_TOKENS", 64)
    Path("mine.txt").write_text("layers: 1..2\nd: 16|32\nmixers: [attn[heads=2], gla[heads=2]]\nchannel: [mlp]\n")
    given = ["proxies", "--space", "mine.txt", "--models", "4", "--data", "builtin:language", "--steps", "2"]
    given += ["--batch", "2", "--seq-len", "8", "--proxies", "snip"]
    shown = CliRunner().invoke(group, given, catch_exceptions=False)
    assert shown.exit_code == 0
    assert "4 models, 2 steps each on builtin:language" in shown.output
    assert "decoder_params" in shown.output
    document = json.loads(CliRunner().invoke(group, [*given, "--json"], catch_exceptions=False).stdout)
    assert [one["proxy"] for one in document["rankings"]].count("snip") == 1
    assert len(document["models"]) == 4
