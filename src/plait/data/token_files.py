"""A folder of tokens: `train.bin`, `validation.bin`, `test.bin` (flat unsigned integers), `meta.json` and a tokenizer.

`meta.json` states dtype and vocab; those that plait writes also state the length and checksum of every split, so that
truncated or damaged files are detected. A single file, .bin or .npy, can also be used as a corpus; it is cut by
position: 90 % train, 5 % validation, 5 % test. A tokenizer saved in the same folder is used; otherwise ids decode to
numbers. Entries of the cache are such folders.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, TypedDict, cast

import numpy as np

from plait.core.errors import UserError
from plait.core.files import loads, read_object
from plait.data.corpora import BLOCK, DTYPES, smallest_dtype
from plait.data.sources import SPLITS, Document, TokenSource, bounds, split_named
from plait.data.tokenizer_table import load_tokenizer
from plait.data.tokenizers import OWN_FILE, Ids, Tokenizer, utf8
from plait.data.trained_tokenizers import FILE as HF_FILE

META = "meta.json"


class _Counts(TypedDict):
    tokens: int
    characters: int
    crc32: int


class SplitMeta(_Counts, total=False):
    """The entry of one token file; older folders have only the counts."""

    bytes: int
    sha256: str


class TokenMeta(TypedDict):
    """meta.json of a folder that plait wrote."""

    dtype: str
    vocab: int
    splits: dict[str, SplitMeta]


def write_tokens(
    folder: Path, documents: Iterable[Document], tokenizer: Tokenizer, length: Callable[[str], int]
) -> dict[str, int]:
    """Tokenise the documents into a folder; returns the number of tokens in each split. `length` counts a piece of text
    in the corpus's characters."""
    dtype = smallest_dtype(tokenizer.vocab).newbyteorder("<")
    tokenizer.save(folder)
    with ExitStack() as files:
        writers = {split: _Writer(files.enter_context(_file(folder, split).open("wb")), dtype) for split in SPLITS}
        # Documents are separated by the end-of-text token, or by a line end if there is none.
        boundary = np.array([tokenizer.end]) if tokenizer.end is not None else tokenizer.encode("\n")
        for document in documents:
            assert document.split is not None
            writer = writers[document.split]
            writer.begin_document(boundary)
            for piece in document.pieces:
                writer.write(tokenizer.encode(piece), length(piece), len(utf8(piece)))
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
        self.tokens = self._characters = self._bytes = self._checksum = 0
        self._last: int | None = None
        self._digest = hashlib.sha256()  # as `token_digest`

    def begin_document(self, boundary: np.ndarray) -> None:
        """Write a boundary between two documents, unless the previous text already ends with one."""
        if self._last is not None and boundary.size and self._last != int(boundary[-1]):
            self.write(boundary, 1, 1)

    def write(self, ids: np.ndarray, characters: int, size: int) -> None:
        content = ids.astype(self._dtype).tobytes()
        self._file.write(content)
        self._checksum = zlib.crc32(content, self._checksum)
        self._digest.update(content)
        self.tokens += len(ids)
        self._characters += characters
        self._bytes += size
        if len(ids):
            self._last = int(ids[-1])

    def close(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())  # otherwise a power failure could leave a final name on an empty file

    def summary(self) -> SplitMeta:
        return {
            "tokens": self.tokens,
            "characters": self._characters,
            "bytes": self._bytes,
            "crc32": self._checksum,
            "sha256": self._digest.hexdigest(),
        }


def read_meta(folder: Path) -> TokenMeta | None:
    """The meta.json of a folder that `write_tokens` finished; None if it is missing or incomplete."""
    try:
        meta = loads((folder / META).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(meta, dict) or meta.get("dtype") not in DTYPES:
        return None
    splits = meta.get("splits")
    fields = ("tokens", "characters", "crc32")
    if not isinstance(splits, dict) or any(not isinstance(splits.get(split), dict) for split in SPLITS):
        return None
    numbers = [splits[split].get(name) for split in SPLITS for name in fields] + [meta.get("vocab")]
    return cast("TokenMeta", meta) if all(isinstance(number, int) for number in numbers) else None


def written_digests(meta: TokenMeta) -> dict[str, str]:
    """`token_digest` of each split, if meta.json states it."""
    stated = {split: meta["splits"][split].get("sha256") for split in SPLITS}
    digests = {split: value for split, value in stated.items() if isinstance(value, str)}
    return digests if len(digests) == len(SPLITS) else {}


def is_whole(folder: Path, meta: TokenMeta) -> bool:
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


def read_tokens(folder: Path, meta: TokenMeta) -> dict[str, np.ndarray]:
    """The splits as read-only memory maps."""
    return {split: memory_map(_file(folder, split), np.dtype(meta["dtype"])) for split in SPLITS}


def memory_map(path: Path, dtype: np.dtype[Any]) -> np.ndarray:
    if path.stat().st_size == 0:
        return np.empty(0, dtype=dtype)  # an empty file cannot be memory-mapped
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


ENDINGS = (".bin", ".npy")
DECODED = 1 << 20  # tokens decoded at a time to count their characters


def open_token_file(location: str) -> TokenSource:
    """One file, cut by position."""
    path = Path(location).expanduser()
    tokens = _load(path)
    starts = [0, *(end for _, end in bounds(len(tokens)))]
    parts = {split: tokens[start:end] for (split, end), start in zip(bounds(len(tokens)), starts, strict=False)}
    return _source(path.parent, parts, {path.name: path})


def holds_tokens(folder: Path) -> bool:
    return (folder / META).is_file() and bool(_split_files(folder))


def open_token_folder(folder: Path) -> TokenSource:
    """A folder with one token file per split."""
    files = _split_files(folder)
    missing = [split for split in SPLITS if split not in files]
    if missing:
        raise UserError(
            f"{folder}: no token file for {', '.join(missing)}; looked for names such as {missing[0]}.bin. "
            "To have one file cut, give its path."
        )
    own = read_meta(folder)
    if own is not None and not is_whole(folder, own):
        raise UserError(f"{folder}: a token file is not as {META} states; it was cut short or damaged.")
    tokens = {split: _load(files[split]) for split in SPLITS}
    return _source(folder, tokens, {path.name: path for path in files.values()}, own)


def _split_files(folder: Path) -> dict[str, Path]:
    named = ((split_named(path.stem), path) for path in sorted(folder.iterdir()) if path.suffix in ENDINGS)
    return {split: path for split, path in named if split is not None}


def _source(
    folder: Path, tokens: Mapping[str, np.ndarray], files: Mapping[str, Path], own: TokenMeta | None = None
) -> TokenSource:
    vocab = _meta(folder).get("vocab")
    if not isinstance(vocab, int) or isinstance(vocab, bool) or vocab < 1:
        raise UserError(f'{folder / META} should state the vocabulary, as in {{"vocab": 50257}}; found {vocab!r}.')
    for split, ids in tokens.items():
        if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < vocab:
            wrong = int(ids.max()) if int(ids.max()) >= vocab else int(ids.min())
            raise UserError(f"{folder}: {split} holds the token id {wrong}, but {META} states a vocabulary of {vocab}.")
    tokenizer = _tokenizer(folder, vocab)

    @cache
    def decoded(split: str) -> tuple[int, int]:
        """Characters and bytes."""
        if isinstance(tokenizer, Ids):  # ids without text: each counts as one
            return len(tokens[split]), len(tokens[split])
        blocks = range(0, len(tokens[split]), DECODED)
        texts = (tokenizer.decode(tokens[split][start : start + DECODED]) for start in blocks)
        sizes = [(len(text), len(utf8(text))) for text in texts]
        return sum(characters for characters, _ in sizes), sum(size for _, size in sizes)

    def bytes_of(split: str) -> int:
        stated = own["splits"][split].get("bytes") if own is not None else None
        return decoded(split)[1] if stated is None else stated

    digests = written_digests(own) if own is not None else {}
    return TokenSource(
        tokenizer,
        tokens,
        lambda split: own["splits"][split]["characters"] if own is not None else decoded(split)[0],
        bytes_of,
        files=files,
        digests=digests,
    )


def _tokenizer(folder: Path, vocab: int) -> Tokenizer:
    if not any((folder / name).is_file() for name in (OWN_FILE, HF_FILE)):
        return Ids(vocab)
    tokenizer = load_tokenizer(folder)
    if tokenizer.vocab != vocab:
        raise UserError(f"{folder}: the tokenizer has {tokenizer.vocab} ids, but {META} states vocab {vocab}.")
    return tokenizer


def _load(path: Path) -> np.ndarray:
    try:
        if path.suffix == ".npy":
            tokens: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
        else:
            dtype = _dtype(path)
            size = path.stat().st_size
            if size % dtype.itemsize:
                raise UserError(f"{path} is truncated: {size} bytes are not a whole number of {dtype}.")
            tokens = memory_map(path, dtype)
    except UserError:
        raise
    except (OSError, ValueError) as wrong:
        raise UserError(f"{path} cannot be read as token ids: {wrong}") from None
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise UserError(f"{path} should hold one row of integers; found {tokens.dtype} of shape {tokens.shape}.")
    return tokens


def _dtype(path: Path) -> np.dtype[Any]:
    stated = _meta(path.parent).get("dtype")
    try:
        dtype = np.dtype(stated) if isinstance(stated, str) else None
    except TypeError:
        dtype = None
    if dtype is None or dtype.kind not in "iu":
        raise UserError(f'{path.parent / META} should state the dtype, as in {{"dtype": "uint16"}}; found {stated!r}.')
    return dtype


def _meta(folder: Path) -> dict[str, object]:
    path = folder / META
    if not path.is_file():
        raise UserError(f'{path} is not there; it states dtype and vocabulary: {{"dtype": "uint16", "vocab": 50257}}.')
    return read_object(path)
