"""Limits that nothing in a space can hold here are refused before minutes of profiling, with what is attainable.

The model with the fewest FLOPs is measured. It need not be the fastest, so a limit is refused only where it is far
beyond; where it is near, the profile decides.
"""

from __future__ import annotations

from plait.algorithms.evolution import LtsSearch
from plait.algorithms.exhaustive import FEW, Exhaustive
from plait.algorithms.objectives import exact
from plait.algorithms.search import Search
from plait.core.errors import UserError
from plait.core.progress import OnProgress, ignore
from plait.device.measurements import Measurements, values
from plait.device.quantities import quantity
from plait.records import Store
from plait.searching.job import Request

FAR = 1.5  # times the limit
ROUNDS = 10


def smallest(request: Request) -> str:
    """The spec of the model with the fewest FLOPs that the search has among what the exact constraints leave."""
    space = request.without_predictions()
    common = {"seed": request.seed, "seq": request.setting.seq}
    search: Search
    if space.count <= FEW:
        search = Exhaustive(space, exact(["min:flops"]), **common)
    else:
        search = LtsSearch(space, exact(["min:flops"]), iterations=ROUNDS, **common)
    return str(search.run().rows[0]["spec"])


def check_attainable(request: Request, store: Store, on_progress: OnProgress = ignore) -> None:
    """Raise a `UserError` where the smallest model, measured, is far above a limit."""
    if not request.limits.on_device:
        return
    on_progress("measuring the smallest model", 0, None)
    spec = smallest(request)
    with Measurements(store, request.setting) as known:
        found = values(known.measure(spec))
    beyond = {name: limit for name, limit in request.limits.on_device.items() if found.get(name, 0.0) > FAR * limit}
    if beyond:
        asked = " and ".join(f"{name} {quantity(name).text(limit)}" for name, limit in beyond.items())
        there = " and ".join(f"{quantity(name).shown(value)} {name}" for name, value in found.items())
        where = f"{request.setting.seq} tokens, batch {request.setting.batch}, {request.setting.device}"
        raise UserError(
            f"nothing in {request.space.name} can hold {asked} here: its model with the fewest FLOPs takes {there} "
            f"({where}): {spec}\nGive limits above these, fewer tokens (--seq), or a smaller space, such as "
            "--space small-hybrid."
        )
