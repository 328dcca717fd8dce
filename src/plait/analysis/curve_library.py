"""A prior for the learning curves of candidates, from a library of complete curves of other architectures and texts.

The losses of a candidate that was trained to a tenth of the target do not show what it will learn late (above all,
copying from the context). But similar architectures have similar learning curves. A library holds complete curves, as
deviations from the mean curve of their text, and the traits of each architecture (numbers that describe it). How
deviations vary with budget, traits, architecture and text is estimated from it (`curve_posterior`). Conditioning that
model on the library gives the mean and covariance of a candidate's deviations on a new text (`Known.prior`). Between
the library's budgets, curves are interpolated linearly in ln tokens. Beyond them, the last deviation is extended by a
random slope, with the standard deviation that slopes have at that end of the library, which decays to 0.

Letters: A architectures of the library, B its budgets, F traits, T texts, C candidates, U budgets asked for, N = A·B.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from plait.analysis.curve_posterior import Covariances, alike, inverted, learn_covariances, seed_covariance
from plait.analysis.curve_process import integrated
from plait.analysis.curve_table import CurveTable
from plait.analysis.pareto import Floats
from plait.core.errors import UserError

FADES = 1.0  # correlation length of slopes beyond the library's budgets, in ln tokens
COMMON = 0.0006  # variance, per unit of ln tokens, of a new text's mean curve (ln loss) about the library's
OUTSIDE = 0.5  # how far a candidate's trait may be outside the library's range, in standard deviations


@dataclass(frozen=True)
class Library:
    """Complete learning curves. `curve_TB`: the mean curve of each text, ln loss averaged over architectures.
    `deviation_TAB`: ln loss, averaged over `runs` seeds, minus the mean curve of its text. `seeds_BB`: the covariance
    between seeds. `traits_AF`: not standardised. `fitted`: covariances estimated earlier. `width`: the calibration
    factor of forecasts, see `Known.width`. `texts`: the names of the texts."""

    names: list[str]
    traits_AF: Floats
    budgets: list[float]
    deviation_TAB: Floats
    curve_TB: Floats
    seeds_BB: Floats
    runs: int
    fitted: Covariances | None = None
    width: float = 1.0
    texts: Sequence[str] = ()

    @cached_property
    def x_B(self) -> Floats:
        return np.log(self.budgets)

    @property
    def columns_TAK(self) -> Floats:
        """The variables that `covariances` describes: here the deviations at the budgets."""
        return self.deviation_TAB

    @cached_property
    def center(self) -> tuple[Floats, Floats]:
        return self.traits_AF.mean(axis=0), np.maximum(1e-9, self.traits_AF.std(axis=0))

    def standard(self, traits_CF: Floats) -> Floats:
        """Standardised traits; those that do not vary within the library are set to 0."""
        middle_F, width_F = self.center
        return np.where(width_F > 1e-6, (traits_CF - middle_F) / width_F, 0.0)

    def without(self, names: Sequence[str], same_covariances: bool = False) -> Library:
        """The library without these architectures. Its covariances are estimated again, or kept (`same_covariances`),
        as usual in leave-one-out cross-validation of Gaussian processes (Rasmussen and Williams 2006, sec. 5.4.2)."""
        keep = [i for i, name in enumerate(self.names) if name not in set(names)]
        kept_TAB = self.deviation_TAB[:, keep]
        mean_TB = kept_TAB.mean(axis=1)
        whole = self.covariances if same_covariances else None
        return replace(
            self,
            names=[self.names[i] for i in keep],
            traits_AF=self.traits_AF[keep],
            deviation_TAB=kept_TAB - mean_TB[:, None],
            curve_TB=self.curve_TB + mean_TB,
            fitted=whole and replace(whole, weight_A=whole.weight_A[keep]),
            width=1.0,
        )

    @cached_property
    def covariances(self) -> Covariances:
        if self.fitted is not None:
            return self.fitted
        standard_AF = self.standard(self.traits_AF)
        return learn_covariances(self.deviation_TAB, standard_AF, self.seeds_BB, self.runs, self.x_B)

    @cached_property
    def inverse_NN(self) -> Floats:
        """The inverse of the covariance of all deviations, averaged over texts."""
        cov, texts = self.covariances, len(self.deviation_TAB)
        standard_AF = self.standard(self.traits_AF)
        rest_BB = (cov.text_BB + self.seeds_BB / self.runs) / texts
        return inverted(alike(standard_AF, standard_AF), cov.alike_BB, 1 / cov.weight_A, cov.own_BB, rest_BB)

    @cached_property
    def slopes(self) -> tuple[float, float]:
        """Standard deviation of a deviation's slope in ln tokens, between the first two and the last two budgets."""
        cov = self.covariances
        whole_BB = cov.alike_BB + cov.own_BB + cov.text_BB

        def slope(a: int, b: int) -> float:
            apart = whole_BB[a, a] + whole_BB[b, b] - 2 * whole_BB[a, b]
            return float(np.sqrt(apart)) / abs(float(self.x_B[a] - self.x_B[b]))

        return (slope(0, 1), slope(-1, -2)) if len(self.x_B) > 1 else (0.1, 0.1)

    def between(self, x_U: Floats) -> Floats:
        """Weights (U, B) of linear interpolation between the budgets, constant beyond them."""
        return np.stack([np.interp(x_U, self.x_B, row_B) for row_B in np.eye(len(self.x_B))], axis=1)

    def mean_curve(self, x_U: Floats, text: str = "") -> Floats:
        """The mean curve of one text, or of all if the text is not in the library; extended linearly at both ends."""
        if len(self.x_B) == 1:
            return np.zeros_like(x_U)
        curve_B = self.curve_TB[self.texts.index(text)] if text in self.texts else self.curve_TB.mean(axis=0)
        inside_U = np.clip(x_U, self.x_B[0], self.x_B[-1])
        first, last = np.diff(curve_B)[[0, -1]] / np.diff(self.x_B)[[0, -1]]
        apart_U = x_U - inside_U
        return np.asarray(np.interp(inside_U, self.x_B, curve_B) + np.where(apart_U < 0, first, last) * apart_U)

    @property
    def mean_error_BB(self) -> Floats:
        """The sampling covariance of a text's mean curve, as an estimate of the mean over all architectures."""
        cov = self.covariances
        whole_BB = cov.alike_BB + cov.own_BB + cov.text_BB
        return (whole_BB[: len(self.x_B), : len(self.x_B)] + self.seeds_BB / self.runs) / len(self.names)


def library(tables: Sequence[CurveTable], traits: Mapping[str, Sequence[float]]) -> Library:
    """A library of the architectures and budgets that all tables have in common."""
    names = [name for name in tables[0].names if all(name in table.names for table in tables) and name in traits]
    budgets = [b for b in tables[0].budgets if all(b in table.budgets for table in tables)]
    if len(names) < 2 or not budgets:
        raise UserError("a library of curves needs two architectures with traits, and a budget that all texts have.")
    losses = []
    for table in tables:
        rows, columns = [table.names.index(name) for name in names], [table.budgets.index(b) for b in budgets]
        losses.append(table.loss_ASB[rows][:, :, columns])
    runs = min(loss_ASB.shape[1] for loss_ASB in losses)
    loss_TASB = np.stack([loss_ASB[:, :runs] for loss_ASB in losses])
    log_TAB = np.log(loss_TASB).mean(axis=2)
    traits_AF = np.array([traits[name] for name in names], np.float64)
    deviation_TAB = log_TAB - log_TAB.mean(axis=1, keepdims=True)
    seeds_BB = seed_covariance(loss_TASB, np.log(budgets))
    texts = [table.text for table in tables]
    return Library(names, traits_AF, budgets, deviation_TAB, log_TAB.mean(axis=1), seeds_BB, runs, texts=texts)


@dataclass(frozen=True)
class Known:
    """A library and its relation to the candidates: `traits` by candidate; `same`, the library's architecture that a
    candidate is, if any; `text`, the name of the text they are trained on, which may be one of the library's."""

    library: Library
    traits: Mapping[str, Sequence[float]]
    same: Mapping[str, str]
    text: str = ""

    @property
    def tested(self) -> bool:
        """Whether all candidates were screened on this text (`curve_screening`)."""
        return False

    def speaks_of(self, names: Sequence[str]) -> bool:
        """Whether the library applies: most of the candidates are in it or have traits within its range. It does not
        extrapolate: a library of models of four and eight blocks made forecasts of two-block models worse."""
        lib = self.library
        low_F, high_F = (end(lib.standard(lib.traits_AF), axis=0) for end in (np.min, np.max))
        inside = []
        for name in names:
            traits_F = lib.standard(np.array([self.traits.get(name, lib.center[0])], np.float64))[0]
            within = (traits_F > low_F - OUTSIDE) & (traits_F < high_F + OUTSIDE)
            inside.append(self.same.get(name) in lib.names or bool(within.all()))
        return 2 * sum(inside) > len(inside)

    def width(self, names: Sequence[str]) -> float:
        """The factor by which to scale the standard deviations of the candidates' deviations. It was calibrated on
        architectures that were left out of the library, so it is used if the library applies but contains fewer than
        half of the candidates, else it is 1: for known architectures on a new text, two texts are too few to tell."""
        held = sum(self.same.get(name) in self.library.names for name in names)
        return self.library.width if self.speaks_of(names) and 2 * held < len(names) else 1.0

    def mean_curve(self, x_U: Floats) -> Floats:
        return self.library.mean_curve(x_U, self.text)

    def common(self, x_U: Floats) -> Floats:
        """The covariance (U, U) of the error of `mean_curve`, apart from its level. For a text of the library it is the
        sampling error of the mean over architectures. The mean curve of a new text deviates from the library's as
        Brownian motion, with a variance estimated from three texts; 1/T is for the library's mean over T texts."""
        lib = self.library
        if self.text in lib.texts:
            at_UB = lib.between(x_U)
            return np.asarray(at_UB @ lib.mean_error_BB @ at_UB.T + self._beyond(x_U))
        until_U = x_U - x_U.min()
        wandered_UU = COMMON * (1 + 1 / len(lib.deviation_TAB)) * np.minimum(until_U[:, None], until_U[None])
        return np.asarray(wandered_UU + self._beyond(x_U))

    def prior(self, names: Sequence[str], x_U: Floats) -> tuple[Floats, Floats]:
        """Mean (C, U) and covariance (C, U, C, U) of candidates' deviations at x = ln tokens, given the library."""
        mean_CB, cov_CBCB = self._conditional(tuple(names))
        at_UB = self.library.between(x_U)
        cov_CUCU = np.einsum("ui,aibj,vj->aubv", at_UB, cov_CBCB, at_UB, optimize=True)
        everybody = np.arange(len(names))
        cov_CUCU[everybody, :, everybody] += self._beyond(x_U)
        return mean_CB @ at_UB.T, cov_CUCU

    @cached_property
    def _kept(self) -> dict[tuple[str, ...], tuple[Floats, Floats]]:
        return {}

    def _conditional(self, names: tuple[str, ...]) -> tuple[Floats, Floats]:
        """`prior` at the library's budgets: (C, B), (C, B, C, B)."""
        if names not in self._kept:
            self._kept[names] = self._columns(names)
        return self._kept[names]

    def _columns(self, names: tuple[str, ...]) -> tuple[Floats, Floats]:
        """The conditional mean and covariance of all K columns of the library: (C, K), (C, K, C, K)."""
        lib, learnt = self.library, self.library.covariances
        count, middle = len(names), list(lib.center[0])
        phi_CF = lib.standard(np.array([self.traits.get(name, middle) for name in names], np.float64))
        same_CA = np.array([[float(self.same.get(name) == other) for other in lib.names] for name in names])
        wide_C = np.where(same_CA.any(axis=1), same_CA @ (1 / learnt.weight_A), 1.0)
        phi_AF = lib.standard(lib.traits_AF)
        across = np.kron(alike(phi_CF, phi_AF), learnt.alike_BB) + np.kron(same_CA / learnt.weight_A, learnt.own_BB)
        cov = np.kron(alike(phi_CF, phi_CF), learnt.alike_BB) + np.kron(np.diag(wide_C), learnt.own_BB)
        cov += np.kron(np.eye(count), learnt.text_BB) - across @ lib.inverse_NN @ across.T
        mean = across @ lib.inverse_NN @ lib.columns_TAK.mean(axis=0).reshape(-1)
        columns = lib.columns_TAK.shape[2]
        return mean.reshape(count, columns), np.asarray(cov, np.float64).reshape(count, columns, count, columns)

    def _beyond(self, x_U: Floats) -> Floats:
        """The covariance (U, U) that the random slopes outside of the library's budgets add to a deviation."""
        lib = self.library
        ends = (
            (np.maximum(0.0, lib.x_B[0] - x_U), lib.slopes[0]),
            (np.maximum(0.0, x_U - lib.x_B[-1]), lib.slopes[1]),
        )
        return np.asarray(sum(slope**2 * integrated(away_U[:, None], away_U[None], FADES) for away_U, slope in ends))
