"""Corpora as they are published.

wikitext-103  Merity et al. 2016: three files, tokenised into words already, or raw
lm1b          the One Billion Word benchmark (Chelba et al. 2013): 99 training files, 50 held out. Results are reported
              on the first held-out file; the second serves for validation
enwik8 text8  Mahoney 2006: one file each, 100 million bytes, of which the first 90 million train, the next 5 validate
              and the last 5 test. Shorter files are cut in the same proportion
"""

from __future__ import annotations

from pathlib import Path

from plait.core.errors import UserError
from plait.data.text_files import SplitFiles, TextFile

PARTS = {"train": "train", "validation": "valid", "test": "test"}
#: Ending of the published files → default tokenizer. In .tokens, rare words are already <unk>; .raw is plain text.
VARIANTS = {"tokens": "words", "raw": "bytes"}


def open_wikitext(location: str) -> SplitFiles:
    folder = Path(location).expanduser()
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


def open_lm1b(location: str) -> SplitFiles:
    folder = Path(location).expanduser()
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


def enwik8(location: str) -> TextFile:
    # Results on enwik8 are in bits per byte but called bits per character.
    return TextFile(_file(location, "enwik8"), exact=True)


def text8(location: str) -> TextFile:
    return TextFile(_file(location, "text8"), tokenizer="chars", exact=True)


def _file(location: str, name: str) -> Path:
    path = Path(location).expanduser()
    file = path / name if path.is_dir() else path
    if not file.is_file():
        raise UserError(f"{name}: looked for {file}, which is not there.")
    return file
