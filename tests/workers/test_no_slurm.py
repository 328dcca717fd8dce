"""Where there is no Slurm: its package's words, once."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from plait.core.errors import UserError
from plait.workers.pool import Place
from plait.workers.slurm_jobs import _executor


def test_its_question_is_repeated_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended with "cluster?."."""

    def refused(**_: str) -> None:
        raise RuntimeError('Could not detect "srun", are you indeed on a slurm cluster?')

    monkeypatch.setitem(sys.modules, "submitit", SimpleNamespace(AutoExecutor=refused))
    monkeypatch.setattr("plait.workers.pool.find_spec", lambda name: True)
    with pytest.raises(UserError) as wrong:
        _executor("slurm", tmp_path, Place("slurm"), {})
    assert str(wrong.value).endswith('submitit says: Could not detect "srun", are you indeed on a slurm cluster?')
