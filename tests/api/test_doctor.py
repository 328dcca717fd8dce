"""`plait doctor`: finds what is installed, says how to add what is missing, and only required items are bad."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import plait
from plait.api import doctor
from plait.cli.main import app


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["numpy>=1.26", "not-there-at-all>=2", "torch>=2.10 ; extra == 'fast'", 'nor[that]==1 ; extra == "other"']
    lines.append('plait[fast] ; extra == "other"')
    monkeypatch.setattr(doctor, "requires", lambda package: lines)


@pytest.mark.usefixtures("metadata")
def test_what_is_needed_is_bad_and_what_is_optional_missing() -> None:
    found = {one.what: one for one in doctor._packages()}
    assert found["packages: core"].status == "bad"
    assert found["packages: core"].found.endswith("; without not-there-at-all")
    assert found["packages: core"].fix == "pip install plait"
    assert (found["packages: fast"].status, found["packages: fast"].fix) == ("good", "")
    assert (found["packages: other"].status, found["packages: other"].fix) == ("missing", "pip install 'plait[other]'")
    assert found["packages: other"].found == "without nor"


def test_a_process_that_ends_is_no_success() -> None:
    assert doctor._tried("_packages") is True
    assert doctor._tried("nothing_of_that_name") is False


def test_a_store_that_is_not_there_is_bad(tmp_path: Path) -> None:
    broken = tmp_path / "plait.db"
    broken.write_text("no database")
    (found,) = doctor._store(f"sqlite:///{broken}")
    assert found.status == "bad"
    assert "plait.db" in found.found


def test_the_command_is_the_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = CliRunner().invoke(app, ["doctor", "--json"])
    told = json.loads(ran.stdout)
    assert ran.exit_code == 0, ran.output
    assert (told["plait"], told["healthy"]) == (plait.__version__, True)
    assert set(told["findings"][0]) == {"what", "status", "found", "fix"}
    assert min(told["speed"].values()) > 0.1
