"""YAML for specs, built from the parser's events: mappings, lists, and scalars that mean what the spec language says.

The usual loaders follow aliases (a few lines can stand for billions of nodes), let the last of two equal keys win, read
`1e-5` as text and `no` as false. Here aliases, tags and keys given twice are refused, and a plain scalar is a value of
the spec language.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from plait.core.errors import UserError
from plait.spec.errors import MAX_NESTING, SpecError, quoted
from plait.spec.header import parse_value

_MAX_DEPTH = 2 * MAX_NESTING + 4  # a group is a mapping within a list


def read_yaml(text: str) -> object:
    """The plain data in `text`."""
    import yaml

    events = yaml.parse(text, yaml.SafeLoader)
    try:
        data = _Builder(text, events).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise SpecError(f"not YAML: {error.problem}", text, line, column) from None
    except yaml.YAMLError as error:  # a character that YAML does not allow
        raise SpecError(f"not YAML: {quoted(str(error))}") from None
    return data


class _Builder:
    """Plain data from a stream of YAML events."""

    def __init__(self, text: str, events: Iterator[Any]) -> None:
        self.text = text
        self.events = events

    def document(self) -> object:
        import yaml

        data: object = None
        for count, start in enumerate(event for event in self.events if isinstance(event, yaml.DocumentStartEvent)):
            if count:
                raise self.error("a second document; one file holds one spec", start)
            data = self.node(next(self.events), depth=0)
        return data

    def node(self, event: Any, depth: int) -> object:
        import yaml

        if isinstance(event, yaml.AliasEvent):
            raise self.error("aliases (*name) are not allowed; use 'repeat'", event)
        if event.tag is not None:
            raise self.error(f"the tag {quoted(event.tag)} is not allowed", event)
        if depth > _MAX_DEPTH:
            raise self.error(f"nested more than {MAX_NESTING} levels deep", event)
        if isinstance(event, yaml.MappingStartEvent):
            return self.mapping(depth)
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[object] = []
            while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
                items.append(self.node(event, depth + 1))
            return items
        return self.scalar(event)

    def mapping(self, depth: int) -> dict[str, object]:
        import yaml

        data: dict[str, object] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                raise self.error("expected a key", event)
            if event.value in data:
                raise self.error(f"the key {quoted(event.value)} is given twice", event)
            data[event.value] = self.node(next(self.events), depth + 1)
        return data

    def scalar(self, event: Any) -> object:
        if event.style is not None:  # quoted: text, whatever it looks like
            return event.value
        try:
            return parse_value(event.value)
        except UserError as error:
            raise self.error(str(error), event) from None

    def error(self, message: str, event: Any) -> SpecError:
        return SpecError(message, self.text, event.start_mark.line + 1, event.start_mark.column + 1)
