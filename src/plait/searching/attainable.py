"""Early check of limits: limits that no model of the space can meet are rejected before minutes of profiling.

The model with the fewest FLOPs is measured. It need not be the fastest, so limits are rejected only if it exceeds them
by far; otherwise the profile decides.
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
SMALL = "small-hybrid"  # the space to suggest


def smallest(request: Request) -> str:
    """The spec of the model with the fewest FLOPs that satisfies the exact constraints."""
    space = request.without_predictions()
    common = {"seed": request.seed, "seq": request.setting.seq}
    search: Search
    if space.count <= FEW:
        search = Exhaustive(space, exact(["min:flops"]), **common)
    else:
        search = LtsSearch(space, exact(["min:flops"]), iterations=ROUNDS, **common)
    return str(search.run().rows[0]["spec"])


def check_attainable(request: Request, store: Store, on_progress: OnProgress = ignore) -> None:
    """Raise a `UserError` if even the smallest model, measured, is far above a limit."""
    if not request.limits.on_device:
        return
    on_progress("measuring the smallest model", 0, None)
    spec = smallest(request)
    with Measurements(store, request.setting) as known:
        measured = values(known.measure(spec))
    exceeded = {name: limit for name, limit in request.limits.on_device.items() if measured.get(name, 0) > FAR * limit}
    if exceeded:
        wanted = " and ".join(f"{name} {quantity(name).text(limit)}" for name, limit in exceeded.items())
        attained = " and ".join(f"{quantity(name).shown(value)} {name}" for name, value in measured.items())
        where = f"{request.setting.seq} tokens, batch {request.setting.batch}, {request.setting.device}"
        smaller = "" if request.space.name == SMALL else f", or a smaller space (--space {SMALL})"
        raise UserError(
            f"nothing in {request.space.name} can meet {wanted} here: its model with the fewest FLOPs takes {attained} "
            f"({where}): {spec}\nGive limits above these, fewer tokens (--seq){smaller}."
        )
