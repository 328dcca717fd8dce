"""Any folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plait.core.errors import UserError
from plait.data import SPLITS


def write(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_many_files_are_divided_file_by_file(tmp_path: Path, opened, text_of) -> None:
    root = tmp_path / "texts"
    texts = [f"text number {number}" for number in range(150)]
    for number, text in enumerate(texts):
        write(root, **{f"{number % 10}__{number:03d}_dot_md": text})
    write(root, _dot_git__config="hidden", README_dot_md="not data", more_dot_jsonl=json.dumps({"text": "from JSON"}))
    corpus = opened(root)
    parts = [text_of(corpus, split).split("\n") for split in SPLITS]
    assert sorted(text for part in parts for text in part) == sorted([*texts, "from JSON"])
    assert all(parts)


def test_a_few_files_are_cut_by_position(tmp_path: Path, opened, text_of) -> None:
    root = write(tmp_path / "texts", a_dot_txt="a" * 700, b_dot_txt="b" * 300)
    corpus = opened(root)
    assert [text_of(corpus, split) for split in SPLITS] == ["a" * 700 + "\n" + "b" * 200, "b" * 50, "b" * 50]


def test_names_that_say_their_split_are_believed(tmp_path: Path, opened, text_of) -> None:
    root = write(tmp_path / "texts", train_dot_txt="training", valid__a_dot_txt="v1", valid__b_dot_txt="v2",
                 **{"test-00000-of-00001_dot_jsonl": '{"text": "testing"}'}, README="about")  # fmt: skip
    corpus = opened(root)
    assert [text_of(corpus, split) for split in SPLITS] == ["training", "v1\nv2", "testing"]


def test_a_split_that_is_missing_is_cut_from_train(tmp_path: Path, opened, text_of) -> None:
    root = write(tmp_path / "texts", train_dot_txt="t" * 1000, val_dot_txt="validation")
    corpus = opened(root)
    assert [text_of(corpus, split) for split in SPLITS] == ["t" * 950, "validation", "t" * 50]


def test_one_name_that_says_nothing_makes_all_of_them_documents(tmp_path: Path, opened, text_of) -> None:
    root = write(tmp_path / "texts", train_dot_txt="a" * 500, test_dot_txt="b" * 400, other_dot_txt="c" * 100)
    assert "b" in text_of(opened(root), "train") + text_of(opened(root), "validation")
    assert "c" * 100 in "".join(text_of(opened(root), split) for split in SPLITS)


def test_an_empty_folder_and_one_with_pictures(tmp_path: Path, opened) -> None:
    with pytest.raises(UserError, match="holds no files"):
        opened(write(tmp_path / "empty", _dot_hidden="x"))
    root = write(tmp_path / "mixed", a_dot_txt="text")
    (root / "b.png").write_bytes(b"\x89PNG\r\n")
    with pytest.raises(UserError, match=r"b\.png is not UTF-8 text: byte 0 is 0x89"):
        opened(root)
