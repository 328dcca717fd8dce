"""Real text that every machine has: the sources of the running Python's standard library, docstrings and all.

Left out is what differs between two installations of one version or is no prose of people: tests (many systems leave
them out), installed packages, and what the build wrote down about its machine.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import final

from plait.core.errors import UserError
from plait.data.corpora.source import TextSource
from plait.data.documents import Document
from plait.data.reading import text_pieces

LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "lib-dynload"}


@final
class Stdlib(TextSource):
    def __init__(self, root: Path) -> None:
        self._files = {
            path.relative_to(root).as_posix(): path for path in sorted(root.rglob("*.py")) if _wanted(path, root)
        }
        if not self._files:
            raise UserError(f"builtin:stdlib: this Python keeps no sources in {root}; give another corpus.")

    def files(self) -> Mapping[str, Path]:
        return self._files

    def documents(self, digests: Mapping[str, str]) -> Iterator[Document]:
        for name, path in self._files.items():
            yield Document(digests[name], text_pieces(path, errors="surrogateescape"), path.stat().st_size)


def _wanted(path: Path, root: Path) -> bool:
    parts = path.relative_to(root).parts
    return LEFT_OUT.isdisjoint(parts) and not parts[-1].startswith(("_sysconfigdata", "sitecustomize"))


def open_stdlib() -> Stdlib:
    return Stdlib(Path(sysconfig.get_path("stdlib")))
