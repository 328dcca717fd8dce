"""What complete learning curves of other architectures, or of the same ones on other texts, say about a candidate.

A candidate that has been trained to a tenth of the target shows its first losses; what it learns late (copying from the
context, above all) shows in none of them. But architectures that are built alike learn alike. A library holds complete
curves, as deviations from their text's mean curve, and each architecture's traits (numbers that say how it is built).
A candidate's deviation from the common curve is then expected to be

    h_a(x) = Σ_f φ_f(a) w_f(x) + u_a(x)

with one curve w_f for every trait (standardised, φ), and u_a for what the architecture has on every text: known to the
library where it holds that very architecture, else part of what is unknown. All are normal, with covariances of the
same form as the candidates' own (`curve_process`), `trait` and `kin` times as wide; so is what the library tells: a
mean and a covariance (`Known.prior`).

Letters: A architectures of the library, B its budgets, F traits, C candidates, U budgets asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from plait.analysis.curve_table import CurveTable
from plait.analysis.pareto import Floats
from plait.core.errors import UserError

Kernel = Callable[[Floats, Floats], Floats]


@dataclass(frozen=True)
class Library:
    """`deviation_AB`: ln loss less its text's mean over architectures, a mean over `texts` and over `runs` in all.
    `traits_AF`: not standardised."""

    names: list[str]
    traits_AF: Floats
    budgets: list[float]
    deviation_AB: Floats
    texts: int
    runs: int

    @cached_property
    def center(self) -> tuple[Floats, Floats]:
        return self.traits_AF.mean(axis=0), np.maximum(1e-9, self.traits_AF.std(axis=0))

    def standard(self, traits_CF: Floats) -> Floats:
        """Traits that do not vary in the library tell nothing."""
        middle_F, width_F = self.center
        return np.where(width_F > 1e-6, (traits_CF - middle_F) / width_F, 0.0)

    def without(self, names: Sequence[str]) -> Library:
        keep = [i for i, name in enumerate(self.names) if name not in set(names)]
        kept = [self.names[i] for i in keep]
        return Library(kept, self.traits_AF[keep], self.budgets, self.deviation_AB[keep], self.texts, self.runs)


def library(tables: Sequence[CurveTable], traits: Mapping[str, Sequence[float]]) -> Library:
    """Of the architectures and budgets that all tables have."""
    names = [name for name in tables[0].names if all(name in table.names for table in tables) and name in traits]
    budgets = [b for b in tables[0].budgets if all(b in table.budgets for table in tables)]
    if len(names) < 2 or not budgets:
        raise UserError("a library of curves needs two architectures with traits, and a budget that all texts have.")
    parts = []
    for table in tables:
        rows, columns = [table.names.index(name) for name in names], [table.budgets.index(b) for b in budgets]
        log_AB = np.log(table.loss_ASB).mean(axis=1)[np.ix_(rows, columns)]
        parts.append(log_AB - log_AB.mean(axis=0))
    runs = sum(table.loss_ASB.shape[1] for table in tables)
    traits_AF = np.array([traits[name] for name in names], np.float64)
    return Library(names, traits_AF, budgets, np.mean(parts, axis=0), len(tables), runs)


@dataclass(frozen=True)
class Known:
    """A library, and the candidates' place in it: their traits, and which of its architectures each is, if any."""

    library: Library
    traits: Mapping[str, Sequence[float]]
    same: Mapping[str, str]

    @property
    def origin(self) -> float:
        """ln tokens from which x counts."""
        return float(np.log(min(self.library.budgets)))

    def prior(
        self, names: Sequence[str], x_U: Floats, kernel: Kernel, noise: float, trait: float, kin: float
    ) -> tuple[Floats, Floats]:
        """Mean (C, U) and covariance (C, U, C, U) of what the candidates' deviations have from the library."""
        from scipy.linalg import cho_solve, cholesky

        lib = self.library
        x_B = np.log(lib.budgets) - self.origin
        phi_AF = lib.standard(lib.traits_AF)
        middle = list(lib.center[0])
        phi_CF = lib.standard(np.array([self.traits.get(name, middle) for name in names], np.float64))
        same_CA = np.array([[float(self.same.get(name) == other) for other in lib.names] for name in names])
        same_CC = np.eye(len(names))
        scale = trait**2 / phi_AF.shape[1]
        k_BB, k_UB, k_UU = kernel(x_B, x_B), kernel(x_U, x_B), kernel(x_U, x_U)
        own_BB = k_BB / lib.texts + noise**2 / lib.runs * np.eye(len(x_B))
        alike_AA = scale * phi_AF @ phi_AF.T + kin**2 * np.eye(len(lib.names))
        cov_AA = np.kron(alike_AA, k_BB) + np.kron(np.eye(len(lib.names)), own_BB)
        alike_CA = scale * phi_CF @ phi_AF.T + kin**2 * same_CA
        alike_CC = scale * phi_CF @ phi_CF.T + kin**2 * same_CC
        across = np.kron(alike_CA, k_UB)
        root = cholesky(cov_AA, lower=True)
        gained = cho_solve((root, True), np.column_stack([lib.deviation_AB.reshape(-1), across.T]))
        mean_CU = (across @ gained[:, 0]).reshape(len(names), len(x_U))
        cov = np.kron(alike_CC, k_UU) - across @ gained[:, 1:]
        return mean_CU, cov.reshape(len(names), len(x_U), len(names), len(x_U))
