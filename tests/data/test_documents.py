"""How documents are divided."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.errors import UserError
from plait.data.sources import SPLITS, Document, bounds, divided, split_named, split_of


def test_shares_are_ninety_five_five() -> None:
    found = [split_of(Document.of(f"text {number}", 1).digest) for number in range(20_000)]
    shares = [found.count(split) / len(found) for split in SPLITS]
    assert shares == pytest.approx([0.9, 0.05, 0.05], abs=0.008)


def test_a_share_that_is_not_wanted_goes_to_train() -> None:
    digests = [Document.of(str(number), 1).digest for number in range(2000)]
    for digest in digests:
        assert split_of(digest, ["train", "test"]) in ("train", "test")
        if split_of(digest) == "test":
            assert split_of(digest, ["train", "test"]) == "test"


@given(st.integers(0, 10**9), st.sampled_from([SPLITS, ("train", "test"), ("train", "validation"), ("train",)]))
def test_bounds_cover_everything_in_order(size: int, among: tuple[str, ...]) -> None:
    found = bounds(size, among)
    assert tuple(split for split, _ in found) == among
    ends = [end for _, end in found]
    assert ends == sorted(ends)
    assert ends[-1] == size
    assert ends[0] >= 0.9 * size


@given(st.lists(st.text(max_size=30), max_size=12), st.data())
def test_nothing_is_lost_or_doubled(texts: list[str], data: st.DataObject) -> None:
    own = [data.draw(st.sampled_from([None, None, "validation"])) for _ in texts]

    def documents() -> Iterator[Document]:
        for text, split in zip(texts, own, strict=True):
            made = Document.of(text, len(text))
            yield Document(made.digest, iter([text[:3], text[3:]]), len(text), split)

    undivided = "".join(text for text, split in zip(texts, own, strict=True) if split is None)
    try:
        found = [(document.split, "".join(document.pieces)) for document in divided(documents)]
    except UserError:
        assert len(undivided) < 3
        return
    assert sorted("".join(text for _, text in found)) == sorted("".join(texts))
    if undivided:
        assert any(split == "train" for split, _ in found)
    assert all(split in SPLITS for split, _ in found)


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train.txt", "train"),
        ("wiki.valid.tokens", "validation"),
        ("dev-00000-of-00002.parquet", "validation"),
        ("val", "validation"),
        ("Test.jsonl", "test"),
        ("testing.txt", None),
        ("contest.txt", None),
    ],
)
def test_names_that_say_a_split(name: str, split: str | None) -> None:
    assert split_named(name) == split
