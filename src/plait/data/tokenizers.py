"""What every tokenizer can do, and the plain JSON file that ours are kept in.

The table of tokenizers: name → where it is learned and loaded. Adding one adds one entry here.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from plait.core.errors import UserError, did_you_mean
from plait.core.files import loads
from plait.core.registry import Entry, Table, load_attribute, require_known

OWN_FILE = "plait-tokenizer.json"  # not "tokenizer.json": that is Hugging Face's, and has another format
OWN_VERSION = 1


class Tokenizer(ABC):
    """Text ↔ token ids below `vocab`."""

    #: The id that stands between documents; None where the vocabulary has none.
    end: int | None = None

    @property
    @abstractmethod
    def vocab(self) -> int:
        """How many ids there are."""

    @abstractmethod
    def encode(self, text: str) -> np.ndarray:
        """The ids of a text, int64."""

    @abstractmethod
    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        """The text that the ids stand for."""

    @abstractmethod
    def as_dict(self) -> dict[str, object]:
        """A small plain identity: equal for two tokenizers only if they map every text to the same ids."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write what `load_tokenizer` needs into the folder."""

    def keeps_text(self, ids: np.ndarray) -> bool:
        """Whether the text that these came from could be written again, character for character."""
        return True

    def checked(self, ids: Iterable[int] | np.ndarray) -> np.ndarray:
        """The ids as a flat int64 array; an id outside the vocabulary is an error."""
        array = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids), dtype=np.int64).reshape(-1)
        if array.size and not 0 <= array.min() <= array.max() < self.vocab:
            wrong = array[(array < 0) | (array >= self.vocab)][0]
            raise UserError(f"token id {wrong} is outside the tokenizer's vocabulary of {self.vocab}.")
        return array


class OwnTokenizer(Tokenizer):
    """A tokenizer whose whole content is a few JSON fields."""

    name: ClassVar[str]

    @abstractmethod
    def content(self) -> dict[str, Any]:
        """The fields that `from_content` reads."""

    @classmethod
    @abstractmethod
    def from_content(cls, fields: Mapping[str, Any]) -> OwnTokenizer:
        """What `content` described. Missing or wrong fields are the user's mistake: a UserError."""

    def as_dict(self) -> dict[str, object]:
        text = json.dumps(self.content(), sort_keys=True)
        return {"tokenizer": self.name, "vocab": self.vocab, "sha256": hashlib.sha256(text.encode()).hexdigest()}

    def save(self, folder: Path) -> None:
        document = {"tokenizer": self.name, "version": OWN_VERSION, **self.content()}
        folder.mkdir(parents=True, exist_ok=True)
        # ASCII, so that lone surrogates (bytes that were no UTF-8) survive.
        (folder / OWN_FILE).write_text(json.dumps(document, indent=1) + "\n", encoding="ascii")


def utf8(text: str) -> bytes:
    """The bytes of a text. Bytes that were no UTF-8 when it was read (lone surrogates since) come back as they were;
    surrogates that never were bytes become question marks."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def string_field(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise UserError(f"the field '{name}' should be a string; found {_excerpt(value)}.")
    return value


def boundary_token(tokenizer: Tokenizer) -> int:
    """What begins, parts and ends texts: end-of-text where the tokenizer has one, else what a line break becomes; of an
    alphabet without one, the first token."""
    if tokenizer.end is not None:
        return tokenizer.end
    try:
        line_break = tokenizer.encode("\n")
    except UserError:
        return 0
    return int(line_break[-1]) if len(line_break) else 0


def flag_field(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name)
    if not isinstance(value, bool):
        raise UserError(f"the field '{name}' should be true or false; found {_excerpt(value)}.")
    return value


def count_field(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"the field '{name}' should be a whole number above 0; found {_excerpt(value)}.")
    return value


def strings_field(fields: Mapping[str, Any], name: str) -> list[str]:
    value = fields.get(name)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise UserError(f"the field '{name}' should be a list of strings; found {_excerpt(value)}.")
    if len(set(value)) != len(value):
        raise UserError(f"the field '{name}' holds an entry twice.")
    return value


def _excerpt(value: object) -> str:
    if value is None:
        return "nothing"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


@dataclass(frozen=True)
class TokenizerEntry(Entry):
    """`where` is a function of texts that learns one; its keyword arguments are the options."""

    reads: str = ""  # the class that reads our own file; empty where the file is Hugging Face's


TOKENIZERS: Table[Callable[..., Tokenizer]] = Table(
    "tokenizer",
    {
        "bytes": TokenizerEntry(
            "plait.data.simple_tokenizers:learn_bytes",
            "one token per byte; 256 ids",
            "plait.data.simple_tokenizers:Bytes",
        ),
        "chars": TokenizerEntry(
            "plait.data.simple_tokenizers:learn_characters",
            "one token per character",
            "plait.data.simple_tokenizers:Characters",
        ),
        "words": TokenizerEntry(
            "plait.data.simple_tokenizers:learn_words",
            "one token per word, by frequency; <eos> at line ends, <unk> for rare words",
            "plait.data.simple_tokenizers:Words",
        ),
        "bpe": TokenizerEntry(
            "plait.data.trained_tokenizers:learn_bpe", "byte-pair encoding on bytes; needs plait[hf]", ""
        ),
        "ids": TokenizerEntry(
            "plait.data.simple_tokenizers:learn_ids", "numbers that are token ids", "plait.data.simple_tokenizers:Ids"
        ),
    },
)

FROM_FILE = "hf"  # hf:PATH opens what was learned elsewhere


@dataclass(frozen=True)
class TokenizerRecipe:
    """How to make a tokenizer, given the texts to learn from."""

    identity: dict[str, object]  # decides, with the texts, the tokenizer; plain JSON
    learn: Callable[[Iterable[str]], Tokenizer]


def options_of(name: str) -> dict[str, int]:
    """The options of a tokenizer and their defaults."""
    parameters = inspect.signature(TOKENIZERS.load(name)).parameters.values()
    return {one.name: one.default for one in parameters if one.kind is one.KEYWORD_ONLY}


def tokenizer_listing() -> list[dict[str, object]]:
    """Every way to ask for a tokenizer, with its options and what it is."""
    rows: list[dict[str, object]] = [
        {"name": name, "options": options_of(name), "what": TOKENIZERS.what(name)} for name in TOKENIZERS
    ]
    foreign = "a tokenizer.json, or the folder that holds it; needs plait[hf]"
    return [
        *rows,
        {"name": "hf:PATH", "options": {}, "what": foreign},
        {"name": "FOLDER", "options": {}, "what": "a saved tokenizer, such as a run's"},
    ]


def tokenizer_recipe(given: str) -> TokenizerRecipe:
    """`bytes`, `words:min_count=3,size=50000`, `hf:PATH`, or a folder that a tokenizer was saved in."""
    name, _, rest = given.partition(":")
    if name == FROM_FILE:
        if not rest:
            raise UserError("'hf' needs a path: hf:PATH, a tokenizer.json or the folder that holds it.")
        from plait.data import trained_tokenizers

        return _fixed(trained_tokenizers.open_file(Path(rest).expanduser()))
    if name in TOKENIZERS:
        options = {**options_of(name), **_options(name, rest)}
        learn = TOKENIZERS.load(name)
        return TokenizerRecipe({"tokenizer": name, **options}, lambda texts: learn(texts, **options))
    folder = Path(given).expanduser()
    if folder.is_dir():
        return _fixed(load_tokenizer(folder))
    known = [*TOKENIZERS, "hf:PATH", "or the folder of a saved tokenizer"]
    raise UserError(
        f"unknown tokenizer '{given}'.{did_you_mean(name, [*TOKENIZERS, FROM_FILE])} Known: {', '.join(known)}."
    )


def load_tokenizer(folder: Path) -> Tokenizer:
    """What `Tokenizer.save` wrote, or a folder with a tokenizer.json of Hugging Face's."""
    own = folder / OWN_FILE
    if not own.is_file():
        from plait.data import trained_tokenizers

        if not (folder / trained_tokenizers.FILE).is_file():
            raise UserError(f"no tokenizer in {folder}: looked for {OWN_FILE} and {trained_tokenizers.FILE}.")
        return trained_tokenizers.open_file(folder)
    try:
        fields = loads(own.read_text(encoding="utf-8"))
    except (OSError, ValueError) as wrong:
        raise UserError(f"{own} is damaged: {wrong}.") from None
    if not isinstance(fields, dict):
        raise UserError(f"{own} is damaged: it should hold one JSON object.")
    name, version = fields.get("tokenizer"), fields.get("version")
    loadable = [known for known in TOKENIZERS if _reader(known)]
    if name not in loadable:
        raise UserError(f"{own}: unknown tokenizer {name!r}. Known: {', '.join(loadable)}.")
    if version != OWN_VERSION:
        raise UserError(f"{own} has version {version!r}; this plait reads version {OWN_VERSION}.")
    found: type[OwnTokenizer] = load_attribute(_reader(name))
    try:
        return found.from_content(fields)
    except UserError as wrong:
        raise UserError(f"{own} is damaged: {wrong}") from None


def _fixed(tokenizer: Tokenizer) -> TokenizerRecipe:
    return TokenizerRecipe(tokenizer.as_dict(), lambda texts: tokenizer)


def _options(name: str, text: str) -> dict[str, int]:
    owner, known, found = f"tokenizer '{name}'", options_of(name), {}
    for part in filter(None, text.split(",")):
        option, _, value = part.partition("=") if "=" in part or "size" not in known else ("size", "", part)
        require_known(option, known, owner, "option")
        if not (value.isascii() and value.isdigit() and len(value) < 19):
            raise UserError(f"{owner}: {option} should be a whole number; found '{value}'.")
        found[option] = int(value)
    return found


def _reader(name: str) -> str:
    entry = TOKENIZERS.entry(name)
    assert isinstance(entry, TokenizerEntry)
    return entry.reads
