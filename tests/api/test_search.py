"""`plait.search`, `front`, `measure` and `predict` from Python, and the same from the command line."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import plait
from plait.device.measurements import Measurements
from plait.device.quantities import Setting
from plait.records import Record, open_store, provenance_of
from plait.searching.local_profile import profile_path
from plait.space.table import load_space

sys.path.insert(0, str(Path(__file__).parents[1] / "searching"))
from made_up import profile_of

SPACE = """
layers: 1..3
d: 32..128 step 32
header: vocab=64 tie=true
mixers: [attn[heads=2|4], gla[heads=2]]
channel: [mlp[inner=64|128], none]
seq: 32
"""
#: A made-up machine predicts; nothing is measured.
TINY = ["--profile", "box.json", "--no-validate", "--iterations", "3", "--population", "20"]


@pytest.fixture
def machine(plait_json, tmp_path):
    (tmp_path / "mine.txt").write_text(SPACE)
    profile_of(load_space(str(tmp_path / "mine.txt")), Setting(seq=32)).save(tmp_path / "box.json")
    return plait_json


def search():
    return plait.search(
        "mine.txt", latency="1s", profile="box.json", validate=False, iterations=3, population=20, method="nsga2"
    )


def test_a_search_is_what_the_command_prints(machine):
    seen = []
    found = plait.search(
        "mine.txt", latency=1.0, profile="box.json", validate=False, iterations=3, population=20, method="nsga2",
        on_progress=lambda what, done, total: seen.append((what, done, total)),
    )  # fmt: skip
    assert seen[-1] == ("searching mine", 4, 4)  # the first population, and three more
    printed = machine("search", "--space", "mine.txt", "--method", "nsga2", "--latency", "1s", *TINY)
    assert printed == json.loads(json.dumps(found.as_dict()))
    assert found.limits == {"latency": 1.0}
    assert machine("front", "show") == printed == plait.front.show(found.key[:8]).as_dict()
    assert {row["spec"] for row in found.rows()} == set(found.specs)
    assert all(row["latency_ms"] <= 1000 for row in found.rows())


def test_a_front_is_picked_from(machine, tmp_path):
    found = search()
    best = found.pick(measure=False)
    assert best.as_dict() == machine("front", "pick", "--no-validate")
    assert best.row["decoder_params"] == max(row["decoder_params"] for row in plait.front.show(front=0).front)
    least = found.pick(by="latency", measure=False)
    assert least.row["latency_ms"]["predicted"] <= best.row["latency_ms"]["predicted"]
    assert not best.is_measured
    with pytest.raises(plait.UserError, match="no model of this front is within"):
        found.pick(latency="1us")
    with pytest.raises(plait.UserError, match="has no such column"):
        found.pick(by="latenzy")
    assert plait.front.table().as_dict() == machine("front", "table")
    kept = plait.front.candidates(found.key)
    assert kept.evaluated == found.evaluated == len(kept.rows())
    kept.save(tmp_path / "all.jsonl")
    assert len((tmp_path / "all.jsonl").read_text().splitlines()) == found.evaluated


def test_a_pick_is_measured_and_gives_way_where_it_does_not_hold(machine, monkeypatch):
    """Whatever was measured before: the best that holds the limit is the best of all that do."""
    found = search()
    rows = sorted(plait.front.show(front=0).front, key=lambda row: -row["decoder_params"])
    limit = max(row["latency_ms"]["predicted"] for row in rows[:3]) / 1e3  # by its size alone the third may be slower
    measured = []

    def measure(self, spec, again=False):
        """The largest two take longer than was predicted."""
        measured.append(spec)
        seconds = 2 * limit if spec in (rows[0]["spec"], rows[1]["spec"]) else 0.9 * limit
        latency = {"seconds": seconds, "low": seconds, "high": seconds, "noisy": False}
        result = {"latency": latency, "memory": {"peak": 1}}
        record = Record.of("measure", self.config(spec), result, provenance_of(0.0, 1.0))
        self.store.put(record)
        return record

    monkeypatch.setattr(Measurements, "measure", measure)
    with open_store() as store:  # a small model was measured earlier
        measure(Measurements(store, Setting(seq=32)), rows[-1]["spec"])
    best = found.pick(latency=limit)
    assert best.is_measured
    assert best.spec == rows[2]["spec"]
    assert rows[-1]["spec"] == measured[0]
    assert set(measured[1:]) <= {row["spec"] for row in rows[:3]}


def test_a_prediction_is_what_the_command_prints(machine):
    spec = "d=64 vocab=64 tie=true | attn[heads=2] mlp[inner=64]"
    found = plait.predict([spec, plait.architecture(spec)], "box.json", seq_len=32)
    assert found.as_dict() == machine("predict", spec, spec, "--profile", "box.json", "--seq", "32")
    low, high = found.models[0].quantities["latency_ms"].interval
    assert low < found.rows()[0]["latency_ms"] < high


def test_the_profile_that_is_kept_predicts(machine, tmp_path):
    spec = "d=64 vocab=64 tie=true | attn[heads=2] mlp[inner=64]"
    with pytest.raises(plait.UserError, match="has no profile of this machine yet: make one with `plait profile`"):
        plait.predict(spec, seq_len=32)
    kept = profile_path(tmp_path / "runs", Setting())
    kept.parent.mkdir(parents=True)
    (tmp_path / "box.json").rename(kept)
    assert plait.predict(spec, seq_len=32).models == plait.predict(spec, kept, seq_len=32).models


def test_a_measurement_is_stored_and_found(plait_json):
    spec = "d=16 vocab=32 | attn[heads=2]"
    found = plait.measure(spec, seq_len=8)
    assert found.rows()[0]["memory_mb"] > 0
    (kept,) = plait.runs.find("measure").records
    assert found.as_dict() == {"setting": Setting(seq=8).as_dict(), "models": [
        {"spec": kept.config["spec"], "key": kept.key, **kept.result}]}  # fmt: skip
    over = plait.measure_lengths(spec, (4, 8))
    assert [row["seq_len"] for row in over.rows()] == [4, 8]
    assert over.as_dict().keys() == plait_json("measure", spec, "--lengths", "4,8").keys()


def test_a_front_is_scored_by_what_is_too_dear_for_a_search(machine):
    found = search()
    scores = plait.front.score(found.key, by="snip", data="builtin:language", front=4)
    assert set(scores.specs) <= set(found.specs)
    assert len(scores.models) == 4
    assert [row["score"] for row in scores.models] == sorted((row["score"] for row in scores.models), reverse=True)
    assert scores.models[0]["on_front"]  # nothing has a higher score
    printed = machine("front", "score", "--by", "snip", "--data", "builtin:language", "--front", "4")
    assert printed == json.loads(json.dumps(scores.as_dict()))
    with open_store() as store:
        assert len(store.find("score")) == 4  # the second time none was computed
    costs = [(-row["score"], row["latency_ms"], row["memory_mb"]) for row in scores.models]
    for row, mine in zip(scores.models, costs, strict=True):
        beaten = any(all(a <= b for a, b in zip(other, mine, strict=True)) and other != mine for other in costs)
        assert row["on_front"] == (not beaten)


def test_what_scores_a_front_is_known_before_anything_is_built(machine):
    search()
    with pytest.raises(plait.UserError, match=r"--by snipp: must be one of .* Did you mean 'snip'\?"):
        plait.front.score(by="snipp")
    with pytest.raises(plait.UserError, match="--time works only with --by compare"):
        plait.front.score(by="short-training", time="1m")


def test_a_front_is_scored_by_a_comparison(machine, monkeypatch):
    """Losses become scores of the front's models, whose vocabulary (64) is not the text's."""
    from plait.api import compare as module

    found = search()
    compare, asked = module.compare, {}

    def small(specs, *, time, **options):
        comparison = compare(specs, **options, tokens=256, batch=2, seq_len=16, seeds=1, held_out=64, workers=1,
                             search_rates=False)  # fmt: skip
        first, second, third = comparison.architectures
        asked.update(time=time, rows=(first, replace(second, loss=None), third))  # as if it had diverged
        return replace(comparison, architectures=asked["rows"])

    monkeypatch.setattr(module, "compare", small)
    scores = plait.front.score(found.key, by="compare", data="builtin:language", time="30s", front=3)
    assert asked["time"] == "30s"
    shown = plait.front.show(found.key, front=3).specs
    losses = {spec: row.loss for spec, row in zip(shown, asked["rows"], strict=True)}
    assert {row["spec"]: row["loss"] for row in scores.models} == losses
    assert [row["loss"] for row in scores.models[:2]] == sorted(loss for loss in losses.values() if loss is not None)
    assert scores.specs[2] == shown[1]  # the diverged one last
    for spec, row in zip(shown, asked["rows"], strict=True):  # the same model but for the vocabulary
        assert plait.cost(spec).decoder_params == row.params
        assert spec != row.spec


def test_a_limit_that_nothing_keeps_is_refused_before_a_supernet_is_trained(plait_json, tmp_path, monkeypatch) -> None:
    """It was found out only after the training, which may take hours."""
    from plait.supernet.training import SupernetTraining

    def trained(*_: object) -> None:
        raise AssertionError("trained in vain")

    monkeypatch.setattr(SupernetTraining, "advance", trained)
    space = tmp_path / "choices.txt"
    space.write_text("layers: 2\nd: 32\nheader: vocab=32\nmixers: [attn[heads=2], mlp[inner=64], none]\nseq: 32\n")
    profile_of(load_space(str(space)), Setting(seq=32)).save(tmp_path / "box.json")
    asked = {"method": "gumbel", "data": "builtin:language", "profile": "box.json", "validate": False}
    with pytest.raises(plait.UserError, match=r"no candidate of choices satisfies every constraint:\n.*latency_high"):
        plait.search(space, **asked, latency="0.01us")
    with pytest.raises(AssertionError, match="in vain"):
        plait.search(space, **asked, latency="1s")
