"""The spec language, read by recursive descent: `parse` reads a text, `load` a text or a file.

    d=512 vocab=50257 | (attn[heads=8] mlp)x12      # the header's keys, a bar, then layers and groups of layers

    spec    = [header "|"] body            header = { key "=" value }
    body    = "preset:" name | sequence    sequence = { layer | group | dialect }
    group   = ( "(" sequence ")" | parallel ) [ "x" count ]
    parallel = "(" layer { "|" layer } ")" [ options ]
    layer   = name [ options ]             options = "[" { key [ "=" value ] } "]"

Options are separated by commas or white space; a bare key means `=true`; `#` starts a comment; case does not matter.
The name of a published preset alone means that preset, and `vocab=32000 | preset:NAME` changes its header. Names of
layers are not checked here but by the mixer table, with the columns stored in each layer.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from plait.core.errors import UserError, did_you_mean
from plait.spec.errors import (
    MAX_LAYERS,
    MAX_NESTING,
    MAX_OPTIONS,
    MAX_TEXT,
    HeaderError,
    SpecError,
    Where,
    quoted,
)
from plait.spec.header import NAME, Header, Value, parse_int, parse_name, parse_value
from plait.spec.nodes import BAR, DIALECTS, RESERVED_KEY, Layer, Node, Repeat, Spec, expand, total_size

T = TypeVar("T")

_SPACE = re.compile(r"(?:\s+|#[^\n]*)*")
_VALUE = re.compile(r"[A-Za-z0-9_.+/-]+")
_COUNT = re.compile(r"\s*[xX×]\s*([0-9][0-9_]*)(?![A-Za-z0-9_.-])")
_COMMENT = re.compile(r"#[^\n]*")
_PRESET = re.compile(r"preset\s*:\s*(?=[A-Za-z])", re.IGNORECASE)
_AFTER_LAYER = re.compile(r"[\s)#\],|]|\Z")  # `]` and `,` end a layer that defines a dialect's letter

SUFFIXES = (".json", ".yaml", ".yml", ".txt", ".plait")  # of spec files

HeaderValues = dict[str, tuple[Value, int]]  # key -> value, and the position of the key


def load(text_or_path: str | os.PathLike[str]) -> Spec:
    """A spec from a file (.json, .yaml, .yml, .txt, .plait), from JSON text, or from spec text."""
    text = os.fspath(text_or_path)
    if re.fullmatch(r"\S+\.py(:\w+)?", text):
        raise SpecError(
            f"{quoted(Path(text).name)} is a Python file, but a spec is needed here. Load your own mixer with "
            "--mixers, or in Python with `plait.load_mixer`, and use its name in a spec"
        )
    if "/" in text and os.path.isdir(text):
        raise SpecError(f"{quoted(text)} is a folder: give a spec, the name of a preset, or a spec file")
    looks_like_file = text.lower().endswith(SUFFIXES) and "|" not in text and "\n" not in text
    if isinstance(text_or_path, os.PathLike) or (looks_like_file and os.path.exists(text)):
        from plait.spec.serial import from_file

        return from_file(Path(text))
    if text.lstrip().startswith(("{", '["')):
        from plait.spec.serial import from_json

        return from_json(text)
    if looks_like_file and not any(character.isspace() for character in text):
        raise SpecError(f"there is no file {quoted(text)}")
    return parse(text)


def parse(text: str) -> Spec:
    """The spec that `text` describes, or a `SpecError` that points at the first problem."""
    if len(text) > MAX_TEXT:
        raise SpecError(f"the text has {len(text):,} characters; at most {MAX_TEXT:,} are allowed")
    name = text.strip()
    if NAME.fullmatch(name):
        preset = _find_preset(name)
        if preset is not None:
            return _read_preset(preset, Where(1, 1), text)
    return _parse_language(text)


def _parse_language(text: str) -> Spec:
    scan = Scanner(text)
    values: HeaderValues = {}
    if has_header(text):
        values = _read_header(scan)
    scan.skip()
    base, layers = _read_preset_body(scan) or (Header(), _read_layers(scan))
    header = _build_header(scan, base, values)
    return Spec(header, layers, text)


def has_header(text: str) -> bool:
    """Whether there is a bar outside parentheses; inside, bars separate the mixers of a parallel layer."""
    depth = 0
    # Hostile text may have any number of bars; those of the first layers decide.
    for stretch in _COMMENT.sub("", text).split(BAR, MAX_LAYERS)[:-1]:
        depth += sum(map(stretch.count, "([")) - sum(map(stretch.count, ")]"))
        if depth <= 0:
            return True
    return False


def _read_header(scan: Scanner) -> HeaderValues:
    """Read `key=value …|`, and leave the cursor after the bar."""
    values: HeaderValues = {}
    while True:
        scan.skip()
        if scan.take("|"):
            return values
        at = scan.at
        key = scan.name("a header key or '|'")
        if key in values:
            raise scan.error(f"header key {quoted(key)} is given twice", at)
        scan.skip()
        if not scan.take("="):
            raise scan.error(f"{quoted(key)} before '|' needs a value: a header is written key=value", at)
        scan.skip()
        values[key] = scan.value(key), at


def _build_header(scan: Scanner, base: Header, values: HeaderValues) -> Header:
    try:
        return base.replace({key: value for key, (value, _) in values.items()})
    except HeaderError as error:
        # The key to change may be missing; then point at the key that requires it.
        places = [values[key][1] for key in error.keys if key in values]
        raise scan.error(error.message, places[0] if places else 0) from None


def _read_layers(scan: Scanner) -> tuple[Layer, ...]:
    nodes = read_sequence(scan, _read_leaf)
    if scan.peek():
        raise scan.error("this ')' closes nothing")
    if not nodes:
        raise scan.error("there are no layers; write at least one, as in: d=512 | (attn mlp)x12")
    size = total_size(nodes)
    if size > MAX_LAYERS:
        largest = max(nodes, key=lambda node: total_size([node]))
        where = largest.where or scan.where()
        shown = f"{size:,}" if size < 10**15 else f"about 10^{len(str(size)) - 1}"
        message = f"the spec has {shown} layers; at most {MAX_LAYERS:,} are allowed"
        raise SpecError(message, scan.text, where.line, where.column)
    return tuple(expand(nodes))


def _read_item(scan: Scanner) -> Node:
    return read_group(scan, _read_leaf) if scan.peek() == "(" else _read_leaf(scan)


def _read_leaf(scan: Scanner) -> Node:
    """A layer with its options, or a dialect."""
    start = scan.at
    if scan.peek() == "|":
        raise scan.error("a second '|': one separates the header from the layers")
    name = scan.name("a layer or '('")
    if name in DIALECTS:
        from plait.spec.dialects import read_dialect  # imported here, because it imports this module

        return read_dialect(scan, name, start, _read_item)
    if name == "preset":
        raise scan.error("preset:NAME must be all there is after the header", start)
    if scan.peek() == ":":
        known = (*DIALECTS, "preset")
        hint = did_you_mean(name, known)
        raise scan.error(f"unknown dialect {quoted(name)}: the dialects are {', '.join(known)}.{hint}", start)
    options, places = read_options(scan, name)
    if scan.peek() == "=":
        raise scan.error(f"'{name}=' is a header key: header keys go before '|'", start)
    if not _AFTER_LAYER.match(scan.text, scan.at):
        raise scan.error(f"expected white space after layer {quoted(name)}, found {scan.found()}{scan.as_repeat()}")
    option_where = {key: scan.where(at) for key, at in places.items()}
    return scan.checked(start, lambda: Layer(name, options, scan.where(start), option_where))


def read_sequence(scan: Scanner, leaf: Callable[[Scanner], Node], separators: str = "") -> tuple[Node, ...]:
    """Leaves and groups up to the end of the text or of the enclosing parenthesis, or up to a bar inside it."""
    nodes: list[Node] = []
    while True:
        scan.skip(separators)
        if scan.peek() in ("", ")") or (scan.within and scan.peek() == BAR):
            return tuple(nodes)
        if scan.peek() == "(":
            nodes.append(read_group(scan, leaf, separators))
            continue
        scan.leaves += 1
        if scan.leaves > 2 * MAX_LAYERS:  # a dialect counts as a leaf and contains at least one: two per layer
            raise scan.error(f"more than {MAX_LAYERS:,} layers")
        nodes.append(leaf(scan))


def read_group(scan: Scanner, leaf: Callable[[Scanner], Node], separators: str = "") -> Repeat[Layer]:
    """`( … )xN` or `( … | … )[…]xN`, with the cursor at its parenthesis."""
    opening = scan.at
    scan.at += 1
    with scan.nested(opening):
        parts = [read_sequence(scan, leaf, separators)]
        while scan.take(BAR):
            parts.append(read_sequence(scan, leaf, separators))
    if not scan.take(")"):
        raise scan.error("this '(' is never closed", opening)
    if not any(parts):
        raise scan.error("this group is empty", opening)
    nodes = parts[0] if len(parts) == 1 else (_read_parallel(scan, parts, opening),)
    return Repeat(nodes, scan.count(), scan.where(opening))


def _read_parallel(scan: Scanner, parts: list[tuple[Node, ...]], opening: int) -> Layer:
    """Parallel mixers, with the cursor after their parenthesis, where options of the layer may follow."""
    for part in parts:
        if total_size(part) != 1:
            raise scan.error(
                f"a branch of a parallel layer is one mixer, and one of these has {total_size(part)}", opening
            )
    branches = tuple(expand(part)[0] for part in parts)
    options, places = read_options(scan, "the parallel layer") if scan.peek() == "[" else ((), {})
    option_where = {key: scan.where(at) for key, at in places.items()}
    name = BAR.join(branch.name for branch in branches)
    return scan.checked(opening, lambda: Layer(name, options, scan.where(opening), option_where, branches))


def read_options(scan: Scanner, layer: str) -> tuple[tuple[tuple[str, Value], ...], dict[str, int]]:
    """`[key=value, key]` if it comes next, and the position of each key."""
    before = scan.at
    scan.skip()
    opening = scan.at
    if not scan.take("["):
        scan.at = opening if scan.peek() == "=" else before
        return (), {}
    values: dict[str, Value] = {}
    places: dict[str, int] = {}
    while True:
        scan.skip(",")
        if scan.take("]"):
            return tuple(values.items()), places
        if not scan.peek():
            raise scan.error("this '[' is never closed", opening)
        at = scan.at
        key = scan.name(f"an option of '{layer}' or ']'")
        if key in values:
            raise scan.error(f"option {quoted(key)} is given twice", at)
        if key == RESERVED_KEY:
            raise scan.error(f"'{key}' cannot be an option: it is the layer's name in JSON and YAML", at)
        if len(values) >= MAX_OPTIONS:
            raise scan.error(f"more than {MAX_OPTIONS} options for one layer", at)
        places[key] = at
        scan.skip()
        if scan.take("="):
            scan.skip()
            values[key] = scan.value(key)
        else:
            values[key] = True


def _read_preset_body(scan: Scanner) -> tuple[Header, tuple[Layer, ...]] | None:
    """`preset:NAME` if that is what the body is."""
    match = _PRESET.match(scan.text, scan.at)
    if match is None:
        return None
    where = scan.where()
    scan.at = start = match.end()
    name = scan.name("a preset")
    preset = _find_preset(name)
    if preset is None:
        from plait.spec.presets import names

        raise scan.error(f"unknown preset {quoted(name)}.{did_you_mean(name, names())}", start)
    scan.skip()
    if scan.peek():
        raise scan.error("preset:NAME must be all there is after the header")
    spec = _read_preset(preset, where, scan.text)
    return spec.header, spec.layers


def _read_preset(preset: str, where: Where, source: str) -> Spec:
    """The preset's own text; its layers point at the name the user wrote, since the user never saw that text."""
    spec = _parse_language(preset)
    placed = {layer: layer.at(where) for layer in set(spec.layers)}
    return Spec(spec.header, tuple(placed[layer] for layer in spec.layers), source)


def _find_preset(name: str) -> str | None:
    from plait.spec.presets import lookup  # imported here, so that parsing plain text never loads the tables

    return lookup(name)


class Scanner:
    """The text and the read position."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.leaves = 0  # read so far, in all sequences, so that long text is refused early
        self._depth = 0

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(newline.end() for newline in re.finditer("\n", self.text))]

    def where(self, at: int | None = None) -> Where:
        at = self.at if at is None else at
        line = bisect_right(self._line_starts, at)
        return Where(line, at - self._line_starts[line - 1] + 1)

    def error(self, message: str, at: int | None = None) -> SpecError:
        where = self.where(at)
        return SpecError(message, self.text, where.line, where.column)

    def checked(self, at: int, build: Callable[[], T]) -> T:
        """What `build` returns; its `UserError` becomes an error at `at`."""
        try:
            return build()
        except SpecError:
            raise
        except UserError as error:
            raise self.error(str(error), at) from None

    def peek(self) -> str:
        """The next character, or '' at the end."""
        return self.text[self.at : self.at + 1]

    def take(self, character: str) -> bool:
        """Step over `character` if it comes next."""
        if self.peek() != character:
            return False
        self.at += 1
        return True

    def expect(self, character: str, after: str) -> None:
        if not self.take(character):
            raise self.error(f"expected '{character}' after {after}, found {self.found()}")

    def found(self) -> str:
        """What comes next, for a message."""
        return quoted(self.peek()) if self.peek() else "the end of the text"

    def skip(self, separators: str = "") -> None:
        """Step over white space, comments and `separators`."""
        while True:
            match = _SPACE.match(self.text, self.at)
            assert match is not None
            self.at = match.end()
            if not self.peek() or self.peek() not in separators:
                return
            self.at += 1

    def name(self, what: str) -> str:
        """The name that must come next, in lower case."""
        match = NAME.match(self.text, self.at)
        if match is None:
            raise self.error(f"expected {what}, found {self.found()}{self.as_repeat()}")
        name = self.checked(self.at, lambda: parse_name(match.group()))
        self.at = match.end()
        return name

    def value(self, key: str) -> Value:
        """The value that must come next, after `key=`."""
        match = _VALUE.match(self.text, self.at)
        if match is None:
            raise self.error(f"expected a value for {quoted(key)}, found {self.found()}")
        value = self.checked(self.at, lambda: parse_value(match.group()))
        self.at = match.end()
        return value

    def as_repeat(self) -> str:
        """How to repeat layers, where a text such as `attn * 4` does it in another way."""
        return "; to repeat layers, write (attn mlp)x12" if self.peek() and self.peek() in "0123456789*×" else ""

    def count(self) -> int:
        """The `x12` after a group; 1 if there is none."""
        match = _COUNT.match(self.text, self.at)
        if match is None:
            if self.peek() and self.peek() in "xX×":
                raise self.error("expected a whole number after 'x', as in (attn mlp)x12")
            return 1
        count = self.checked(match.start(1), lambda: parse_int(match.group(1)))
        if count < 1:
            raise self.error("a group is repeated at least once", match.start(1))
        self.at = match.end()
        return count

    @property
    def within(self) -> bool:
        """Inside a parenthesis, where a bar separates branches."""
        return self._depth > 0

    @contextmanager
    def nested(self, opening: int) -> Iterator[None]:
        """One level deeper, up to a limit, because the parser recurses and the depth must not depend on the text
        alone."""
        if self._depth >= MAX_NESTING:
            raise self.error(f"nested more than {MAX_NESTING} levels deep", opening)
        self._depth += 1
        yield
        self._depth -= 1
