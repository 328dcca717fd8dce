"""What a corpus holds: `plait.corpus`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plait.core.progress import OnProgress, ignore
from plait.core.result import Result


@dataclass(frozen=True)
class CorpusResult(Result):
    name: str
    vocab: int
    tokenizer: dict[str, Any]
    entropy: float | None  # of its source in nats per token, where it is known exactly
    fingerprint: str  # of the tokens and the tokenizer
    tokens: dict[str, int]  # by split
    characters: dict[str, int]
    sample: str  # the beginning of the validation split

    def rows(self) -> list[dict[str, Any]]:
        return [{"split": split, "tokens": self.tokens[split], "characters": self.characters[split]}
                for split in self.tokens]  # fmt: skip


def corpus(
    name: str | Path, *, tokenizer: str | None = None, sample: int = 100, on_progress: OnProgress = ignore
) -> CorpusResult:
    """A corpus by name (`plait.listing("corpora")`), file or folder; text is tokenised where it has not been before.

    `tokenizer`: such as bytes, words:min_count=3, bpe:size=16384, hf:PATH; else the corpus's own.
    `sample`: tokens of the validation split to decode.
    """
    from plait.data import SPLITS, open_corpus

    opened = open_corpus(str(name), tokenizer, progress=on_progress)
    return CorpusResult(
        name=opened.name,
        vocab=opened.vocab,
        tokenizer=opened.tokenizer.as_dict(),
        entropy=opened.entropy,
        fingerprint=opened.fingerprint,
        tokens={split: len(opened.tokens(split)) for split in SPLITS},
        characters={split: opened.characters(split) for split in SPLITS},
        sample=opened.tokenizer.decode(opened.tokens("validation")[:sample]),
    )
