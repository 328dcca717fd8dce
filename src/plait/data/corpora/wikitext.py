"""WikiText-103 (Merity et al. 2016) as published: three files, tokenised into words already, or raw."""

from __future__ import annotations

from pathlib import Path

from plait.core.errors import UserError
from plait.data.corpora.files import SplitFiles

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
            raise UserError(f"wikitext-103: {', '.join(missing)} not found in {folder}, beside {there[0].name}.")
    raise UserError(
        f"wikitext-103: looked in {folder} for wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens, "
        "or the same ending in .raw."
    )
