"""The pick's training is found again, on a machine too slow for its time as well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plait.core.errors import UserError
from plait.data import open_corpus
from plait.designing.config import DesignConfig
from plait.designing.training import LEAST_STEPS, train
from plait.device.setting import Setting
from plait.records import open_store
from plait.space.constraints import Limits
from plait.space.table import load_space
from plait.training import fit
from plait.training.speed import TooShort

SPEC = "d=16 | attn[heads=2] swiglu[inner=16]"


def test_what_a_slow_machine_trained_stands_when_it_is_quicker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits.read(latency="20ms", memory="100MB")
    config = DesignConfig(load_space("small-hybrid"), Setting(seq=16), limits, "builtin:language", 20, runs=tmp_path)
    corpus = open_corpus(config.data)

    def trained(fitting: int) -> dict[str, Any]:
        """Where so many steps fit."""

        def steps(*_: object, **__: object) -> int:
            if fitting < 1:
                raise TooShort("too few")
            return fitting

        monkeypatch.setattr(fit, "steps_that_fit", steps)
        with open_store(f"sqlite:///{tmp_path}/plait.db") as store:
            return train(config, SPEC, corpus, store, lambda *_: None)

    first, again = trained(0), trained(3)
    assert (first["trained_now"], again["trained_now"]) == (True, False)
    assert first["steps"] == again["steps"] == LEAST_STEPS
    assert first["curve"] == again["curve"]


def test_what_else_is_wrong_is_told(tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    limits = Limits.read(latency="20ms", memory="100MB")
    config = DesignConfig(
        load_space("small-hybrid"), Setting(seq=16), limits, "builtin:language", 20, runs=tmp_path / "runs"
    )
    with open_store(f"sqlite:///{tmp_path}/plait.db") as store, pytest.raises(UserError, match="cannot make the run's"):
        train(config, SPEC, open_corpus(config.data), store, lambda *_: None)
