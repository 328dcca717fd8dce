"""Reading truth tables: which architectures are left out, and whose seeds are repeated."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from benchmark_modules import load_benchmark

from plait.core.errors import UserError

read_tables = load_benchmark("truth_tables").read_tables


def written(path: Path, seeds: dict[str, list[int]], short: str = "") -> Path:
    """Two budgets; the loss tells architecture, seed and budget. Those in `short` lack the second one."""
    runs = [
        {"architecture": name, "text": "t", "seed": seed,
         "annealed": [[100, 1 + i + 0.1 * seed], [200, 0.5 + i + 0.1 * seed]][: 1 if name in short else 2]}
        for i, (name, of) in enumerate(seeds.items())
        for seed in of
    ]  # fmt: skip
    rows = [{"name": name} for name in seeds]
    path.write_text(json.dumps({"texts": {"t": {}}, "architectures": rows, "runs": runs}))
    return path


def test_one_with_fewer_seeds_has_them_again(tmp_path: Path) -> None:
    seeds = {"a": [1, 2, 5, 6], "b": [1, 2], "c": [1, 2, 5, 6]}
    (table,) = read_tables(written(tmp_path / "truth.json", seeds))
    assert table.names == ["a", "b", "c"]
    assert table.loss_ASB.shape == (3, 4, 2)
    np.testing.assert_allclose(table.loss_ASB[1, :, 0], [2.1, 2.2, 2.1, 2.2])
    np.testing.assert_allclose(table.truth, [0.5 + 0.35, 1.5 + 0.15, 2.5 + 0.35])


def test_seeds_that_most_lack_are_not_read(tmp_path: Path) -> None:
    (table,) = read_tables(written(tmp_path / "truth.json", {"a": [1, 2, 5, 6], "b": [1, 2], "c": [1, 2]}))
    assert table.loss_ASB.shape == (3, 2, 2)
    np.testing.assert_allclose(table.loss_ASB[0, :, 0], [1.1, 1.2])


def test_one_that_lacks_a_budget_or_has_a_single_seed_is_left_out(tmp_path: Path) -> None:
    seeds = {"a": [1, 2], "b": [1, 2], "c": [1], "d": [1, 2]}
    (table,) = read_tables(written(tmp_path / "truth.json", seeds, short="b"))
    assert table.names == ["a", "d"]
    assert table.provenance["left_out"] == ["b", "c"]


def test_those_that_lack_a_budget_do_not_count_even_if_they_are_most(tmp_path: Path) -> None:
    seeds = {"a": [1, 2], "b": [1, 2], "c": [1, 2], "d": [1, 2]}
    (table,) = read_tables(written(tmp_path / "truth.json", seeds, short="bcd"))
    assert table.names == ["a"]
    assert table.loss_ASB.shape == (1, 2, 2)
    assert table.provenance["left_out"] == ["b", "c", "d"]


def test_a_text_on_which_nothing_is_complete_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "truth.json", {"a": [1, 2]})
    path.write_text(path.read_text().replace("0.7", "NaN").replace("0.6", "NaN"))
    with pytest.raises(UserError, match="no architecture has a finite loss at every budget on the text t"):
        read_tables(path)


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(UserError, match="is not a truth table"):
        read_tables(tmp_path / "other.json")
