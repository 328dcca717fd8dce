from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from plait.data.builtin import Stdlib, open_stdlib


def test_it_is_real_text_in_three_disjoint_splits(opened, text_of) -> None:
    corpus = opened("builtin:stdlib")
    assert (corpus.vocab, corpus.entropy, corpus.tokens("train").dtype) == (256, None, np.uint8)
    sizes = {split: len(corpus.tokens(split)) for split in ("train", "validation", "test")}
    assert sizes["train"] > 3_000_000
    assert sizes["train"] > 5 * sizes["validation"] > 0
    # json/decoder.py is in one of them, and only there.
    text = Path(json.decoder.__file__).read_text(encoding="utf-8")
    assert sorted(text in text_of(corpus, split) for split in sizes) == [False, False, True]
    assert opened("builtin:stdlib").fingerprint == corpus.fingerprint


def test_what_differs_between_installations_is_left_out(tmp_path: Path) -> None:
    for name in ("os.py", "json/tool.py", "test/test_os.py", "site-packages/x.py", "_sysconfigdata_linux.py", "a.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x = 1\n")
    assert list(Stdlib(tmp_path).files()) == ["json/tool.py", "os.py"]
    names = list(open_stdlib().files())
    assert names == sorted(names)
    assert "textwrap.py" in names
