"""Checkpoints on disk: pieces, other numbers of processes, damage."""

from __future__ import annotations

import random

import pytest
import torch

from plait.core.errors import UserError
from plait.training import checkpoint
from plait.training.checkpoint import Checkpoint, Piece
from plait.training.distributed import Processes
from plait.training.run import Run

ALONE = Processes(0, 1, torch.device("cpu"))


def tensors() -> dict[str, torch.Tensor]:
    stream = torch.Generator().manual_seed(0)
    return {"params/a": torch.randn(7, 3, generator=stream), "params/b": torch.randn(5, generator=stream),
            "params/scalar": torch.tensor(2.5)}  # fmt: skip


def saved(folder, step=3):
    checkpoint.save_checkpoint(
        folder, step, {name: Piece.whole(t) for name, t in tensors().items()}, {"note": "x"}, ALONE
    )
    return folder / f"step-{step:08d}"


def test_round_trip_with_rows_and_plain_data(tmp_path):
    saved(tmp_path)
    found = checkpoint.newest_checkpoint(tmp_path)
    assert (found.step, found.plain) == (3, {"note": "x"})
    assert found.names() == set(tensors())
    for name, value in tensors().items():
        assert torch.equal(found.rows(name), value)
    assert torch.equal(found.rows("params/a", 2, 5), tensors()["params/a"][2:5])


def test_rows_are_gathered_from_several_files(tmp_path):
    """As two processes write them, one row range each, the second one's first."""
    whole = tensors()["params/a"]
    folder = tmp_path / "step-00000009"
    folder.mkdir()
    files = {}
    for rank, (start, stop) in enumerate([(4, 7), (0, 4)]):
        name = f"shard-{rank}-of-2.safetensors"
        files[name] = checkpoint._write(folder / name, {"params/a": Piece(whole[start:stop], start, 7)})
    checkpoint._write_text(
        folder / "checkpoint.json", f'{{"step": 9, "plain": {{}}, "files": {files!s}}}'.replace("'", '"')
    )
    found = Checkpoint(folder)
    assert torch.equal(found.rows("params/a"), whole)
    assert torch.equal(found.rows("params/a", 3, 6), whole[3:6])


def test_only_the_newest_are_kept_and_leftovers_do_not_count(tmp_path):
    for step in (1, 2, 3):
        saved(tmp_path, step)
    (tmp_path / ".unfinished-00000004").mkdir()
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-00000002", "step-00000003"]
    assert checkpoint.newest_checkpoint(tmp_path).step == 3
    Run(tmp_path).remove_checkpoints()
    assert list(tmp_path.iterdir()) == []
    assert checkpoint.newest_checkpoint(tmp_path) is None


def test_damage_anywhere_is_noticed_and_the_one_before_is_taken(tmp_path):
    """A byte changed, a file cut short, a file gone: never loaded, never overwritten, never a traceback."""
    chance = random.Random(0)
    saved(tmp_path, 1)
    for trial in range(60):
        last = saved(tmp_path, 2)
        target = chance.choice(sorted(last.iterdir()))
        content = bytearray(target.read_bytes())
        kind = trial % 3
        if kind == 0:
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del content[chance.randrange(len(content)) :]
        target.unlink() if kind == 2 else target.write_bytes(bytes(content))
        found = checkpoint.newest_checkpoint(tmp_path)
        if found.step == 2:  # a flip inside the JSON's plain text or white space that changes nothing that is read
            assert target.name == "checkpoint.json"
            assert torch.equal(found.rows("params/a"), tensors()["params/a"])


def test_only_damaged_ones_left_is_an_error_with_the_remedy(tmp_path):
    folder = saved(tmp_path)
    (folder / "checkpoint.json").write_text("{")
    with pytest.raises(UserError, match="remove the folder to start again"):
        checkpoint.newest_checkpoint(tmp_path)
    assert folder.exists()


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path, monkeypatch):
    saved(tmp_path, 1)

    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(UserError, match="cannot save a checkpoint: No space left on device"):
        saved(tmp_path, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    assert checkpoint.newest_checkpoint(tmp_path).step == 1
