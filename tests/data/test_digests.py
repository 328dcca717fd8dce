"""What is known about hashes is kept if it can be."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from plait.data import cache as digests


def test_a_memory_that_cannot_be_kept_costs_nothing_and_leaves_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "text").write_bytes(b"abc")
    memory = tmp_path / "memory"
    monkeypatch.setattr(digests, "REMEMBERED", 1)
    monkeypatch.setattr(os, "fsync", full)
    found = digests.file_digests({"text": tmp_path / "text"}, memory)
    assert found == {"text": hashlib.sha256(b"abc").hexdigest()}
    assert list(memory.iterdir()) == []
