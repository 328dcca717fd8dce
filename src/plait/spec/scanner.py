"""A cursor over the text of a spec: white space, comments, words, and errors that know their line and column."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TypeVar

from plait.core.errors import UserError
from plait.spec.errors import MAX_LAYERS, MAX_NESTING, MAX_OPTIONS, SpecError, Where, quoted
from plait.spec.header import NAME, Value, parse_int, parse_name, parse_value
from plait.spec.nodes import BAR, RESERVED_KEY, Layer, Repeat, expand, total_size

T = TypeVar("T")
Node = Layer | Repeat[Layer]

_SPACE = re.compile(r"(?:\s+|#[^\n]*)*")
_VALUE = re.compile(r"[A-Za-z0-9_.+/-]+")
_COUNT = re.compile(r"\s*[xX×]\s*([0-9][0-9_]*)(?![A-Za-z0-9_.-])")


class Scanner:
    """The text and how far it has been read."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.leaves = 0  # read so far, in all sequences: text that is merely long is refused early
        self._depth = 0

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(found.end() for found in re.finditer("\n", self.text))]

    def where(self, at: int | None = None) -> Where:
        at = self.at if at is None else at
        line = bisect_right(self._line_starts, at)
        return Where(line, at - self._line_starts[line - 1] + 1)

    def error(self, message: str, at: int | None = None) -> SpecError:
        where = self.where(at)
        return SpecError(message, self.text, where.line, where.column)

    def checked(self, at: int, build: Callable[[], T]) -> T:
        """What `build` returns; its complaint becomes an error at `at`."""
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
            raise self.error(f"expected {what}, found {self.found()}")
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

    def count(self) -> int:
        """The `x12` after a group; 1 where there is none."""
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
        """Inside a parenthesis, where a bar stands between branches."""
        return self._depth > 0

    @contextmanager
    def nested(self, opening: int) -> Iterator[None]:
        """One level deeper, down to a limit: the parser recurses, and text must not decide how far."""
        if self._depth >= MAX_NESTING:
            raise self.error(f"nested more than {MAX_NESTING} levels deep", opening)
        self._depth += 1
        yield
        self._depth -= 1


def read_sequence(scan: Scanner, leaf: Callable[[Scanner], Node], separators: str = "") -> tuple[Node, ...]:
    """Leaves and groups up to the end of the text or of the parenthesis around them, or to a bar in there."""
    nodes: list[Node] = []
    while True:
        scan.skip(separators)
        if scan.peek() in ("", ")") or (scan.within and scan.peek() == BAR):
            return tuple(nodes)
        if scan.peek() == "(":
            nodes.append(read_group(scan, leaf, separators))
            continue
        scan.leaves += 1
        if scan.leaves > 2 * MAX_LAYERS:  # a dialect is a leaf and has at least one within: two for one layer
            raise scan.error(f"more than {MAX_LAYERS:,} layers")
        nodes.append(leaf(scan))


def read_group(scan: Scanner, leaf: Callable[[Scanner], Node], separators: str = "") -> Repeat[Layer]:
    """`( … )xN` or `( … | … )[…]xN`, the cursor at its parenthesis."""
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
    """Mixers side by side, the cursor behind their parenthesis, where options of the layer may stand."""
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
    """`[key=value, key]` if it comes next, and where each key stands."""
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
