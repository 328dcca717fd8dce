"""The table of trainings: what is wrong or fails is not given a speed, and ratios are those of one run."""

from __future__ import annotations

import pytest

from plait.core.errors import UserError
from plait.interop import train_bench
from plait.interop.train_bench import MODELS, PEER, TrainTiming, spec_of, train_timings
from plait.model.architecture import architecture

SPEC = "d=16 | attn[heads=2] swiglu[inner=16]"


def test_every_model_of_the_table_has_both_sizes() -> None:
    for model in MODELS:
        small, large = (architecture(spec_of(model, size)) for size in ("125m", "360m"))
        assert len(small.layers) < len(large.layers)
    assert spec_of(SPEC, "125m") == SPEC
    with pytest.raises(UserError, match="125m, 360m"):
        spec_of("gla", "1b")


def test_a_cpu_trains_eagerly_and_has_no_peer() -> None:
    sizes = {"batch": 2, "seq_len": 8, "vocab": 30, "steps": 1}
    (row,) = train_timings("tiny", SPEC, **sizes, device="cpu", compiled=False, peers=True)
    assert (row.trainer, row.ratio, row.mfu, row.failure) == ("plait eager", 1.0, None, "")
    assert row.tokens_per_second is not None
    assert row.tokens_per_second > 0


def test_another_loss_than_the_eager_models_is_a_failure_without_a_speed() -> None:
    rows = [
        TrainTiming("m", SPEC, "plait eager", 100.0, loss=3.0),
        TrainTiming("m", SPEC, "plait compiled", 200.0, loss=3.4),
        TrainTiming("m", SPEC, PEER, 50.0, loss=9.0),
    ]
    checked = list(train_bench._with_ratios(train_bench._checked(rows)))
    assert [row.tokens_per_second for row in checked] == [100.0, None, 50.0]
    assert [row.ratio for row in checked] == [1.0, None, 2.0]
    assert "3.400" in checked[1].failure


def test_ratios_say_how_many_times_as_fast_the_compiled_model_is() -> None:
    rows = [
        TrainTiming("m", SPEC, "plait eager", 100.0, loss=3.0),
        TrainTiming("m", SPEC, "plait compiled", 200.0, loss=3.0),
        TrainTiming("m", SPEC, PEER, 50.0, loss=9.0),
    ]
    assert [row.ratio for row in train_bench._with_ratios(train_bench._checked(rows))] == [2.0, 1.0, 4.0]
