"""Our tokenizers as a tokenizer.json of Hugging Face's library that gives the same ids.

bytes   BPE without merges on the library's alphabet of printable stand-ins for bytes
chars   one word a character; the unknown character is U+FFFD, as we decode it
words   line ends become <eos>, then words between whitespace (Python's, which has more of it than Unicode's)
ids     numbers are their own words; leading zeros go
bpe     is such a file already; what would add tokens around a text is removed, since our models never saw it
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from plait.core.errors import UserError
from plait.data import Tokenizer
from plait.data.simple_tokenizers import END, SPECIAL, UNKNOWN, UNKNOWN_CHARACTER, Bytes, Characters, Ids, Words
from plait.data.trained_tokenizers import CONFIG, FILE, HuggingFace, library


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """tokenizer.json and its config for `AutoTokenizer`, beside the file that plait itself reads."""
    tokenizer.save(folder)
    if not isinstance(tokenizer, HuggingFace):
        make = _FORMS.get(type(tokenizer))
        if make is None:
            raise UserError(f"a {type(tokenizer).__name__} tokenizer has no form in Hugging Face's library.")
        make(tokenizer).save(str(folder / FILE))
    _without_post_processor(folder / FILE)
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "padding_side": "left",
    }
    if isinstance(tokenizer, HuggingFace) and tokenizer.end is not None:
        # Only here: a special token is cut out of the middle of words, which our word vocabularies do not do.
        config["eos_token"] = config["pad_token"] = tokenizer.decode([tokenizer.end])
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _without_post_processor(path: Path) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    content["post_processor"] = None
    path.write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")


def _bytes(tokenizer: Bytes) -> Any:
    hf = library()
    made = hf.Tokenizer(hf.models.BPE(vocab={sign: byte for byte, sign in enumerate(_byte_signs())}, merges=[]))
    made.pre_tokenizer = hf.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = hf.decoders.ByteLevel()
    return made


def _byte_signs() -> list[str]:
    """The library's printable character for each byte: itself where it prints, else the next one from U+0100 on."""
    prints = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    spare = iter(range(256, 512))
    return [chr(byte if byte in prints else next(spare)) for byte in range(256)]


def _characters(tokenizer: Characters) -> Any:
    hf = library()
    if any(0xD800 <= ord(character) < 0xE000 for character in tokenizer.alphabet):
        raise UserError("the alphabet holds bytes that were no UTF-8; Hugging Face's library cannot express those.")
    vocabulary = {character: number for number, character in enumerate(tokenizer.alphabet)}
    unknown = UNKNOWN if UNKNOWN_CHARACTER in vocabulary else UNKNOWN_CHARACTER
    if tokenizer.unknown:
        vocabulary[unknown] = len(vocabulary)
    # Where the unknown token is not in the vocabulary, unknown characters are an error: as they are with us.
    made = hf.Tokenizer(hf.models.WordLevel(vocabulary, unk_token=unknown))
    made.pre_tokenizer = hf.pre_tokenizers.Split(hf.Regex(r"[\s\S]"), "isolated")
    made.decoder = hf.decoders.Sequence([hf.decoders.Replace(unknown, UNKNOWN_CHARACTER), hf.decoders.Fuse()])
    return made


def _words(tokenizer: Words) -> Any:
    hf = library()
    words = [*SPECIAL, *tokenizer.content()["words"]]
    made = hf.Tokenizer(hf.models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=UNKNOWN))
    made.normalizer = hf.normalizers.Replace("\n", f" {END} ")
    made.pre_tokenizer = hf.pre_tokenizers.Split(hf.Regex(_whitespace()), "removed")
    line_ends = hf.decoders.Replace(hf.Regex(f" ?{END} ?"), "\n")
    made.decoder = hf.decoders.Sequence([*_spaced(hf), line_ends])
    return made


def _ids(tokenizer: Ids) -> Any:
    hf = library()
    numbers = {str(number): number for number in range(tokenizer.vocab)}
    made = hf.Tokenizer(hf.models.WordLevel(numbers, unk_token=UNKNOWN))  # not in the vocabulary: an error
    made.normalizer = hf.normalizers.Replace(hf.Regex(r"(?<!\S)0+(?=[0-9])"), "")
    made.pre_tokenizer = hf.pre_tokenizers.Split(hf.Regex(_whitespace()), "removed")
    made.decoder = hf.decoders.Sequence(_spaced(hf))
    return made


def _whitespace() -> str:
    """What `str.split` takes for whitespace, as a pattern of the library's."""
    return "[{}]+".format("".join(f"\\x{{{code:x}}}" for code in range(0x3001) if chr(code).isspace()))


def _spaced(hf: Any) -> list[Any]:
    """A space between words: what the word-piece decoder does to pieces without its prefix, here one that none has."""
    return [hf.decoders.WordPiece(prefix="\0", cleanup=False), hf.decoders.Fuse()]


_FORMS: dict[type, Callable[[Any], Any]] = {Bytes: _bytes, Characters: _characters, Words: _words, Ids: _ids}
