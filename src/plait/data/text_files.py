"""Text in files: plain, one document per line (JSONL), one per row (Parquet), one file per split, or a folder of them.

Files are read in pieces, so that none has to fit into memory. If the name of every top-level file or subfolder states
its split (train.txt, valid-00000-of-00002.parquet, test/…), these are used; a missing split is cut from train.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, final

from plait.core.errors import UserError, did_you_mean
from plait.core.files import loads
from plait.data import token_files as memmap
from plait.data.sources import SPLITS, Document, TextSource, TokenSource, bounds, split_named

PIECE = 1 << 20  # bytes
MARK = b"\xef\xbb\xbf"  # the byte-order mark of UTF-8, with which some editors begin a file


def text_pieces(path: Path, start: int = 0, stop: int | None = None, *, errors: str = "strict") -> Iterator[str]:
    """The bytes from `start` up to `stop` as text.

    Pieces end at line ends if there are any, otherwise after a blank, so that tokenising them separately gives the same
    result as tokenising the whole. A byte-order mark is no text, except where `errors` keeps every byte.
    """
    try:
        with path.open("rb") as file:
            at = file.seek(start)
            for block in _blocks(file, stop):
                text = _decoded(block, path, at, errors)
                yield text.removeprefix("\ufeff") if at == 0 and errors == "strict" else text
                at += len(block)
    except OSError as wrong:
        raise UserError(f"cannot read {path}: {wrong.strerror or wrong}.") from wrong


def begins_with_mark(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(MARK)) == MARK
    except OSError as wrong:
        raise UserError(f"cannot read {path}: {wrong.strerror or wrong}.") from wrong


def cut_place(path: Path, wanted: int, limit: int) -> int:
    """The first suitable position for cutting a text file at or after byte `wanted` and before `limit`: after a line
    end, otherwise after a blank, otherwise between two characters."""
    with path.open("rb") as file:
        file.seek(wanted)
        ahead = file.read(min(PIECE, max(limit - wanted, 0)))
    for separator in (b"\n", b" "):
        offset = ahead.find(separator, 0, len(ahead) - 1)  # something must remain after the cut
        if offset >= 0:
            return wanted + offset + 1
    inside = next((number for number, byte in enumerate(ahead[:4]) if not _continues(byte)), 0)
    return wanted + inside


def _blocks(file: BinaryIO, stop: int | None) -> Iterator[bytes]:
    rest = b""
    while True:
        left = PIECE if stop is None else min(PIECE, stop - file.tell())
        block = file.read(left) if left > 0 else b""
        if not block:
            break
        block = rest + block
        end = _end_of_part(block)
        rest = block[end:]
        if end:
            yield block[:end]
    if rest:
        yield rest


def _end_of_part(block: bytes) -> int:
    line = block.rfind(b"\n") + 1
    if line:
        return line
    blank = block.rfind(b" ")
    if blank > 0:
        return blank  # before the blank: BPE merges a blank with the following word
    end = len(block)
    while end and len(block) - end < 4 and _continues(block[end - 1]):
        end -= 1
    return end - 1 if end and block[end - 1] >= 0xC0 else len(block)  # leave an incomplete character for the next piece


def _continues(byte: int) -> bool:
    """Whether this byte of UTF-8 continues a character."""
    return byte & 0xC0 == 0x80


def _decoded(block: bytes, path: Path, at: int, errors: str) -> str:
    try:
        return block.decode("utf-8", errors)
    except UnicodeDecodeError as wrong:
        raise UserError(
            f"{path} is not UTF-8 text: byte {at + wrong.start} is {block[wrong.start]:#04x} ({wrong.reason}). "
            f"{_remedy(block, path, at + wrong.start)}"
        ) from None


def _remedy(block: bytes, path: Path, wrong: int) -> str:
    if wrong == 0 and block[:2] in (b"\xff\xfe", b"\xfe\xff"):  # byte-order marks
        return f"It begins as UTF-16 does: `iconv -f UTF-16 -t UTF-8 {path}` writes it as UTF-8."
    if b"\0" in block:  # in hardly any text, and in most other files
        return "It has zero bytes, so it is probably no text at all: convert it, or move it out of the folder."
    with path.open("rb") as file:
        file.seek(max(0, wrong - PIECE))
        before = file.read(min(wrong, PIECE))
    if not before.isascii():
        return f"It mixes encodings, UTF-8 before that: `iconv -c -f UTF-8 -t UTF-8 {path}` leaves out the other."
    return f"If it is text in another encoding: `iconv -f LATIN1 -t UTF-8 {path}` writes it as UTF-8."


FIELD = "text"  # the default field of a document in JSONL and Parquet files


@final
class TextFile(TextSource):
    """One text, cut by position. `exact` cuts at the exact byte, as benchmarks prescribe, and counts bytes; otherwise
    lines stay whole."""

    def __init__(self, path: Path, tokenizer: str = "bytes", *, exact: bool = False) -> None:
        self._path = path
        self._exact = exact
        self.tokenizer = tokenizer
        self.counts_bytes = exact

    def files(self) -> Mapping[str, Path]:
        return {self._path.name: self._path}

    def identity(self) -> dict[str, object]:
        return {"exact": self._exact}

    def documents(self, digests: Mapping[str, str]) -> Iterator[Document]:
        size = self._path.stat().st_size
        if size < len(SPLITS):
            raise UserError(f"{self._path} has {size} bytes: too few to be divided into {', '.join(SPLITS)}.")
        start = 0
        ends = bounds(size)
        for number, (split, end) in enumerate(ends):
            if not self._exact and end < size:
                end = cut_place(self._path, max(end, start), ends[number + 1][1])
            # The only place where a character may be split in two; the byte tokenizer restores its bytes.
            errors = "surrogateescape" if self._exact else "strict"
            pieces = text_pieces(self._path, start, end, errors=errors)
            yield Document(digests[self._path.name], pieces, end - start, split)
            start = end


@final
class RecordFile(TextSource):
    """JSONL or Parquet."""

    def __init__(self, path: Path, field: str) -> None:
        self._path = path
        self._field = field

    def files(self) -> Mapping[str, Path]:
        return {self._path.name: self._path}

    def identity(self) -> dict[str, object]:
        return {"field": self._field}

    def documents(self, digests: Mapping[str, str]) -> Iterator[Document]:
        return record_documents(self._path, self._field)


@final
class SplitFiles(TextSource):
    """Files that each belong to a split, as corpora are published."""

    def __init__(self, root: Path, files: Mapping[str, Sequence[Path]], tokenizer: str) -> None:
        self._splits = {path.relative_to(root).as_posix(): split for split, paths in files.items() for path in paths}
        self._root = root
        self.tokenizer = tokenizer

    def files(self) -> Mapping[str, Path]:
        return {name: self._root / name for name in self._splits}

    def identity(self) -> dict[str, object]:
        return {"splits": self._splits}

    def documents(self, digests: Mapping[str, str]) -> Iterator[Document]:
        for name, path in self.files().items():
            yield Document(digests[name], text_pieces(path), path.stat().st_size, self._splits[name])


def text_file(location: str) -> TextFile:
    return TextFile(Path(location).expanduser())


def record_file(location: str) -> RecordFile:
    """`FILE` or `FILE#field`."""
    path, _, field = location.partition("#")
    return RecordFile(Path(path).expanduser(), field or FIELD)


def record_documents(path: Path, field: str) -> Iterator[Document]:
    """The documents of a JSONL or Parquet file."""
    return _parquet_documents(path, field) if path.suffix == ".parquet" else _jsonl_documents(path, field)


def _jsonl_documents(path: Path, field: str) -> Iterator[Document]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                record = loads(line)
            except ValueError as wrong:
                raise UserError(f"{path}, line {number}: no JSON ({wrong}).") from None
            if not isinstance(record, dict):
                raise UserError(f"{path}, line {number}: expected an object with the field '{field}'.")
            if not isinstance(record.get(field), str):
                raise UserError(f"{path}, line {number}: {_no_field(field, list(record), path)}")
            yield Document.of(record[field], len(line))


def _parquet_documents(path: Path, field: str) -> Iterator[Document]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError("Parquet files need the `pyarrow` package: pip install 'plait[parquet]'.") from None
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            columns = file.schema_arrow.names
            if field not in columns:
                raise UserError(f"{path}: {_no_field(field, columns, path)}")
            kind = file.schema_arrow.field(field).type
            if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
                raise UserError(f"{path}: the column '{field}' holds {kind}, not text.")
            share = path.stat().st_size // max(file.metadata.num_rows, 1)
            for batch in file.iter_batches(batch_size=1024, columns=[field]):
                for text in batch.column(0).to_pylist():
                    if text is not None:
                        yield Document.of(text, share)
    except (pyarrow.ArrowException, OSError) as wrong:
        raise UserError(f"{path} cannot be read as Parquet: {wrong}") from wrong


def _no_field(field: str, there: list[str], path: Path) -> str:
    return (
        f"no text in the field '{field}'.{did_you_mean(field, there)} There: {', '.join(there) or 'nothing'}; "
        f"choose one with {path.name}#FIELD."
    )


RECORDS = (".jsonl", ".parquet")
ASIDE = ("readme", "license")  # in many data folders, but not data


@final
class Folder(TextSource):
    def __init__(self, root: Path) -> None:
        paths = [path for path in sorted(root.rglob("*")) if path.is_file() and _is_included(path.relative_to(root))]
        if not paths:
            raise UserError(f"{root} holds no files to read.")
        self._files = {path.relative_to(root).as_posix(): path for path in paths}
        self._splits = _own_splits(list(self._files))
        if self._splits:
            # Files with their own split keep it; missing splits are cut from train.
            self.among = [split for split in SPLITS if split == "train" or split not in self._splits.values()]

    def files(self) -> Mapping[str, Path]:
        return self._files

    def identity(self) -> dict[str, object]:
        return {"splits": self._splits}

    def documents(self, digests: Mapping[str, str]) -> Iterator[Document]:
        divides_train = len(self.among) > 1
        for name, path in self._files.items():
            split = self._splits.get(name)
            own = None if split == "train" and divides_train else split
            if path.suffix in RECORDS:
                for document in record_documents(path, FIELD):
                    yield replace(document, split=own)
            else:
                yield Document(digests[name], text_pieces(path), path.stat().st_size, own)


def _is_included(name: Path) -> bool:
    hidden = any(part.startswith(".") for part in name.parts)
    return not hidden and not name.name.lower().startswith(ASIDE)


def _own_splits(names: list[str]) -> dict[str, str]:
    """The split of each file by its name or that of its top-level folder; empty if one of them states none."""
    splits = {}
    for name in names:
        split = split_named(name.split("/")[0])
        if split is None:
            return {}
        splits[name] = split
    return splits if "train" in splits.values() else {}


def open_folder(location: str) -> TextSource | TokenSource:
    root = Path(location).expanduser()
    return memmap.open_token_folder(root) if memmap.holds_tokens(root) else Folder(root)
