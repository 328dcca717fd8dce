"""A prompt and its answer: time to first token and time per token, which add up to what a user waits."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import plait
from plait.core.errors import UserError
from plait.device.measurements import Measurements, joined_result
from plait.device.predictor import Predictor, predictor_of
from plait.device.quantities import Setting
from plait.records import Store
from plait.space.table import load_space

sys.path.insert(0, str(Path(__file__).parents[1] / "searching"))
from made_up import extend, profile_of

SPACE = """
layers: 1..3
d: 32..128 step 32
header: vocab=64 tie=true
mixers: [attn[heads=2|4], gla[heads=2]]
channel: [mlp[inner=64|128]]
seq: 32
"""
PROMPT, ANSWER = 32, 10


@pytest.fixture(autouse=True)
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A made-up machine's profile of both modes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.txt").write_text(SPACE)
    space, setting = load_space("mine.txt"), Setting("both", PROMPT, answer=ANSWER)
    profile = profile_of(space, setting.parts[0])
    from plait.device.features import Components

    extend(profile, Components.of(space), [setting.parts[1]])
    profile.save(tmp_path / "box.json")
    return profile


def test_its_parts_are_the_prompt_and_a_token_in_the_middle_of_the_answer() -> None:
    prompt, token = Setting("both", PROMPT, answer=ANSWER).parts
    assert (prompt.mode, prompt.seq, token.mode, token.seq) == ("prefill", 32, "decode", 37)
    assert Setting("both", PROMPT, answer=ANSWER).words == "a prompt of 32 tokens and an answer of 10"
    with pytest.raises(UserError, match="--answer works only with --mode both"):
        Setting(answer=3)
    # What was measured before there was such a mode is found again.
    assert "answer" not in Setting().as_dict()
    assert Setting("both", 32, answer=3).as_dict()["answer"] == 3


def test_predictions_add_up(box: Any) -> None:
    specs = ["d=64 vocab=64 tie=true | attn[heads=2] mlp[inner=64]"]
    setting = Setting("both", PROMPT, answer=ANSWER)
    found = predictor_of(box, setting).predict(specs)
    prompt, token = (Predictor(box, part).predict(specs) for part in setting.parts)
    assert found["ttft"].mean == pytest.approx(prompt["latency"].mean)
    assert found["token_time"].mean == pytest.approx(token["latency"].mean)
    assert found["latency"].mean == pytest.approx(prompt["latency"].mean + 10 * token["latency"].mean)
    assert found["memory"].mean == pytest.approx(max(prompt["memory"].mean, token["memory"].mean))


def test_measurements_add_up_and_each_part_is_kept(tmp_path: Path) -> None:
    store, spec = Store(f"sqlite:///{tmp_path}/plait.db"), "d=16 vocab=20 | attn[heads=2]"
    setting = Setting("both", 8, answer=4)
    with Measurements(store, setting) as known:
        found = known.measure(spec).result
        assert known.find(spec) is not None
    prompt, token = (Measurements(store, part).find(spec) for part in setting.parts)
    assert prompt is not None
    assert token is not None
    first, next_ = prompt.result["latency"]["seconds"], token.result["latency"]["seconds"]
    assert found["ttft"]["seconds"] == first
    assert found["token_time"]["seconds"] == next_
    assert found["latency"]["seconds"] == pytest.approx(first + 4 * next_)
    assert found["memory"]["peak"] == max(prompt.result["memory"]["peak"], token.result["memory"]["peak"])


def test_noise_of_either_part_is_told() -> None:
    calm = {"seconds": 1.0, "low": 0.9, "high": 1.1, "noisy": False, "calm": 1.0, "spread": 0.0, "load": 1.0,
            "drift": 0.1, "repeats": 40}  # fmt: skip
    rough = {**calm, "noisy": True, "calm": 0.2, "spread": 0.5, "load": 9.0, "drift": 0.3, "repeats": 9}
    found = joined_result({"latency": calm, "memory": {"peak": 1}}, {"latency": rough, "memory": {"peak": 2}}, 3)
    assert found["latency"]["noisy"]
    assert found["latency"].keys() == rough.keys()
    for name in ("calm", "spread", "drift", "load", "repeats"):
        assert found["latency"][name] == rough[name]
    assert found["latency"]["high"] == pytest.approx(1.1 + 3 * 1.1)
    assert found["memory"]["peak"] == 2


def searched(**limits: Any) -> Any:
    return plait.search(
        "mine.txt", mode="both", answer=ANSWER, profile="box.json", validate=False, iterations=3, population=20,
        front=0, **limits,
    )  # fmt: skip


def test_a_search_holds_limits_of_either() -> None:
    free = searched()
    assert free.setting == {**Setting("both", PROMPT, answer=ANSWER).as_dict()}
    times = [row["token_time_ms"]["predicted"] for row in searched(token_time="1s").front]
    middle = sorted(times)[len(times) // 2]
    held = searched(tokens_per_second=1e3 / middle)
    assert held.limits["token_time"] == pytest.approx(middle / 1e3)
    assert len(held.front) > 0
    assert all(row["token_time_ms"]["interval"][1] <= middle * (1 + 1e-6) for row in held.front)
    with pytest.raises(UserError, match="mean the same"):
        searched(tokens_per_second=5, token_time="1s")


def test_other_modes_have_no_first_token() -> None:
    with pytest.raises(UserError, match=r"ttft cannot be measured here: it is part of --mode both"):
        plait.search("mine.txt", ttft="5ms")
