"""Every signal compared with real trainings; stored trainings are not repeated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import plait
from plait.analysis.rank import spearman
from plait.core.errors import UserError

SPECS = ("d=16 | attn[heads=2] swiglu", "d=16 | gla[heads=2] swiglu", "d=16 | hyena[state=4] swiglu")
SMALL = {"data": "builtin:language", "tokens": 32 * 40, "batch": 2, "seq_len": 16, "held_out": 64, "workers": 1}


def test_signals_are_held_against_the_truth(tmp_path: Path) -> None:
    kept = {"runs": tmp_path, "store": f"sqlite:///{tmp_path}/plait.db"}
    found = plait.study.verdict(SPECS, **SMALL, **kept)
    table, document = found.findings.table, found.as_dict()
    assert table.loss_ASB.shape == (3, 2, 3)
    assert np.isfinite(table.loss_ASB).all()
    truth = table.loss_ASB[:, :, -1].mean(axis=1)
    signals = {row["name"]: row for row in document["signals"]}
    half = signals["loss at 50.0 % of the tokens"]
    assert half["spearman"] == pytest.approx(spearman(table.loss_ASB[:, 0, 1], truth))
    assert half["regret"] == pytest.approx(truth[np.argmin(table.loss_ASB[:, 0, 1])] - truth.min())
    assert half["cost"] == 0.5
    assert all(row["regret"] >= 0 for row in document["signals"])
    assert sum(name.startswith("race: ") for name in signals) >= 6
    assert table.names[int(np.argmin(truth))] in document["statement"]
    within = [n for n, loss in zip(table.names, truth, strict=True) if 0 < loss - truth.min() < table.noise]
    assert ("above it by less than the noise: " in document["statement"]) == bool(within)
    assert all(name in document["statement"] for name in within)
    times: list[str] = []
    again = plait.study.verdict(SPECS, **SMALL, **kept, on_progress=lambda what, *_: times.append(what))
    assert not times
    assert again.as_dict() == document


def test_it_says_what_limits_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that could not be made equal and trainings of a few steps were not told, one that diverged disappeared."""
    from plait.studies import verdict

    kept = {"runs": tmp_path, "store": f"sqlite:///{tmp_path}/plait.db"}
    lost = "d=16 | mamba2[head_dim=8,state=4] swiglu"
    loss_of = verdict.loss_of
    monkeypatch.setattr(
        verdict, "loss_of", lambda record: float("nan") if "mamba2" in record.config["spec"] else loss_of(record)
    )
    found = plait.study.verdict([*SPECS[:2], "d=64 | (hyena[state=4])x9", lost], **SMALL, **kept)
    notes = " ".join(found.as_dict()["notes"])
    assert "the longest training has 40 steps" in notes
    assert "give more --tokens" in notes
    assert "(hyena)x9: params not matched" in notes
    assert "mamba2 swiglu diverged and is left out" in notes


def test_too_few_to_rank(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="at least 3 architectures"):
        plait.study.verdict(SPECS[:2], **SMALL, runs=tmp_path, store=f"sqlite:///{tmp_path}/plait.db")


@pytest.mark.parametrize("tokens", [0.0, -1.0, float("nan"), float("inf")])
def test_a_length_that_is_none_is_refused(tmp_path: Path, tokens: float) -> None:
    kept = {"runs": tmp_path, "store": f"sqlite:///{tmp_path}/plait.db"}
    with pytest.raises(UserError, match=r"--tokens .*: must be greater than 0 and finite"):
        plait.study.verdict(SPECS, **{**SMALL, "tokens": tokens}, **kept)
