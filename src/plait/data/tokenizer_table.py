"""The table of tokenizers: name → where it is learned and loaded. Adding one adds one entry here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from plait.core.errors import UserError, did_you_mean
from plait.core.files import read_object
from plait.core.registry import Entry, Table, load_attribute, require_known
from plait.data.tokenizers import OWN_FILE, OWN_VERSION, OwnTokenizer, Tokenizer


@dataclass(frozen=True)
class TokenizerEntry(Entry):
    """`where` is a function that learns a tokenizer from texts; its keyword arguments are the options."""

    reads: str = ""  # the class that reads plait's own file; empty if the file is Hugging Face's


TOKENIZERS: Table[Callable[..., Tokenizer]] = Table(
    "tokenizer",
    {
        "bytes": TokenizerEntry(
            "plait.data.tokenizers:learn_bytes",
            "one token per byte; 256 ids",
            "plait.data.tokenizers:Bytes",
        ),
        "chars": TokenizerEntry(
            "plait.data.tokenizers:learn_characters",
            "one token per character",
            "plait.data.tokenizers:Characters",
        ),
        "words": TokenizerEntry(
            "plait.data.tokenizers:learn_words",
            "one token per word, by frequency; <eos> at line ends, <unk> for rare words",
            "plait.data.tokenizers:Words",
        ),
        "bpe": TokenizerEntry(
            "plait.data.trained_tokenizers:learn_bpe", "byte-pair encoding on bytes; needs plait[hf]", ""
        ),
        "ids": TokenizerEntry(
            "plait.data.tokenizers:learn_ids", "numbers that are token ids", "plait.data.tokenizers:Ids"
        ),
    },
)

FROM_FILE = "hf"  # hf:PATH opens a tokenizer trained elsewhere


@dataclass(frozen=True)
class TokenizerRecipe:
    """How to make a tokenizer, given the texts to learn from."""

    identity: dict[str, object]  # determines the tokenizer, together with the texts; plain JSON
    learn: Callable[[Iterable[str]], Tokenizer]


def options_of(name: str) -> dict[str, int]:
    """The options of a tokenizer and their defaults."""
    parameters = inspect.signature(TOKENIZERS.load(name)).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}


def tokenizer_listing() -> list[dict[str, object]]:
    """Every way to name a tokenizer, with its options and a description."""
    rows: list[dict[str, object]] = [
        {"name": name, "options": options_of(name), "what": TOKENIZERS.what(name)} for name in TOKENIZERS
    ]
    foreign = "a tokenizer.json, or the folder that holds it; needs plait[hf]"
    return [
        *rows,
        {"name": "hf:PATH", "options": {}, "what": foreign},
        {"name": "FOLDER", "options": {}, "what": "a saved tokenizer, such as a run's"},
    ]


def tokenizer_recipe(text: str) -> TokenizerRecipe:
    """`bytes`, `words:min_count=3,size=50000`, `hf:PATH`, or a folder that a tokenizer was saved in."""
    name, _, rest = text.partition(":")
    if name == FROM_FILE:
        if not rest:
            raise UserError("'hf' needs a path: hf:PATH, a tokenizer.json or the folder that holds it.")
        from plait.data import trained_tokenizers

        return _fixed(trained_tokenizers.open_file(Path(rest).expanduser()))
    if name in TOKENIZERS:
        options = {**options_of(name), **_options(name, rest)}
        learn = TOKENIZERS.load(name)
        return TokenizerRecipe({"tokenizer": name, **options}, lambda texts: learn(texts, **options))
    folder = Path(text).expanduser()
    if folder.is_dir():
        return _fixed(load_tokenizer(folder))
    known = [*TOKENIZERS, "hf:PATH", "or the folder of a saved tokenizer"]
    raise UserError(
        f"unknown tokenizer '{text}'.{did_you_mean(name, [*TOKENIZERS, FROM_FILE])} Known: {', '.join(known)}."
    )


def load_tokenizer(folder: Path) -> Tokenizer:
    """Load what `Tokenizer.save` wrote, or a folder with a Hugging Face tokenizer.json."""
    own = folder / OWN_FILE
    if not own.is_file():
        from plait.data import trained_tokenizers

        if not (folder / trained_tokenizers.FILE).is_file():
            raise UserError(f"no tokenizer in {folder}: looked for {OWN_FILE} and {trained_tokenizers.FILE}.")
        return trained_tokenizers.open_file(folder)
    fields = read_object(own)
    name, version = fields.get("tokenizer"), fields.get("version")
    loadable = [known for known in TOKENIZERS if _reader(known)]
    if name not in loadable:
        raise UserError(f"{own}: unknown tokenizer {name!r}. Known: {', '.join(loadable)}.")
    if version != OWN_VERSION:
        raise UserError(f"{own} has version {version!r}; this plait reads version {OWN_VERSION}.")
    kind: type[OwnTokenizer] = load_attribute(_reader(name))
    try:
        return kind.from_content(fields)
    except UserError as wrong:
        raise UserError(f"{own} is damaged: {wrong}") from None


def _fixed(tokenizer: Tokenizer) -> TokenizerRecipe:
    return TokenizerRecipe(tokenizer.as_dict(), lambda texts: tokenizer)


def _options(name: str, text: str) -> dict[str, int]:
    owner, known, options = f"tokenizer '{name}'", options_of(name), {}
    for part in filter(None, text.split(",")):
        option, _, value = part.partition("=") if "=" in part or "size" not in known else ("size", "", part)
        require_known(option, known, f"{owner} has no option")
        if not (value.isascii() and value.isdigit() and len(value) < 19):
            raise UserError(f"{owner}: {option} should be a whole number; found '{value}'.")
        options[option] = int(value)
    return options


def _reader(name: str) -> str:
    entry = TOKENIZERS.entry(name)
    assert isinstance(entry, TokenizerEntry)
    return entry.reads
