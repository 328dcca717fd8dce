"""Text files read in pieces, so that no file has to fit into memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from plait.core.errors import UserError

PIECE = 1 << 20  # bytes


def text_pieces(path: Path, start: int = 0, stop: int | None = None, *, errors: str = "strict") -> Iterator[str]:
    """The bytes from `start` up to `stop` as text.

    Pieces end at line ends where there are any, else behind a blank, so that tokenising them one by one gives what
    tokenising the whole would.
    """
    try:
        with path.open("rb") as file:
            at = file.seek(start)
            for block in _blocks(file, stop):
                yield _decoded(block, path, at, errors)
                at += len(block)
    except OSError as wrong:
        raise UserError(f"cannot read {path}: {wrong.strerror or wrong}.") from wrong


def cut_place(path: Path, wanted: int, limit: int) -> int:
    """The first good place to cut a text file at or after byte `wanted` and before `limit`: behind a line end, else
    behind a blank, else between two characters."""
    with path.open("rb") as file:
        file.seek(wanted)
        ahead = file.read(min(PIECE, max(limit - wanted, 0)))
    for separator in (b"\n", b" "):
        found = ahead.find(separator, 0, len(ahead) - 1)  # something must be left behind the cut
        if found >= 0:
            return wanted + found + 1
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
        return blank  # before the blank: BPE takes a blank together with the word behind it
    end = len(block)
    while end and len(block) - end < 4 and _continues(block[end - 1]):
        end -= 1
    return end - 1 if end and block[end - 1] >= 0xC0 else len(block)  # a character begun is left for the next part


def _continues(byte: int) -> bool:
    """Whether this byte of UTF-8 is one of those behind a character's first."""
    return byte & 0xC0 == 0x80


def _decoded(block: bytes, path: Path, at: int, errors: str) -> str:
    try:
        return block.decode("utf-8", errors)
    except UnicodeDecodeError as wrong:
        raise UserError(
            f"{path} is no UTF-8 text: byte {at + wrong.start} is {block[wrong.start]:#04x} ({wrong.reason})."
        ) from None
