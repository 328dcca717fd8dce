"""`plait.scale`: complete plans with warnings, runs that are trained once, laws from the store."""

from __future__ import annotations

import csv
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import plait
from plait.core.errors import UserError
from plait.model.architecture import architecture
from plait.model.cost import model_cost
from plait.scaling.plan import Price, Speed, budgets_of, read_plan
from plait.scaling.sizes import LEAST_STEPS, Rate, attention_share, batch_tokens, family, grown, pattern_of
from plait.scaling.stored import _rows

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
TINY = "T=d=8 tie=true | (attn[heads=2] swiglu[inner=16])x1"


def tiny_plan(**more: Any) -> Any:
    given = {"budgets": [2e7, 6e7], "seq_len": 16, "batch": 4, "sizes": 3, "span": 4.0, "priced": False,
             "validation_tokens": 2**10}  # fmt: skip
    return plait.scale.plan([TINY], **{**given, **more})


@pytest.mark.parametrize("steady", [True, False])
def test_a_plan_for_a_time_is_one_that_was_priced(monkeypatch: pytest.MonkeyPatch, steady: bool) -> None:
    """Also on a machine whose speed changes all the time, where no correction ever fits."""
    priced = []

    def price(plan: Any, corpus: Any, device: str) -> list[Price]:
        slower = 1.0 if steady else 3.0 ** (len(priced) % 2)
        priced.append(plan)
        return [Price(run, slower * run.flops / 1e9) for run in plan.runs]

    monkeypatch.setattr("plait.scaling.plan.price", price)
    found = tiny_plan(budgets=None, time="100s", priced=True)
    assert any(found.plan is plan for plan in priced)
    assert found.seconds == pytest.approx(sum(row["seconds"] for row in found.rows()))
    assert found.seconds <= 100
    assert len(priced) == (2 if steady else 5)


@pytest.mark.parametrize("given", [
    {"groups": 0, "budgets": None, "total": 1e9}, {"seeds": 0}, {"devices": 0, "speed": 1e9}, {"params": ["1M", 0]},
])  # fmt: skip
def test_counts_start_at_one(given: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"--{next(iter(given))} 0: must be at least 1"):
        tiny_plan(**given)


def test_the_papers_groups_over_its_sizes() -> None:
    found = plait.scale.plan(["mad-transformer", "mad-striped-hyena-1-3"], priced=False)
    budgets = {4e18, 8e18, 2e19, 4e19, 8e19, 2e20, 5e20, 2e21}
    assert set(found.plan.budgets) == budgets
    for run in found.plan.runs:
        arch = architecture(run.spec)
        assert run.flops == pytest.approx(run.budget, rel=0.05)
        forward = model_cost(arch, seq=8192).flops / 8192
        assert run.flops == pytest.approx(3 * forward * run.tokens)
        # Table C.1, in tokens; below 54M parameters 262k.
        expected = 2**18 if run.params < 54e6 else 2**19 if run.budget < 2e20 else 2**20 if run.budget < 2e21 else 2**21
        assert run.recipe.batch * 8192 == expected
        assert (run.recipe.warmup, run.recipe.min_lr_ratio, run.recipe.schedule) == (0.01, 0.1, "cosine")
    # That rule lets the batch grow inside the groups that have models on both sides of 54M.
    assert any("batch grows" in warning and "4e+18" in warning for warning in found.warnings)
    fixed = plait.scale.plan(["mad-transformer"], batch=64, priced=False)
    assert not any("batch grows" in warning for warning in fixed.warnings)


def test_experts_are_planned_by_active_parameters() -> None:
    found = plait.scale.plan(["mad-striped-hyena-moe"], budgets=[1e20, 4e20], priced=False)
    for run in found.plan.runs:
        cost = model_cost(architecture(run.spec), seq=1)
        assert run.params == cost.active_params < cost.total_params


def test_a_total_is_shared_by_the_groups() -> None:
    budgets = budgets_of(1e15, 4, 3.0, 10)
    assert sum(10 * flops for flops in budgets) == pytest.approx(1e15)
    assert [b / a for a, b in pairwise(budgets)] == pytest.approx([3, 3, 3])


def test_sizes_grow_in_width_and_depth_and_keep_their_pattern() -> None:
    base = architecture(
        "d=64 vocab=32 | rule[a=(attn[heads=4] swiglu[inner=96]),h=(hyena swiglu[inner=96])]:stripe(1A:3H,n=4)"
    )
    for arch in grown(base):
        width = arch.header.d
        assert width % 16 == 0
        assert attention_share(arch) == 0.25
        assert pattern_of(arch) == "25 % attn 75 % hyena swiglu"
        for layer in arch.layers:
            if layer.name == "attn":
                assert getattr(layer, "heads") * 16 == width  # noqa: B009 (an attention layer's own)
            if layer.name == "swiglu":
                assert getattr(layer, "inner") == round(96 * width / 64)  # noqa: B009
    widths = [arch.header.d for arch in grown(base)]
    assert len(widths) == len(set(widths)) > 20
    assert max(len(arch.layers) for arch in grown(base)) > len(base.layers)
    assert {len(arch.layers) for arch in grown(base, depth_power=0)} == {len(base.layers)}


def test_heads_of_keys_and_values_grow_with_those_of_queries() -> None:
    members = grown(architecture("d=64 vocab=99 | attn[heads=4,kv_heads=2] swiglu"))
    shapes = [(arch.header.d, arch.layers[0].heads, arch.layers[0].kv_heads) for arch in members]  # type: ignore[attr-defined]
    assert shapes[:3] == [(32, 2, 1), (64, 4, 2), (96, 6, 3)]
    assert all((d, kv) == (16 * heads, heads // 2) for d, heads, kv in shapes)


def test_names_and_specs_are_told_apart() -> None:
    assert family("striped=d=64 | (gla[heads=4] swiglu)x2", 32).name == "striped"
    assert family("d=64 | (gla[heads=4] swiglu)x2", 32).name == "gla swiglu"
    assert len(family("mad-hyena", 32).members) == 35
    with pytest.raises(UserError, match="Did you mean 'mad-transformer'"):
        family("mad-transfomer", 32)


def test_rules_for_small_budgets() -> None:
    assert batch_tokens(4e18) == 2**19
    assert batch_tokens(4e18 / 64) == 2**17
    assert Rate.read("8e-3@128") == Rate(8e-3, 128)
    assert Rate.read("8e-3@128@32768") == Rate(8e-3, 128, 32768)


@pytest.mark.parametrize(
    "text", ["fast", "", "0", "-1e-3", "nan", "4e-3@0", "4e-3@64@0", "4e-3@wide", "4e-3@64@8192@2"]
)
def test_a_rate_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="4e-3@64@8192"):
        Rate.read(text)


def test_seconds_lie_between_what_was_timed() -> None:
    speed = Speed([1e3, 1e5], [1e-6, 1e-5])
    assert speed.token_seconds(1e4) == pytest.approx(10**-5.5)
    assert speed.token_seconds(1e6) == pytest.approx(1e-4)  # as busy as with the nearest


def test_a_plan_is_priced_here_or_elsewhere() -> None:
    here = tiny_plan(priced=True)
    assert here.seconds is not None
    assert here.seconds > 0
    there = tiny_plan(speed=1e7, devices=2)
    assert there.seconds == pytest.approx(there.plan.flops / 2e7)


def test_a_plan_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    found = tiny_plan(out=path)
    assert read_plan(path) == found.plan
    path.write_text(json.dumps({"runs": []}))
    with pytest.raises(UserError, match="is not a plan"):
        read_plan(path)
    with pytest.raises(UserError, match="cannot read"):
        read_plan(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"total": 1e9}, "one of --budgets, --total and --time"),
        ({"sizes": 2}, "at least 3 sizes"),
        ({"span": 1.0}, "--span 1 should be above 1"),
        ({"budgets": "1e7,many"}, "--budgets many"),
    ],
)
def test_bad_plans(more: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        tiny_plan(**more)


def test_two_of_one_name() -> None:
    with pytest.raises(UserError, match="two architectures are called 'T'"):
        plait.scale.plan([TINY, TINY], budgets=[1e7], priced=False)


def test_runs_are_trained_once_and_fitted_from_the_store(tmp_path: Path) -> None:
    """Groups of a few steps each: what comes out is no law, but every run is there."""
    url, path = f"sqlite:///{tmp_path}/plait.db", tmp_path / "plan.json"
    plan = tiny_plan(out=path, budgets=[1e6, 2e6], sizes=3, span=6.0)
    seen: list[str] = []
    first = plait.scale.run(path, runs=tmp_path, store=url, on_progress=lambda what, done, total: seen.append(what))
    assert not first.missing
    assert len(first.rows()) == len(plan.plan.runs)
    assert all(math.isfinite(row["loss"]) for row in first.rows())
    seconds = [row["seconds"] for row in first.rows()]
    again = plait.scale.run(path, runs=tmp_path, store=url)
    assert [row["seconds"] for row in again.rows()] == seconds  # found again, not trained
    with plait.open_store(url) as store:
        assert store.kinds() == {"scale": 1, "train": len(plan.plan.runs)}
        from plait.scaling.run import stored_runs

        table = stored_runs(store).table
    assert set(table.column("architecture")) == {"T"}
    assert sorted(table.column("tokens")) == sorted(run.tokens for run in plan.plan.runs)
    assert sorted(table.column("active_params")) == sorted(run.params for run in plan.plan.runs)
    assert set(table.column("vocab")) == {32}


def test_what_another_process_trains_is_left_to_it(tmp_path: Path) -> None:
    from plait.data import open_corpus
    from plait.scaling.run import job_of

    url = f"sqlite:///{tmp_path}/plait.db"
    plan = tiny_plan(budgets=[1e6], params=["600", "2K", "5K"]).plan
    with plait.open_store(url) as store:
        held = job_of(plan.runs[0], plan, open_corpus(plan.data)).key
        assert store.claim(held, "someone else", 60)
        found = plait.scale.run(plan, runs=tmp_path, store=store)
        assert [one.key for one in found.outcomes if one.result is None] == [held]
        assert "another process trains it" in found.missing[0]
        assert store.kinds()["scale"] == 1  # what is trained of it so far is known to belong to it
        store.release(held, "someone else")
        assert not plait.scale.run(plan, runs=tmp_path, store=store).missing
        assert store.kinds()["scale"] == 1


def test_a_text_edited_while_its_runs_train_is_not_another_process(tmp_path: Path) -> None:
    """It was trained on as it is now, under other keys; the planned runs were said to be trained elsewhere."""
    text, url = tmp_path / "my.txt", f"sqlite:///{tmp_path}/plait.db"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 400)
    plan = tiny_plan(budgets=[1e6], params=["600", "2K"], data=str(text)).plan

    def edit(*_: object) -> None:
        text.write_text("pack my box with five dozen liquor jugs\n" * 400)

    with pytest.raises(UserError, match=r"my.txt has changed since this command began, .* run again"):
        plait.scale.run(plan, runs=tmp_path, store=url, on_progress=edit)
    with plait.open_store(url) as store:
        assert store.kinds() == {"scale": 1}
    again = plait.scale.run(plan, runs=tmp_path, store=url)
    assert not again.missing
    assert "has changed since the plan was made" in again.notes[0]


def test_workers_share_a_plan(tmp_path: Path) -> None:
    plan = tiny_plan(budgets=[1e6], params=["600", "2K", "5K"]).plan
    found = plait.scale.run(plan, workers=2, runs=tmp_path, store=f"sqlite:///{tmp_path}/plait.db")
    assert not found.missing
    assert len(found.rows()) == 3
    with pytest.raises(UserError, match="--workers 0"):
        plait.scale.run(plan, workers=0, runs=tmp_path)


def test_a_fit_takes_the_runs_of_scale_run_and_says_what_else_there_is(tmp_path: Path) -> None:
    """Other trainings on the same text, an interrupted plan, and a study of another text, all in one store."""
    from plait.data import open_corpus
    from plait.scaling.run import job_of, stored_runs

    url, text = f"sqlite:///{tmp_path}/plait.db", tmp_path / "text.txt"
    text.write_text("ab cd ab ef " * 4000)
    plan = tiny_plan(budgets=[1e6], params=["600", "2K", "5K"]).plan
    elsewhere = tiny_plan(budgets=[1e6], params=["600", "2K"], data=str(text)).plan

    def train(seed: int) -> None:
        plait.train(
            plan.runs[0].spec, data=plan.data, tokens=2**10, seed=seed, runs=tmp_path, store=url,
            recipe_values={"batch": 4, "seq_len": 16},
        )  # fmt: skip

    train(1)
    with pytest.raises(UserError, match=r"no trainings of a scaling study.*1 training other commands.*--all-trainings"):
        plait.scale.fit(url, target=1e10)
    plait.scale.run(elsewhere, runs=tmp_path, store=url)
    with plait.open_store(url) as store:
        held = job_of(plan.runs[0], plan, open_corpus(plan.data)).key
        assert store.claim(held, "someone else", 60)
        plait.scale.run(plan, runs=tmp_path, store=store)  # its first run is left to another process
        train(2)
        found = stored_runs(store)
        assert sorted(found.table.column("tokens")) == sorted(run.tokens for run in plan.runs[1:])
        assert set(found.table.column("architecture")) == {"T"}
        assert set(found.table.column("batch")) == {4 * 16}  # tokens, not sequences
        told = " ".join(found.left_out)
        assert "2 trainings made by other commands (--all-trainings" in told
        assert f"2 trainings on other texts (--where data=NAME fits one: {text})" in told
        assert "1 of 3 planned runs have no result" in told
        assert len(stored_runs(store, all_trainings=True).table) == 4
        assert len(stored_runs(store, all_texts=True).table) == 4
        assert "1 of 5 planned runs have no result" in " ".join(stored_runs(store, all_texts=True).left_out)
        assert len(stored_runs(store, all_trainings=True, all_texts=True).table) == 6
    with pytest.raises(UserError, match=r"T: 2 runs; the surface has 5 unknowns.*2 trainings made by other commands"):
        plait.scale.fit(url, target=1e10)
    with pytest.raises(UserError, match="T: 2 runs"):
        plait.scale.fit(url, target=1e10, where=[f" data = {text}"])
    with pytest.raises(UserError, match="swiglu: 2 runs"):  # the others', named by their pattern
        plait.scale.fit(url, target=1e10, all_trainings=True)
    with pytest.raises(UserError, match="--all-trainings is for the runs of a store"):
        plait.scale.fit(text, target=1e10, all_trainings=True)


def test_two_tokenizers_of_one_size_are_not_fitted_together(tmp_path: Path) -> None:
    """A BPE learned again after its text was edited has the same name and as many ids, and another loss per token.
    Trainings of other commands do not say what was asked for."""
    url, text = f"sqlite:///{tmp_path}/plait.db", tmp_path / "text.txt"
    for words in ("ab cd ab ef gh ", "xyz zq rs tu vw "):
        text.write_text(words * 4000)
        for seed in range(3):
            plait.train(
                "d=16 vocab=262 | swiglu", data=str(text), tokenizer="bpe:size=262", tokens=2**10, seed=seed,
                runs=tmp_path, store=url, recipe_values={"batch": 4, "seq_len": 16},
            )  # fmt: skip
    with pytest.raises(
        UserError, match=r"mixes vocabularies: tokenizer is hf-\w{8}, hf-\w{8}\. .*--where tokenizer=hf-"
    ):
        plait.scale.fit(url, target=1e10, all_trainings=True)


@pytest.mark.parametrize("tokenizer", [None, "words", "bpe:size=270"])
def test_runs_on_a_text_that_was_edited_are_not_fitted_with_those_before(tokenizer: str | None, tmp_path: Path) -> None:
    """Its name is the same, its entropy is not, and a tokenizer that is learned from it is another one, too: runs of
    two of these were fitted together, or refused together."""
    from plait.scaling.run import stored_runs

    url, text = f"sqlite:///{tmp_path}/plait.db", tmp_path / "text.txt"
    for words in ("ab cd ab ef ", "xyz zq rs "):
        text.write_text(words * 4000)
        plan = tiny_plan(budgets=[1e6], params=["600", "2K"], data=str(text), tokenizer=tokenizer).plan
        last = plait.scale.run(plan, runs=tmp_path, store=url)
    with plait.open_store(url) as store:
        for all_texts in (False, True):
            found = stored_runs(store, all_texts=all_texts)
            assert sorted(found.table.column("key")) == sorted(one.key for one in last.outcomes)
            assert found.left_out == ("left out: 2 trainings on the text as it was before it changed",)


def test_a_text_that_changed_between_plan_and_run_is_said(tmp_path: Path) -> None:
    url, text, written = f"sqlite:///{tmp_path}/plait.db", tmp_path / "text.txt", tmp_path / "plan.json"
    text.write_text("ab cd ab ef " * 4000)
    tiny_plan(budgets=[1e6], params=["600"], data=str(text), out=written)
    assert plait.scale.run(written, runs=tmp_path, store=url).notes == ()
    text.write_text("rs ab cd ef " * 4000)
    (note,) = plait.scale.run(written, runs=tmp_path, store=url).notes
    assert note.endswith(
        "text.txt has changed since the plan was made: its runs are trained on the text as it is now, and a fit leaves "
        "earlier ones out"
    )


def test_tokenizers_of_one_size_are_no_versions_of_a_text(tmp_path: Path) -> None:
    from plait.scaling.run import stored_runs

    url, text = f"sqlite:///{tmp_path}/plait.db", tmp_path / "text.txt"
    keys = []
    for words in ("ab cd ef gh ", "rs ab cd ef "):  # each learned from a text of its own, and then fixed
        text.write_text(words * 4000)
        learned = plait.train(
            "d=8 | mlp", data=text, tokenizer="words:size=6", steps=1, runs=tmp_path / words[:2], store=url,
            recipe_values={"batch": 2, "seq_len": 8},
        )  # fmt: skip
        keys.append(str(Path(learned.folder) / "tokenizer"))
    for tokenizer in keys:
        plan = tiny_plan(budgets=[1e6], params=["600", "2K"], data=str(text), tokenizer=tokenizer).plan
        plait.scale.run(plan, runs=tmp_path, store=url)
    with plait.open_store(url) as store:
        found = stored_runs(store)
        assert len(found.table) == 4
        assert len(set(found.table.column("vocab"))) == 1


def test_an_empty_store_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="plait scale plan"):
        plait.scale.fit(f"sqlite:///{tmp_path}/plait.db", target=1e10)


def test_a_rate_goes_with_width_and_batch() -> None:
    found = Rate(2e-3, 128, 2**13)
    assert found.at(128, 2**13) == 2e-3
    assert found.at(512, 2**13) == pytest.approx(5e-4)  # 1 / d
    assert found.at(128, 2**17) == pytest.approx(4e-3)  # batch^(1/4)
    assert found.at(128, 2**9) == 2e-3  # a smaller batch does not count
    assert Rate(found.at(256, 2**15), 256, 2**15).at(128, 2**13) == pytest.approx(2e-3)  # and back


def test_the_rule_is_near_the_best_rates_that_were_measured() -> None:
    """Transformer++ on bytes, every width and batch at which three rates or more were tried: the rule's own rate is
    within a factor of two of the best one."""
    rows = csv.DictReader((RESULTS / "2026-11-16-h200-scaling-rates.csv").open(encoding="utf-8"))
    trials: dict[tuple[str, int, int], dict[float, float]] = {}
    for row in rows:
        if row["architecture"] in ("Transformer++", "FoX"):
            width = int(row["spec"].split()[0].removeprefix("d="))
            trials.setdefault((row["spec"], width, int(row["batch"])), {})[float(row["lr"])] = float(row["loss"])
    several = {key: losses for key, losses in trials.items() if len(losses) >= 3}
    assert len(several) >= 10
    near = [0.49 < min(losses, key=lambda lr: losses[lr]) / Rate().at(width, batch) < 2.05
            for (_, width, batch), losses in several.items()]  # fmt: skip
    assert sum(near) >= 0.9 * len(near)


def probes_and_runs(tmp_path: Path) -> tuple[str, str]:
    """Scaling runs of five architectures, and their scores: `recall` as good as their surface, `luck` of no use."""
    from plait.analysis.scaling_simulation import Design, joined, simulated, surface

    draw = np.random.default_rng(0)
    parts = [
        simulated(
            surface(1.8, 480 - 40 * k, 2085, 0.35, 0.37), Design([1e18, 1e19, 1e20], 5), 0.001, draw, name=f"a{k}"
        )
        for k in range(5)
    ]
    runs = joined(parts)
    lines = ["architecture,flops,params,tokens,loss"]
    columns = (runs.architecture, runs.flops, runs.params, runs.tokens, runs.loss)
    lines += [",".join(map(str, row)) for row in zip(*columns, strict=True)]
    (tmp_path / "runs.csv").write_text("\n".join(lines) + "\n")
    scores = [f"a{k},{0.5 + 0.1 * k},{[0.5, 0.7, 0.4, 0.7, 0.5][k]}" for k in range(5)]
    (tmp_path / "scores.csv").write_text("architecture,recall,luck\n" + "\n".join(scores) + "\n")
    return str(tmp_path / "runs.csv"), str(tmp_path / "scores.csv")


def test_probes_against_scale(tmp_path: Path) -> None:
    runs, scores = probes_and_runs(tmp_path)
    found = plait.scale.probe(runs, target=1e21, scores=scores, draws=50, svg=tmp_path / "f.svg")
    by_task = {(row["task"], row["budget"]): row for row in found.rows()}
    assert {task for task, _ in by_task} == {"all tasks", "recall", "luck"}
    assert len(by_task) == 3 * 4  # three groups and the target
    assert by_task["recall", 1e21]["r"] < -0.95
    assert by_task["recall", 1e21]["verdict"] == "better probes, lower loss"
    assert by_task["luck", 1e21]["verdict"] == "the data cannot say"
    assert "a3" in (tmp_path / "f.svg").read_text()
    with pytest.raises(UserError, match="2 architectures have both"):
        plait.scale.probe(runs, target=1e21, scores={"a0": {"x": 1}, "a1": {"x": 0.5}}, draws=50)


def test_stored_probes_find_their_patterns(tmp_path: Path) -> None:
    from plait.records import Record
    from plait.scaling.stored import order_pairs, probed, scores_by_pattern

    specs = {
        "d=128 vocab=16 | (hyena swiglu)x2": 0.5,
        "d=128 vocab=32 | (hyena swiglu)x2": 0.7,  # another task's vocabulary
        "d=128 vocab=16 | hyena swiglu attn swiglu": 0.9,
        "d=128 vocab=16 | attn swiglu hyena swiglu": 0.8,
    }
    with plait.open_store(f"sqlite:///{tmp_path}/plait.db") as store:
        for spec, accuracy in specs.items():
            task = "recall" if "vocab=16" in spec else "copying"
            config = {"protocol": 1, "spec": architecture(spec).text, "task": {"task": task}}
            store.put(Record.of("probe", config, {"accuracy": accuracy}, {}))
        models = probed(store)
    scores = scores_by_pattern(models)
    assert scores["hyena swiglu"] == {"recall": 0.5, "copying": 0.7}
    assert scores["50 % hyena 50 % attn swiglu"] == {"recall": 0.9}
    (pair,) = order_pairs(models)
    assert [one.mean for one in pair] == [0.9, 0.8]


def test_stored_probes_against_runs_that_name_their_specs(tmp_path: Path) -> None:
    """Whatever the runs are called, a probed model of the same pattern has their score."""
    from plait.records import Record

    runs, _ = probes_and_runs(tmp_path)
    mixers = {"a0": "linear", "a1": "gla", "a2": "hyena", "a3": "mamba", "a4": "attn"}
    lines = Path(runs).read_text().splitlines()
    named = [f"{line},d=512 vocab=32 | ({mixers[line[:2]]} swiglu)x6" for line in lines[1:]]
    Path(runs).write_text("\n".join([lines[0] + ",spec", *named]) + "\n")
    url = f"sqlite:///{tmp_path}/plait.db"
    with plait.open_store(url) as store:
        for k, mixer in enumerate(mixers.values()):
            config = {"protocol": 1, "spec": f"d=128 vocab=16 | ({mixer} swiglu)x2", "task": {"task": "recall"}}
            store.put(Record.of("probe", config, {"accuracy": 0.5 + 0.1 * k}, {}))
    found = plait.scale.probe(runs, target=1e21, store=url, draws=50)
    assert {row["architectures"] for row in found.rows()} == {5}
    assert all(row["r"] < -0.95 for row in found.rows())


MIXER = """
from dataclasses import dataclass
from typing import ClassVar
from torch import nn
from plait.mixers import Cost, Mixer, MixerOptions

@dataclass(frozen=True)
class Options(MixerOptions):
    name: ClassVar[str] = "halve"
    kind: ClassVar[str] = "sequence"

    def cost(self, d, seq, memory=0):
        return Cost(params={"map": d * d}, flops={"map": 2 * seq * d * d})

class Halve(Mixer):
    Options = Options

    def __init__(self, d, options):
        super().__init__(d, options)
        self.map = nn.Linear(d, d, bias=False)

    def forward(self, x_BTD):
        return self.map(x_BTD) * FACTOR

    def init_state(self, batch, *, rollback=0):
        return {}

    def step(self, x_BD, state):
        return self.forward(x_BD), {}
"""


FITTED_ELSEWHERE = """
import sys
import plait
from plait.scaling.run import stored_runs

with plait.open_store(sys.argv[1]) as store:
    try:
        table = stored_runs(store).table
        print(sorted(set(table.column("architecture"))), table.column("state"))
    except plait.UserError as wrong:
        print(wrong)
"""


def test_runs_of_a_users_mixer_are_read_where_nobody_named_its_file(tmp_path: Path) -> None:
    """In another process: by the copies in the run folders; without those the message says what to give."""
    file, url = tmp_path / "halve.py", f"sqlite:///{tmp_path}/plait.db"
    file.write_text(MIXER.replace("FACTOR", "0.5").replace('"halve"', '"halve-elsewhere"'))
    given: dict[str, Any] = {"budgets": [1e6], "params": ["600", "2K"], "seq_len": 16, "batch": 4, "priced": False,
                             "validation_tokens": 2**10, "mixers": [file]}  # fmt: skip
    plan = plait.scale.plan(["mine=d=16 tie=true | (halve-elsewhere swiglu[inner=16])x1"], **given).plan
    plait.scale.run(plan, mixers=[file], runs=tmp_path / "runs", store=url)
    file.unlink()

    def read() -> str:
        ran = subprocess.run(
            [sys.executable, "-c", FITTED_ELSEWHERE, url], capture_output=True, text=True, check=True, timeout=120
        )
        return ran.stdout

    assert read().startswith("['mine']")
    shutil.rmtree(tmp_path / "runs")
    assert "used your own mixer halve-elsewhere: give its file with --mixers my_mixer.py." in read()


def test_a_mixer_of_ones_own_is_planned_trained_edited_and_trained_again(tmp_path: Path) -> None:
    """After an edit all is trained again, and a fit reads the runs of the newest text alone."""
    from plait.scaling.run import stored_runs

    file, url = tmp_path / "halve.py", f"sqlite:///{tmp_path}/plait.db"
    given: dict[str, Any] = {"budgets": [1e6], "params": ["600", "2K"], "seq_len": 16, "batch": 4, "priced": False,
                             "validation_tokens": 2**10, "mixers": [file]}  # fmt: skip
    losses = []
    for factor in (0.5, 2.0):
        file.write_text(MIXER.replace("FACTOR", str(factor)))
        plan = plait.scale.plan(["mine=d=16 tie=true | (halve swiglu[inner=16])x1"], **given).plan
        found = plait.scale.run(plan, mixers=[file], runs=tmp_path, store=url)
        assert not found.missing
        losses.append([row["loss"] for row in found.rows()])
        with plait.open_store(url) as store:
            table = stored_runs(store).table
        assert set(table.column("architecture")) == {"mine"}
        assert sorted(table.column("loss")) == sorted(losses[-1])
    assert losses[0] != losses[1]
    with plait.open_store(url) as store:
        assert store.kinds()["train"] == 4


def test_a_mixer_edited_between_plan_and_run_is_noticed(tmp_path: Path) -> None:
    """With the same sizes its runs are trained and a note says so; with others the plan is wrong, and refused."""
    file, path, url = tmp_path / "halve.py", tmp_path / "plan.json", f"sqlite:///{tmp_path}/plait.db"
    text = MIXER.replace('"halve"', '"halve-planned"')
    file.write_text(text.replace("FACTOR", "0.5"))
    given: dict[str, Any] = {"budgets": [1e6], "params": ["600", "2K"], "seq_len": 16, "batch": 4, "priced": False,
                             "validation_tokens": 2**10, "mixers": [file], "out": path}  # fmt: skip
    plan = plait.scale.plan(["mine=d=16 tie=true | (halve-planned swiglu[inner=16])x1"], **given).plan
    assert list(plan.sources) == ["halve-planned"]
    assert read_plan(path) == plan

    def run() -> Any:
        return plait.scale.run(path, mixers=[file], runs=tmp_path, store=url)

    first = run()
    assert not first.notes
    file.write_text(text.replace("FACTOR", "2.0"))
    again = run()
    assert "halve-planned was edited since the plan was made" in again.notes[0]
    assert {one.key for one in first.outcomes}.isdisjoint(one.key for one in again.outcomes)
    file.write_text(text.replace("FACTOR", "2.0").replace("2 * seq * d", "3 * seq * d"))
    with pytest.raises(UserError, match=r"halve-planned was edited.*FLOPs, planned with .*: plan again"):
        run()
    file.write_text(
        text.replace("FACTOR", "2.0").replace("bias=False", "bias=True").replace("d * d}, fl", "d * d + d}, fl")
    )
    with pytest.raises(UserError, match=r"halve-planned was edited.*parameters, planned with .*: plan again"):
        run()
    document = json.loads(path.read_text())
    del document["sources"]  # a plan of an earlier version
    path.write_text(json.dumps(document))
    with pytest.raises(UserError, match="plan again"):
        run()


@pytest.mark.slow
def test_workers_that_were_killed_are_resumed(tmp_path: Path) -> None:
    """kill -9 of a whole group of processes in the middle; the same command trains what is left, and nothing twice."""
    path, url = tmp_path / "plan.json", f"sqlite:///{tmp_path}/plait.db"
    plan = tiny_plan(out=path, budgets=[2e6, 3e7], params=["600", "2K", "5K"]).plan
    command = [
        sys.executable,
        "-m",
        "plait",
        "scale",
        "run",
        str(path),
        "--workers",
        "2",
        "--runs",
        str(tmp_path),
        "--json",
    ]
    environment = {**os.environ, "PLAIT_STORE": url, "OMP_NUM_THREADS": "1"}
    quiet = subprocess.DEVNULL
    first = subprocess.Popen(command, env=environment, stdout=quiet, stderr=quiet, start_new_session=True)
    try:
        while first.poll() is None and not list(tmp_path.glob("train-*/result.json")):
            time.sleep(0.05)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    with plait.open_store(url) as store:
        before = {record.key: record.result["seconds"] for record in store.find("train")}
        assert len(before) < len(plan.runs)
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["missing"] == []
    assert {row["key"]: row["seconds"] for row in found["runs"] if row["key"] in before} == before
    with plait.open_store(url) as store:
        assert store.kinds() == {"scale": 1, "train": len(plan.runs)}


def test_runs_of_other_trainers_come_as_parquet(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    arrow = pytest.importorskip("pyarrow")
    runs, _ = probes_and_runs(tmp_path)
    lines = [line.split(",") for line in Path(runs).read_text().splitlines()]
    columns = {name: [row[i] if i == 0 else float(row[i]) for row in lines[1:]] for i, name in enumerate(lines[0])}
    parquet.write_table(arrow.table(columns), tmp_path / "runs.parquet")
    by_csv = plait.scale.fit(runs, target=1e21, draws=20).as_dict()
    by_parquet = plait.scale.fit(tmp_path / "runs.parquet", target=1e21, draws=20).as_dict()
    assert by_parquet["surface"] == by_csv["surface"]


def test_small_budgets_have_batches_that_leave_all_runs_long() -> None:
    found = plait.scale.plan([TINY], budgets=[1e10, 4e10], seq_len=16, sizes=4, span=4.0, priced=False)
    for budget in found.plan.budgets:
        own = [run for run in found.plan.runs if run.budget == budget]
        assert len({run.recipe.batch for run in own}) == 1
        assert min(run.steps for run in own) >= LEAST_STEPS
        assert {run.recipe.min_lr_ratio for run in own} == {0.0}
    assert not any("fewer than" in warning and "steps" in warning for warning in found.warnings)
    short = plait.scale.plan([TINY], budgets=[1e10], seq_len=16, batch=256, sizes=4, span=4.0, priced=False)
    assert any(f"fewer than {LEAST_STEPS} steps" in warning for warning in short.warnings)


def test_planned_rates_go_with_width_and_batch() -> None:
    found = plait.scale.plan([TINY], budgets=[1e10, 1e14], seq_len=16, sizes=3, span=2.0, priced=False)
    for run in found.plan.runs:
        tokens = run.recipe.batch * run.recipe.seq_len
        expected = 0.256 / architecture(run.spec).header.d * (max(tokens, 2**13) / 2**13) ** 0.25
        assert run.recipe.lr == pytest.approx(expected)
    assert len({run.recipe.batch for run in found.plan.runs}) == 2
    fixed = plait.scale.plan([TINY], budgets=[1e10], seq_len=16, priced=False, recipe_values={"lr": 1e-3})
    assert {run.recipe.lr for run in fixed.plan.runs} == {1e-3}


def test_tokens_per_byte_are_told_and_stored(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("ab cd ab ef " * 4000)
    url = f"sqlite:///{tmp_path}/plait.db"
    from plait.scaling.run import stored_runs

    for tokenizer in ("bytes", "words"):
        found = tiny_plan(budgets=[1e6], params=["600", "2K"], data=str(text), tokenizer=tokenizer)
        assert found.tokens_per_byte == pytest.approx(1.0 if tokenizer == "bytes" else found.tokens_per_byte)
        plait.scale.run(found.plan, runs=tmp_path, store=url)
    with plait.open_store(url) as store:
        table = stored_runs(store).table
    assert len(table) == 4
    assert len(set(table.column("tokens_per_byte"))) == 2


def test_an_options_best_value_from_stored_trainings(tmp_path: Path) -> None:
    from plait.records import Record

    url = f"sqlite:///{tmp_path}/plait.db"
    losses = {64: 1.9, 16: 1.7, 4: 1.8}  # head dimensions 2, 8 and 32
    with plait.open_store(url) as store:
        for heads, loss in losses.items():
            for seed in (0, 1):
                spec = architecture(f"d=128 vocab=256 | (mh-hyena[heads={heads}] swiglu)x2").text
                config = {"protocol": 1, "spec": spec, "recipe": {"lr": 1e-3}, "seed": seed}
                store.put(Record.of("train", config, {"loss": loss + 0.01 * seed}, {}))
        other = architecture("d=64 vocab=256 | (mh-hyena[heads=8] swiglu)x2").text
        config = {"protocol": 1, "spec": other, "recipe": {"lr": 1e-3}, "seed": 0}
        store.put(Record.of("train", config, {"loss": 1.0}, {}))
    found = plait.analyse.option("mh-hyena.heads", store=url)
    rows = found.as_dict()["values"]
    assert [(row["value"], row["head_dim"], row["runs"], row["best"]) for row in rows] == [
        ("16", 8, 2, True), ("4", 32, 2, False), ("64", 2, 2, False)
    ]  # fmt: skip
    assert rows[0]["quality"] == pytest.approx(1.705)
    assert not any(row["tied"] for row in rows)
    assert found.as_dict()["best"] == {"16": 1}
    assert rows[0]["noise"] == pytest.approx(0.01 / 2**0.5)
    assert "noise between seeds 0.0071" in found.notes[0]
    for name, message in (
        ("mh-hyena.hands", "did you mean|has no option"),
        ("heads", "MIXER.OPTION"),
        ("gla.heads", "no two train records differ"),
    ):
        with pytest.raises(UserError, match=f"(?i){message}"):
            plait.analyse.option(name, store=url)


def test_an_option_is_found_next_to_records_of_mixers_that_nobody_knows(tmp_path: Path) -> None:
    """Records of others' mixers are in the way of no question; a user's own is asked about with its file."""
    from plait.records import Record

    file, url = tmp_path / "swept.py", f"sqlite:///{tmp_path}/plait.db"
    text = MIXER.replace("FACTOR", "self.options.size").replace('"halve"', '"swept"')
    file.write_text(
        text.replace(
            '    kind: ClassVar[str] = "sequence"', '    kind: ClassVar[str] = "sequence"\n    size: float = 1.0'
        )
    )
    specs = ["d=128 vocab=256 | (gla swiglu)x2", "d=128 vocab=256 | (gla[heads=2] swiglu)x2",
             "d=128 vocab=256 | (swept swiglu)x2", "d=128 vocab=256 | (swept[size=2] swiglu)x2"]  # fmt: skip
    with plait.open_store(url) as store:
        for loss, spec in enumerate(specs):
            sources = {"sources": {"swept": "an old text"}} if "swept" in spec else {}
            config = {"protocol": 1, "spec": spec, "recipe": {"lr": 1e-3}, "seed": 0, **sources}
            store.put(Record.of("train", config, {"loss": float(loss)}, {}))
    assert [row["value"] for row in plait.analyse.option("gla.heads", store=url).as_dict()["values"]] == ["4", "2"]
    with pytest.raises(UserError, match=r"unknown mixer 'swept'. One of your own: --mixers my_mixer.py"):
        plait.analyse.option("swept.size", store=url)
    own = plait.analyse.option("swept.size", mixers=[file], store=url)
    assert [row["value"] for row in own.as_dict()["values"]] == ["1.0", "2.0"]


@pytest.mark.parametrize(("seeds", "apart"), [(2, 0.002), (1, 0.1)])
def test_a_value_within_the_noise_is_not_called_the_best(tmp_path: Path, seeds: int, apart: float) -> None:
    """Within what seeds differ by; or with one seed each, of which nothing is known."""
    from plait.records import Record

    url = f"sqlite:///{tmp_path}/plait.db"
    with plait.open_store(url) as store:
        for place, heads in enumerate((8, 16)):
            for seed in range(seeds):
                spec = architecture(f"d=128 vocab=256 | (mh-hyena[heads={heads}] swiglu)x2").text
                config = {"protocol": 1, "spec": spec, "recipe": {"lr": 1e-3}, "seed": seed}
                store.put(Record.of("train", config, {"loss": 1.7 + apart * place + 0.01 * seed}, {}))
    found = plait.analyse.option("mh-hyena.heads", store=url)
    assert [row["tied"] for row in found.as_dict()["values"]] == [False, True]
    assert found.as_dict()["best"] == {}
    assert ("unknown" in found.notes[0]) == (seeds == 1)


def test_the_best_rate_of_each_architecture_from_stored_trainings(tmp_path: Path) -> None:
    from plait.records import Record

    url = f"sqlite:///{tmp_path}/plait.db"
    best = {64: 4e-3, 128: 2e-3, 256: 2e-3}
    with plait.open_store(url) as store:
        for d, good in best.items():
            for lr in (1e-3, 2e-3, 4e-3):
                config = {"protocol": 1, "spec": f"d={d} vocab=256 | attn swiglu", "recipe": {"lr": lr}}
                loss = 2 - d / 1000 + abs(math.log(lr / good))
                store.put(Record.of("train", config, {"loss": loss, "params": d}, {}))
    found = plait.analyse.lr(
        url, where=["kind=train"], model="config.spec", rate="config.recipe.lr", quality="result.loss",
        proxy="result.params",
    )  # fmt: skip
    assert {row["model"]: row["rate"] for row in found.as_dict()["best"]} == {
        f"d={d} vocab=256 | attn swiglu": rate for d, rate in best.items()
    }
    assert found.as_dict()["src_best"] == pytest.approx(1.0)


def test_the_pitfall() -> None:
    found = plait.scale.pitfall(flops="2e20")
    assert found.growing < 0.9 * found.fixed
    assert found.best == pytest.approx(found.fixed, rel=0.15)
    with pytest.raises(UserError, match="--flops"):
        plait.scale.pitfall(flops="big")


def test_the_first_step_is_not_in_the_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """It allocates memory and warms up: here it takes 10 s, the others 1 s."""
    from plait.data import open_corpus
    from plait.scaling import plan as planning

    clock = iter([0.0, 10.0, 10.0, 11.0, 11.0, 12.0, 12.0, 13.0])
    monkeypatch.setattr(planning, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    monkeypatch.setattr("plait.training.trainer.Trainer", lambda *_, **__: SimpleNamespace(advance=lambda: None))
    plan = tiny_plan().plan
    assert planning._token_seconds(plan.runs[0], plan, open_corpus(plan.data), "cpu") == pytest.approx(1 / (4 * 16))


def test_the_best_value_of_an_option_may_rest_on_few_runs() -> None:
    """Two runs of the best and twenty of another, which is 1.2 times the noise behind: a tie by the error of both."""
    few, many = [2.0 - 0.1, 2.0 + 0.1], [2.14 + 0.1 * (-1) ** k for k in range(20)]
    best, other = _rows("setting", {"a": {"": few}, "b": {"": many}}, -1.0, "width", 8)
    assert (best.value, best.best, other.tied) == ("a", True, True)
    assert 1.0 < (other.quality - best.quality) / other.noise < 1.5
