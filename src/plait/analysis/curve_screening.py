"""Screenings as evidence in forecasts: short trainings of all candidates with a small batch, before the race.

Rankings change with the number of optimizer steps, because what decides in the end (above all, copying from the
context) is learnt late. With a sixteenth of the batch, all of the steps cost a sixteenth. Trained on text full of
copies, and scored by the loss of tokens that repeat the context, such a screening shows which candidates learn to copy,
and how well (`racing.screening` trains it). How well it predicts the final loss is estimated from architectures that
have both: the score is one more variable (column) next to the deviations at the library's budgets, with its own
covariances (`curve_posterior`), and every forecast is conditioned on the scores of the candidates.

    score = (asinh((ln loss − location) / unit) − mean) / scale

On some texts one architecture copies long before all others, so the losses have heavy tails; the spread of the others
varies fivefold between texts. Hence location and unit are robust (median and interquartile range of each text), and
asinh is linear in the middle and logarithmic in the tails. On a new text both are unknown and are estimated together
with the forecast, so only differences between candidates matter.

Letters: A architectures of the library, B its budgets, K = B + 1 columns, S step counts, T texts, C candidates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import numpy as np

from plait.analysis.curve_library import Known, Library
from plait.analysis.curve_posterior import LEVEL, ONE_TEXT, Covariances, alike, inverted, learn_covariances
from plait.analysis.pareto import Floats

WORTH = 0.7  # the prior correlates a screening with budgets as if at this fraction of a full training's tokens
UNITS = 1.0  # prior standard deviation of ln unit between texts; three texts have the units 0.055, 0.059 and 0.29
QUARTILES = 1.349  # the interquartile range of a normal distribution, in standard deviations
TEXT_SHARE = 0.5  # fraction of a score's variance that is specific to the text, assumed if the library has one text,
TEXT_TIE = 0.5  # and the factor on its covariance with the text-specific part of the losses


@dataclass(frozen=True)
class Screenings:
    """Screenings of a library's architectures, in its order. `loss_TAS`: ln loss, mean of `runs` seeds. `noise_S`: the
    variance of a score between seeds. `tokens_per_step`: of the full trainings in the library."""

    steps: list[int]
    loss_TAS: Floats
    noise_S: Floats
    runs: int
    tokens_per_step: int

    def at(self, steps: float) -> tuple[Floats, float]:
        """ln losses (T, A) and the variance of scores after so many steps, interpolated linearly in ln steps."""
        x_S, x = np.log(self.steps), math.log(min(max(steps, self.steps[0]), self.steps[-1]))
        weight_S = np.array([np.interp(x, x_S, row_S) for row_S in np.eye(len(x_S))])
        return self.loss_TAS @ weight_S, float(self.noise_S @ weight_S)

    def of(self, texts: Sequence[int], architectures: Sequence[int]) -> Screenings:
        return replace(self, loss_TAS=self.loss_TAS[np.ix_(texts, architectures)])


@dataclass(frozen=True)
class Scale:
    """The transformation of ln losses to scores, which have mean 0 and variance 1 over the architectures of a text."""

    location_T: Floats
    unit_T: Floats
    mean_T: Floats
    scale_T: Floats

    @classmethod
    def of(cls, loss_TA: Floats) -> Scale:
        low_T, location_T, high_T = np.quantile(loss_TA, [0.25, 0.5, 0.75], axis=1)
        unit_T = (high_T - low_T) / QUARTILES
        bent_TA = np.arcsinh((loss_TA - location_T[:, None]) / unit_T[:, None])
        return cls(location_T, unit_T, bent_TA.mean(axis=1), bent_TA.std(axis=1))

    def scores(self, loss_TA: Floats) -> Floats:
        bent_TA = np.arcsinh((loss_TA - self.location_T[:, None]) / self.unit_T[:, None])
        return np.asarray((bent_TA - self.mean_T[:, None]) / self.scale_T[:, None])


@dataclass(frozen=True)
class ScreenedLibrary(Library):
    """A library with the screening scores of its architectures as its last column."""

    screening_TA: Floats = field(default_factory=lambda: np.zeros((0, 0)))  # ln losses
    screening_noise: float = 0.0  # variance of a score between seeds
    screening_runs: int = 1
    screening_x: float = 0.0  # its position among budgets in the prior covariance, in ln tokens

    @classmethod
    def beside(cls, library: Library, screenings: Screenings, steps: float) -> ScreenedLibrary:
        """The library with screenings of so many steps; its covariances are estimated again."""
        loss_TA, noise = screenings.at(steps)
        shared = {attribute.name: getattr(library, attribute.name) for attribute in fields(Library)} | {"fitted": None}
        x = math.log(WORTH * screenings.tokens_per_step * min(steps, screenings.steps[-1]))
        return cls(**shared, screening_TA=loss_TA, screening_noise=noise, screening_runs=screenings.runs, screening_x=x)

    @cached_property
    def scale(self) -> Scale:
        return Scale.of(self.screening_TA)

    @property
    def columns_TAK(self) -> Floats:
        return np.concatenate([self.deviation_TAB, self.scale.scores(self.screening_TA)[:, :, None]], axis=2)

    @cached_property
    def seeds_KK(self) -> Floats:
        """Seed covariance of all columns. `learn_covariances` divides it by `runs`, so the screening's is rescaled."""
        seeds_KK = np.zeros((len(self.x_B) + 1,) * 2)
        seeds_KK[:-1, :-1] = self.seeds_BB
        seeds_KK[-1, -1] = self.screening_noise * self.runs / self.screening_runs
        return seeds_KK

    def without(self, names: Sequence[str], same_covariances: bool = False) -> ScreenedLibrary:
        keep = [i for i, name in enumerate(self.names) if name not in set(names)]
        rest = super().without(names, same_covariances)
        assert isinstance(rest, ScreenedLibrary)
        return replace(rest, screening_TA=self.screening_TA[:, keep])

    @cached_property
    def covariances(self) -> Covariances:
        """Over all columns: the budgets, and the screening score as the last."""
        if self.fitted is not None:
            return self.fitted
        x_K = np.append(self.x_B, self.screening_x)
        cov = learn_covariances(self.columns_TAK, self.standard(self.traits_AF), self.seeds_KK, self.runs, x_K)
        return cov if len(self.deviation_TAB) > 1 else _of_one_text(cov)

    @cached_property
    def inverse_NN(self) -> Floats:
        cov, standard_AF = self.covariances, self.standard(self.traits_AF)
        rest_KK = (cov.text_BB + self.seeds_KK / self.runs) / len(self.deviation_TAB)
        return inverted(alike(standard_AF, standard_AF), cov.alike_BB, 1 / cov.weight_A, cov.own_BB, rest_KK)

    @cached_property
    def slopes(self) -> tuple[float, float]:
        plain = {attribute.name: getattr(self, attribute.name) for attribute in fields(Library)}
        return Library(**plain | {"fitted": _budgets(self.covariances)}).slopes


def _budgets(cov: Covariances) -> Covariances:
    """The covariances over budgets alone, without the screening score."""
    return Covariances(cov.alike_BB[:-1, :-1], cov.own_BB[:-1, :-1], cov.text_BB[:-1, :-1], cov.weight_A)


def _of_one_text(cov: Covariances) -> Covariances:
    """The assumed text-specific covariance: for budgets as in `curve_posterior`, for the screening score larger."""
    whole_KK = (cov.alike_BB + cov.own_BB) / (1 - ONE_TEXT)
    width_B = np.sqrt(np.diag(whole_KK))[:-1]
    share_K = np.append(ONE_TEXT * width_B[-1] / width_B, TEXT_SHARE)
    tie_KK = np.ones_like(whole_KK)
    tie_KK[-1, :-1] = tie_KK[:-1, -1] = TEXT_TIE
    text_KK = whole_KK * np.sqrt(np.outer(share_K, share_K)) * tie_KK
    less_K = np.append(np.ones(len(width_B)), math.sqrt((1 - TEXT_SHARE) / (1 - ONE_TEXT)))
    less_KK = np.outer(less_K, less_K)
    return Covariances(cov.alike_BB * less_KK, cov.own_BB * less_KK, text_KK, cov.weight_A)


@dataclass(frozen=True)
class ScreenedKnown(Known):
    """`screened`: ln loss of the candidates' screenings, without those that diverged or were not screened."""

    screened: Mapping[str, float] = field(default_factory=dict)

    @property
    def tested(self) -> bool:
        return len(self.screened) > 1

    def _conditional(self, names: tuple[str, ...]) -> tuple[Floats, Floats]:
        """At the library's budgets, given the screening scores, whose common level on this text is unknown."""
        if names not in self._kept:
            mean_CK, cov_CKCK = self._columns(names)
            known = [c for c, name in enumerate(names) if name in self.screened]
            if len(known) > 1:
                mean_CK, cov_CKCK = self._given(mean_CK, cov_CKCK, known, [self.screened[names[c]] for c in known])
            self._kept[names] = mean_CK[:, :-1], cov_CKCK[:, :-1, :, :-1]
        return self._kept[names]

    def _given(
        self, mean_CK: Floats, cov_CKCK: Floats, known: Sequence[int], loss: Sequence[float]
    ) -> tuple[Floats, Floats]:
        columns = mean_CK.shape[1]
        mean, cov = mean_CK.reshape(-1), cov_CKCK.reshape(mean_CK.size, mean_CK.size)
        seen = np.array([c * columns + columns - 1 for c in known])
        within_CC = cov[np.ix_(seen, seen)] + self._library.screening_noise * np.eye(len(known))
        score_C = self._scores(np.array(loss), mean[seen], within_CC)
        gain = np.linalg.solve(within_CC + LEVEL, cov[seen]).T
        mean = mean + gain @ (score_C - mean[seen])
        cov = cov - gain @ cov[seen]
        return mean.reshape(mean_CK.shape), cov.reshape(cov_CKCK.shape)

    def _scores(self, loss_C: Floats, mean_C: Floats, cov_CC: Floats) -> Floats:
        """Scores, with the location and unit of this text that have the highest posterior density on a grid of G
        locations and H units, given the library's predictions of the scores and a log-normal prior for the unit."""
        scale, range_ = self._library.scale, float(np.ptp(loss_C))
        location_G = np.linspace(loss_C.min() - range_ / 2, loss_C.max() + range_ / 2, 81)
        deviate_H = np.linspace(-3, 3, 61)
        ln_unit_H = np.log(scale.unit_T).mean() + UNITS * deviate_H
        ratio_GHC = (loss_C - location_G[:, None, None]) / np.exp(ln_unit_H)[:, None]
        score_GHC = (np.arcsinh(ratio_GHC) - scale.mean_T.mean()) / scale.scale_T.mean()
        apart_GHC = score_GHC - mean_C
        fit_GH = np.einsum("ghc,cd,ghd->gh", apart_GHC, np.linalg.inv(cov_CC), apart_GHC, optimize=True)
        jacobian_GH = -len(loss_C) * ln_unit_H - 0.5 * np.log1p(ratio_GHC**2).sum(axis=2)
        best = np.argmax(jacobian_GH - 0.5 * (fit_GH + deviate_H**2))
        return np.asarray(score_GHC.reshape(-1, len(loss_C))[best])

    @property
    def _library(self) -> ScreenedLibrary:
        assert isinstance(self.library, ScreenedLibrary)
        return self.library
