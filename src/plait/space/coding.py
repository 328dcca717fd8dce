"""Genes to spec text and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plait.core.errors import UserError
from plait.mixers.options import NOT_SHARED, MixerOptions
from plait.model.architecture import Architecture, architecture
from plait.space.declaration import NONE, Slot
from plait.spec import Spec

if TYPE_CHECKING:
    from plait.space.space import Space

Genes = NDArray[np.int16]


def check(space: str, slots: tuple[Slot, ...], kinds: set[str]) -> None:
    """What no choice of genes could put right."""
    if not slots:
        raise UserError(f"{space}: a layer needs at least one slot.")
    if len(slots) > 1 and None in slots[0].places:
        raise UserError(f"{space}: the first of several slots cannot be '{NONE}'; the others can.")
    for option in (option for slot in slots for option in slot.options):
        if option is None or option.kind != "sequence":
            continue
        for kind in kinds:
            if option.bidirectional != (kind == "encoder"):
                remedy = "it needs causal=false" if kind == "encoder" else "only kind=encoder looks ahead"
                raise UserError(f"{space}: {option.name} in models of kind={kind}: {remedy}.")


def option_names(option: MixerOptions | None) -> set[str]:
    """What constraints may call the numbers of a layer: `inner`, `mlp.inner`."""
    return set(option_values(option, ())) if option else set()


def option_values(option: MixerOptions | None, widths: tuple[int, ...]) -> dict[str, Any]:
    """The same with their values, one for each width; an inner width that is left to the mixer is worked out."""
    found: dict[str, Any] = {}
    for f in dataclasses.fields(option) if option else ():
        value = getattr(option, f.name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        assert option is not None
        worked_out = [option.inner_width(d) if f.name == "inner" else None for d in widths]
        values = np.array([value if width is None else width for width in worked_out])
        found[f.name] = found[f"{option.name.replace('-', '_')}.{f.name}"] = values
    return found


def text_of(space: Space, row_G: Genes) -> str:
    options_BS = row_G[1 + len(space.choices) :].reshape(space.deepest, len(space.slots))
    depth = space.depths[row_G[0]]
    chosen = [
        (slot, options_BS[0 if space.alike else b, s]) for b in range(depth) for s, slot in enumerate(space.slots)
    ]
    layers = [(option, slot.layers[k]) for slot, k in chosen if (option := slot.options[k]) is not None]
    if not layers:
        raise UserError(f"{space.name}: a candidate whose layers are all '{NONE}' is no architecture.")
    header, options = space.header(row_G), tuple(option for option, _ in layers)
    if any(option.share != NOT_SHARED for option in options):
        return Architecture(header, options).text  # which has names of its own for what is shared
    return Spec(header, tuple(layer for _, layer in layers if layer is not None)).text


def genes_of(space: Space, text: str) -> Genes:
    arch = architecture(text)
    row_G = np.zeros(space.genes, dtype=np.int16)
    for at, (key, values) in enumerate(space.choices.items()):
        wanted = getattr(arch.header, key)
        if wanted not in values:
            raise _outside(space, f"{key}={wanted} is not one of its {len(values)} values")
        row_G[1 + at] = values.index(wanted)
    ours = space.header(row_G)
    for f in dataclasses.fields(ours):
        if getattr(ours, f.name) != getattr(arch.header, f.name):
            raise _outside(
                space, f"its header has {f.name}={getattr(ours, f.name)}, not {getattr(arch.header, f.name)}"
            )
    layers = [option for option in arch.layers if option.name != "identity"]
    blocks = _blocks(space, layers)
    if len(blocks) not in space.depths:
        # Layers that may be nothing fill up to a depth there is.
        deeper = [depth for depth in space.depths if depth > len(blocks)]
        if None not in space.slots[0].places or not deeper:
            raise _outside(space, f"{len(blocks)} layers are not among {space.declared.layers}")
        blocks += [[space.slots[0].places[None]]] * (deeper[0] - len(blocks))
    if space.alike and any(block != blocks[0] for block in blocks):
        raise _outside(space, "its layers are all alike")
    row_G[0] = space.depths.index(len(blocks))
    flat = [place for block in (blocks[:1] if space.alike else blocks) for place in block]
    row_G[1 + len(space.choices) :][: len(flat)] = flat
    return row_G


def _with_names_of(space: Space, layers: list[MixerOptions]) -> Iterator[list[MixerOptions]]:
    """The layers with `share` names that the space has for their options, another name for each that they use: every
    way to name them. (An architecture's text calls them a, b, … in order of first use, whatever the space calls them.)
    """
    groups = list(dict.fromkeys(option for option in layers if option.share != NOT_SHARED))
    known = list(dict.fromkeys(option for slot in space.slots for option in slot.options if option is not None))
    same = [
        [one for one in known if dataclasses.replace(one, share=group.share) == group] or [group] for group in groups
    ]

    def distinct(taken: tuple[MixerOptions, ...]) -> Iterator[tuple[MixerOptions, ...]]:
        if len(taken) == len(same):
            yield taken
            return
        used = {(option.name, option.share) for option in taken}
        for option in same[len(taken)]:
            if (option.name, option.share) not in used:
                yield from distinct((*taken, option))

    for names in distinct(()):
        named = dict(zip(groups, names, strict=True))
        yield [named.get(option, option) for option in layers]


def _blocks(space: Space, layers: list[MixerOptions]) -> list[list[int]]:
    """Flat layers as rows of slots, under the first names of what they share that the space has there."""
    for named in _with_names_of(space, layers):
        with suppress(UserError):
            return _named_blocks(space, named)
    return _named_blocks(space, layers)  # which says what the space does not have


def _named_blocks(space: Space, layers: list[MixerOptions]) -> list[list[int]]:
    """Each layer goes to the next slot that has it, over slots that may be empty."""
    slots = space.slots
    blocks: list[list[int]] = []
    for option in layers:
        for fresh in (False, True):
            block = [] if fresh else blocks[-1] if blocks else [0] * len(slots)
            place = _next_place(slots, len(block), option)
            if place is not None:
                break
        if place is None:
            raise _outside(space, f"{option.to_layer()} is not one of its layers there")
        if fresh:
            _close(space, blocks)
            blocks.append([])
        blocks[-1] += [slots[s].places[None] for s in range(len(blocks[-1]), place)] + [slots[place].places[option]]
    _close(space, blocks)
    return blocks


def _next_place(slots: tuple[Slot, ...], at: int, option: MixerOptions) -> int | None:
    for place in range(at, len(slots)):
        if option in slots[place].places:
            return place
        if None not in slots[place].places:
            return None
    return None


def _close(space: Space, blocks: list[list[int]]) -> None:
    """The rest of the last layer's slots stay empty, where they may."""
    if not blocks:
        return
    for slot in space.slots[len(blocks[-1]) :]:
        if None not in slot.places:
            raise _outside(space, f"layer {len(blocks)} lacks one of {len(slot.options)} that must follow")
        blocks[-1].append(slot.places[None])


def _outside(space: Space, why: str) -> UserError:
    return UserError(f"this architecture lies outside the space {space.name}: {why}.")
