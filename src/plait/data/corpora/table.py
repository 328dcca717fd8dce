"""The table of corpora: how each is asked for, and where it is defined. Adding one adds one entry here."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from plait.core.errors import UserError, did_you_mean
from plait.data.corpora.source import TextSource, TokenSource


class Entry(NamedTuple):
    open: str  # a function: of nothing, or of what follows the name
    given: str  # what follows the name; empty for what needs no files
    tokenizer: str  # the default; empty where it comes as tokens
    what: str


#: By name, as in wikitext-103:FOLDER.
NAMED: dict[str, Entry] = {
    "builtin:stdlib": Entry(
        "plait.data.corpora.stdlib:open_source", "", "bytes", "sources of this Python's standard library, real text"
    ),
    "builtin:language": Entry(
        "plait.data.corpora.language:open_source", "", "", "synthetic language whose entropy is known exactly"
    ),
    "builtin:dna": Entry(
        "plait.data.corpora.dna:open_source", "", "", "synthetic DNA: local statistics, motifs, distant repeats"
    ),
    "wikitext-103": Entry(
        "plait.data.corpora.wikitext:open_source", "FOLDER", "words",
        "wiki.train.tokens, wiki.valid.tokens, wiki.test.tokens; or .raw, then as bytes",
    ),
    "lm1b": Entry(
        "plait.data.corpora.lm1b:open_source", "FOLDER", "words:min_count=3",
        "training- and heldout-monolingual.tokenized.shuffled, 99 and 50 files",
    ),
    "enwik8": Entry("plait.data.corpora.hutter:enwik8", "PATH", "bytes", "the file, or the folder that holds it"),
    "text8": Entry("plait.data.corpora.hutter:text8", "PATH", "chars", "the file, or the folder that holds it"),
}  # fmt: skip

#: By the ending of the path.
FILES: dict[str, Entry] = {
    ".txt": Entry("plait.data.corpora.files:text_file", "PATH", "bytes", "one text"),
    ".jsonl": Entry("plait.data.corpora.files:record_file", "PATH", "bytes", "a document a line; FILE#field, or text"),
    ".parquet": Entry(
        "plait.data.corpora.files:record_file", "PATH", "bytes", "a document a row; FILE#column, or text"
    ),
    ".npy": Entry("plait.data.corpora.memmap:open_source", "PATH", "", "token ids; meta.json beside it states vocab"),
    ".bin": Entry(
        "plait.data.corpora.memmap:open_source", "PATH", "", "token ids; meta.json beside it states dtype and vocab"
    ),
}
FOLDER = Entry(
    "plait.data.corpora.folder:open_source", "FOLDER", "bytes", "text, JSONL and Parquet files, or token files"
)


def open_source(given: str) -> TextSource | TokenSource:
    """What a corpus's name or path stands for."""
    family, _, rest = given.partition(":")
    if given in NAMED and not NAMED[given].given:
        return _call(NAMED[given])
    if family in NAMED:
        if not rest:
            entry = NAMED[family]
            raise UserError(f"'{family}' needs its files: {family}:{entry.given} ({entry.what}).")
        return _call(NAMED[family], rest)
    path = Path(given.partition("#")[0]).expanduser()
    if not Path(given).expanduser().exists() and not path.exists():
        names = ", ".join(f"{name}:{entry.given}" if entry.given else name for name, entry in NAMED.items())
        raise UserError(
            f"no corpus '{given}': neither a known name nor a file or folder.{did_you_mean(given, NAMED)} "
            f"Known: {names}, a folder, or a file ({', '.join(FILES)})."
        )
    if Path(given).expanduser().is_dir():
        return _call(FOLDER, given)
    if path.suffix not in FILES:
        raise UserError(
            f"cannot tell what '{path.name}' holds.{did_you_mean(path.suffix, FILES)} "
            f"Known endings: {', '.join(FILES)}; name an enwik8 file as enwik8:{path}."
        )
    return _call(FILES[path.suffix], given)


def _call(entry: Entry, *given: str) -> TextSource | TokenSource:
    module, _, attribute = entry.open.partition(":")
    found: TextSource | TokenSource = getattr(import_module(module), attribute)(*given)
    return found
