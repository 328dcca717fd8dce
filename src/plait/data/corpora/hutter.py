"""enwik8 and text8 (Mahoney 2006): one file each, 100 million bytes, of which the first 90 million train, the next 5
validate and the last 5 test. Shorter files are cut in the same proportion."""

from __future__ import annotations

from pathlib import Path

from plait.core.errors import UserError
from plait.data.corpora.files import TextFile


def enwik8(given: str) -> TextFile:
    # Results on enwik8 are in bits a byte and called bits per character.
    return TextFile(_file(given, "enwik8"), exact=True)


def text8(given: str) -> TextFile:
    return TextFile(_file(given, "text8"), tokenizer="chars", exact=True)


def _file(given: str, name: str) -> Path:
    path = Path(given).expanduser()
    file = path / name if path.is_dir() else path
    if not file.is_file():
        raise UserError(f"{name}: looked for {file}, which is not there.")
    return file
