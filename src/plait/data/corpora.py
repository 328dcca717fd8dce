"""The table of corpora: how each is asked for, and where it is defined. Adding one adds one entry here.

Corpora as they are published.

wikitext-103  Merity et al. 2016: three files, tokenised into words already, or raw
lm1b          the One Billion Word benchmark (Chelba et al. 2013): 99 training files, 50 held out. Results are reported
              on the first held-out file; the second serves for validation
enwik8 text8  Mahoney 2006: one file each, 100 million bytes, of which the first 90 million train, the next 5 validate
              and the last 5 test. Shorter files are cut in the same proportion
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from plait.core.errors import UserError, did_you_mean
from plait.core.registry import Entry, Table, load_attribute
from plait.data.corpus import TextSource, TokenSource
from plait.data.text_files import SplitFiles, TextFile

Opener = Callable[..., TextSource | TokenSource]  # of nothing, or of what follows the name


@dataclass(frozen=True)
class CorpusEntry(Entry):
    given: str = ""  # what follows the name; empty for what needs no files
    tokenizer: str = ""  # the default; empty where it comes as tokens


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
            "plait.data.corpora:open_wikitext",
            "wiki.train.tokens, wiki.valid.tokens, wiki.test.tokens; or .raw, then as bytes",
            "FOLDER",
            "words",
        ),
        "lm1b": CorpusEntry(
            "plait.data.corpora:open_lm1b",
            "training- and heldout-monolingual.tokenized.shuffled, 99 and 50 files",
            "FOLDER",
            "words:min_count=3",
        ),
        "enwik8": CorpusEntry("plait.data.corpora:enwik8", "the file, or the folder that holds it", "PATH", "bytes"),
        "text8": CorpusEntry("plait.data.corpora:text8", "the file, or the folder that holds it", "PATH", "chars"),
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
FOLDER = CorpusEntry(
    "plait.data.text_files:open_folder", "text, JSONL and Parquet files, or token files", "FOLDER", "bytes"
)


def entry_of(name: str, table: Table[Opener] = NAMED) -> CorpusEntry:
    """The table's entry of a corpus; an empty one for a corpus of an installed package."""
    found = table.entry(name) if name in table.lines else CorpusEntry("")
    assert isinstance(found, CorpusEntry)
    return found


def usage(name: str) -> str:
    """How a corpus is asked for: wikitext-103:FOLDER."""
    given = entry_of(name).given
    return f"{name}:{given}" if given else name


def corpus_listing() -> list[dict[str, object]]:
    """Every way to ask for a corpus, with its default tokenizer and what it is."""
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


def open_source(given: str) -> TextSource | TokenSource:
    """What a corpus's name or path stands for."""
    family, _, rest = given.partition(":")
    if given in NAMED and not entry_of(given).given:
        return NAMED.load(given)()
    if family in NAMED:
        if not rest:
            raise UserError(f"'{family}' needs its files: {usage(family)} ({entry_of(family).what}).")
        return NAMED.load(family)(rest)
    path = Path(given.partition("#")[0]).expanduser()
    if not Path(given).expanduser().exists() and not path.exists():
        NAMED.discover()
        if family in NAMED:
            return NAMED.load(family)(*([rest] if rest else []))
        raise UserError(
            f"no corpus '{given}': neither a known name nor a file or folder.{did_you_mean(given, NAMED)} "
            f"Known: {', '.join(map(usage, NAMED))}, a folder, or a file ({', '.join(FILES)})."
        )
    if Path(given).expanduser().is_dir():
        found: TextSource | TokenSource = load_attribute(FOLDER.where)(given)
        return found
    if path.suffix not in FILES:
        raise UserError(
            f"cannot tell what '{path.name}' holds.{did_you_mean(path.suffix, FILES)} "
            f"Known endings: {', '.join(FILES)}; name an enwik8 file as enwik8:{path}."
        )
    return FILES.load(path.suffix)(given)


PARTS = {"train": "train", "validation": "valid", "test": "test"}
#: Ending of the published files → default tokenizer. In .tokens rare words are <unk> already; .raw is plain text.
VARIANTS = {"tokens": "words", "raw": "bytes"}


def open_wikitext(given: str) -> SplitFiles:
    folder = Path(given).expanduser()
    for ending, tokenizer in VARIANTS.items():
        files = {split: [folder / f"wiki.{part}.{ending}"] for split, part in PARTS.items()}
        there = [file for (file,) in files.values() if file.is_file()]
        if len(there) == len(files):
            return SplitFiles(folder, files, tokenizer)
        if there:
            missing = [file.name for (file,) in files.values() if not file.is_file()]
            raise UserError(f"wikitext-103: {', '.join(missing)} not found in {folder}, which has {there[0].name}.")
    raise UserError(
        f"wikitext-103: looked in {folder} for wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens, "
        "or the same ending in .raw."
    )


TRAINING = "training-monolingual.tokenized.shuffled"
VALIDATION = "heldout-monolingual.tokenized.shuffled"
TOKENIZER = "words:min_count=3"


def open_lm1b(given: str) -> SplitFiles:
    folder = Path(given).expanduser()
    validation = folder / VALIDATION
    files = {
        "train": [folder / TRAINING / f"news.en-{number:05d}-of-00100" for number in range(1, 100)],
        "validation": [validation / "news.en.heldout-00001-of-00050"],
        "test": [validation / "news.en.heldout-00000-of-00050"],
    }
    missing = [path.relative_to(folder) for paths in files.values() for path in paths if not path.is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UserError(
            f"lm1b: {missing[0]}{more} not found in {folder}. The benchmark is all of it; for a part, give the folder "
            "of the part as a corpus of its own."
        )
    return SplitFiles(folder, files, TOKENIZER)


def enwik8(given: str) -> TextFile:
    # Results on enwik8 are in bits per byte and called bits per character.
    return TextFile(_file(given, "enwik8"), exact=True)


def text8(given: str) -> TextFile:
    return TextFile(_file(given, "text8"), tokenizer="chars", exact=True)


def _file(given: str, name: str) -> Path:
    path = Path(given).expanduser()
    file = path / name if path.is_dir() else path
    if not file.is_file():
        raise UserError(f"{name}: looked for {file}, which is not there.")
    return file
