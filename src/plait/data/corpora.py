"""A corpus (tokens in three splits), and the table of corpora: how each is named, and where it is defined.

Adding one adds one entry here.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

import numpy as np

from plait.core.errors import UserError, did_you_mean
from plait.core.progress import OnProgress
from plait.core.registry import Entry, Table, load_attribute, require_known
from plait.data.sources import SPLITS, TextSource, TokenSource
from plait.data.tokenizers import Tokenizer


class NoCorpus(UserError):
    """No corpus has this name, and no file or folder this path."""


DTYPES = ("uint8", "uint16", "uint32")
BLOCK = 1 << 24  # bytes hashed at a time


@final
@dataclass(frozen=True)
class Corpus:
    name: str  # as given by the user
    tokenizer: Tokenizer
    fingerprint: str  # of the tokens and the tokenizer, independent of location and format
    entropy: float | None  # the exact entropy rate in nats per token, if known
    _tokens: Mapping[str, np.ndarray] = field(repr=False)
    _characters: Callable[[str], int] = field(repr=False)
    _bytes: Callable[[str], int] = field(repr=False)

    def as_dict(self) -> dict[str, object]:
        """The identity of the corpus in plain JSON. Keys of stored records include it, so it must not change, nor
        contain the location of files."""
        return {"fingerprint": self.fingerprint, "tokenizer": self.tokenizer.as_dict()}

    @property
    def vocab(self) -> int:
        return self.tokenizer.vocab

    def tokens(self, split: str) -> np.ndarray:
        """All tokens of train, validation or test in order; a read-only array of unsigned integers."""
        return self._tokens[_require_split(split)]

    def training_on(self, tokens: np.ndarray) -> Corpus:
        """The same corpus with other training tokens, such as a part of its own."""
        return replace(self, _tokens={**{split: self._tokens[split] for split in SPLITS}, "train": tokens})

    def characters(self, split: str) -> int:
        """How many characters the tokens of a split represent, for bits per character."""
        return self._characters(_require_split(split))

    def bytes(self, split: str) -> int:
        """How many bytes of UTF-8 the tokens of a split represent, for bits per byte."""
        return self._bytes(_require_split(split))


def _require_split(split: str) -> str:
    require_known(split, SPLITS, "unknown split")
    return split


Opener = Callable[..., TextSource | TokenSource]  # without arguments, or with the text after the name


@dataclass(frozen=True)
class CorpusEntry(Entry):
    given: str = ""  # placeholder for the text after the name; empty if no files are needed
    tokenizer: str = ""  # the default; empty for corpora that consist of tokens


#: By name, as in wikitext-103:FOLDER.
NAMED: Table[Opener] = Table(
    "corpus",
    {
        "builtin:stdlib": CorpusEntry(
            "plait.data.builtin:open_stdlib", "sources of this Python's standard library, real text", "", "bytes"
        ),
        "builtin:language": CorpusEntry(
            "plait.data.builtin:open_language", "synthetic language whose entropy is known exactly", "", ""
        ),
        "builtin:dna": CorpusEntry(
            "plait.data.builtin:open_dna", "synthetic DNA: local statistics, motifs, distant repeats", "", ""
        ),
        "wikitext-103": CorpusEntry(
            "plait.data.published:open_wikitext",
            "wiki.train.tokens, wiki.valid.tokens, wiki.test.tokens; or .raw, then as bytes",
            "FOLDER",
            "words",
        ),
        "lm1b": CorpusEntry(
            "plait.data.published:open_lm1b",
            "training- and heldout-monolingual.tokenized.shuffled, 99 and 50 files",
            "FOLDER",
            "words:min_count=3",
        ),
        "enwik8": CorpusEntry("plait.data.published:enwik8", "the file, or the folder that holds it", "PATH", "bytes"),
        "text8": CorpusEntry("plait.data.published:text8", "the file, or the folder that holds it", "PATH", "chars"),
    },
    group="plait.corpora",
)

#: By the ending of the path.
FILES: Table[Opener] = Table(
    "ending",
    {
        ".txt": CorpusEntry("plait.data.text_files:text_file", "one text", "PATH", "bytes"),
        ".jsonl": CorpusEntry(
            "plait.data.text_files:record_file", "a document per line; FILE#field, or text", "PATH", "bytes"
        ),
        ".parquet": CorpusEntry(
            "plait.data.text_files:record_file", "a document per row; FILE#column, or text", "PATH", "bytes"
        ),
        ".npy": CorpusEntry(
            "plait.data.token_files:open_token_file", "token ids; meta.json next to it states vocab", "PATH", ""
        ),
        ".bin": CorpusEntry(
            "plait.data.token_files:open_token_file",
            "token ids; meta.json next to it states dtype and vocab",
            "PATH",
            "",
        ),
    },
)
#: Other endings of plain text, read like .txt.
TEXT_ENDINGS = (".md", ".rst", ".tex", ".html", ".py", ".csv", ".log")
FOLDER = CorpusEntry(
    "plait.data.text_files:open_folder", "text, JSONL and Parquet files, or token files", "FOLDER", "bytes"
)


def entry_of(name: str, table: Table[Opener] = NAMED) -> CorpusEntry:
    """The table's entry of a corpus; an empty one for a corpus of an installed package."""
    entry = table.entry(name) if name in table.lines else CorpusEntry("")
    assert isinstance(entry, CorpusEntry)
    return entry


def usage(name: str) -> str:
    """How a corpus is named by users: wikitext-103:FOLDER."""
    argument = entry_of(name).given
    return f"{name}:{argument}" if argument else name


def corpus_listing() -> list[dict[str, object]]:
    """Every way to name a corpus, with its default tokenizer and a description."""
    NAMED.discover()
    files = {f"FILE{ending}": entry_of(ending, FILES) for ending in FILES}
    ways = {**{usage(name): entry_of(name) for name in NAMED}, **files, "FOLDER": FOLDER}
    packaged = [name for name in NAMED if name not in NAMED.lines]
    return [
        {
            "name": name,
            "tokenizer": entry.tokenizer or None,
            "what": NAMED.what(name) if name in packaged else entry.what,
            "from": NAMED.origin(name) if name in packaged else "plait",
        }
        for name, entry in ways.items()
    ]


def needed_tokenizer(name: str, tokenizer: Path) -> str | None:
    """The tokenizer for a corpus of text; None for one of tokens, which keeps its own."""
    return None if isinstance(open_source(name), TokenSource) else str(tokenizer)


def open_source(name: str) -> TextSource | TokenSource:
    """The source that a corpus's name or path refers to."""
    family, _, rest = name.partition(":")
    if name in NAMED and not entry_of(name).given:
        return NAMED.load(name)()
    if family in NAMED:
        if not rest:
            raise UserError(f"'{family}' needs its files: {usage(family)} ({entry_of(family).what}).")
        return NAMED.load(family)(rest)
    path = Path(name.partition("#")[0]).expanduser()
    if not os.path.exists(Path(name).expanduser()) and not os.path.exists(path):
        NAMED.discover(family)
        if family in NAMED:
            return NAMED.load(family)(*([rest] if rest else []))
        NAMED.discover()
        raise NoCorpus(
            f"no corpus '{name}': neither a known name nor a file or folder.{did_you_mean(name, NAMED)} "
            f"Known: {', '.join(map(usage, NAMED))}, a folder, or a file ({', '.join(FILES)})."
        )
    if Path(name).expanduser().is_dir():
        source: TextSource | TokenSource = load_attribute(FOLDER.where)(name)
        return source
    ending = ".txt" if path.suffix in TEXT_ENDINGS else path.suffix
    if ending not in FILES:
        raise UserError(
            f"cannot tell what '{path.name}' holds.{did_you_mean(path.suffix, FILES)} Known endings: "
            f"{', '.join((*FILES, *TEXT_ENDINGS))}; name other text .txt, an enwik8 file enwik8:{path}."
        )
    return FILES.load(ending)(name)


VERSION = 2  # raised by hand when the same source gives different tokens


def open_corpus(
    given: str, tokenizer: str | None = None, *, cache: Path | None = None, progress: OnProgress | None = None
) -> Corpus:
    """A corpus by name or path (`plait data list`), tokenised by its default tokenizer or the given one.

    Text is tokenised once and stored in `cache`, otherwise $PLAIT_CACHE, otherwise runs/cache.
    """
    source = open_source(given)
    if not isinstance(source, TokenSource):
        from plait.data.cache import open_text

        return open_text(given, source, tokenizer or source.tokenizer, cache, progress)
    if tokenizer is not None:
        raise UserError(f"'{given}' comes as tokens; --tokenizer {tokenizer} does not apply to it.")
    identity = fingerprint(_token_digests(source, cache), source.tokenizer.as_dict())
    counts = source.characters, source.bytes
    return Corpus(given, source.tokenizer, identity, source.entropy, source.tokens, *counts)


def reopen_corpus(given: str, tokenizer: str | None, identity: str) -> Corpus:
    """In a worker: the corpus with this fingerprint, which the command opened as it began."""
    corpus = open_corpus(given, tokenizer)
    if corpus.fingerprint != identity:
        raise UserError(
            f"{given} has changed since this command began, or the machines have different files. What is finished is "
            "stored; run again to train on the text as it is now."
        )
    return corpus


def fingerprint(*parts: Any) -> str:
    text = json.dumps([VERSION, *parts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _token_digests(source: TokenSource, cache: Path | None) -> dict[str, str]:
    """SHA-256 of each split's tokens; those of large files are stored."""
    if source.digests:
        return dict(source.digests)
    if source.files:
        from plait.data.cache import remembered_digests

        return remembered_digests(source, cache)
    return split_digests(source)


def split_digests(source: TokenSource) -> dict[str, str]:
    return {split: token_digest(source.tokens[split], source.tokenizer.vocab) for split in SPLITS}


def smallest_dtype(vocab: int) -> np.dtype[Any]:
    """The smallest unsigned integer type for ids below `vocab`."""
    return next(np.dtype(name) for name in DTYPES if vocab - 1 <= np.iinfo(name).max)


def token_digest(tokens: np.ndarray, vocab: int) -> str:
    """SHA-256 of the ids in the smallest integer type for the vocabulary, independent of their stored type."""
    dtype, digest = smallest_dtype(vocab).newbyteorder("<"), hashlib.sha256()
    for start in range(0, len(tokens), BLOCK):
        digest.update(np.ascontiguousarray(tokens[start : start + BLOCK], dtype=dtype).data)
    return digest.hexdigest()
