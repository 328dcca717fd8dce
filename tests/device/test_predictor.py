"""Predictions for a machine whose truth is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from plait.core.errors import UserError
from plait.device.predictor import Predictor
from plait.device.profile import Profile
from plait.device.quantities import Setting
from plait.device.regression import Surface
from plait.mixers.table import load
from plait.model.architecture import architecture
from plait.model.cost import model_cost

Fill = Callable[..., Profile]
SETTING = Setting(seq=64)
CHECKS = [
    architecture(f"d={d} vocab=500 | attn[heads=4] mlp[inner={inner}] attn[heads=2]")
    for d, inner in ((64, 300), (128, 1000), (256, 500), (512, 900))
]
UNSEEN = [
    architecture(text)
    for text in (
        "d=192 vocab=500 | attn[heads=4] mlp[inner=700] attn[heads=4] mlp[inner=123]",
        "d=384 vocab=500 | (attn[heads=8] mlp[inner=1500])x5",
        "d=320 vocab=500 | mlp[inner=64]",
    )
]


@pytest.fixture
def predictor(machine: Any, fill: Fill) -> Predictor:
    return Predictor(fill(machine, SETTING, CHECKS), SETTING)


def test_unseen_architectures(machine: Any, predictor: Predictor) -> None:
    true = [machine.model(arch, SETTING) for arch in UNSEEN]
    latency, memory = predictor.latency(UNSEEN), predictor.memory(UNSEEN)
    assert latency.mean == pytest.approx([point.seconds for point in true], rel=0.03)
    assert memory.mean == pytest.approx([point.memory for point in true], rel=0.03)
    for prediction, column in ((latency, "seconds"), (memory, "memory")):
        values = np.array([getattr(point, column) for point in true])
        assert (prediction.low < values).all()
        assert (values < prediction.high).all()
        assert (prediction.high < 1.3 * values).all()


def test_whole_models_correct_the_sum_of_parts(machine: Any, fill: Fill) -> None:
    sums = Predictor(fill(machine, SETTING), SETTING).latency(UNSEEN)
    corrected = Predictor(fill(machine, SETTING, CHECKS), SETTING).latency(UNSEEN)
    assert corrected.mean / sums.mean == pytest.approx(1.04, abs=0.01)


def test_mixers_that_are_not_loaded_here_stay_out(machine: Any, fill: Fill) -> None:
    profile = fill(machine, SETTING, CHECKS)
    known = Predictor(profile, SETTING).latency(UNSEEN).mean
    layer = next(point for point in profile.points if point.what == "layer")
    stranger = replace(layer, spec="somebodys-mixer[depth=3]", seconds=9.0)
    changed = replace(layer, spec="mlp[inner=8,no_longer=1]", seconds=9.0)
    model = replace(profile.points[-1], spec="d=64 vocab=500 | somebodys-mixer mlp", seconds=9.0)
    profile.points += [stranger, changed, model]
    assert Predictor(profile, SETTING).latency(UNSEEN).mean == pytest.approx(known)


def test_state_counts_up_to_the_layer_at_work(machine: Any, fill: Fill) -> None:
    """A wide layer at the start works while the caches of later layers are not there yet."""
    setting = Setting(seq=256)
    predictor = Predictor(fill(machine, setting, CHECKS), setting)
    wide, caches = "mlp[inner=2000]", "(attn[heads=4])x12"
    first, last = predictor.memory([f"d=128 vocab=16 | {wide} {caches}", f"d=128 vocab=16 | {caches} {wide}"]).mean
    assert last - first > 1e6


def test_a_layers_own_state_is_written_when_its_work_is_done() -> None:
    """By hand: the peak is of a layer at work beside the states of those before it, or of the head beside them all."""
    predictor = Predictor(Profile.here(SETTING), SETTING)
    layers, head = predictor.empty_table(2), predictor.empty_table(1)
    layers["activations"][:], layers["state"][:], head["activations"][:] = (10, 20), (100, 0), 5
    orders_NL = np.array([[0, 1], [1, 0], [1, 1]])
    found = predictor.compose(head, np.zeros(3, dtype=np.int64), layers, orders_NL, np.full(3, 1000.0))
    assert found["memory"].mean == pytest.approx([1120, 1105, 1020])


def with_another_space(profile: Profile, **change: Callable[[Any, int], Any]) -> Profile:
    """The profile with whole models of another embedding and head, which differ in some quantities."""
    models = [point for point in profile.points if point.what == "model"]
    for at, point in enumerate(models, start=1):
        new = {name: value(point, at) for name, value in change.items()}
        profile.points.append(replace(point, spec=point.spec.replace("vocab=500", "vocab=16"), **new))
    return profile


def test_models_of_another_space_do_not_change_the_prediction_of_memory(machine: Any, fill: Fill) -> None:
    """What libraries keep beside a small model is a multiple of its own memory."""
    alone = Predictor(fill(machine, SETTING, CHECKS), SETTING).memory(UNSEEN[:1])
    profile = with_another_space(fill(machine, SETTING, CHECKS), memory=lambda _, at: at * 10**8)
    beside = Predictor(profile, SETTING).memory(UNSEEN[:1])
    assert (beside.low[0], beside.high[0]) == (alone.low[0], alone.high[0])


def test_models_of_another_space_do_not_change_the_prediction_of_latency(machine: Any, fill: Fill) -> None:
    """Models of one space may take 1.3 times their parts, those of another as long as these."""
    alone = Predictor(fill(machine, SETTING, CHECKS), SETTING).latency(UNSEEN[:1])
    profile = with_another_space(fill(machine, SETTING, CHECKS), seconds=lambda point, _: 1.3 * point.seconds)
    both = Predictor(profile, SETTING)
    beside, other = both.latency(UNSEEN[:1]), both.latency([UNSEEN[0].text.replace("vocab=500", "vocab=16")])
    assert (beside.low[0], beside.high[0]) == (alone.low[0], alone.high[0])
    assert other.mean[0] / beside.mean[0] == pytest.approx(1.3, rel=0.02)


def test_few_models_of_a_space_are_told_by_all(machine: Any, fill: Fill) -> None:
    """Three do not show how far models deviate from their parts."""
    profile = with_another_space(fill(machine, SETTING, CHECKS), seconds=lambda point, _: 1.3 * point.seconds)
    profile.points.pop()
    other = UNSEEN[0].text.replace("vocab=500", "vocab=16")
    found = Predictor(profile, SETTING).latency([UNSEEN[0].text, other])
    wide = (found.high - found.mean) / found.mean
    assert wide[1] > 2 * wide[0]


def test_models_that_disagree_with_their_parts_widen_the_interval(machine: Any, fill: Fill) -> None:
    """By as much as they scatter, with Student's t for four of them."""

    def width(scatter: float) -> float:
        profile = fill(machine, SETTING, CHECKS)
        models = [at for at, point in enumerate(profile.points) if point.what == "model"]
        for at, sign in zip(models, (1, -1, 1, -1), strict=True):
            profile.points[at] = replace(
                profile.points[at], seconds=profile.points[at].seconds * np.exp(sign * scatter)
            )
        found = Predictor(profile, SETTING).latency(UNSEEN[:1])
        return float((found.high - found.mean)[0] / found.mean[0])

    root = 0.2 * (4 / 3) ** 0.5
    assert width(0.2) == pytest.approx(3.182 * root, rel=0.05)
    assert width(0.2) > 3 * width(0.0)


def test_many_candidates_are_sums_over_tables(predictor: Predictor) -> None:
    layers = [(d, load("mlp")(inner=inner)) for d in (192, 320) for inner in (100, 900)]
    headers = [architecture(f"d={d} vocab=500 | identity").header for d in (192, 320)]
    header_N = np.array([0, 0, 1])
    layers_NL = np.array([[0, 1, -1], [1, 1, 1], [3, -1, -1]])
    texts = ["d=192 vocab=500 | mlp[inner=100] mlp[inner=900]", "d=192 vocab=500 | (mlp[inner=900])x3"]
    texts.append("d=320 vocab=500 | mlp[inner=900]")
    weights_N = np.array([4.0 * model_cost(text).total_params for text in texts])
    tables = predictor.embedding_and_head_table(headers), predictor.layer_table(layers)
    found = predictor.compose(tables[0], header_N, tables[1], layers_NL, weights_N)
    assert set(found) == {"latency", "memory"}
    latency, memory = found["latency"], found["memory"]
    assert latency.mean == pytest.approx(predictor.latency(texts).mean)
    assert latency.high == pytest.approx(predictor.latency(texts).high)
    assert memory.mean == pytest.approx(predictor.memory(texts).mean)


def test_a_length_that_was_not_measured_is_less_sure(predictor: Predictor) -> None:
    longer = Predictor(predictor.profile, replace(SETTING, seq=512))
    here, there = predictor.latency(UNSEEN), longer.latency(UNSEEN)
    assert (there.mean > 4 * here.mean).all()
    assert ((there.high / there.mean) > (here.high / here.mean)).all()


def test_a_mixer_that_was_not_measured(predictor: Predictor) -> None:
    with pytest.raises(UserError, match=r"no measurement of mamba .* it knows attn, mlp"):
        predictor.latency(["d=64 vocab=500 | mamba"])


def test_a_mode_that_was_not_measured(predictor: Predictor) -> None:
    with pytest.raises(
        UserError, match=r"nothing in mode decode, only prefill\. Add to it with `plait profile --mode decode`"
    ):
        Predictor(predictor.profile, Setting(mode="decode")).latency(UNSEEN)


def test_decoding_holds_the_state_twice(machine: Any, fill: Fill) -> None:
    setting = Setting(mode="decode", seq=500)
    predictor = Predictor(fill(machine, setting), setting)
    text = "d=128 vocab=500 | attn[heads=4]"
    cost = model_cost(text, seq=1, memory=500)
    assert predictor.memory([text]).mean[0] > 4 * cost.total_params + 2 * 0.99 * cost.state_bytes()


def test_a_half_width_is_no_standard_deviation(machine: Any, fill: Fill, monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise of a point is half of its 95 % interval; a surface takes standard deviations."""
    taken = []

    def surface(features: Any, values: Any, noise: Any, **more: Any) -> Surface:
        taken.extend(noise)
        return Surface(features, values, noise, **more)

    monkeypatch.setattr("plait.device.predictor.Surface", surface)
    Predictor(fill(machine, SETTING), SETTING).latency(UNSEEN)
    assert sorted(set(taken)) == pytest.approx([0.0, 0.01 / 1.96], rel=1e-3)  # none for bytes
