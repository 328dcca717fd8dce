"""Where a supernet has choices: every layer and slot of a space that leaves open nothing else."""

from __future__ import annotations

from plait.core.errors import UserError
from plait.space.space import Space

MOST_CHOICES = 64  # of a layer


def layer_choices(space: Space) -> list[list[int]]:
    """For every layer and slot in order, the places of the slot's options that may stand there."""
    varied = {key: values for key, values in space.choices.items() if len(values) > 1}
    if space.alike:
        raise UserError(f"{space.name}: all its layers are alike, and gumbel chooses layer by layer.")
    if len(space.depths) > 1 and None not in space.slots[0].places:
        varied = {"layers": space.depths, **varied}
    if varied:
        fix = " ".join(f"--fix {key}={values[-1]}" for key, values in varied.items())
        raise UserError(
            f"{space.name}: gumbel chooses layers of one network, but {', '.join(varied)} may vary; such as {fix}."
        )
    of_slot = [space.allowed.options(slot, 0) for slot in range(len(space.slots))]
    if max(map(len, of_slot)) > MOST_CHOICES:
        raise UserError(
            f"{space.name}: a layer has {max(map(len, of_slot))} choices, and a supernet holds all of them; "
            f"at most {MOST_CHOICES}: name fewer values in a space of your own."
        )
    return of_slot * space.depths[-1]
