"""A user's space: a text file, a Python file."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from plait.core.errors import UserError
from plait.space.declaration import Declaration
from plait.space.table import load_space, read_space

TEXT = """
# a comment
layers: 4..6
d: 128..256 step 64
header: vocab=100 tie=true
mixers: [attn[heads=4|8], gla, mamba[state=*]]
channel:
  - swiglu[inner=256..512 step 128]
  - none
constraints:
  - inner >= int(1.7 * d), count(attn) >= 1
  - max(layers, 5) <= 5
seq: 64
"""


def test_files_beside_it(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(files("plait").joinpath("model/mixer_template.txt").read_text())
    path = tmp_path / "mine.txt"
    path.write_text("layers: 1\nd: 32\nmixers: [my-mixer[memory=*], gla]\nfiles: [mine.py]\n")
    for _ in range(2):  # loading a file again changes nothing
        s = load_space(str(path))
    assert [option and option.name for option in s.slots[0].options] == ["my-mixer"] * 3 + ["gla"]
    assert s.mixer_sources["my-mixer"].text == (tmp_path / "mine.py").read_text()
    path.write_text("layers: 1\nd: 32\nmixers: [gla]\nfiles: [yours.py]\n")
    with pytest.raises(UserError, match=r"there is no file .*yours\.py"):
        load_space(str(path))


def test_alternatives_may_be_a_list(tmp_path: Path) -> None:
    path = tmp_path / "mine.space"
    read = []
    for numbers in ("32|64", "[32, 64]"):
        path.write_text(f"layers: {numbers}\nd: {numbers}\nvocab: {numbers}\nmixers: [attn]\n")
        read.append(load_space(str(path)).declared)
    assert read[0] == read[1]


def test_a_text_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(TEXT)
    s = load_space(str(path))
    assert (s.name, s.depths, s.widths, s.seq) == ("mine", (4, 5, 6), (128, 192, 256), 64)
    assert [len(slot.options) for slot in s.slots] == [7, 4]
    assert [constraint.text for constraint in s.constraints] == [
        "inner >= int(1.7 * d)",
        "count(attn) >= 1",
        "max(layers, 5) <= 5",
    ]
    genes = s.sample(np.random.default_rng(0), 300)
    valid = genes[s.valid(genes)]
    assert 0 < len(valid) < 300
    for row in valid[:20]:
        assert "attn" in s.spec(row)
        assert s.header(row).vocab == 100


def test_header_keys_may_vary_and_layers_be_alike() -> None:
    s = read_space("layers: 2..3\nd: 64\nmixers: attn\nalike: true\nd_embed: 16|32\nmemory: 8", "s")
    assert (s.genes, s.count, s.memory) == (4, 4, 8)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("layers: 2\nd: 64", "missing: mixers"),
        ("layers: 2\nd: 64\nmixers: attn\nmixer: gla", "Did you mean 'mixers'"),
        ("layers: 2\nlayers: 3", "line 2: 'layers' is given twice"),
        ("- attn", "line 1: an item without a key"),
        ("layers 2", "line 1: 'layers 2' is neither"),
        ("layers: 2\nd: 64\nmixers: attn\nalike: maybe", "true or false"),
        ("layers: 2\nd: 64\nmixers: attn\nseq: long", "number of tokens"),
        ("layers: 2\nd: 64\nmixers: [attn[heads=7]]", "none of 1 layers is allowed"),
    ],
)
def test_files_that_make_no_sense(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_space(text, "mine")


def test_a_python_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from plait.space.declaration import Declaration\n"
        "from plait.space.constraints import Constraint\n"
        "from plait.space.space import Space\n"
        "class Mine(Space):\n"
        "    declaration = Declaration('mine', '2..5', '64', [['attn'], ['mlp']],\n"
        "        constraints=[Constraint.of('odd', ['layers'], lambda c: c['layers'] % 2 == 1)])\n"
    )
    s = load_space(str(path))
    genes = s.sample(np.random.default_rng(0), 50)
    assert (s.valid(genes) == (np.array(s.depths)[genes[:, 0]] % 2 == 1)).all()
    assert type(s.with_constraints(["layers <= 3"])) is type(s)
    path.write_text("from plait.space.space import Space\nclass Mine(Space):\n    pass\n")
    with pytest.raises(UserError, match="has no `declaration`"):
        load_space(str(path))


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "mine.space").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="cannot be read as text"):
        load_space(str(tmp_path / "mine.space"))


def test_the_words_of_earlier_files_are_read() -> None:
    new = "layers: 1..4\nd: 64\nmixers: attn\nconstraints: layers <= 2\nseq_len: 32\ncontext: 8"
    old = new.replace("constraints", "rules").replace("seq_len", "seq").replace("context", "memory")
    assert read_space(old, "s").declared == read_space(new, "s").declared
    with pytest.raises(UserError, match="'constraints' is given twice"):
        read_space(new + "\nrules: layers <= 3", "s")


def test_a_declaration_comes_back_from_its_document() -> None:
    declared = read_space(TEXT, "s").declared
    assert "rules" in declared.as_dict()  # part of the key of every stored search
    assert Declaration.from_dict(declared.as_dict()).as_dict() == declared.as_dict()
