"""From the text of an architecture to its genes in a space."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from plait.core.errors import UserError
from plait.mixers.options import NOT_SHARED, MixerOptions
from plait.model.architecture import architecture
from plait.space.declaration import Slot

if TYPE_CHECKING:
    from plait.space.space import Space

Genes = NDArray[np.int16]


def genes_of(space: Space, text: str) -> Genes:
    """The genes of an architecture, not in canonical form; raises a `UserError` if it is outside the space."""
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
        # Padded with empty layers to the next depth, if layers may be empty.
        deeper = [depth for depth in space.depths if depth > len(blocks)]
        if None not in space.slots[0].index or not deeper:
            raise _outside(space, f"{len(blocks)} layers are not among {space.declared.layers}")
        blocks += [[space.slots[0].index[None]]] * (deeper[0] - len(blocks))
    if space.alike and any(block != blocks[0] for block in blocks):
        raise _outside(space, "its layers are all alike")
    row_G[0] = space.depths.index(len(blocks))
    flat = [k for block in (blocks[:1] if space.alike else blocks) for k in block]
    row_G[1 + len(space.choices) :][: len(flat)] = flat
    return row_G


def _with_share_names(space: Space, layers: list[MixerOptions]) -> Iterator[list[MixerOptions]]:
    """Every way to write the layers with the `share` names of the space, a different name for each group of layers.
    (The text of an architecture names its groups a, b, … in order of first use, whatever the space calls them.)
    """
    groups = list(dict.fromkeys(option for option in layers if option.share != NOT_SHARED))
    known = list(dict.fromkeys(option for slot in space.slots for option in slot.options if option is not None))
    matching = [
        [option for option in known if dataclasses.replace(option, share=group.share) == group] or [group]
        for group in groups
    ]

    def distinct(taken: tuple[MixerOptions, ...]) -> Iterator[tuple[MixerOptions, ...]]:
        if len(taken) == len(matching):
            yield taken
            return
        used = {(option.name, option.share) for option in taken}
        for option in matching[len(taken)]:
            if (option.name, option.share) not in used:
                yield from distinct((*taken, option))

    for names in distinct(()):
        named = dict(zip(groups, names, strict=True))
        yield [named.get(option, option) for option in layers]


def _blocks(space: Space, layers: list[MixerOptions]) -> list[list[int]]:
    """The option indices of each layer's slots, with the first `share` names that fit the space."""
    for named in _with_share_names(space, layers):
        with suppress(UserError):
            return _named_blocks(space, named)
    return _named_blocks(space, layers)  # raises an error that says what the space lacks


def _named_blocks(space: Space, layers: list[MixerOptions]) -> list[list[int]]:
    """Assign each mixer to the next slot that has it, skipping slots that may be empty."""
    slots = space.slots
    blocks: list[list[int]] = []
    for option in layers:
        for new_layer in (False, True):
            block = [] if new_layer else blocks[-1] if blocks else [0] * len(slots)
            slot = _next_slot(slots, len(block), option)
            if slot is not None:
                break
        if slot is None:
            raise _outside(space, f"{option.to_layer()} is not one of its layers there")
        if new_layer:
            _complete_layer(space, blocks)
            blocks.append([])
        blocks[-1] += [slots[s].index[None] for s in range(len(blocks[-1]), slot)] + [slots[slot].index[option]]
    _complete_layer(space, blocks)
    return blocks


def _next_slot(slots: tuple[Slot, ...], start: int, option: MixerOptions) -> int | None:
    for s in range(start, len(slots)):
        if option in slots[s].index:
            return s
        if None not in slots[s].index:
            return None
    return None


def _complete_layer(space: Space, blocks: list[list[int]]) -> None:
    """Leave the remaining slots of the last layer empty; a `UserError` if one of them may not be."""
    if not blocks:
        return
    for slot in space.slots[len(blocks[-1]) :]:
        if None not in slot.index:
            raise _outside(space, f"layer {len(blocks)} lacks one of {len(slot.options)} that must follow")
        blocks[-1].append(slot.index[None])


def _outside(space: Space, why: str) -> UserError:
    return UserError(f"this architecture is outside the space {space.name}: {why}.")
