"""Any folder: text files (a document each), JSONL and Parquet files (many each), or a folder of token files.

Where the name of every file or subfolder on top says its split (train.txt, valid-00000-of-00002.parquet, test/…),
that holds; a split that is missing is cut from train.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, final

from plait.core.errors import UserError
from plait.data.corpora import memmap
from plait.data.corpora.files import FIELD, record_documents
from plait.data.corpora.source import TextSource, TokenSource
from plait.data.corpus import SPLITS
from plait.data.documents import Document, split_named
from plait.data.reading import text_pieces

RECORDS = (".jsonl", ".parquet")
ASIDE = ("readme", "license")  # lie in many folders of data and are none


@final
class Folder(TextSource):
    def __init__(self, root: Path) -> None:
        paths = [path for path in sorted(root.rglob("*")) if path.is_file() and _wanted(path.relative_to(root))]
        if not paths:
            raise UserError(f"{root} holds no files to read.")
        self._files = {path.relative_to(root).as_posix(): path for path in paths}
        self._splits = _own_splits(list(self._files))
        if self._splits:
            # What has a split of its own keeps it; the rest is cut from train.
            self.among = [split for split in SPLITS if split == "train" or split not in self._splits.values()]

    def files(self) -> Mapping[str, Path]:
        return self._files

    def identity(self) -> dict[str, Any]:
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


def _wanted(name: Path) -> bool:
    hidden = any(part.startswith(".") for part in name.parts)
    return not hidden and not name.name.lower().startswith(ASIDE)


def _own_splits(names: list[str]) -> dict[str, str]:
    """The split of each file by its name or that of its top folder; empty where one of them does not say."""
    found = {}
    for name in names:
        split = split_named(name.split("/")[0])
        if split is None:
            return {}
        found[name] = split
    return found if "train" in found.values() else {}


def open_source(given: str) -> TextSource | TokenSource:
    root = Path(given).expanduser()
    return memmap.open_folder(root) if memmap.holds_tokens(root) else Folder(root)
