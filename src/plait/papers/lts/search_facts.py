"""LiteTransformerSearch's spaces and evolutionary loop, and what every search engine shares (arXiv:2203.02094)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from plait.algorithms.front import Candidates, Front
from plait.algorithms.search import Search
from plait.analysis.pareto import pareto_front
from plait.core.errors import UserError
from plait.device.quantities import Setting
from plait.model.cost import model_cost
from plait.papers.lts.presets import rows
from plait.papers.verify import FactTable
from plait.records import Store, open_store
from plait.searching.job import METHODS, Request, search_front
from plait.space.declaration import Declaration
from plait.space.space import Space
from plait.space.table import load_space

facts = FactTable()


@contextmanager
def _scratch() -> Iterator[tuple[Store, Path]]:
    with TemporaryDirectory(prefix="plait-verify-") as folder, open_store(f"sqlite:///{folder}/runs.db") as store:
        yield store, Path(folder)


@facts.fact("L08", "search spaces: 152,064 homogeneous OPT points; the published models are points of theirs")
def spaces() -> tuple[str, str, bool]:
    """Every printed model's width, heads, inner widths and depth are among what its space may choose."""
    opt, inside, ranges = load_space("lts-opt"), [], {}
    for backbone in ("gpt2", "xl", "opt"):
        space = load_space(f"lts-{backbone}")
        heads, inner = ({getattr(o, name) for o in slot.options} for name, slot in
                        zip(("heads", "inner"), space.slots, strict=True))  # fmt: skip
        ranges[backbone] = (min(space.widths), max(space.widths), min(inner), max(inner), sorted(heads),
                            (space.depths[0], space.depths[-1]), space.genes)  # fmt: skip
        chosen = [row for row in rows() if row.backbone == backbone and not row.earlier]
        within = [
            row.d in space.widths and {*row.heads} <= heads and {*row.inner} <= inner and len(row.heads) in space.depths
            for row in chosen
        ]
        inside.append(f"{sum(within)} of {len(chosen)}")
    # The paper's ranges; OPT's M17 is 1480 wide, off the paper's own grid (E03).
    expected = {
        "gpt2": (128, 960, 128, 4032, [2, 4, 8], (2, 15), 33),
        "xl": (128, 960, 128, 4032, [2, 4, 8], (2, 16), 35),
        "opt": (512, 1472, 512, 6080, [2, 4, 8, 16], (3, 29), 4),
    }
    good = opt.count == 152_064 and ranges == expected
    ours = f"{opt.count:,} points; models inside: GPT-2 {inside[0]}, Transformer-XL {inside[1]}, OPT {inside[2]}"
    published = "152,064 points; models inside: GPT-2 122 of 122, Transformer-XL 114 of 114, OPT 20 of 21"
    return published, ours, good and ours == published


@facts.fact(
    "L09", "evolutionary search: 30 iterations; population 100 = 20 parents + 40 mutated (p = 0.3) + 40 crossed"
)
def evolution() -> tuple[str, str, bool]:
    """The search that a user gets without a word about it, run to its end on exact quantities."""
    space = load_space("lts-gpt2")
    search: Any = Request(space, Setting(), objectives=["decoder_params", "flops"], method="lts").search(None)
    grown: list[int] = []
    parents: set[int] = set()
    choose = search._choose_parents

    def chosen(rng: np.random.Generator) -> Any:
        parents.add(len(picked := choose(rng)))
        return picked

    search._choose_parents = chosen
    search.run(on_step=lambda now: grown.append(now.evaluated))
    per_iteration = np.diff(grown).tolist()
    shares = [search.settings()[name] for name in ("parents", "mutants", "crossovers")]
    changed, crossed = _gene_shares(space, search.settings()["mutation"])
    ours = (
        f"{len(per_iteration)} iterations of {set(per_iteration)} after {grown[0]}, {parents} parents, {shares}; "
        f"redrawn {changed:.2f}, crossed {crossed:.2f}"
    )
    published = "30 iterations of {80} after 100, {20} parents, [20, 40, 40]; redrawn 0.30, crossed 0.50"
    return published, ours, ours == published


def _gene_shares(space: Space, mutation: float) -> tuple[float, float]:
    """Of a width's gene: how often it is drawn again, and how often it comes from the first of two parents."""
    rng, n = np.random.default_rng(0), 20_000
    parent, other = space.sample(rng, 2)
    while parent[1] == other[1]:
        other = space.sample(rng, 1)[0]
    ones, others = (np.repeat(genes[None], n, axis=0) for genes in (parent, other))
    kinds = len(space.widths)  # a fresh draw is the old value once in so many
    changed = float((space.mutate(rng, ones, mutation)[:, 1] != parent[1]).mean()) * kinds / (kinds - 1)
    return changed, float((space.crossover(rng, ones, others)[:, 1] == parent[1]).mean())


@facts.fact("L10", "every sampled architecture is stored, with its objectives, for later ground truth: 2,500 of 2,500")
def stored() -> tuple[str, str, bool]:
    """Read back from the record, and three of them costed again from their specs."""
    with _scratch() as (store, folder):
        request = Request(load_space("lts-gpt2"), Setting(), objectives=["decoder_params", "flops"], method="lts")
        record = search_front(request, None, store, folder)
        kept = Candidates.of(record.config, record.result)
        candidates = list(kept.rows())
    specs = {row["spec"] for row in candidates}
    again = sum(model_cost(row["spec"]).decoder_params == row["decoder_params"] for row in candidates[::1000])
    on_front = {row["spec"] for row in record.result["front"]} <= specs
    ours = (
        f"{len(kept):,} of {kept.evaluated:,}, {len(specs):,} different, the front among them: {on_front}; {again} of 3"
    )
    return (
        "2,500 of 2,500, 2,500 different, the front among them: True; 3 of 3",
        ours,
        ours == ("2,500 of 2,500, 2,500 different, the front among them: True; 3 of 3"),
    )


@facts.fact("E09", "1200 architectures are said to be sampled; 30 iterations of 80 sample 2,400", erratum=True)
def sampled() -> tuple[str, str, bool]:
    search = Request(load_space("lts-xl"), Setting(), objectives=["decoder_params"], method="lts").search(None)
    settings, iterations = search.settings(), search.iterations - 1
    new = settings["mutants"] + settings["crossovers"]
    ours = f"{iterations} × {new} = {iterations * new:,}, {settings['start'] + iterations * new:,} with the start"
    half = iterations * settings["mutants"]
    return "1200", f"{ours}; 1200 are 30 × 40", iterations * new != 1200 == half


TINY = Declaration("tiny", "3", "16", [["attn[heads=2]", "mlp[inner=32]", "none"]], "vocab=256", seq=16)


@facts.fact("C04", "search engines are interchangeable on one objective API: same result, same resume")
def engines() -> tuple[str, str, bool]:
    """Every method on one space and two objectives: its front is one, is stored once, and survives an interruption."""
    good = []
    methods = [method for method in METHODS if method != "exhaustive"]  # which takes every candidate: no engine
    for method in methods:
        with _scratch() as (store, folder):
            request = _request(method, folder)
            record = search_front(request, None, store, folder)
            front, again = Front.from_dict(record.result), search_front(request, None, store, folder)
            signs = np.array([-1 if objective["maximise"] else 1 for objective in front.objectives])
            names = [objective["objective"] for objective in front.objectives]
            values = np.column_stack([front.column(name) for name in names]) * signs
            resumed = _stopped_and_resumed(request, folder / "stopped.npz")
            good.append(
                again.key == record.key
                and front.method == method
                and bool(pareto_front(values).all())
                and list(resumed.specs) == list(front.specs)
            )
    ours = f"{sum(good)} of {len(good)} methods ({', '.join(methods)})"
    return "5 of 5 methods (lts, nsga2, nsga3, random, gumbel)", ours, all(good) and len(good) == 5


def _request(method: str, cache: Path) -> Request:
    if method == "gumbel":
        from plait.data import open_corpus
        from plait.supernet.settings import Settings, SupernetJob
        from plait.training.recipe import Recipe

        corpus = open_corpus("builtin:language", cache=cache)
        job = SupernetJob(
            corpus, Recipe(batch=8, seq_len=16, lr=1e-2), Settings(steps=10, top=2, patience=1.0), seeds=2
        )
        space = Space(TINY.with_vocabulary(corpus.vocab))
        return Request(space, Setting(seq=16), objectives=["loss", "flops"], method=method, supernet=job)
    objectives = ["decoder_params", "flops"]
    return Request(Space(TINY), Setting(seq=16), objectives=objectives, method=method, iterations=3, population=4)


def _stopped_and_resumed(request: Request, path: Path) -> Front:
    """A search that is stopped after its first step, and one that goes on from what it left."""

    def stop(search: Search) -> None:
        search.save(path)
        raise UserError("stopped")

    with suppress(UserError):
        request.search(None).run(path=path, on_step=stop)
    return request.search(None).run(path=path)
