"""`plait.compare`: a frozen result that is plain data."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import plait
from plait.api.compare import _notes_on_windows
from plait.training.track import Text

SPECS = ["d=16 | attn[heads=2] swiglu", "d=16 | gla[heads=2] swiglu"]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory):
    folder: Path = tmp_path_factory.mktemp("compare")
    told: list[tuple[str, float]] = []
    result = plait.compare(
        [plait.architecture(SPECS[0]), SPECS[1]], data="builtin:language", tokens=512, batch=2, seq_len=16, seeds=2,
        held_out=128, workers=1, runs=folder, store=f"sqlite:///{folder}/plait.db",
        on_progress=lambda what, done, total: told.append((what, done / (total or 1))),
    )  # fmt: skip
    return result, told


def test_the_result_is_plain(found) -> None:
    result, _ = found
    assert json.loads(json.dumps(result.as_dict(), allow_nan=False)) == result.as_dict()
    rows = result.rows()
    assert [row["name"] for row in rows] == sorted(
        (row["name"] for row in rows), key=lambda name: name != rows[0]["name"]
    )
    assert rows[0]["loss"] <= rows[1]["loss"]
    assert rows[0]["difference"] is None
    assert rows[1]["difference"] == pytest.approx(rows[1]["loss"] - rows[0]["loss"], abs=1e-6)
    assert rows[1]["difference_low"] < rows[1]["difference"] < rows[1]["difference_high"]
    assert result.best[0] == rows[0]["name"]
    assert result.noise == result.document["noise"]
    assert [row.loss for row in result.architectures] == [row["loss"] for row in result.document["architectures"]]
    assert [pair.verdict for pair in result.paired] == [pair["verdict"] for pair in result.document["paired"]]
    assert result.verdict in (f"{rows[0]['name']} is best", f"{' and '.join(result.best)} are not distinguishable")
    assert result._repr_html_().count("<tr>") == 3
    with pytest.raises(AttributeError):
        result.verdict = "another"


def test_progress_never_goes_back(found) -> None:
    _, told = found
    shares = [share for _, share in told]
    assert shares == sorted(shares)
    assert 0 <= shares[0] < shares[-1] <= 1
    assert list(dict.fromkeys(what for what, _ in told)) == ["timing", "learning rates", "training"]


@pytest.mark.parametrize("match", ["params", "state"])
def test_what_is_given_wrongly_is_said(match: str) -> None:
    with pytest.raises(plait.UserError, match="--seeds 0"):
        plait.compare(SPECS, seeds=0, match=match)
    for wrong in ("soon", 0):  # 0 is not the default
        with pytest.raises(plait.UserError, match="not a duration"):
            plait.compare(SPECS, time=wrong, match=match)


@pytest.mark.parametrize(
    ("held_out", "seen", "independent", "told"),
    [
        (128, False, 1, "one validation window: how far losses depend on the text is unknown"),
        (256, False, 2, "2 validation windows are few"),
        (2048, False, 16, ""),
        (2048, False, 5.2, "the 16 validation windows are worth 5 independent ones: neighbours are alike"),
        (2048, True, 16, "16 of 16 validation windows repeat training text"),
    ],
)
def test_validation_text_that_says_little_is_noted(held_out: int, seen: bool, independent: float, told: str) -> None:
    train, own = np.random.default_rng(0).integers(0, 256, (2, 4096)).astype(np.uint8)
    notes = _notes_on_windows(Text.cut("a text", train, train if seen else own, 128, held_out), independent)
    assert len(notes) == bool(told)
    assert all(note.startswith(told) for note in notes)
