"""The base class of search algorithms: state, proposing and evaluating candidates, checkpoints.

Iteration i has its own random stream, seeded by (seed, i), and the rest of the state is a few arrays. So a search that
is interrupted after any iteration resumes from its checkpoint and finds exactly the same front.

Letters: N candidates, G genes, M objectives.
"""

from __future__ import annotations

import json
import time
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from plait.algorithms.front import KIND, CandidateLog, Front, search_record
from plait.algorithms.objectives import Evaluated, Evaluator, Objective
from plait.analysis.pareto import pareto_front
from plait.core.errors import UserError
from plait.core.files import atomic_write, loads, writing
from plait.records import Record, Store, record_key
from plait.space.constraints import Constraint
from plait.space.space import Genes, Space

PROTOCOL = 2  # increased when the same settings give another front
TRIES = 24  # rounds of proposals before a search accepts fewer candidates than it wants
MAX_BATCH = 1 << 16  # candidates proposed at a time
MIN_BATCH = 16
STALE = 1 << 11  # consecutive proposals that were all seen before: the search has nothing left to find

Propose = Callable[[int], Genes]
Keys = NDArray[np.uint64]

_FACTORS = np.random.default_rng(0x706C616974).integers(2**63, size=4096, dtype=np.uint64) * 2 + 1


def keys_of(genes_NG: Genes) -> Keys:
    """A hash per row: the sum of its genes times a random odd factor per position, modulo 2^64."""
    factors_G = np.resize(_FACTORS, genes_NG.shape[1])
    total_N = np.zeros(len(genes_NG), dtype=np.uint64)
    for g, factor in enumerate(factors_G):
        total_N += (genes_NG[:, g].astype(np.uint64) + 1) * factor
    return total_N


class Seen:
    """The candidates evaluated so far, as 64-bit hashes of their genes: ten million fit in memory. (If two candidates
    collide, with a probability of about 2^-64, the search misses one of them.)"""

    def __init__(self, keys: Keys | None = None) -> None:
        self.keys = np.zeros(0, dtype=np.uint64) if keys is None else keys  # sorted

    def __len__(self) -> int:
        return len(self.keys)

    def new(self, genes_NG: Genes) -> NDArray[np.int64]:
        """Indices of the rows that are not in the set, without duplicates, in order."""
        keys_N = keys_of(genes_NG)
        _, first = np.unique(keys_N, return_index=True)
        first.sort()
        keys = keys_N[first]
        if not len(self.keys):
            return first
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.asarray(first[self.keys[at] != keys])

    def add(self, new_NG: Genes) -> None:
        """Add rows that `new` returned."""
        both = np.concatenate([self.keys, np.sort(keys_of(new_NG))])
        self.keys = np.sort(both, kind="stable")  # a merge in one pass: both parts are sorted


class Search(ABC):
    """A subclass defines one iteration. The archive is the Pareto front of everything evaluated so far."""

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
        self.exhausted = False  # every candidate has been evaluated

    # ---- defined by each method

    @classmethod
    def sizes(cls, iterations: int | None, population: int | None) -> dict[str, int]:
        """The method's arguments for a number of iterations and a population size; None: its published value."""
        numbers = {"iterations": iterations, "population": population}
        return {name: number for name, number in numbers.items() if number is not None}

    @abstractmethod
    def step(self, rng: np.random.Generator) -> None:
        """One iteration."""

    def settings(self) -> Mapping[str, Any]:
        """The method's hyperparameters, for the record."""
        return {}

    def report(self) -> dict[str, object]:
        """Further results of the method besides its front, as JSON."""
        return {}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The method's state for a checkpoint, beyond the archive."""
        return {}

    def restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Restore the state that `arrays` returned; the archive is restored already."""
        assert not arrays

    # ---- running

    def run(self, *, path: Path | None = None, on_step: Callable[[Search], object] | None = None) -> Front:
        """Run all iterations, resuming from the checkpoint at `path` if there is one. It is saved there every
        `save_every` seconds."""
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
        return self.front()

    def front(self) -> Front:
        """The Pareto front so far, sorted by the first objective."""
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
        """Up to `want` feasible candidates that have not been seen before, evaluated and marked as seen.

        Duplicates and candidates that violate a constraint on exact quantities are dropped before anything is
        predicted or measured.
        """
        accepted = self.evaluator.nothing()
        rejected = Seen()  # by constraints on exact quantities, during this call
        proposed = predicted = stale = 0
        for _ in range(TRIES):
            missing = want - len(accepted)
            if not missing or len(self.seen) >= self.space.count:
                break
            # As many as are needed at the acceptance rate so far, and a few more.
            batch = missing * (proposed + 1) // (len(accepted) + 1) + missing // 8 + MIN_BATCH
            proposed_NG = propose(min(batch, MAX_BATCH))
            proposed += len(proposed_NG)
            self.proposed += len(proposed_NG)
            new_NG = proposed_NG[self.seen.new(proposed_NG)]
            new_NG = new_NG[rejected.new(new_NG)]
            stale = 0 if len(new_NG) else stale + len(proposed_NG)
            if stale >= STALE:
                break
            columns, feasible_N = self.evaluator.exact(new_NG)
            rejected.add(new_NG[~feasible_N])
            # Constraints on predictions reject some more. If objectives are expensive, another round costs less than
            # evaluating too many.
            enough = missing * (predicted + 1) // (len(accepted) + 1) if self.evaluator.cheap else missing
            kept = np.flatnonzero(feasible_N)[:enough]
            genes_NG = new_NG[kept]
            predicted += len(kept)
            columns, feasible_N = self.evaluator.further(genes_NG, {name: c[kept] for name, c in columns.items()})
            # Candidates after the last one needed do not count as seen.
            last = np.flatnonzero(feasible_N)[missing - 1] if feasible_N.sum() >= missing else len(kept) - 1
            self.seen.add(genes_NG[: last + 1])
            feasible_N[last + 1 :] = False
            accepted = accepted + self.evaluator.evaluated(genes_NG, columns)[feasible_N]
        self.evaluated += len(accepted)
        self.log.add(accepted)
        return accepted

    def first(self, rng: np.random.Generator, want: int, propose: Propose | None = None) -> Evaluated:
        """The initial candidates, random or from `propose`; raises a `UserError` that says why if none is feasible."""
        candidates = self.collect(propose or (lambda n: self.space.sample(rng, n)), want)
        if not len(candidates):
            from plait.algorithms.infeasible import explain

            rng = np.random.default_rng(self.seed)
            raise UserError(
                f"no candidate of {self.space.name} satisfies every constraint:\n{explain(self.evaluator, rng)}"
            )
        return candidates

    def keep(self, candidates: Evaluated) -> NDArray[np.int64]:
        """Add candidates to the archive and drop dominated ones. Of equals in every objective the first one stays.

        Returns the index of each candidate of the new archive in the old archive followed by `candidates`.
        """
        both = self.archive + candidates
        kept = np.flatnonzero(pareto_front(both.costs_NM)) if len(both) else np.zeros(0, dtype=np.int64)
        _, first = np.unique(both.costs_NM[kept], axis=0, return_index=True)
        kept = kept[np.sort(first)]
        self.archive = both[kept]
        return kept

    # ---- records and checkpoints

    def config(self) -> dict[str, object]:
        """Everything that determines the front, as JSON."""
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
        """Store the front and every candidate as a record; `started` is a Unix time."""
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
        write_checkpoint(path, arrays, {"config": self.config(), "progress": progress})

    def resume(self, path: Path) -> bool:
        """Restore a checkpoint, if there is one; it must be of the same search, except for the number of iterations."""
        read = read_checkpoint(path)
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


_SETTINGS = "settings"


def write_checkpoint(path: Path, arrays: Mapping[str, NDArray[Any]], settings: Mapping[str, Any]) -> None:
    """Write arrays, and settings as JSON, to one .npz file, atomically."""
    everything: dict[str, Any] = {_SETTINGS: np.array(json.dumps(settings, sort_keys=True)), **arrays}
    with writing(path, "the unfinished search "):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as draft, draft.open("wb") as file:  # NumPy would append .npz to a path
            np.savez(file, **everything)


def read_checkpoint(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]] | None:
    """Arrays and settings; None if there is no such file, or it is not a checkpoint."""
    try:
        with np.load(path, allow_pickle=False) as opened:
            arrays = {name: opened[name] for name in opened.files}
        return arrays, loads(str(arrays.pop(_SETTINGS)), constants=True)
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile):
        return None
