"""The text of a mixer that is not plait's own: the text, not the name, decides every result that it takes part in.

Plain data, so that it travels to worker processes, records and run folders: a file that is edited later changes nothing
that was made from the text it had before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from plait.core.errors import UserError

_DIGITS = 16  # of a hash


@dataclass(frozen=True)
class MixerSource:
    """Where a mixer is from, as it was when it was run."""

    file: str  # the path it was read from
    attribute: str  # the class, where the file has several; else ""
    text: str
    package: str = ""  # "name version" of the installed package that has it; its file cannot run alone

    @classmethod
    def read(cls, path: Path, attribute: str = "", package: str = "") -> MixerSource:
        if not path.is_file():
            raise UserError(f"there is no file {path}.")
        try:
            return cls(str(path.resolve()), attribute, path.read_text(encoding="utf-8"), package)
        except (OSError, UnicodeDecodeError) as wrong:
            raise UserError(f"{path} cannot be read: {wrong}.") from None

    @cached_property
    def hash(self) -> str:
        what = f"{self.text}\n:{self.attribute}" if self.attribute else self.text
        return hashlib.sha256(what.encode()).hexdigest()[:_DIGITS]

    def as_dict(self) -> dict[str, str]:
        return asdict(self)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> MixerSource:
        return cls(given["file"], given["attribute"], given["text"], given.get("package", ""))
