"""Damage to a run's folder and to checkpoints: noticed, and the one before taken in its place."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import plait
from plait.core.errors import UserError
from plait.training import checkpoint
from plait.training.checkpoint import Piece
from plait.training.distributed import Processes
from plait.training.run import Run

ALONE = Processes(0, 1, torch.device("cpu"))
STATE = {"step": 28, "curve": [1.5, 2.5], "tensors": {"a": torch.arange(12.0).reshape(3, 4), "b": torch.tensor(7)}}


def flip(path: Path, bit: int) -> bytes:
    before = path.read_bytes()
    data = bytearray(before)
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(bytes(data))
    return before


def equal(found: dict[str, Any] | None, state: dict[str, Any]) -> bool:
    if found is None or {k: v for k, v in found.items() if k != "tensors"} != {
        k: v for k, v in state.items() if k != "tensors"
    }:
        return False
    return found["tensors"].keys() == state["tensors"].keys() and all(
        torch.equal(value, state["tensors"][name]) for name, value in found["tensors"].items()
    )


def test_every_flipped_bit_of_a_fleets_checkpoint_is_noticed_or_harmless(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    checkpoint.save_state(path, STATE)
    for bit in range(8 * path.stat().st_size):
        before = flip(path, bit)
        found = checkpoint.load_state(path)
        assert found is None or equal(found, STATE), bit
        path.write_bytes(before)
    assert equal(checkpoint.load_state(path), STATE)


def test_the_checkpoint_before_is_taken_where_the_newest_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    checkpoint.save_state(path, STATE)
    checkpoint.save_state(path, {**STATE, "step": 40})
    assert checkpoint.load_state(path)["step"] == 40  # type: ignore[index]
    flip(path, 8 * path.stat().st_size - 3)
    assert equal(checkpoint.load_state(path), STATE)
    checkpoint.remove_state(path)
    assert not tmp_path.exists() or not list(tmp_path.iterdir())


def test_a_checkpoint_of_before_is_read(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    path = tmp_path / "c.safetensors"
    plain = {name: value for name, value in STATE.items() if name != "tensors"}
    save_file(STATE["tensors"], path, metadata={"state": json.dumps(plain)})
    assert equal(checkpoint.load_state(path), STATE)


def test_every_flipped_bit_of_a_trainings_checkpoint_is_noticed_or_harmless(tmp_path: Path) -> None:
    plain = {"fit": {"curve": [[1, 2.5]], "pending": []}, "trainer": {"updates": 28}}
    pieces = {"params/w": Piece.whole(torch.arange(6.0).reshape(2, 3))}
    for step in (14, 28):
        checkpoint.save_checkpoint(tmp_path, step, pieces, plain, ALONE)
    draw = random.Random(0)
    for file in ("checkpoint.json", "shard-0-of-1.safetensors"):
        path = tmp_path / "step-00000028" / file
        for bit in draw.sample(range(8 * path.stat().st_size), 150):
            before = flip(path, bit)
            found = checkpoint.newest_checkpoint(tmp_path)
            assert found is not None
            assert found.step == 14 or found.plain == plain, (file, bit)
            assert torch.equal(found.rows("params/w"), pieces["params/w"].data), (file, bit)
            path.write_bytes(before)


def test_the_step_of_a_checkpoint_of_before_is_its_folders(tmp_path: Path) -> None:
    checkpoint.save_checkpoint(tmp_path, 28, {"params/w": Piece.whole(torch.ones(2))}, {}, ALONE)
    index = tmp_path / "step-00000028" / "checkpoint.json"
    document = json.loads(index.read_text())
    del document["checksum"]
    index.write_text(json.dumps(document))
    assert checkpoint.newest_checkpoint(tmp_path).step == 28  # type: ignore[union-attr]
    index.write_text(json.dumps({**document, "step": 29}))
    with pytest.raises(UserError, match="it says step 29"):
        checkpoint.newest_checkpoint(tmp_path)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "text.txt").write_text("abcdefghijklmnopqrstuvwxyz " * 100)
    found = plait.train(
        "d=16 | attn[heads=2] swiglu", data=str(folder / "text.txt"), tokenizer="bytes", steps=2, batch=2, seq_len=16,
        runs=folder, store=f"sqlite:///{folder}/plait.db",
    )  # fmt: skip
    return Path(found.folder)


def test_flipped_bits_of_the_final_weights_are_noticed_or_harmless(run: Path) -> None:
    path, truth = run / "weights.safetensors", Run(run).weights()
    draw = random.Random(0)
    for bit in draw.sample(range(8 * path.stat().st_size), 100):
        before = flip(path, bit)
        try:
            found = Run(run).weights()
            assert found.keys() == truth.keys()
            assert all(torch.equal(value, truth[name]) for name, value in found.items()), bit
        except UserError:
            pass
        path.write_bytes(before)


def test_flipped_bits_of_run_json_are_noticed_or_harmless(run: Path) -> None:
    path, truth = run / "run.json", Run(run).about
    draw = random.Random(0)
    for bit in draw.sample(range(8 * path.stat().st_size), 200):
        before = flip(path, bit)
        with suppress(UserError):
            assert {name: Run(run).about.get(name) for name in truth} == truth, bit
        path.write_bytes(before)


@pytest.mark.parametrize(
    "change",
    [
        {"config": []}, {"config": {}}, {"config": {"spec": 3}}, {"steps": "many"}, {"mixers": [1]}, {"key": None},
        {"mixers": {"a": {"file": "../../evil.py", "attribute": "", "source": "0"}}}, {"mixers": {"a": "b"}},
    ],
    ids=str,
)  # fmt: skip
def test_a_run_of_another_shape_is_one_message(run: Path, change: dict[str, Any], tmp_path: Path) -> None:
    about = {name: value for name, value in json.loads((run / "run.json").read_text()).items() if name != "checksum"}
    (tmp_path / "run.json").write_text(json.dumps({**about, **change}))
    with pytest.raises(UserError, match="is damaged"):
        Run(tmp_path).arch  # noqa: B018


def test_weights_that_are_no_numbers_are_refused(run: Path) -> None:
    from plait.model import build
    from plait.model.language_model import fill

    model = build("d=16 vocab=16 | swiglu")
    weights = {name: value.detach().clone() for name, value in model.named_parameters()}
    next(iter(weights.values()))[0] = torch.nan
    with pytest.raises(UserError, match="not finite"):
        fill(model, weights, "theirs")


def test_a_log_that_cannot_be_written_does_not_end_a_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = []
    real = open

    def full(path: Any, mode: str = "r", *rest: Any, **named: Any) -> Any:
        if str(path).endswith("log.jsonl") and mode == "a":
            raise OSError(28, "No space left on device")
        return real(path, mode, *rest, **named)

    monkeypatch.setattr("builtins.open", full)
    (tmp_path / "text.txt").write_text("abcdefghijklmnopqrstuvwxyz " * 100)
    found = plait.train(
        "d=16 | swiglu", data=str(tmp_path / "text.txt"), tokenizer="bytes", steps=3, batch=2, seq_len=16,
        runs=tmp_path, store=f"sqlite:///{tmp_path}/plait.db", on_progress=lambda now: notes.append(now.note),
    )  # fmt: skip
    assert found.steps == 3
    assert any("log.jsonl: No space left" in note for note in notes)


def test_a_store_that_cannot_be_written_is_told_of_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "text.txt").write_text("abcdefghijklmnopqrstuvwxyz " * 100)
    steps: list[int] = []
    with pytest.raises(UserError, match="cannot make the folder of the store"):
        plait.train(
            "d=16 | swiglu", data=str(tmp_path / "text.txt"), tokenizer="bytes", steps=3, batch=2, seq_len=16,
            runs=tmp_path, store=f"sqlite:///{tmp_path}/file/plait.db", on_progress=lambda now: steps.append(now.step),
        )  # fmt: skip
    assert not steps
