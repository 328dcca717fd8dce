"""The error message if no candidate satisfies every constraint: which constraints reject random candidates, and which
candidates are nearest to feasible.

Letters: N candidates, G genes.
"""

from __future__ import annotations

from itertools import starmap

import numpy as np

from plait.algorithms.objectives import Evaluator
from plait.algorithms.search import keys_of
from plait.core.units import with_unit
from plait.device.quantities import on_device
from plait.space.constraints import failures
from plait.space.space import IN_BYTES

SAMPLED = 10_000  # random candidates that the constraints are tried on
NEAREST, NEAREST_ROUNDS = 2000, 12  # candidates per round and rounds of the search for near misses
SHOWN = 3


def explain(evaluator: Evaluator, rng: np.random.Generator) -> str:
    """Lines of an error message."""
    why = _failures(evaluator, rng)
    near = _nearest(evaluator, rng) if evaluator.cheap else []
    return "\n".join([why, *(["nearest to them:"] if near else []), *starmap(_near_miss, near)])


def _failures(evaluator: Evaluator, rng: np.random.Generator) -> str:
    """Why random candidates are infeasible, constraint by constraint."""
    space = evaluator.space
    genes_NG = space.sample(rng, SAMPLED)
    columns, feasible_N = evaluator.exact(genes_NG)
    passed = space.passed(genes_NG, columns)
    if space.needs() and (feasible_N.any() or evaluator.cheap):
        # An expensive objective is computed only for candidates that satisfy the other constraints.
        asked_N = np.ones_like(feasible_N) if evaluator.cheap else feasible_N
        chosen = {name: column[asked_N] for name, column in columns.items()}
        further, _ = evaluator.further(genes_NG[asked_N], chosen)
        for text, mask in space.passed(genes_NG[asked_N], further).items():
            if text not in passed:
                passed[text] = np.ones(SAMPLED, dtype=np.bool_)
                passed[text][asked_N] = mask
    return failures(passed, SAMPLED)


def _nearest(evaluator: Evaluator, rng: np.random.Generator) -> list[tuple[str, dict[str, float]]]:
    """The candidates closest to being feasible, and their values of the constrained quantities: random candidates,
    improved by a few rounds of mutation."""
    space = evaluator.space
    names = {name for constraint in space.candidate_constraints for name in constraint.names}
    genes_NG = space.sample(rng, NEAREST)
    for _ in range(NEAREST_ROUNDS):
        columns, _ = evaluator.further(genes_NG, evaluator.exact(genes_NG)[0])
        excess_N = space.excess(genes_NG, columns)
        _, first = np.unique(keys_of(genes_NG), return_index=True)
        best = first[np.argsort(excess_N[first], kind="stable")][: NEAREST // 10]
        kept_NG = genes_NG[best]
        genes_NG = np.concatenate([kept_NG, *(space.mutate(rng, kept_NG, 0.3) for _ in range(9))])
    shown = [row for row in best[:SHOWN] if np.isfinite(excess_N[row])]
    return [
        (
            space.spec(kept_NG[at]),
            {name: float(columns[name][row]) for name in sorted(names) if name in columns},
        )
        for at, row in enumerate(shown)
    ]


def _near_miss(spec: str, values: dict[str, float]) -> str:
    """One line of an error message: an infeasible candidate with its values of the constrained quantities."""
    predicted = {quantity.upper: quantity for quantity in on_device().values()}

    def text(name: str, value: float) -> str:
        if name in IN_BYTES:
            return with_unit(value, "MB", 3)
        if name in predicted:
            return predicted[name].shown(value)
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

    texts = [f"{name.removesuffix('_high')} {text(name, value)}" for name, value in values.items()]
    return f"  {', '.join(texts)}: {spec}" if texts else f"  {spec}"
