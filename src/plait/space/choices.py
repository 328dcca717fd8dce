"""What may be chosen, written short: `2|4|8`, `128..512 step 64`, `attn[heads=2|4|8,pos=none]`.

A pattern of a layer is a layer of the spec language in which any option may list several values; `*` stands for the
values that the mixer itself declares worth trying. `none` is no layer at all.
"""

from __future__ import annotations

import dataclasses
import itertools
import re

from plait.core.errors import UserError
from plait.mixers.options import MixerOptions
from plait.mixers.table import options_of
from plait.spec import Layer
from plait.spec.nodes import option_key
from plait.spec.values import Value, format_value, parse_value

MOST = 20_000  # values of one gene; genes are 16-bit numbers
NONE = "none"

_RANGE = re.compile(r"(-?\d[\d_]*)\s*\.\.\s*(-?\d[\d_]*)(?:\s+step\s+(\d[\d_]*))?")
_LAYER = re.compile(r"([A-Za-z][\w.-]*)\s*(?:\[(.*)\])?", re.DOTALL)


def values_of(text: str) -> tuple[Value, ...]:
    """`2|4|8`, `128..512 step 64` (both ends in), or both joined: `64|128..512 step 128`."""
    found: list[Value] = []
    for part in text.split("|"):
        span = _RANGE.fullmatch(part.strip())
        if span is None:
            found.append(parse_value(part.strip()))
            continue
        low, high, step = int(span[1]), int(span[2]), int(span[3] or 1)
        if step < 1 or high < low:
            raise UserError(f"'{part.strip()}' holds no number: write LOW..HIGH or LOW..HIGH step N with N above 0.")
        if (high - low) // step >= MOST:
            raise UserError(
                f"'{part.strip()}' holds {(high - low) // step + 1:,} values; at most {MOST:,} are allowed."
            )
        found += range(low, high + 1, step)
    if len({format_value(value) for value in found}) < len(found):
        raise UserError(f"'{text}' names a value twice.")
    return tuple(found)


def numbers_of(text: str) -> tuple[int, ...]:
    """The same, whole numbers only."""
    found = values_of(text)
    if wrong := [value for value in found if isinstance(value, bool) or not isinstance(value, int)]:
        raise UserError(f"'{text}' should be whole numbers, such as 4..12 or 2|4|8; found {wrong[0]!r}.")
    return tuple(value for value in found if isinstance(value, int))


def layers_of(pattern: str) -> tuple[MixerOptions | None, ...]:
    """Every layer that a pattern stands for, in order; None where it says `none`."""
    text = pattern.strip()
    if text == NONE:
        return (None,)
    read = _LAYER.fullmatch(text)
    if read is None:
        raise UserError(f"'{text}' is not a layer such as attn, attn[heads=2|4|8] or none.")
    name, inside = read[1], read[2] or ""
    bare = options_of(Layer(name))
    choices: dict[str, tuple[Value, ...]] = {}
    for item in filter(None, (part.strip() for part in inside.split(","))):
        key, equals, given = (piece.strip() for piece in item.partition("="))
        key = option_key(name, key)
        choices[key] = _declared(bare, key) if given == "*" else values_of(given) if equals else (True,)
    made = (Layer.of(name, **dict(zip(choices, row, strict=True))) for row in itertools.product(*choices.values()))
    found = tuple(dict.fromkeys(options_of(layer) for layer in itertools.islice(made, MOST + 1)))
    if len(found) > MOST:
        raise UserError(f"'{text}' stands for more than {MOST:,} layers; give fewer values.")
    # `identity` is the spec language's way to write nothing.
    return tuple(None if options.name == "identity" else options for options in found)


def _declared(bare: MixerOptions, key: str) -> tuple[Value, ...]:
    declared = {f.name: f.metadata["choices"] for f in dataclasses.fields(bare)}
    if not declared.get(key):
        listing = ", ".join(name for name, values in declared.items() if values) or "none"
        raise UserError(f"{bare.name} declares no values to try for '{key}'; it does for: {listing}.")
    return tuple(declared[key])


def split_list(text: str) -> list[str]:
    """The items of `[a[b,c], d]` or `a[b,c], d`: commas inside brackets do not separate."""
    text = text.strip()
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1]
    items, depth, start = [], 0, 0
    for at, character in enumerate(text):
        depth += (character in "[(") - (character in ")]")
        if depth < 0:
            raise UserError(f"'{text}' closes a bracket that was not opened.")
        if character == "," and not depth:
            items.append(text[start:at])
            start = at + 1
    if depth:
        raise UserError(f"'{text}' has a bracket that is never closed.")
    return [item for item in (part.strip().strip("\"'") for part in [*items, text[start:]]) if item]
