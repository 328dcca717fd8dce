"""From a search to probed architectures in one store: stopped anywhere, gone on with, nothing computed twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from plait.device.setting import Setting
from plait.model.architecture import architecture
from plait.papers.verify import FactTable
from plait.records import Record, about, open_store
from plait.searching.job import Request, search_front
from plait.space.declaration import Declaration
from plait.space.space import Space

if TYPE_CHECKING:
    from plait.probing.trial import Cell

facts = FactTable()

SPACE = Declaration("tiny", "1", "32", [["attn[heads=2]", "gla[heads=2]"], ["swiglu[inner=32]"]], "vocab=16", seq=16)


@facts.fact("M42", "design, probe, compare as one workflow: resumable, results keyed by the architecture")
def one_workflow() -> tuple[str, str, bool]:
    """A search's front is probed; one training is stopped half way and gone on with; the store answers ever after."""
    from plait.probing.candidates import candidates
    from plait.probing.plan import with_seeds
    from plait.probing.protocol import quick
    from plait.probing.run import Machine, compare, run_all
    from plait.probing.trial import KIND, result

    protocol = quick(["in-context-recall"])
    setting = protocol.settings[0]
    short = replace(setting.training, steps=6, eval_every=6, evaluation=8, grid=setting.training.grid[:1])
    protocol = replace(protocol, settings=(replace(setting, training=short),))
    request = Request(Space(SPACE), Setting(seq=16), objectives=["flops", "kv_cache"], method="random",
                      iterations=1, population=2)  # fmt: skip
    with TemporaryDirectory(prefix="plait-verify-") as folder, open_store(f"sqlite:///{folder}/runs.db") as store:
        front = search_front(request, None, store, Path(folder)).result["front"]
        specs = [row["spec"] for row in front]
        work = with_seeds(candidates(specs, protocol), protocol, [1], "cpu")
        whole = [result(cell, _trained(cell)) for cell in work.cells]
        stopped = result(work.cells[0], _trained(work.cells[0], Path(folder) / "stopped.pt"))
        for cell, found in zip(work.cells, whole, strict=True):
            store.put(Record.of(KIND, cell.config, found, about(0.0, 0.0)))
        outcome = run_all(work, store, Machine("cpu", 1), lambda progress: None)
        comparison = compare(outcome)
    same = _without_seconds(stopped) == _without_seconds(whole[0])
    hashes = {architecture(spec).hash for spec in specs}
    keys = {cell.key for cell in work.cells}
    ours = f"{len(hashes)} found, {len(keys)} keys, resumed the same: {same}, {outcome.fresh} trained again, " + (
        f"{len(comparison.names)} compared"
    )
    told = "2 found, 2 keys, resumed the same: True, 0 trained again, 2 compared"
    return told, ours, ours == told


def _trained(cell: Cell, stop_at: Path | None = None) -> Sequence[Any]:
    """A training to its end; with a path it is saved half way and gone on with by another object."""
    from plait.training import checkpoint

    fleet = cell.fleet()
    if stop_at is not None:
        fleet.run(until=3)
        checkpoint.save(stop_at, fleet.state())
        fleet, saved = cell.fleet(), checkpoint.load(stop_at)
        assert saved is not None
        fleet.restore(saved)
    fleet.run(until=fleet.plan.steps)
    return fleet.records


def _without_seconds(found: Any) -> Any:
    """Results but for what the clock says."""
    if isinstance(found, dict):
        return {key: _without_seconds(value) for key, value in found.items() if "second" not in key}
    return [_without_seconds(one) for one in found] if isinstance(found, list) else found
