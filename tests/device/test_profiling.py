"""Which layers are measured, and when it is enough."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest

from plait.core.errors import UserError
from plait.device import profiling
from plait.device.features import Components
from plait.device.predictor import Predictor
from plait.device.profile import Point, Profile
from plait.device.profiling import LEAST, LEAST_CHECKS, extend_profile
from plait.device.quantities import Setting
from plait.mixers.table import load
from plait.spec import Header

SETTING = Setting(seq=32)
COMPONENTS = Components(
    Header(vocab=500),
    (64, 128, 192, 256),
    (
        tuple(load("attn")(heads=h) for h in (2, 4, 8)),
        (*(load("mlp")(inner=64 * n) for n in range(1, 20)), load("moe")(), None),
    ),
    (1, 4),
)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, machine: Any) -> list[float]:
    """Every look at the clock is a tenth of a second later; the machine is made up."""
    now = [0.0]

    def later() -> float:
        now[0] += 0.1
        return now[0]

    monkeypatch.setattr(profiling.time, "monotonic", later)
    monkeypatch.setattr(profiling, "PartMeter", lambda setting, memory: machine)
    monkeypatch.setattr(profiling, "MemoryMeter", nullcontext)
    return now


@pytest.mark.usefixtures("clock")
def test_a_profile_predicts() -> None:
    profile = Profile.here(SETTING)
    heard: list[tuple[Point, float]] = []
    extend_profile(
        profile, [COMPONENTS], [SETTING], seconds=20, on_progress=lambda point, over: heard.append((point, over))
    )
    assert [point for point, _ in heard] == profile.points
    assert [over for _, over in heard] == sorted(over for _, over in heard)
    assert 15 < profile.seconds < 30
    kinds = Counter(point.spec.partition("[")[0] for point in profile.of("layer"))
    assert min(kinds[name] for name in ("attn", "mlp", "moe")) >= LEAST
    asked = ["d=192 vocab=500 | attn[heads=4] mlp[inner=320] attn moe"]
    found = Predictor(profile, SETTING).latency(asked)
    assert (found.high / found.mean < 1.15).all()


@pytest.mark.usefixtures("clock")
def test_a_short_time_still_covers_every_kind() -> None:
    profile = Profile.here(SETTING)
    extend_profile(profile, [COMPONENTS], [SETTING], seconds=0.5)
    kinds = Counter(point.spec.partition("[")[0] for point in profile.of("layer"))
    assert {name: kinds[name] for name in ("attn", "mlp", "moe")} == dict.fromkeys(("attn", "mlp", "moe"), LEAST)
    assert len(profile.of("outside")) >= LEAST
    assert len(profile.of("model")) == LEAST_CHECKS


@pytest.mark.usefixtures("clock")
def test_what_is_needed_at_least_is_not_waited_for_without_end() -> None:
    """A slow machine is refused, with its points kept; resumed, or with few whole models, the profile is made."""
    profile, told, least = Profile.here(SETTING), [], []
    with pytest.raises(
        UserError, match=r"too slow or too busy for that time: .* at least \d+ more, about \d+ s\. They are kept"
    ):
        extend_profile(
            profile, [COMPONENTS], [SETTING], seconds=0.5, most=2.0, on_start=least.append,
            on_progress=lambda point, over: told.append(over),
        )  # fmt: skip
    assert 0 < len(profile.points) < 4 * LEAST
    assert least == [4 * LEAST + LEAST_CHECKS]  # said before anything is measured
    assert max(told) < 0.9  # of what is needed, although the time is up
    before = len(profile.points)
    extend_profile(profile, [COMPONENTS], [SETTING], seconds=0.5, most=2.0)
    assert len(profile.points) > before
    assert 1 <= len(profile.of("model")) < LEAST_CHECKS


@pytest.mark.usefixtures("clock")
def test_nothing_is_measured_twice() -> None:
    profile = Profile.here(SETTING)
    extend_profile(profile, [COMPONENTS], [SETTING], seconds=10)
    first = len(profile.points)
    extend_profile(profile, [COMPONENTS], [SETTING], seconds=10)
    assert len(profile.points) > first
    parts = [(p.what, p.spec, p.d) for p in profile.points if p.what != "model"]
    assert len(set(parts)) == len(parts)


@pytest.mark.usefixtures("clock")
def test_it_ends_when_everything_is_measured() -> None:
    small = Components(Header(vocab=500), (64,), ((load("attn")(),),), (1, 2))
    profile = Profile.here(SETTING)
    for models in (0, LEAST_CHECKS):  # the second time nothing is left to begin with
        assert len(profile.of("model")) >= models
        extend_profile(profile, [small], [SETTING], seconds=5)
        assert len(profile.of("layer")) == 1
        assert len(profile.of("outside")) == 1


@pytest.mark.usefixtures("clock")
def test_the_odd_one_gets_the_attention(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal kinds, but one of them is erratic: it is measured more often."""
    smooth, rng = machine.layer, np.random.default_rng(0)

    def erratic(d: int, options: Any, norm: str, setting: Setting) -> Point:
        point: Point = smooth(d, options, norm, setting)
        factor = rng.choice([0.6, 1.6]) if options.name == "mlp" else 1.0
        return Point(**{**vars(point), "seconds": point.seconds * factor})

    monkeypatch.setattr(machine, "layer", erratic)
    inner = [64 * n for n in range(1, 30)]
    slots = tuple(tuple(load(name)(inner=i) for i in inner) for name in ("mlp", "swiglu"))
    profile = Profile.here(SETTING)
    extend_profile(profile, [Components(Header(vocab=500), (64, 128), slots, (1, 2))], [SETTING], seconds=10)
    kinds = Counter(point.spec.partition("[")[0] for point in profile.of("layer"))
    assert kinds["mlp"] > 2 * kinds["swiglu"]


def test_a_busy_machine_does_not_take_longer(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting up takes 15 s, a layer 2 to 3 and a whole model 14 s: all of it is within the 150 s asked for."""
    now = [0.0]
    draws = np.random.default_rng(0)

    class Busy:
        def __getattr__(self, name: str) -> Any:
            def measured(*given: Any) -> Point:
                now[0] += 14.0 if name == "model" else draws.uniform(2, 3)
                point: Point = getattr(machine, name)(*given)
                return point

            return measured

    @contextmanager
    def starting() -> Iterator[None]:
        now[0] += 15.0
        yield

    monkeypatch.setattr(profiling.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(profiling, "PartMeter", lambda setting, memory: Busy())
    monkeypatch.setattr(profiling, "MemoryMeter", starting)
    profile = Profile.here(SETTING)
    extend_profile(profile, [COMPONENTS], [SETTING], seconds=150)
    assert 0.9 * 150 < now[0] <= 150
    assert profile.seconds == now[0]
    assert len(profile.of("model")) >= LEAST_CHECKS
    assert len(profile.of("layer")) > 20


def test_nothing_to_measure() -> None:
    with pytest.raises(UserError, match="at least one space"):
        extend_profile(Profile.here(SETTING), [], [SETTING], seconds=1)
