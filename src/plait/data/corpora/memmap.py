"""Token ids in flat files, used in place: `.npy`, or `.bin` with the dtype in the `meta.json` beside it.

    meta.json    {"dtype": "uint16", "vocab": 50257}

One file is cut by position; a folder with train.bin (or .npy) and the other splits is taken as it is. A tokenizer
saved into the same folder is used; else ids decode to numbers. Entries of the cache are such folders.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from plait.core.errors import UserError
from plait.data.corpora.source import TokenSource
from plait.data.corpus import SPLITS
from plait.data.documents import bounds, split_named
from plait.data.tokenfiles import META, is_whole, memory_map, read_meta
from plait.data.tokenizers.huggingface import FILE as HF_FILE
from plait.data.tokenizers.ids import Ids
from plait.data.tokenizers.table import load_tokenizer
from plait.data.tokenizers.tokenizer import OWN_FILE, Tokenizer

ENDINGS = (".bin", ".npy")
DECODED = 1 << 20  # tokens decoded at a time to count their characters


def open_token_file(given: str) -> TokenSource:
    """One file, cut by position."""
    path = Path(given).expanduser()
    tokens = _load(path)
    starts = [0, *(end for _, end in bounds(len(tokens)))]
    parts = {split: tokens[start:end] for (split, end), start in zip(bounds(len(tokens)), starts, strict=False)}
    return _source(path.parent, parts, {path.name: path})


def holds_tokens(folder: Path) -> bool:
    return (folder / META).is_file() and bool(_split_files(folder))


def open_token_folder(folder: Path) -> TokenSource:
    """A folder with a token file a split."""
    files = _split_files(folder)
    missing = [split for split in SPLITS if split not in files]
    if missing:
        raise UserError(
            f"{folder}: no token file for {', '.join(missing)}; looked for names such as {missing[0]}.bin. "
            "To have one file cut, give its path."
        )
    own = read_meta(folder)
    if own is not None and not is_whole(folder, own):
        raise UserError(f"{folder}: a token file is not as {META} states; it was cut short or damaged.")
    tokens = {split: _load(files[split]) for split in SPLITS}
    return _source(folder, tokens, {path.name: path for path in files.values()}, own)


def _split_files(folder: Path) -> dict[str, Path]:
    found = ((split_named(path.stem), path) for path in sorted(folder.iterdir()) if path.suffix in ENDINGS)
    return {split: path for split, path in found if split is not None}


def _source(
    folder: Path, tokens: Mapping[str, np.ndarray], files: Mapping[str, Path], own: Mapping[str, Any] | None = None
) -> TokenSource:
    vocab = _meta(folder).get("vocab")
    if not isinstance(vocab, int) or isinstance(vocab, bool) or vocab < 1:
        raise UserError(f'{folder / META} should state the vocabulary, as in {{"vocab": 50257}}; found {vocab!r}.')
    for split, ids in tokens.items():
        if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < vocab:
            wrong = int(ids.max()) if int(ids.max()) >= vocab else int(ids.min())
            raise UserError(f"{folder}: {split} holds the token id {wrong}, but {META} states a vocabulary of {vocab}.")
    tokenizer = _tokenizer(folder, vocab)

    @cache
    def characters(split: str) -> int:
        if own is not None:
            return int(own["splits"][split]["characters"])
        if isinstance(tokenizer, Ids):  # ids without text: each counts as one
            return len(tokens[split])
        blocks = range(0, len(tokens[split]), DECODED)
        return sum(len(tokenizer.decode(tokens[split][start : start + DECODED])) for start in blocks)

    return TokenSource(tokenizer, {"vocab": vocab, "parts": sorted(files)}, tokens, characters, files=files)


def _tokenizer(folder: Path, vocab: int) -> Tokenizer:
    if not any((folder / name).is_file() for name in (OWN_FILE, HF_FILE)):
        return Ids(vocab)
    tokenizer = load_tokenizer(folder)
    if tokenizer.vocab != vocab:
        raise UserError(f"{folder}: the tokenizer has {tokenizer.vocab} ids, but {META} states vocab {vocab}.")
    return tokenizer


def _load(path: Path) -> np.ndarray:
    try:
        if path.suffix == ".npy":
            tokens: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
        else:
            dtype = _dtype(path)
            size = path.stat().st_size
            if size % dtype.itemsize:
                raise UserError(f"{path} was cut short: {size} bytes are no whole number of {dtype}.")
            tokens = memory_map(path, dtype)
    except UserError:
        raise
    except (OSError, ValueError) as wrong:
        raise UserError(f"{path} cannot be read as token ids: {wrong}") from None
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise UserError(f"{path} should hold one row of integers; found {tokens.dtype} of shape {tokens.shape}.")
    return tokens


def _dtype(path: Path) -> np.dtype[Any]:
    stated = _meta(path.parent).get("dtype")
    try:
        dtype = np.dtype(stated) if isinstance(stated, str) else None
    except TypeError:
        dtype = None
    if dtype is None or dtype.kind not in "iu":
        raise UserError(f'{path.parent / META} should state the dtype, as in {{"dtype": "uint16"}}; found {stated!r}.')
    return dtype


def _meta(folder: Path) -> dict[str, Any]:
    path = folder / META
    if not path.is_file():
        raise UserError(f'{path} is not there; it states dtype and vocabulary: {{"dtype": "uint16", "vocab": 50257}}.')
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as wrong:
        raise UserError(f"{path} is damaged: {wrong}.") from None
    if not isinstance(found, dict):
        raise UserError(f"{path} should hold one JSON object.")
    return found
