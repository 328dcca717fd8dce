"""Specs as files, JSON and YAML.

    {"d": 512, "vocab": 50257, "layers": [{"repeat": 12, "layers": [{"mixer": "attn", "heads": 8}, {"mixer": "mlp"}]}]}

Nothing is guessed: unknown keys, wrong types, keys given twice and YAML aliases are refused, with the path to them.

YAML for specs is built from the parser's events: mappings, lists, and scalars with the meaning of the spec language.

The usual loaders follow aliases (a few lines can represent billions of nodes), let the last of two equal keys win, read
`1e-5` as text and `no` as false. Here aliases, tags and duplicate keys are refused, and a plain scalar is a value of
the spec language.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from plait.core.errors import UserError
from plait.spec.errors import MAX_JSON, MAX_LAYERS, MAX_NESTING, MAX_TEXT, HeaderError, SpecError, quoted
from plait.spec.header import Header, Value, check_value, parse_int, parse_value
from plait.spec.nodes import BAR, BRANCHES_KEY, RESERVED_KEY, Layer, Repeat, Spec, compress, expand, total_size
from plait.spec.notations import from_config, is_config

Json = dict[str, object]


def from_file(path: Path) -> Spec:
    """A spec from a file, read by its ending."""
    from plait.spec.parser import SUFFIXES, parse

    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise SpecError(f"{quoted(path.name)}: a spec file ends in {', '.join(SUFFIXES)}")
    try:
        with path.open(encoding="utf-8-sig") as file:
            text = file.read(MAX_JSON + 1)  # no more than the parsers would accept
    except UnicodeDecodeError:
        raise SpecError(f"{quoted(path.name)} is not UTF-8 text") from None
    except OSError as error:
        raise SpecError(f"cannot read {quoted(path.name)}: {error.strerror}") from None
    reader = {".json": from_json, ".yaml": from_yaml, ".yml": from_yaml}.get(suffix, parse)
    return reader(text)


def to_dict(spec: Spec) -> Json:
    """The spec as plain data: the header's keys, then the layers with runs as `repeat`."""
    by_text = {layer.text: layer for layer in spec.layers}
    layers = _nodes_to_data(compress([layer.text for layer in spec.layers]), by_text)
    return {**{key: _plain(value) for key, value in spec.header.given().items()}, "layers": layers}


def from_dict(data: object) -> Spec:
    """The spec that plain data describes; the inverse of `to_dict`."""
    if isinstance(data, list) and data and all(isinstance(word, str) for word in data):
        data = {"layer_types": data}
    if not isinstance(data, Mapping):
        raise SpecError(f"expected a mapping with header keys and 'layers', got {type(data).__name__}")
    values = _string_keys(data, "")
    if is_config(values):
        try:
            return from_dict(from_config(values))
        except SpecError:
            raise
        except UserError as error:
            raise SpecError(f"configuration: {error}") from None
    if "layers" not in values:
        raise SpecError("'layers' is missing")
    nodes = _read_nodes(values.pop("layers"), "layers", _Budget())
    size = total_size(nodes)
    if size > MAX_LAYERS:
        raise SpecError(f"the spec has {size:,} layers; at most {MAX_LAYERS:,} are allowed", path="layers")
    try:
        header = Header.from_values(values)
    except HeaderError as error:
        raise SpecError(error.message, path=next((key for key in error.keys if key in values), "header")) from None
    return Spec(header, tuple(expand(nodes)))


def to_json(spec: Spec) -> str:
    return json.dumps(to_dict(spec), indent=2) + "\n"


def from_json(text: str) -> Spec:
    _check_length(text, MAX_JSON)
    try:
        data = json.loads(
            text, parse_int=parse_int, parse_constant=_refuse_constant, object_pairs_hook=_refuse_duplicates
        )
    except json.JSONDecodeError as error:
        raise SpecError(f"not JSON: {error.msg}", text, error.lineno, error.colno) from None
    except RecursionError:
        raise SpecError(f"nested more than {MAX_NESTING} levels deep") from None
    except SpecError:
        raise
    except UserError as error:  # from parse_int, which does not know the position
        raise SpecError(str(error)) from None
    return _with_source(from_dict(data), text)


def to_yaml(spec: Spec) -> str:
    import yaml

    text: str = yaml.safe_dump(to_dict(spec), sort_keys=False, default_flow_style=None, width=120)
    return text


def from_yaml(text: str) -> Spec:
    _check_length(text, MAX_TEXT)
    return _with_source(from_dict(read_yaml(text)), text)


class _Budget:
    """How many more layers may be read: a few objects can refer to one of them any number of times."""

    def __init__(self) -> None:
        self.left = MAX_LAYERS

    def spend(self, path: str) -> None:
        self.left -= 1
        if self.left < 0:
            raise SpecError(f"more than {MAX_LAYERS:,} layers", path=path)


def _read_nodes(data: object, path: str, budget: _Budget, depth: int = 0) -> tuple[Layer | Repeat[Layer], ...]:
    if not isinstance(data, list | tuple) or not data:
        raise SpecError("expected a list with at least one layer", path=path)
    if depth > MAX_NESTING:
        raise SpecError(f"nested more than {MAX_NESTING} levels deep", path="layers")
    return tuple(_read_node(item, f"{path}[{index}]", budget, depth) for index, item in enumerate(data))


def _read_node(data: object, path: str, budget: _Budget, depth: int) -> Layer | Repeat[Layer]:
    if not isinstance(data, Mapping):
        raise SpecError(f"expected {{'{RESERVED_KEY}': …}} or {{'repeat': …, 'layers': …}}", path=path)
    values = _string_keys(data, path)
    if RESERVED_KEY in values or BRANCHES_KEY in values:
        budget.spend(path)
        return _read_layer(values, path, budget)
    if set(values) != {"repeat", "layers"}:
        keys = ", ".join(map(quoted, values)) or "none"
        raise SpecError(
            f"expected '{RESERVED_KEY}' with options, or just 'repeat' and 'layers'; the keys are {keys}", path=path
        )
    count = _value(values["repeat"], f"{path}.repeat")
    if type(count) is not int or count < 1:
        raise SpecError("must be a whole number of at least 1", path=f"{path}.repeat")
    return Repeat(_read_nodes(values["layers"], f"{path}.layers", budget, depth + 1), count)


def _read_layer(values: Json, path: str, budget: _Budget) -> Layer:
    branches: tuple[Layer, ...] = ()
    if RESERVED_KEY in values:
        name = values.pop(RESERVED_KEY)
        if not isinstance(name, str):
            raise SpecError("must be the name of a mixer", path=f"{path}.{RESERVED_KEY}")
    else:
        branches = _read_branches(values.pop(BRANCHES_KEY), f"{path}.{BRANCHES_KEY}", budget)
        name = BAR.join(branch.name for branch in branches)
    options = tuple((key, _value(value, f"{path}.{key}")) for key, value in values.items())
    try:
        return Layer(name, options, branches=branches)
    except UserError as error:
        raise SpecError(str(error), path=path) from None


def _read_branches(data: object, path: str, budget: _Budget) -> tuple[Layer, ...]:
    if not isinstance(data, list | tuple) or len(data) < 2:
        raise SpecError("expected a list of at least two mixers", path=path)
    branches = []
    for index, item in enumerate(data):
        if not isinstance(item, Mapping) or RESERVED_KEY not in item:
            raise SpecError(f"expected {{'{RESERVED_KEY}': …}}", path=f"{path}[{index}]")
        budget.spend(path)
        branches.append(_read_layer(_string_keys(item, path), f"{path}[{index}]", budget))
    return tuple(branches)


def _value(data: object, path: str) -> Value:
    try:
        return check_value(data)
    except UserError as error:
        raise SpecError(str(error), path=path) from None


def _string_keys(data: Mapping[object, object], path: str) -> Json:
    for key in data:
        if not isinstance(key, str):
            raise SpecError(f"the key {quoted(repr(key))} is not text", path=path or None)
    return {str(key): value for key, value in data.items()}


def _nodes_to_data(nodes: Iterable[str | Repeat[str]], by_text: Mapping[str, Layer]) -> list[Json]:
    data: list[Json] = []
    for node in nodes:
        if isinstance(node, Repeat):
            data.append({"repeat": node.count, "layers": _nodes_to_data(node.items, by_text)})
        else:
            data.append(_layer_to_data(by_text[node]))
    return data


def _layer_to_data(layer: Layer) -> Json:
    what: Json = {RESERVED_KEY: layer.name}
    if layer.branches:
        what = {BRANCHES_KEY: [_layer_to_data(branch) for branch in layer.branches]}
    return {**what, **{key: _plain(value) for key, value in layer.options}}


def _plain(value: Value) -> object:
    return list(value) if isinstance(value, tuple) else value


def _check_length(text: str, limit: int) -> None:
    if len(text) > limit:
        raise SpecError(f"the text has {len(text):,} characters; at most {limit:,} are allowed")


def _with_source(spec: Spec, text: str) -> Spec:
    return Spec(spec.header, spec.layers, text)


def _refuse_constant(name: str) -> object:
    raise SpecError(f"{name} is not a value: a number must be finite")


def _refuse_duplicates(pairs: list[tuple[str, object]]) -> Json:
    data = dict(pairs)
    if len(data) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise SpecError(f"the key {quoted(twice)} is given twice")
    return data


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
        if event.style is not None:  # quoted scalars are always text
            return event.value
        try:
            return parse_value(event.value)
        except UserError as error:
            raise self.error(str(error), event) from None

    def error(self, message: str, event: Any) -> SpecError:
        return SpecError(message, self.text, event.start_mark.line + 1, event.start_mark.column + 1)
