"""The spec language, read by recursive descent: `parse` reads a text, `load` a text or a file.

    d=512 vocab=50257 | (attn[heads=8] mlp)x12      # the header's keys, a bar, then layers and groups of layers

    spec    = [header "|"] body            header = { key "=" value }
    body    = "preset:" name | sequence    sequence = { layer | group | dialect }
    group   = ( "(" sequence ")" | parallel ) [ "x" count ]
    parallel = "(" layer { "|" layer } ")" [ options ]
    layer   = name [ options ]             options = "[" { key [ "=" value ] } "]"

Options are separated by commas or white space; a bare key means `=true`; `#` begins a comment; case does not matter.
The text of a published preset's name alone stands for that preset, and `vocab=32000 | preset:NAME` changes its header.
Names of layers are not checked here: the mixer table does that, with the columns kept in each layer.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from plait.core.errors import did_you_mean
from plait.spec.dialects import DIALECTS, read_dialect
from plait.spec.errors import MAX_JSON, MAX_LAYERS, MAX_TEXT, HeaderError, SpecError, Where, quoted
from plait.spec.header import NAME, Header, Value
from plait.spec.nodes import BAR, Layer, Spec, expand, total_size
from plait.spec.scanner import Node, Scanner, read_group, read_options, read_sequence

_COMMENT = re.compile(r"#[^\n]*")
_PRESET = re.compile(r"preset\s*:\s*(?=[A-Za-z])", re.IGNORECASE)
_AFTER_LAYER = re.compile(r"[\s)#\],|]|\Z")  # `]` and `,` end a layer that defines a dialect's letter

_SUFFIXES = (".json", ".yaml", ".yml", ".txt", ".plait")  # of spec files

HeaderValues = dict[str, tuple[Value, int]]  # key -> value, and where the key stands


def load(text_or_path: str | os.PathLike[str]) -> Spec:
    """A spec from a file (.json, .yaml, .yml, .txt, .plait), from JSON text, or from spec text."""
    given = os.fspath(text_or_path)
    if re.fullmatch(r"\S+\.py(:\w+)?", given):
        raise SpecError(
            f"{quoted(Path(given).name)} is a Python file, but a spec is needed here. Load your own mixer with "
            "--mixers, or in Python with `plait.load_mixer`, and use its name in a spec"
        )
    looks_like_file = given.lower().endswith(_SUFFIXES) and "|" not in given and "\n" not in given
    if isinstance(text_or_path, os.PathLike) or (looks_like_file and os.path.exists(given)):
        return _load_file(Path(given))
    if given.lstrip().startswith("{"):
        from plait.spec.serial import from_json

        return from_json(given)
    if looks_like_file and not any(character.isspace() for character in given):
        raise SpecError(f"there is no file {quoted(given)}")
    return parse(given)


def _load_file(path: Path) -> Spec:
    suffix = path.suffix.lower()
    if suffix not in _SUFFIXES:
        raise SpecError(f"{quoted(path.name)}: a spec file ends in {', '.join(_SUFFIXES)}")
    try:
        with path.open(encoding="utf-8-sig") as file:
            text = file.read(MAX_JSON + 1)  # no more than the readers would accept
    except UnicodeDecodeError:
        raise SpecError(f"{quoted(path.name)} is not UTF-8 text") from None
    except OSError as error:
        raise SpecError(f"cannot read {quoted(path.name)}: {error.strerror}") from None
    from plait.spec.serial import from_json, from_yaml

    reader = {".json": from_json, ".yaml": from_yaml, ".yml": from_yaml}.get(suffix, parse)
    return reader(text)


def parse(text: str) -> Spec:
    """The spec that `text` describes, or a `SpecError` that points at the place it cannot be read."""
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
    """Whether there is a bar outside parentheses, inside which it stands between the mixers of one layer."""
    depth = 0
    # Stretches between bars, of which hostile text has any number: those of the first layers decide.
    for stretch in _COMMENT.sub("", text).split(BAR, MAX_LAYERS)[:-1]:
        depth += sum(map(stretch.count, "([")) - sum(map(stretch.count, ")]"))
        if depth <= 0:
            return True
    return False


def _read_header(scan: Scanner) -> HeaderValues:
    """`key=value …|`, the cursor behind the bar afterwards."""
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
        # The key to change may be one that was left out; then the key that asks for it is shown.
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
        raise scan.error(f"expected white space after layer {quoted(name)}, found {scan.found()}")
    option_where = {key: scan.where(at) for key, at in places.items()}
    return scan.checked(start, lambda: Layer(name, options, scan.where(start), option_where))


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
        raise scan.error(f"unknown preset {quoted(name)}.{_nearest_preset(name)}", start)
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
    from plait.spec.presets import lookup  # here, so that reading plain text never loads the tables

    return lookup(name)


def _nearest_preset(name: str) -> str:
    from plait.spec.presets import names

    return did_you_mean(name, names())
