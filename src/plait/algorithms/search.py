"""What every search shares: its state, how it finds new candidates, how it stops and resumes.

Iteration i draws from a stream of its own, seeded by (seed, i), and everything else a search knows is a few arrays. So
a search that was interrupted after any iteration resumes from its checkpoint to the very same front.

Letters: N candidates, G genes, M objectives.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import starmap
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from plait.algorithms import front as checkpoint
from plait.algorithms.candidates import CandidateLog, Evaluated, Evaluator, Seen
from plait.algorithms.front import KIND, Front, search_record
from plait.algorithms.objectives import Objective
from plait.analysis.pareto import pareto_front
from plait.core.errors import UserError
from plait.core.units import with_unit
from plait.device.quantities import on_device
from plait.records import Record, Store, record_key
from plait.space.constraints import Constraint
from plait.space.space import IN_BYTES, Genes, Space

PROTOCOL = 2  # raised when the same settings come to give another front
TRIES = 24  # rounds of proposals before a search takes what it has
MOST_AT_ONCE = 1 << 16
FEW = 16  # candidates, the least to propose at once
STALE = 1 << 11  # proposals in a row that were all met before: there is nothing more to find this way

Propose = Callable[[int], Genes]


def _said(spec: str, values: dict[str, float]) -> str:
    """A candidate that misses constraints, and what it has of what is constrained."""
    known = {each.upper: each for each in on_device().values()}

    def text(name: str, value: float) -> str:
        if name in IN_BYTES:
            return with_unit(value, "MB", 3)
        return known[name].shown(value) if name in known else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

    said = [f"{name.removesuffix('_high')} {text(name, value)}" for name, value in values.items()]
    return f"  {', '.join(said)}: {spec}" if said else f"  {spec}"


class Search(ABC):
    """A subclass says how one iteration goes. The archive is the front over everything evaluated so far."""

    method: ClassVar[str]
    save_every: ClassVar[float] = 5.0  # seconds

    def __init__(
        self,
        space: Space,
        objectives: Sequence[Objective],
        *,
        iterations: int,
        seed: int = 0,
        constraints: Sequence[str | Constraint] = (),
        seq: int | None = None,
        memory: int | None = None,
    ) -> None:
        self.space = space.with_constraints(constraints) if constraints else space
        self.evaluator = Evaluator(self.space, objectives, seq, memory)
        self.iterations, self.seed = iterations, seed
        self.iteration, self.proposed, self.evaluated, self.seconds = 0, 0, 0, 0.0
        self.seen = Seen()
        self.archive = self.evaluator.nothing()
        self.log = CandidateLog([objective.name for objective in self.evaluator.objectives])
        self.exhausted = False  # no candidate is left that was not met before

    # ---- what a method is

    @classmethod
    def sizes(cls, iterations: int | None, population: int | None) -> dict[str, int]:
        """The arguments that stand for these two; None: what the method has published."""
        numbers = {"iterations": iterations, "population": population}
        return {name: number for name, number in numbers.items() if number is not None}

    @abstractmethod
    def step(self, rng: np.random.Generator) -> None:
        """One iteration."""

    def settings(self) -> dict[str, Any]:
        """The method's own numbers, for the record."""
        return {}

    def report(self) -> dict[str, Any]:
        """What the method has to say beside its front, as JSON."""
        return {}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The method's own state beyond the archive."""
        return {}

    def restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Take back what `arrays` gave; the archive is there already."""
        assert not arrays

    # ---- running

    def run(self, *, path: Path | None = None, on_step: Callable[[Search], object] | None = None) -> Front:
        """To the end, or on from the checkpoint at `path` where there is one."""
        if path is not None:
            self.resume(path)
        saved = time.monotonic()
        while self.iteration < self.iterations and not self.exhausted:
            start = time.perf_counter()
            self.step(np.random.default_rng([self.seed, self.iteration]))
            self.iteration += 1
            self.seconds += time.perf_counter() - start
            if on_step is not None:
                on_step(self)
            if path is not None and time.monotonic() - saved > self.save_every:
                self.save(path)
                saved = time.monotonic()
        if path is not None:
            self.save(path)
        return self.front()

    def front(self) -> Front:
        """What is best so far, by the first objective."""
        order = np.lexsort(self.archive.costs_NM.T[::-1])
        rows = [
            {"spec": self.space.spec(self.archive.genes_NG[i])}
            | {name: column[i].item() for name, column in self.archive.columns.items()}
            for i in order
        ]
        return Front(
            space=self.space.name,
            method=self.method,
            objectives=[objective.as_dict() for objective in self.evaluator.objectives],
            rows=rows,
            evaluated=self.evaluated,
            proposed=self.proposed,
            cost={"seconds": round(self.seconds, 3)},
        )

    # ---- finding candidates

    def collect(self, propose: Propose, want: int) -> Evaluated:
        """Up to `want` candidates that satisfy every constraint and were not met before; they count as met from now on.

        Constraints on exact quantities and the look-up of what was met come first: nothing is predicted or measured in
        vain.
        """
        found = self.evaluator.nothing()
        refused = Seen()  # by constraints on exact quantities, for as long as this goes on
        asked = predicted = stale = 0
        for _ in range(TRIES):
            missing = want - len(found)
            if not missing or len(self.seen) >= self.space.count:
                break
            # As many as are needed if the constraints go on refusing what they refused so far, and a few more.
            batch = missing * (asked + 1) // (len(found) + 1) + missing // 8 + FEW
            proposed_NG = propose(min(batch, MOST_AT_ONCE))
            asked += len(proposed_NG)
            self.proposed += len(proposed_NG)
            new_NG = proposed_NG[self.seen.new(proposed_NG)]
            new_NG = new_NG[refused.new(new_NG)]
            stale = 0 if len(new_NG) else stale + len(proposed_NG)
            if stale >= STALE:
                break
            columns, fine_N = self.evaluator.exact(new_NG)
            refused.add(new_NG[~fine_N])
            # Constraints about predictions refuse some, too; where those are dear, better one round more than one in
            # vain.
            enough = missing * (predicted + 1) // (len(found) + 1) if self.evaluator.cheap else missing
            kept = np.flatnonzero(fine_N)[:enough]
            genes_NG = new_NG[kept]
            predicted += len(kept)
            everything, fine_N = self.evaluator.further(genes_NG, {name: c[kept] for name, c in columns.items()})
            # What lies behind the last one needed counts as never met.
            last = np.flatnonzero(fine_N)[missing - 1] if fine_N.sum() >= missing else len(kept) - 1
            self.seen.add(genes_NG[: last + 1])
            fine_N[last + 1 :] = False
            found = found + self.evaluator.whole(genes_NG, everything)[fine_N]
        self.evaluated += len(found)
        self.log.add(found)
        return found

    def first(self, rng: np.random.Generator, want: int, propose: Propose | None = None) -> Evaluated:
        """Random candidates to begin with, or those that `propose` gives; a `UserError` that explains where there are
        none."""
        found = self.collect(propose or (lambda n: self.space.sample(rng, n)), want)
        if not len(found):
            rng = np.random.default_rng(self.seed)
            why = f"no candidate of {self.space.name} satisfies every constraint:\n{self.evaluator.explain(rng)}"
            near = self.evaluator.nearest(rng) if self.evaluator.cheap else []
            raise UserError("\n".join([why, *(["nearest to them:"] if near else []), *starmap(_said, near)]))
        return found

    def keep(self, found: Evaluated) -> NDArray[np.int64]:
        """Take candidates into the archive. Of those equal in every objective the first met stays.

        Returns where each candidate of the new archive came from: a place in the old one, or beyond its end.
        """
        both = self.archive + found
        stays = np.flatnonzero(pareto_front(both.costs_NM)) if len(both) else np.zeros(0, dtype=np.int64)
        _, first = np.unique(both.costs_NM[stays], axis=0, return_index=True)
        stays = stays[np.sort(first)]
        self.archive = both[stays]
        return stays

    # ---- remembering

    def config(self) -> dict[str, Any]:
        """All that decides the front, as JSON."""
        return {
            "protocol": PROTOCOL,
            "method": self.method,
            "space": self.space.declared.as_dict(),
            **self.space.identity(),
            "objectives": [objective.as_dict() for objective in self.evaluator.objectives],
            "seq": self.evaluator.seq,
            "memory": self.evaluator.memory,
            "iterations": self.iterations,
            "seed": self.seed,
            "settings": self.settings(),
        }

    @property
    def key(self) -> str:
        return record_key(KIND, self.config())

    def store(self, store: Store, started: float) -> Record:
        """The front and every candidate as a record; `started` is when, in seconds since 1970."""
        record = search_record(self, started)
        store.put(record)
        return record

    def save(self, path: Path) -> None:
        counts = {"iteration": self.iteration, "proposed": self.proposed, "evaluated": self.evaluated}
        arrays: dict[str, NDArray[Any]] = {
            "seen": self.seen.keys,
            "archive_genes": self.archive.genes_NG,
            "archive_costs": self.archive.costs_NM,
            **{f"column_{name}": column for name, column in self.archive.columns.items()},
            **{f"log_{name}": array for name, array in self.log.arrays().items()},
            **{f"own_{name}": array for name, array in self.arrays().items()},
        }
        progress = {**counts, "seconds": self.seconds, "exhausted": self.exhausted}
        checkpoint.save(path, arrays, {"config": self.config(), "progress": progress})

    def resume(self, path: Path) -> bool:
        """Go on from a checkpoint, if there is one; it must be of this very search, of however many iterations."""
        read = checkpoint.load(path)
        if read is None:
            return False
        arrays, settings = read
        theirs, ours = settings["config"], self.config()
        if different := [key for key in ours if key != "iterations" and theirs.get(key) != ours[key]]:
            raise UserError(f"{path} holds another search: its {', '.join(different)} differ; name another file.")
        for name, value in settings["progress"].items():
            setattr(self, name, value)
        self.seen = Seen(arrays["seen"])
        columns = {name: arrays[f"column_{name}"] for name in self.archive.columns}
        self.archive = Evaluated(arrays["archive_genes"], columns, arrays["archive_costs"])
        self.log.restore({name[4:]: array for name, array in arrays.items() if name.startswith("log_")})
        self.restore({name[4:]: array for name, array in arrays.items() if name.startswith("own_")})
        return True
