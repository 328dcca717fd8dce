"""The One Billion Word benchmark (Chelba et al. 2013) as published: 99 training files, 50 held out.

Results are reported on the first held-out file; the second serves for validation.
"""

from __future__ import annotations

from pathlib import Path

from plait.core.errors import UserError
from plait.data.corpora.files import SplitFiles

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
