"""Scaling laws from any trainer's runs (`plait.scale.fit`), and checks in addition to a fit: whether probes predict it
(`probe`), and the effect of a growing batch on it (`pitfall`)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.core.errors import UserError
from plait.core.files import write_text
from plait.core.result import Result
from plait.model.architecture import load_mixers
from plait.records import Store
from plait.records.store import opened_store

if TYPE_CHECKING:
    from plait.analysis.probe_scale import Trend
    from plait.analysis.scaling_laws import Laws
    from plait.analysis.table import Table
    from plait.scaling.run import StoredRuns
    from plait.scaling.stored import Probed


DRAWS = 1000


@dataclass(frozen=True)
class ScalingFit(Result):
    """`laws`: the fitted laws; `document`: the same as JSON."""

    laws: Laws = field(repr=False)
    file: str

    @cached_property
    def document(self) -> dict[str, Any]:
        from plait.analysis.scaling_document import document

        return {"file": self.file, **document(self.laws)}

    def as_dict(self) -> dict[str, Any]:
        return self.document

    def headline(self) -> str:
        from plait.reporting.scaling import laws_title

        return laws_title(self.laws)

    def figure(self) -> str:
        from plait.reporting.scaling import scaling_figure

        return scaling_figure(self.laws)

    def rows(self) -> list[dict[str, Any]]:
        """One row per architecture: its surface, and its optimum at the target."""
        return [
            {
                "architecture": name,
                **{key: estimate.value for key, estimate in law.surface_estimates().items()},
                **{key: estimate.value for key, estimate in law.frontier_estimates().items()},
            }
            for name, law in self.laws.laws.items()
        ]


def fit(
    file: str | Path | None = None,
    *,
    target: str | float,
    where: Sequence[str] | None = None,
    columns: Mapping[str, str] | None = None,
    draws: int = DRAWS,
    seed: int = 0,
    all_budgets: bool = False,
    all_trainings: bool = False,
    mixers: Sequence[str | Path] = (),
    svg: str | Path | None = None,
    page: str | Path | None = None,
) -> ScalingFit:
    """Fit scaling laws to the runs in a table (`flops, params, tokens, loss`; further columns are optional): the loss
    surface, the compute-optimal frontier at `target` FLOPs, IsoFLOP parabolas, the state law, and which of several
    architectures is best at the target, all with 90 % intervals from `draws` bootstrap samples. `columns` maps other
    trainers' column names: `{"loss": "val_loss"}`.

    Groups of the smallest budgets that contradict the law of the larger ones are left out, unless `all_budgets`.
    `mixers`: files with mixers of your own that stored runs use. `svg`: a file for the figure; `page`: one for a
    self-contained HTML page. Without a file, or with a store's URL, the runs are those of `plait.scale.run`, on the
    text of the newest; `all_trainings`: those of other commands as well. Notes say what was left out."""
    from plait.analysis.scaling_laws import LEAST_DRAWS, fit_laws
    from plait.analysis.scaling_runs import rename_columns, runs_of

    load_mixers(mixers)
    flops = flops_of(target, "--target")
    if draws < LEAST_DRAWS:
        raise UserError(f"--draws {draws}: a bootstrap needs at least {LEAST_DRAWS} draws; 1000 give stable intervals.")
    by_text = any(re.match(r"\s*data\s*[!<>=]", condition) for condition in where or [])
    stored = read_runs(file, all_trainings, by_text)
    table = rename_columns(stored.table, columns or {}).where(where or [])
    if not len(table):
        raise UserError(f"no row of {file or 'the store'} meets {' and '.join(where or [])}.")
    if page is not None:
        from plait.reporting.page import check_writable

        check_writable(Path(page))
    try:
        runs = runs_of(table)
    except UserError as wrong:
        raise UserError(f"{wrong} {'; '.join(stored.left_out)}".strip()) from None
    runs = replace(runs, remarks=(*stored.left_out, *runs.remarks))
    laws = fit_laws(runs, flops, draws=draws, seed=seed, all_budgets=all_budgets)
    fitted = ScalingFit(laws, table.name)
    if svg is not None:
        fitted.save_svg(svg)
    if page is not None:
        from plait.reporting.page import write
        from plait.reporting.scaling import scaling_page

        write(Path(page), scaling_page(laws, table.name))
    return fitted


def read_runs(file: str | Path | None, all_trainings: bool = False, all_texts: bool = False) -> StoredRuns:
    """The rows of a file, or the runs of a store."""
    from plait.analysis.table import read_table
    from plait.records import open_store
    from plait.scaling.run import StoredRuns, stored_runs

    if file is None or "://" in str(file):
        with open_store(None if file is None else str(file)) as store:
            return stored_runs(store, all_trainings, all_texts)
    if all_trainings:
        raise UserError(f"--all-trainings is for the runs of a store; {file} is a table, all of which is read.")
    return StoredRuns(read_table(str(file)), ())


def flops_of(text: str | float, option: str) -> float:
    """FLOPs given as text (1e20) or as a number."""
    try:
        flops = float(text)
    except ValueError:
        raise UserError(f"{option} {text}: write a number of FLOPs, such as 1e20.") from None
    if not 0 < flops < float("inf"):
        raise UserError(f"{option} {text}: must be above 0, such as 1e20.")
    return flops


NAME = "architecture"


@dataclass(frozen=True)
class OrderTest:
    """Sign test over hybrids with both orders of mixers: the number of pairs in which attention last scores higher, the
    number of pairs that differ, and the p-value."""

    above: int
    pairs: int
    p: float


@dataclass(frozen=True)
class ProbeScale(Result):
    """Correlations of probe scores with compute-optimal losses, by task and budget. From stored probes also whether
    scores rise with the fixed state (`state`) and whether attention is better last or first (`order`); None if too
    few were probed."""

    ROWS = "correlations"
    correlations: list[dict[str, Any]]
    state: Trend | None = None
    order: OrderTest | None = None
    left_out: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """The two trends in words, and what was left out."""
        notes = list(self.left_out)
        if self.state is not None:
            ends = "" if self.state.interval is None else " ({:.2f} … {:.2f})".format(*self.state.interval)
            count = self.state.architectures
            notes.append(f"score against fixed state: Spearman {self.state.value:.2f}{ends}, {count} architectures")
        if self.order is not None:
            share = f"{self.order.above} of {self.order.pairs} pairs"
            notes.append(f"attention last beats attention first in {share}, p = {self.order.p:.2f}")
        return tuple(notes)


@dataclass(frozen=True)
class Pitfall(Result):
    """One IsoFLOP group, simulated: the true best size, that of a fixed batch, that of a growing one."""

    ROWS = "curves"
    best: float
    fixed: float
    growing: float
    curves: list[dict[str, float]]


def probe(
    file: str | Path | None = None,
    *,
    target: str | float,
    scores: str | Path | Mapping[str, Mapping[str, float]] | None = None,
    draws: int = DRAWS,
    mixers: Sequence[str | Path] = (),
    svg: str | Path | None = None,
    store: str | Store | None = None,
) -> ProbeScale:
    """Correlate probe scores with the compute-optimal losses of the same architectures, overall and by task.

    `file`: scaling runs, as for `plait.scale.fit`. `scores`: a table with a column `architecture` and a column of
    accuracies per task, or the same as a mapping; default: the stored probes, whose architectures are matched by their
    patterns of mixers. `mixers`: files with mixers of your own that stored runs or probes use.
    """
    from plait.analysis.probe_scale import document, losses_at, probe_to_scale
    from plait.analysis.scaling_laws import fit_laws
    from plait.analysis.scaling_runs import runs_of
    from plait.scaling.stored import probed, scores_by_pattern

    load_mixers(mixers)
    stored = read_runs(file)
    table = stored.table
    laws = fit_laws(runs_of(table), flops_of(target, "--target"), draws=draws)
    state, order = None, None
    if scores is None:
        with opened_store(store) as opened:
            models = probed(opened)
        state, order = _state(models), _order(models)
        known, patterns = scores_by_pattern(models), _patterns(table)
        task_scores = {name: known[pattern] for name, pattern in patterns.items() if pattern in known} or known
    else:
        task_scores = _scores(scores) if isinstance(scores, (str, Path)) else {k: dict(v) for k, v in scores.items()}
    correlations = probe_to_scale(laws, task_scores)
    if svg is not None:
        from plait.reporting.scaling import probe_figure

        names = [name for name in laws.laws if name in task_scores]
        losses, resampled = losses_at(laws, names, laws.target)
        rows = [
            {
                "architecture": name,
                "score": sum(task_scores[name].values()) / len(task_scores[name]),
                "loss": float(losses[k]),
                "low": sorted(resampled[:, k])[len(resampled) // 20],
                "high": sorted(resampled[:, k])[-1 - len(resampled) // 20],
            }
            for k, name in enumerate(names)
        ]
        write_text(svg, probe_figure(rows, laws.target))
    return ProbeScale(document(correlations), state, order, stored.left_out)


def _patterns(table: Table) -> dict[str, str]:
    """Architecture → its pattern of mixers, from a column `spec`; its own name without one."""
    from plait.analysis.scaling_runs import ALL
    from plait.model.architecture import architecture
    from plait.scaling.sizes import pattern_of

    names = [str(name) for name in table.columns.get(NAME, [ALL])]
    if "spec" not in table.columns:
        return {name: name for name in names}
    firsts = dict(zip(reversed(names), reversed(table.columns["spec"]), strict=True))
    return {name: pattern_of(architecture(str(spec))) for name, spec in firsts.items()}


def _scores(file: str | Path) -> dict[str, dict[str, float]]:
    from plait.analysis.table import read_table

    table = read_table(str(file))
    tasks = [name for name in table.columns if name != NAME]
    if not tasks:
        raise UserError(f"{file}: give one column of accuracies per task in addition to '{NAME}'.")
    values = {task: table.numbers(task) for task in tasks}
    return {
        str(name): {task: float(values[task][row]) for task in tasks} for row, name in enumerate(table.column(NAME))
    }


def _state(models: list[Probed]) -> Trend | None:
    """Poli et al. 2024, section 3.3: the score rises with the total fixed state."""
    from plait.analysis.probe_scale import state_trend

    fixed = [model for model in models if model.state and not model.attention]
    if len({model.state for model in fixed}) < 2 or len(fixed) < 3:
        return None
    return state_trend([model.state for model in fixed], [model.mean for model in fixed])


def _order(models: list[Probed]) -> OrderTest | None:
    """Same section: convolution before attention beats the reverse."""
    from plait.analysis.probe_scale import sign_test
    from plait.scaling.stored import order_pairs

    pairs = order_pairs(models)
    return OrderTest(*sign_test([last.mean - first.mean for last, first in pairs])) if pairs else None


def pitfall(
    *, flops: str | float = 2e20, batch: int = 2**19, growth: float = 1.0, svg: str | Path | None = None
) -> Pitfall:
    """Simulate the N* of one IsoFLOP group with a fixed batch size, and with one that grows with model size."""
    from plait.analysis.scaling_simulation import CHINCHILLA, SIX
    from plait.analysis.scaling_simulation import pitfall as simulate

    budget = flops_of(flops, "--flops")
    if batch < 1:
        raise UserError(f"--batch {batch}: must be at least 1.")
    simulated: dict[str, Any] = simulate(CHINCHILLA, budget, batch, growth)
    if svg is not None:
        from plait.reporting.scaling import pitfall_figure

        write_text(svg, pitfall_figure(simulated, budget))
    names = ("params", "batch", "fixed_loss", "growing_loss")
    curves = [
        dict(zip(names, map(float, row), strict=True)) for row in zip(*(simulated[n] for n in names), strict=True)
    ]
    best = float(CHINCHILLA.optimum(budget, SIX)[0])
    return Pitfall(best, float(simulated["fixed_best"]), float(simulated["growing_best"]), curves)
