"""The header of a spec: everything about a model that is not a layer, one documented field per key.

Also the values that header keys and layer options take: `512`, `1_000`, `1e-5`, `true`, `bias-only`,
`19997/39997/199997`. The mapping between text and values is one-to-one (`19997/` is a list of one number), which the
canonical text requires.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import pairwise
from typing import Any

from plait.core.errors import UserError, did_you_mean
from plait.spec.errors import MAX_DIGITS, MAX_INT, MAX_ITEMS, MAX_NAME, MAX_NUMBER, HeaderError, quoted

Value = bool | int | float | str | tuple[int, ...]

# ASCII only: \d and \w would also match look-alike digits and letters.
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
_INT = re.compile(r"[+-]?[0-9]+(?:_[0-9]+)*")
_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def parse_name(text: str) -> str:
    """A name in lower case: case does not matter in the language."""
    if not NAME.fullmatch(text):
        raise UserError(f"{quoted(text)} is not a name: names start with a letter, then letters, digits, - _ .")
    if len(text) > MAX_NAME:
        raise UserError(f"the name {quoted(text)} has {len(text)} characters; at most {MAX_NAME} are allowed")
    return text.lower()


def parse_int(text: str) -> int:
    """An integer of bounded size; underscores may group its digits."""
    if not _INT.fullmatch(text):
        raise UserError(f"{quoted(text)} is not a whole number")
    if len(text) > MAX_DIGITS:
        raise UserError(f"the number {quoted(text)} has more than {MAX_DIGITS} digits")
    return _bounded(int(text))


def parse_value(text: str) -> Value:
    """The value written as `text`."""
    if "/" in text:
        # `7/` is a list of one; only that form may end with a slash.
        items = text[:-1].split("/") if text.count("/") == 1 and text.endswith("/") else text.split("/")
        if len(items) > MAX_ITEMS:
            raise UserError(f"a list of {len(items)} numbers; at most {MAX_ITEMS} are allowed")
        return tuple(parse_int(item) for item in items)
    if NAME.fullmatch(text):
        name = parse_name(text)
        return name == "true" if name in ("true", "false") else name
    if _INT.fullmatch(text):
        return parse_int(text)
    if not _FLOAT.fullmatch(text):
        raise UserError(f"{quoted(text)} is not a value: write a number, true, false, a name or a list (8/16/32)")
    if len(text) > MAX_NUMBER:
        raise UserError(f"the number {quoted(text)} has more than {MAX_NUMBER} characters")
    return _finite(float(text))


def format_value(value: Value) -> str:
    """The text that `parse_value` converts back to exactly this value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "/".join(map(str, value)) if len(value) > 1 else f"{value[0]}/"
    return value if isinstance(value, str) else repr(value)


def check_value(value: object) -> Value:
    """A Python object (from JSON, YAML or code) as a value, or a `UserError` that says what is allowed."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return _bounded(int(value))
    if isinstance(value, float):
        return _finite(float(value))
    if isinstance(value, str):
        name = parse_name(value)
        if name in ("true", "false"):
            raise UserError(f"{quoted(value)} is text; give the truth value itself, without quotes")
        return name
    if isinstance(value, list | tuple):
        if not 1 <= len(value) <= MAX_ITEMS:
            raise UserError(f"a list takes 1 to {MAX_ITEMS} whole numbers, got {len(value)}")
        if any(isinstance(item, bool) or not isinstance(item, int) for item in value):
            raise UserError("a list takes whole numbers only")
        return tuple(_bounded(int(item)) for item in value)
    raise UserError(f"a value is a number, true, false, a name or a list of whole numbers, not {type(value).__name__}")


def _bounded(number: int) -> int:
    if abs(number) > MAX_INT:
        raise UserError(f"a whole number must be within ±{MAX_INT:,}")
    return number


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise UserError("a number must be finite")
    return number


_ALWAYS_WRITTEN = ("d", "vocab")


def _key(default: Value, about: str, choices: tuple[str, ...] = ()) -> Any:
    return field(default=default, metadata={"about": about, "choices": choices})


@dataclass(frozen=True)
class Header:
    """The header's keys with their defaults; `metadata` of each field holds its explanation and allowed values."""

    d: int = _key(512, "width of the residual stream")
    vocab: int = _key(50257, "number of tokens in the vocabulary")
    kind: str = _key(
        "lm",
        "causal language model, bidirectional encoder, or sequence auto-encoder",
        ("lm", "encoder", "autoencoder"),
    )
    pos: str = _key("none", "positions added to the embeddings", ("none", "learned", "sinusoidal"))
    max_len: int = _key(0, "longest sequence with a learned position; 0 = no bound")
    tie: bool = _key(False, "the output matrix is the embedding matrix")
    embed: str = _key(
        "plain", "one table, or one per frequency band with a matching adaptive softmax", ("plain", "adaptive")
    )
    cutoffs: tuple[int, ...] = _key((), "adaptive: where a band of token ids ends and the next begins")
    div: int = _key(1, "adaptive: each band is this much narrower than the one before")
    d_embed: int = _key(0, "width of the embeddings before their projection to d; 0 = d")
    head_bias: bool = _key(False, "the output layer has a bias")
    norm: str = _key("rms", "the norm before every layer and at the end", ("rms", "layer"))
    eps: float = _key(1e-6, "added to the variance inside a norm")
    final_norm: bool = _key(True, "a norm between the last layer and the output")
    embed_norm: bool = _key(False, "a norm between the embeddings and the first layer")
    segments: int = _key(0, "number of token types (BERT's segment embeddings); 0 = none")
    embed_scale: bool = _key(False, "embeddings are multiplied by the square root of d")
    init: float = _key(0.02, "standard deviation of the initial weights")
    depth_scale: bool = _key(False, "initial residual outputs shrink with the square root of the depth")

    def __post_init__(self) -> None:
        for spec in fields(self):
            object.__setattr__(self, spec.name, coerce(spec.name, getattr(self, spec.name)))
        self.check()

    @classmethod
    def from_values(cls, values: Mapping[str, object]) -> Header:
        """A header from its keys, each checked by name and type."""
        return cls().replace(values)

    def with_vocabulary(self, vocab: int) -> Header:
        """The header for another vocabulary size, without adaptive-softmax bands beyond it."""
        changes: dict[str, Value] = {"vocab": vocab}
        if self.cutoffs:
            kept = tuple(cut for cut in self.cutoffs if cut < vocab)
            changes |= {"cutoffs": kept} if kept else {"cutoffs": (), "embed": "plain", "div": 1}
        return self.replace(changes)

    def replace(self, values: Mapping[str, object]) -> Header:
        """This header with the given keys set."""
        changed: dict[str, Any] = {key: coerce(key, value) for key, value in values.items()}
        return dataclasses.replace(self, **changed)

    def check(self) -> None:
        """Check rules that involve several keys; the message names the key to change."""
        for key, least in (("d", 1), ("vocab", 2), ("max_len", 0), ("div", 1), ("d_embed", 0), ("segments", 0)):
            _require(getattr(self, key) >= least, f"{key}={getattr(self, key)}: must be at least {least}", key)
        _require(self.eps > 0, f"eps={self.eps}: must be greater than 0", "eps")
        _require(self.init >= 0, f"init={self.init}: must not be negative", "init")
        _require(self.pos != "learned" or self.max_len > 0, "pos=learned needs max_len=… above 0", "max_len", "pos")
        self._check_embedding()

    def _check_embedding(self) -> None:
        adaptive = self.embed == "adaptive"
        _require(adaptive or not self.cutoffs, "cutoffs=… needs embed=adaptive", "cutoffs")
        _require(adaptive or self.div == 1, f"div={self.div} needs embed=adaptive", "div")
        # A single band is a plain table with its own projection, which it has only if div > 1.
        one_band = adaptive and not self.cutoffs and self.div == 1
        _require(not one_band, "embed=adaptive needs cutoffs=…, such as 2000/10000", "embed")
        bounds = (0, *self.cutoffs, self.vocab)
        _require(
            all(low < high for low, high in pairwise(bounds)),
            f"cutoffs must grow and stay between 0 and vocab={self.vocab}",
            "cutoffs",
            "vocab",
        )
        width = self.d_embed or self.d
        _require(
            # Checked band by band, because div ** bands may be astronomically large.
            adaptive is False or _narrowest(width, self.div, len(self.cutoffs)) >= 1,
            f"div={self.div} leaves no width for the last of {len(self.cutoffs) + 1} bands of {width}",
            "div",
            "cutoffs",
            "embed",
        )
        _require(
            not self.tie or adaptive or width == self.d,
            f"tie=true needs d_embed={self.d} (or 0) when embed=plain, not d_embed={self.d_embed}",
            "d_embed",
            "tie",
        )

    @cached_property
    def text(self) -> str:
        """The canonical text: d, vocab and everything that differs from its default, in the order of the fields."""
        return " ".join(f"{key}={format_value(value)}" for key, value in self.given().items())

    def given(self) -> dict[str, Value]:
        """The keys that the canonical text writes."""
        return {
            spec.name: getattr(self, spec.name)
            for spec in fields(self)
            if spec.name in _ALWAYS_WRITTEN or getattr(self, spec.name) != spec.default
        }


def _narrowest(width: int, div: int, bands: int) -> int:
    for _ in range(bands):
        width //= div
    return width


def _require(holds: bool, message: str, *keys: str) -> None:
    if not holds:
        raise HeaderError(message, *keys)


_FIELDS = {spec.name: spec for spec in fields(Header)}
_TAKES = {bool: "true or false", int: "a whole number", float: "a number", tuple: "whole numbers such as 2000/10000"}


_WIDTH = " The width is d, as in d=512."
_DEPTH = " Depth is the number of layers: (attn mlp)x12."
_SEQ = " A spec does not say the sequence length: give --seq-len."
#: What other programs call a header key, and where in a spec, or outside, it is said.
_ELSEWHERE = {
    **dict.fromkeys(("d_model", "dim", "width", "hidden", "hidden_size", "n_embd"), _WIDTH),
    **dict.fromkeys(("layers", "n_layers", "n_layer", "depth", "num_layers"), _DEPTH),
    **dict.fromkeys(("seq", "seq_len", "context", "block_size", "ctx"), _SEQ),
    **dict.fromkeys(("heads", "n_heads", "n_head"), " It is an option of a mixer: attn[heads=8]."),
    **dict.fromkeys(("d_ff", "ffn", "inner"), " It is an option of a mixer: mlp[inner=2048]."),
    "vocab_size": " Did you mean 'vocab'?",
}


def coerce(key: str, raw: object) -> Value:
    """`raw` as the type of the key's default; an int is accepted for a float or for a list of one."""
    if key not in _FIELDS:
        hint = _ELSEWHERE.get(key.lower()) or did_you_mean(key, _FIELDS) or f" Known keys: {', '.join(_FIELDS)}."
        raise HeaderError(f"unknown header key {quoted(key)}.{hint}", key)
    choices: tuple[str, ...] = _FIELDS[key].metadata["choices"]
    kind: type = type(_FIELDS[key].default)
    if kind is tuple and raw in ((), []):
        return ()
    try:
        value = check_value(raw)
    except UserError as error:
        raise HeaderError(f"{key}: {error}", key) from None
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) + 0.0  # turns -0.0 into 0.0, so that zero has one text
    if kind is tuple and isinstance(value, int) and not isinstance(value, bool):
        return (value,)
    if kind is str and value not in choices:
        hint = did_you_mean(value, choices) if isinstance(value, str) else ""
        raise HeaderError(f"{key}={format_value(value)}: must be one of {', '.join(choices)}.{hint}", key)
    if type(value) is not kind:
        raise HeaderError(f"{key}={format_value(value)}: takes {_TAKES[kind]}", key)
    return value
