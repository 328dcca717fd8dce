"""A million candidates are told the same as one spec is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from made_up import profile_of

from plait.algorithms.evolution import LtsSearch
from plait.algorithms.objectives import Batch, Predicted, exact
from plait.algorithms.predicted import DevicePredictor
from plait.core.errors import UserError
from plait.device.predictor import Predictor
from plait.device.quantities import Setting
from plait.space.declaration import Declaration
from plait.space.space import Space
from plait.space.table import load_space, names

SETTING = Setting(seq=32)


def batch_of(space: Space, count: int = 30, seed: int = 0) -> Batch:
    genes = space.sample(np.random.default_rng(seed), 20 * count)
    genes = genes[space.valid(genes)][:count]
    assert len(genes) == count
    return Batch(space, genes, space.columns(genes, seq=SETTING.seq))


def agrees(space: Space, setting: Setting = SETTING) -> None:
    predictor = Predictor(profile_of(space, setting), setting)
    batch = batch_of(space)
    specs = [space.spec(row) for row in batch.genes_NG]
    device = DevicePredictor(predictor)
    for quantity, wanted in (("latency", predictor.latency(specs)), ("memory", predictor.memory(specs))):
        mean, reach = device.predict(quantity, batch)
        assert mean == pytest.approx(wanted.mean, rel=1e-12)
        assert mean + reach == pytest.approx(wanted.high, rel=1e-12)
        assert np.ptp(mean) > 0


@pytest.mark.parametrize("name", names())
def test_as_the_predictor_says_of_single_specs(name: str) -> None:
    agrees(load_space(name))


def test_in_every_mode_and_batch(small: Space) -> None:
    agrees(small, Setting(mode="decode", seq=40, batch=3))


def test_where_the_norm_is_chosen_layers_differ_with_it() -> None:
    slots = [["attn[heads=2]"], ["mlp[inner=64|128]"]]
    space = Space(Declaration("norms", layers="1..3", d="32|64", slots=slots, vary={"norm": "rms|layer"}))
    predictor = Predictor(profile_of(space, SETTING), SETTING)
    batch = batch_of(space)
    wanted = predictor.latency([space.spec(row) for row in batch.genes_NG])
    assert DevicePredictor(predictor).predict("latency", batch)[0] == pytest.approx(wanted.mean, rel=1e-12)


def test_each_distinct_part_is_predicted_once(small: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = Predictor(profile_of(small, SETTING), SETTING)
    asked: dict[str, list[object]] = {"layer_table": [], "embedding_and_head_table": [], "compose": []}

    def listening(name: str, original: Callable[..., object]) -> Callable[..., object]:
        def listen(*given: object) -> object:
            asked[name] += given[0] if isinstance(given[0], list) else [1]
            return original(*given)

        return listen

    for name in asked:
        monkeypatch.setattr(predictor, name, listening(name, getattr(predictor, name)))
    device = DevicePredictor(predictor)
    for seed in range(3):
        batch = batch_of(small, 300, seed)
        device.predict("latency", batch)
        device.predict("memory", batch)
    assert len(asked["layer_table"]) == len(set(asked["layer_table"])) == 4 * 5  # widths × layers
    assert len(asked["embedding_and_head_table"]) == len(set(asked["embedding_and_head_table"])) == 4
    assert len(asked["compose"]) == 3  # one pass for both quantities


def test_a_limit_that_nothing_holds_is_explained() -> None:
    """Random samples of a space have layers that do not fit their width: nothing can be predicted for those."""
    space = Space(Declaration("odd", layers="1..2", d="48|64", slots=[["attn[heads=16|5|2]"], ["mlp"]]))
    predictor = DevicePredictor(Predictor(profile_of(space, SETTING), SETTING))
    objectives = [*exact(["decoder_params"]), Predicted("latency", predictor), Predicted("memory", predictor)]
    with pytest.raises(UserError, match=r"0 of 10,000 samples satisfy latency_high <= 1us"):
        LtsSearch(space, objectives, constraints=["latency_high <= 1us"]).run()


def test_a_kind_that_the_profile_lacks(small: Space) -> None:
    device = DevicePredictor(Predictor(profile_of(small, SETTING), SETTING))
    with pytest.raises(UserError, match=r"no measurement of .* it knows attn, gla, mlp"):
        device.predict("latency", batch_of(load_space("hybrid")))


def test_profiles_and_settings_are_told_apart(small: Space) -> None:
    profile = profile_of(small, SETTING)
    one, longer = (DevicePredictor(Predictor(profile, Setting(seq=seq))).as_dict() for seq in (32, 64))
    assert one["profile"] == longer["profile"] == profile.hash
    assert one != longer
    profile.points.pop()
    assert DevicePredictor(Predictor(profile, SETTING)).as_dict() != one
