"""Scaling laws from any trainer's runs: `plait.scale.fit`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.core.errors import UserError
from plait.core.result import Result
from plait.model.architecture import load_mixers

if TYPE_CHECKING:
    from plait.analysis.scaling_laws import Laws
    from plait.analysis.table import Table

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
        from plait.reporting.scaling_page import laws_title

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
    self-contained HTML page. Without a file, or with a store's URL, the runs are those that `plait.scale.run`
    stored."""
    from plait.analysis.scaling_laws import fit_laws
    from plait.analysis.scaling_runs import rename_columns, runs_of

    load_mixers(mixers)
    flops = flops_of(target, "--target")
    if draws < 20:
        raise UserError(f"--draws {draws}: a bootstrap needs at least 20 draws; 1000 give stable intervals.")
    table = rename_columns(read_runs(file), columns or {}).where(where or [])
    if not len(table):
        raise UserError(f"no row of {file or 'the store'} meets {' and '.join(where or [])}.")
    if page is not None:
        from plait.reporting.page import check_writable

        check_writable(Path(page))
    laws = fit_laws(runs_of(table), flops, draws=draws, seed=seed, all_budgets=all_budgets)
    fitted = ScalingFit(laws, table.name)
    if svg is not None:
        from plait.reporting.svg import save

        save(fitted.figure(), Path(svg))
    if page is not None:
        from plait.reporting.page import write
        from plait.reporting.scaling_page import scaling_page

        write(Path(page), scaling_page(laws, table.name))
    return fitted


def read_runs(file: str | Path | None) -> Table:
    """The rows of a file, or the runs of a store."""
    from plait.analysis.table import read_table
    from plait.records import open_store
    from plait.scaling.run import stored_runs

    if file is None or "://" in str(file):
        with open_store(None if file is None else str(file)) as store:
            return stored_runs(store)
    return read_table(str(file))


def flops_of(text: str | float, option: str) -> float:
    """FLOPs given as text (1e20) or as a number."""
    try:
        flops = float(text)
    except ValueError:
        raise UserError(f"{option} {text}: write a number of FLOPs, such as 1e20.") from None
    if not 0 < flops < float("inf"):
        raise UserError(f"{option} {text}: must be above 0, such as 1e20.")
    return flops
