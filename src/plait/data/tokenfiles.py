"""A folder of tokens: `train.bin`, `validation.bin`, `test.bin` (flat unsigned integers), `meta.json` and a tokenizer.

`meta.json` states dtype and vocab; those that plait writes also state the length and checksum of every split, so that
a file that was cut short or damaged is noticed.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from plait.data.corpus import SPLITS
from plait.data.documents import Document
from plait.data.tokenizers.tokenizer import Tokenizer

META = "meta.json"
DTYPES = ("uint8", "uint16", "uint32")
BLOCK = 1 << 24  # bytes read at a time to check them


def smallest_dtype(vocab: int) -> np.dtype[Any]:
    """The smallest unsigned integers that hold ids below `vocab`."""
    return next(np.dtype(name) for name in DTYPES if vocab - 1 <= np.iinfo(name).max)


def write_tokens(
    folder: Path, documents: Iterable[Document], tokenizer: Tokenizer, length: Callable[[str], int]
) -> dict[str, int]:
    """Tokenise the documents into a folder; how many tokens there are in each split. `length` counts a piece of text
    in what the corpus calls characters."""
    dtype = smallest_dtype(tokenizer.vocab)
    tokenizer.save(folder)
    with ExitStack() as files:
        writers = {split: _Writer(files.enter_context(_file(folder, split).open("wb")), dtype) for split in SPLITS}
        # Between documents stands the end of a text, or a line end where there is none.
        boundary = np.array([tokenizer.end]) if tokenizer.end is not None else tokenizer.encode("\n")
        for document in documents:
            assert document.split is not None
            writer = writers[document.split]
            writer.begin_document(boundary)
            for piece in document.pieces:
                writer.write(tokenizer.encode(piece), length(piece))
        for writer in writers.values():
            writer.close()
    meta = {
        "dtype": dtype.name,
        "vocab": tokenizer.vocab,
        "splits": {split: writer.summary() for split, writer in writers.items()},
    }
    with (folder / META).open("w", encoding="utf-8") as file:
        json.dump(meta, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    return {split: writer.tokens for split, writer in writers.items()}


class _Writer:
    def __init__(self, file: BinaryIO, dtype: np.dtype[Any]) -> None:
        self._file = file
        self._dtype = dtype
        self.tokens = self._characters = self._checksum = 0
        self._last: int | None = None

    def begin_document(self, boundary: np.ndarray) -> None:
        """A boundary stands between two documents, unless the text before already ended with it."""
        if self._last is not None and boundary.size and self._last != int(boundary[-1]):
            self.write(boundary, 1)

    def write(self, ids: np.ndarray, characters: int) -> None:
        content = ids.astype(self._dtype).tobytes()
        self._file.write(content)
        self._checksum = zlib.crc32(content, self._checksum)
        self.tokens += len(ids)
        self._characters += characters
        if len(ids):
            self._last = int(ids[-1])

    def close(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())  # or a power failure could leave a good name on an empty file

    def summary(self) -> dict[str, int]:
        return {"tokens": self.tokens, "characters": self._characters, "crc32": self._checksum}


def read_meta(folder: Path) -> dict[str, Any] | None:
    """The meta.json of a folder that `write_tokens` finished; None where it is missing or not whole."""
    try:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(meta, dict) or meta.get("dtype") not in DTYPES:
        return None
    splits = meta.get("splits")
    fields = ("tokens", "characters", "crc32")
    if not isinstance(splits, dict) or any(not isinstance(splits.get(split), dict) for split in SPLITS):
        return None
    numbers = [splits[split].get(name) for split in SPLITS for name in fields] + [meta.get("vocab")]
    return meta if all(isinstance(number, int) for number in numbers) else None


def is_whole(folder: Path, meta: Mapping[str, Any]) -> bool:
    """Whether every token file has the length and the checksum that meta.json states."""
    width = np.dtype(meta["dtype"]).itemsize
    for split in SPLITS:
        path, stated = _file(folder, split), meta["splits"][split]
        try:
            if path.stat().st_size != stated["tokens"] * width or _checksum(path) != stated["crc32"]:
                return False
        except OSError:
            return False
    return True


def read_tokens(folder: Path, meta: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The splits as read-only memory maps."""
    return {split: memory_map(_file(folder, split), np.dtype(meta["dtype"])) for split in SPLITS}


def memory_map(path: Path, dtype: np.dtype[Any]) -> np.ndarray:
    if path.stat().st_size == 0:
        return np.empty(0, dtype=dtype)  # nothing cannot be mapped
    return np.memmap(path, dtype=dtype, mode="r")


def _file(folder: Path, split: str) -> Path:
    return folder / f"{split}.bin"


def _checksum(path: Path) -> int:
    checksum = 0
    for block in _blocks(path):
        checksum = zlib.crc32(block, checksum)
    return checksum


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            yield block
