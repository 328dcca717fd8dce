"""Mixers of installed packages, by entry points: found when a name is not known, keyed by their module's text."""

from __future__ import annotations

import importlib
from importlib.resources import files
from pathlib import Path

import pytest

from plait.core.errors import UserError
from plait.mixers import table
from plait.model.architecture import architecture

TEMPLATE = files("plait").joinpath("model/mixer_template.txt").read_text().replace("my-mixer", "their-mixer")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "their_package.py").write_text(TEMPLATE)
    about = tmp_path / "their_package-1.2.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.2\n")
    (about / "entry_points.txt").write_text("[plait.mixers]\ntheir-mixer = their_package:MyMixer\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    return about


def test_a_packages_mixer_needs_no_option(installed: Path) -> None:
    arch = architecture("d=16 vocab=8 | their-mixer swiglu")
    source = arch.mixer_sources["their-mixer"]
    assert (source.package, source.text) == ("their-package 1.2", TEMPLATE)
    assert arch.identity()["sources"] == {"their-mixer": source.hash}


def test_names_must_agree(installed: Path) -> None:
    (installed / "entry_points.txt").write_text("[plait.mixers]\nother = their_package:MyMixer\n")
    with pytest.raises(UserError, match="calls itself 'their-mixer'"):
        table.load_packaged("other")


def test_built_in_architectures_keep_their_keys() -> None:
    assert architecture("d=16 vocab=8 | attn swiglu").identity() == {"spec": "d=16 vocab=8 | attn swiglu"}
