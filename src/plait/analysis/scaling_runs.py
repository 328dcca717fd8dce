"""The runs to which scaling laws are fitted, read from a table and validated.

    flops, params, tokens, loss        required columns; the loss in nats per token
    architecture, state, active_params, attention, vocab, batch, tokens_per_byte    optional columns

The size of a mixture of experts is its active parameters. Losses per token are not comparable between tokenizers: runs
with several tokenizers need `tokens_per_byte`, and are then compared in nats per byte, with D in bytes.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from plait.analysis.scaling_frontier import groups_of
from plait.analysis.scaling_surface import NUMBERS, Floats, Places
from plait.analysis.table import Table
from plait.core.errors import UserError

COLUMNS = ("flops", "params", "tokens", "loss")
OPTIONAL = ("state", "attention", "batch")
#: Losses per token are only comparable where tokens are the same.
VOCABULARIES = ("vocab", "vocabulary", "tokenizer")
#: From this number of runs, mostly distinct budgets mean scattered runs and not groups of one run.
SCATTER = 30
LEAST_GROUPS = 2  # groups with parabolas needed per architecture
PER_BYTE = "tokens_per_byte"
INFINITE = ("inf", "+inf", "-inf", "infinity", "-infinity")
#: Column names of other trainers and papers, in lower case, words joined by underscores.
ALIASES = {
    "flops": ("c", "compute", "training_flops", "train_flops", "total_flops", "training_compute", "flop"),
    "params": ("n", "n_params", "num_params", "parameters", "n_parameters", "num_parameters", "model_size"),
    "tokens": ("d", "n_tokens", "num_tokens", "train_tokens", "training_tokens", "tokens_seen"),
    "loss": ("l", "val_loss", "valid_loss", "validation_loss", "eval_loss", "test_loss", "final_loss"),
}
ALL = "all"  # the architecture's name if the table has none


@dataclass(frozen=True)
class Runs:
    flops: Floats
    params: Floats  # active parameters if the table has them
    tokens: Floats
    loss: Floats
    architecture: tuple[str, ...]
    group: Places  # index of the group of one architecture and budget; −1 for a run that is alone at its budget
    state: Floats | None = None
    attention: Floats | None = None  # share of attention among the sequence mixers
    batch: Floats | None = None
    unit: str = "token"  # of losses and of D: "byte" if several tokenizers are compared
    remarks: tuple[str, ...] = ()  # on how they were selected, in words

    def __len__(self) -> int:
        return len(self.loss)

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(self.architecture))

    def of(self, name: str) -> Places:
        return np.array([row for row, own in enumerate(self.architecture) if own == name], np.intp)

    def alone(self, name: str) -> Places:
        """Runs that are alone at their budget while others form groups."""
        own = self.of(name)
        return own[self.group[own] < 0] if (self.group[own] >= 0).any() else own[:0]

    def mean_of(self, values: Floats | None, name: str) -> float | None:
        return None if values is None else float(values[self.of(name)].mean())


def runs_of(table: Table) -> Runs:
    """The runs of a table; raises a `UserError` that says what is wrong with it."""
    if missing := [name for name in COLUMNS if name not in table.columns]:
        raise UserError(_missing_columns(table, missing))
    flops, params, tokens, loss = (_positive(table, name) for name in COLUMNS)
    per_byte = _tokens_per_byte(table)
    if per_byte is None:
        _one_vocabulary(table)
    else:
        loss, tokens = loss * per_byte, tokens / per_byte
    if len(texts := list(dict.fromkeys(map(str, table.columns.get("data", []))))) > 1:
        raise UserError(
            f"{table.name} mixes texts: data is {', '.join(texts[:4])}. Each has its own entropy; fit one at a time: "
            f"--where data={texts[0]}."
        )
    if "active_params" in table.columns:
        active = table.numbers("active_params")
        params = np.where(np.isnan(active), params, active)
    names = table.columns.get("architecture") or [None] * len(table)
    architecture = tuple(ALL if name is None else str(name) for name in names)
    state, batch = (_positive(table, name) if _has(table, name) else None for name in ("state", "batch"))
    attention = _shares(table, "attention") if _has(table, "attention") else None
    unit = "token" if per_byte is None else "byte"
    runs = Runs(
        flops,
        params,
        tokens,
        loss,
        architecture,
        _groups(architecture, flops),
        state,
        attention,
        batch,
        unit,
        _lengths(table),
    )
    for name in runs.names:
        _check(runs, name)
    return runs


def rename_columns(table: Table, columns: Mapping[str, str]) -> Table:
    """The table with columns renamed: `{"loss": "val_loss"}` reads `val_loss` as the loss."""
    for theirs in columns.values():
        table.column(theirs)  # raises a clear error if it is missing
    ours = {theirs: name for name, theirs in columns.items()}
    if len(ours) < len(columns):
        raise UserError(f"--column: {', '.join(columns)} cannot be read from the same column.")
    kept = {name: values for name, values in table.columns.items() if name in ours or name not in columns}
    return Table(table.name, {ours.get(name, name): values for name, values in kept.items()})


def _missing_columns(table: Table, missing: Sequence[str]) -> str:
    """The error message for missing columns; suggests `--column` options if other trainers' names are present."""
    has = list(table.columns)
    message = (
        f"{table.name} has no column {' and no column '.join(repr(name) for name in missing)}; a scaling fit reads "
        f"{', '.join(COLUMNS)}. It has: {', '.join(has) or 'none'}."
    )
    if len(has) == 1 and re.search(r"[;\t|]", has[0]):
        return f"{message} Separate its cells by commas."
    usual = {re.sub(r"[^a-z]+", "_", name.lower()).strip("_"): name for name in reversed(has)}
    guesses = {name: next((usual[alias] for alias in ALIASES[name] if alias in usual), "NAME") for name in missing}
    if guesses == {"flops": "NAME"}:
        return f"{message} Add it: dense models take about 6 · params · tokens FLOPs."
    options = " ".join(f"--column {shlex.quote(f'{name}={theirs}')}" for name, theirs in guesses.items())
    return f"{message} Say which they are: {options}."


def _has(table: Table, name: str) -> bool:
    return name in table.columns and all(value is not None for value in table.columns[name])


def _positive(table: Table, name: str) -> Floats:
    cells = table.column(name)
    finite = [None if str(cell).lower() in INFINITE else cell for cell in cells]  # cells of text files are strings
    values = Table(table.name, {name: finite}).numbers(name)
    if len(wrong := np.flatnonzero(~np.isfinite(values))):
        cell = cells[wrong[0]]
        raise UserError(
            f"{table.name}, row {wrong[0] + 1}: {name} is {'empty' if cell is None else f'{cell}, no number'}. Leave "
            f"out runs that diverged or did not end: --where '{name}<1e300'."
        )
    if len(wrong := np.flatnonzero(values <= 0)):
        why = "a loss in nats per token is above 0" if name == "loss" else "it should be above 0"
        raise UserError(f"{table.name}, row {wrong[0] + 1}: {name} is {values[wrong[0]]:g}; {why}.")
    return values


def _shares(table: Table, name: str) -> Floats:
    values = table.numbers(name)
    if len(wrong := np.flatnonzero(~((values >= 0) & (values <= 1)))):
        raise UserError(f"{table.name}, row {wrong[0] + 1}: {name} is {values[wrong[0]]:g}; a share is from 0 to 1.")
    return values


def _tokens_per_byte(table: Table) -> Floats | None:
    """Tokens per byte of each run; None if there is one tokenizer, or the column is missing."""
    if not _has(table, PER_BYTE):
        return None
    values = _positive(table, PER_BYTE)
    if np.ptp(values) < 1e-9 * values.max():
        return None
    names = table.columns.get("architecture") or [None] * len(table)
    seen: dict[Any, float] = {}
    for row, (name, value) in enumerate(zip(names, values.tolist(), strict=True)):
        if abs(seen.setdefault(name, value) / value - 1) > 1e-9:
            raise UserError(
                f"{table.name}, row {row + 1}: {name or 'the architecture'} has runs of two tokenizers ({PER_BYTE} "
                f"{seen[name]:g} and {value:g}); name them apart in the column architecture."
            )
    return values


def _one_vocabulary(table: Table) -> None:
    for column in VOCABULARIES:
        seen = list(dict.fromkeys(str(value) for value in table.columns.get(column, []) if value is not None))
        if len(seen) > 1:
            raise UserError(
                f"{table.name} mixes vocabularies: {column} is {', '.join(seen[:4])}. A loss per token means something "
                f"else in each; fit one at a time, --where {column}={seen[0]}, or give a column {PER_BYTE} to compare "
                "them by the byte."
            )


def _lengths(table: Table) -> tuple[str, ...]:
    values = {value for value in table.columns.get("seq_len", []) if value is not None}
    seen = sorted(values, key=lambda value: (isinstance(value, str), value))
    if len(seen) < 2:
        return ()
    lengths = ", ".join(map(str, seen[:4]))
    return (
        f"runs of several sequence lengths ({lengths}): a loss over a longer context is another quantity, so the law "
        f"mixes them; --where seq_len={seen[-1]} fits one",
    )


def _groups(architecture: tuple[str, ...], flops: Floats) -> Places:
    group = np.full(len(flops), -1, np.intp)
    for name in dict.fromkeys(architecture):
        own = np.array([row for row, other in enumerate(architecture) if other == name], np.intp)
        number_R = groups_of(flops[own])
        sizes = np.bincount(number_R[number_R >= 0], minlength=1)
        grouped = len(own) < SCATTER or sizes[sizes >= 3].sum() >= len(own) / 2
        if not grouped:  # a scatter of runs, some near each other by chance
            continue
        if (sizes >= 3).sum() >= LEAST_GROUPS:  # then single runs contribute to the surface only
            number_R = np.where((number_R >= 0) & (sizes[number_R] > 1), number_R, -1)
        there = np.unique(number_R[number_R >= 0])
        group[own] = np.where(number_R >= 0, np.searchsorted(there, number_R) + group.max(initial=-1) + 1, -1)
    return group


def _check(runs: Runs, name: str) -> None:
    own = runs.of(name)
    whose = "" if name == ALL else f"{name}: "
    if len(own) <= NUMBERS:
        raise UserError(
            f"{whose}{_count(len(own))}; the surface has {NUMBERS} unknowns, so give {NUMBERS + 1} or more, better 15."
        )
    numbers = runs.group[own].tolist()
    pairs = zip(runs.flops[own].tolist(), numbers, strict=True)
    if alone := sorted(flops for flops, g in pairs if g >= 0 and numbers.count(g) == 1):
        raise UserError(
            f"{whose}one run alone at {', '.join(f'{flops:.3g}' for flops in alone[:4])} FLOPs, and fewer than "
            f"{LEAST_GROUPS} budgets with three sizes or more. Train more sizes, on both sides of the best."
        )
    n, d = np.log(runs.params[own]), np.log(runs.tokens[own])
    if min(np.ptp(n), np.ptp(d)) < np.log(1.5) or abs(float(np.corrcoef(n, d)[0, 1])) > 0.9999:
        raise UserError(
            f"{whose}sizes and tokens go together in all runs, so what each is worth cannot be told apart; give runs "
            "of several sizes at several budgets."
        )
    flops, loss = runs.flops[own], runs.loss[own]
    if flops.max() < 2 * flops.min():  # one budget
        return
    large = flops > np.sqrt(flops.min() * flops.max())
    best_small, best_large = float(loss[~large].min()), float(loss[large].min())
    if best_large >= best_small:
        raise UserError(
            f"{whose}the lowest loss of the larger budgets is {best_large:.4g}, that of the smaller ones "
            f"{best_small:.4g}: more compute should lower it. Look at the columns flops and loss."
        )


def _count(number: int) -> str:
    return f"{number} run" if number == 1 else f"{number} runs"


def described(runs: Runs) -> dict[str, Any]:
    return {
        "runs": len(runs),
        "architectures": runs.names,
        "budgets": [float(runs.flops.min()), float(runs.flops.max())],
    }
