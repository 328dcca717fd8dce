"""A design ends in time on a machine of any load: every stage with a simulated clock."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_workflow import SPACE, Bench, bench, run  # noqa: F401 (a fixture)

from plait.api import design as api
from plait.designing import config as briefs
from plait.designing import config as clock
from plait.designing import finding, workflow
from plait.designing.config import Clock
from plait.designing.workflow import design_config
from plait.device import latency
from plait.device.quantities import Setting
from plait.records import Store
from plait.searching import job
from plait.space.constraints import Limits

LATE = 1.15  # of the time given: when a design ends at the latest
GIVEN = 300.0
TOO_LATE, REACHED = clock.LATE, clock.StageEnd.reached  # which the fixture turns off


class FakeTime:
    """Passes only when something is done, at the speed of a machine under a load."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def time(self) -> float:
        return 1e9 + self.now


def loaded(bench: Bench, monkeypatch: pytest.MonkeyPatch, load: float) -> tuple[FakeTime, list[float]]:  # noqa: F811
    """A machine on which all takes `load` times as long as on an idle one: the clock, and the seconds of races."""
    now, raced, planned = FakeTime(), [], []
    slowdown = max(1.0, load**0.5)  # busier than when the race was timed
    for module, name in ((api, "clock"), (clock, "time"), (workflow, "time"), (finding, "time")):
        monkeypatch.setattr(module, name, now)
    measure, hold_race, train = bench.latency, workflow.hold_race, workflow.train
    search_front, local_profile = finding.search_front, finding.local_profile

    def measured(*given: Any) -> Any:
        now.now += 3.0 * load
        return measure(*given)

    def profiled(*given: Any, seconds: float, most: float, **others: Any) -> Any:
        least = 25.0 * load
        assert least <= most, "refused: it would take too long"
        now.now += max(least, seconds)
        return local_profile(*given, seconds=seconds, most=most, **others)

    def searched(request: Any, predictor: Any, store: Any, folder: Any, step: Any = None, ended: Any = None) -> Any:
        def slowly(search: Any) -> bool:
            now.now += load
            return bool(ended(search))

        return search_front(request, predictor, store, folder, step, slowly)

    def raced_for(*given: Any) -> Any:
        *others, seconds = given
        raced.append(seconds)
        found = hold_race(*others, 6.0)
        now.now += seconds
        planned.append(found.tokens[found.pick])
        return replace(found, race=replace(found.race, slowdown=slowdown))

    def trained(config: Any, spec: Any, corpus: Any, recipe: Any, tokens: float, *others: Any) -> Any:
        now.now += config.share("train") * slowdown * tokens / planned[-1]
        return train(config, spec, corpus, recipe, tokens / 50, *others)  # the clock is told, so fewer do

    monkeypatch.setattr(latency, "measure_latency", measured)
    monkeypatch.setattr(clock, "LATE", TOO_LATE)
    monkeypatch.setattr(clock.StageEnd, "reached", REACHED)
    monkeypatch.setattr(job, "FEW", 0)  # a search with iterations, also in a small space
    monkeypatch.setattr(finding, "local_profile", profiled)
    monkeypatch.setattr(finding, "search_front", searched)
    monkeypatch.setattr(workflow, "hold_race", raced_for)
    monkeypatch.setattr(workflow, "train", trained)
    monkeypatch.setattr(clock, "WORTH", float("inf"))  # no probe: its plan has tests of its own
    return now, raced


def test_ends_in_time_under_load(bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "mine.txt").write_text(SPACE.replace("inner=64|128", "inner=32..256 step 8"))  # enough to search in
    bench.predictor = Bench(tmp_path / "mine.txt").predictor
    monkeypatch.setitem(briefs.SHARES, "train", 0.14)
    now, raced = loaded(bench, monkeypatch, load=5.0)
    found = json.loads(run("--time", f"{GIVEN:g}s").stdout)
    cut = "; ".join(found["cut"])
    assert now.now <= LATE * GIVEN
    assert "the search ended after" in cut
    assert "2 of 9 models were measured, no plain Transformer among them" in cut
    assert "the training got 4" in cut
    assert f"Cut short: {cut}; this machine, at its load, needs a longer --time." in found["points"]
    assert len(found["candidates"]) >= 2
    assert raced[0] >= 0.3 * 0.33 * GIVEN
    # Resumed with all the time before it, it decides alike and measures nothing more.
    measured, before = len(bench.measured), now.now
    again = json.loads(run("--time", f"{GIVEN:g}s").stdout)
    assert again["advice"] == found["advice"]
    assert again["cut"] == found["cut"]
    assert len(bench.measured) == measured
    assert raced == [raced[0]] * 2
    assert now.now > before


def test_a_profile_that_would_take_too_long_is_refused(tmp_path: Path) -> None:
    config = design_config("small-hybrid", Limits(), "builtin:language", Setting(seq=32), GIVEN, 0, runs=tmp_path)
    with Store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        now = Clock(config, store, clock.time.perf_counter() - 20.0)
        assert now.profile_most == pytest.approx(0.45 * GIVEN - 20.0, abs=0.5)


def test_a_training_is_shortened_where_it_would_take_far_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeTime()
    monkeypatch.setattr(clock, "time", fake)
    config = design_config("small-hybrid", Limits(), "builtin:language", Setting(seq=32), GIVEN, 0, runs=tmp_path)
    share = config.share("train")
    with Store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        fake.now = GIVEN - share  # in time
        assert Clock(config, store, 0.0, ["a"]).tokens(1e6, 1.0) == 1e6
        slow = Clock(config, store, 0.0, ["b"])
        assert slow.tokens(1e6, 4.0) == pytest.approx(0.25e6)
        assert list(slow.cut.values()) == ["the training got 25 % of its tokens"]
        short = Clock(config, store, 0.0, ["b"])
        assert short.tokens(1e6, 4.0, least=0.5e6) == 0.5e6
        assert list(short.cut.values()) == ["the training got 50 % of its tokens"]
        shortest = Clock(config, store, 0.0, ["b"])
        assert shortest.tokens(1e6, 4.0, least=1.4e6) == 1e6  # trained for 1.4 times as many: nothing is cut
        assert not shortest.cut
        fake.now = 0.0  # resumed
        assert Clock(config, store, 0.0, ["b"]).tokens(1e6, 4.0) == pytest.approx(0.25e6)
        fake.now = GIVEN  # late
        assert Clock(config, store, 0.0, ["c"]).tokens(1e6, 1.0) == pytest.approx(0.3e6)
    stated = replace(config, train_for=briefs.TrainFor("tokens", 1e6))
    with Store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        assert Clock(stated, store, 0.0, ["c"]).tokens(1e6, 9.0) == 1e6
