"""GLUE (Wang et al. 2019, arXiv:1804.07461): its nine tasks in their published files, and its metrics.

A metric is a number between -1 and 1, higher better.

A task's folder holds train.tsv, dev.tsv and test.tsv (MNLI: dev_matched.tsv, dev_mismatched.tsv and likewise for test),
as unpacked from the benchmark's archive; test files carry no labels and may be missing. Columns are found by the names
in the first line, except for CoLA, whose labelled files have no such line. Predictions for a test file are written in
the format of the benchmark's server: `index`, `prediction`, one line per example.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from plait.analysis.rank import ranks
from plait.core.errors import UserError, did_you_mean

Metric = Callable[[np.ndarray, np.ndarray], float]


def accuracy(predicted_N: np.ndarray, truth_N: np.ndarray) -> float:
    return float(np.mean(predicted_N == truth_N))


def f1(predicted_N: np.ndarray, truth_N: np.ndarray) -> float:
    """F1 of class 1: 2·hits / (2·hits + misses + false alarms); 0 without hits."""
    hits = np.sum((predicted_N == 1) & (truth_N == 1))
    wrong = np.sum((predicted_N == 1) != (truth_N == 1))
    return float(2 * hits / (2 * hits + wrong)) if hits else 0.0


def matthews(predicted_N: np.ndarray, truth_N: np.ndarray) -> float:
    """Matthews' correlation of two classes, which is Pearson's of the two 0/1 columns; 0 if either is constant."""
    return pearson((predicted_N == 1).astype(float), (truth_N == 1).astype(float))


def pearson(predicted_N: np.ndarray, truth_N: np.ndarray) -> float:
    a_N, b_N = predicted_N - predicted_N.mean(), truth_N - truth_N.mean()
    spread = np.sqrt(np.sum(a_N**2) * np.sum(b_N**2))
    return float(np.sum(a_N * b_N) / spread) if spread > 0 else 0.0


def spearman(predicted_N: np.ndarray, truth_N: np.ndarray) -> float:
    """Pearson's correlation of the ranks; ties get the mean of their ranks."""
    return pearson(ranks(predicted_N), ranks(truth_N))


NLI = ("entailment", "neutral", "contradiction")
TWO_WAY_NLI = ("entailment", "not_entailment")
BINARY = ("0", "1")


@dataclass(frozen=True)
class Task:
    """The columns of a task's texts and labels, and its metrics."""

    name: str
    title: str  # of the file to submit
    texts: tuple[str, ...]  # columns: one text, or two
    label: str
    metrics: Mapping[str, Metric]
    labels: tuple[str, ...] = BINARY  # none: a number is predicted
    parts: tuple[str, ...] = ("",)  # of dev and test: MNLI has two
    #: Columns of labelled files that have no first line of names.
    columns: tuple[str, ...] = ()
    #: The published train file has a few rows broken by a line break inside a text, which every reader skips.
    torn_rows: bool = False

    @property
    def outputs(self) -> int:
        return len(self.labels) or 1

    def submission(self, part: str, predicted_N: np.ndarray) -> tuple[str, str]:
        """Name and content of the file for the benchmark's server."""
        title = self.title + {"": "", "matched": "-m", "mismatched": "-mm"}[part]
        shown = [self.labels[int(p)] for p in predicted_N] if self.labels else [f"{p:.3f}" for p in predicted_N]
        lines = ["index\tprediction", *(f"{index}\t{value}" for index, value in enumerate(shown))]
        return f"{title}.tsv", "\n".join(lines) + "\n"


_PAIR = ("sentence1", "sentence2")
TASKS = {
    task.name: task
    for task in (
        Task(
            "cola", "CoLA", ("sentence",), "label", {"matthews": matthews},
            columns=("source", "label", "mark", "sentence"),
        ),
        Task("sst2", "SST-2", ("sentence",), "label", {"accuracy": accuracy}),
        Task("mrpc", "MRPC", ("#1 String", "#2 String"), "Quality", {"accuracy": accuracy, "f1": f1}),
        Task("stsb", "STS-B", _PAIR, "score", {"pearson": pearson, "spearman": spearman}, labels=()),
        Task(
            "qqp", "QQP", ("question1", "question2"), "is_duplicate", {"accuracy": accuracy, "f1": f1}, torn_rows=True
        ),
        Task("mnli", "MNLI", _PAIR, "gold_label", {"accuracy": accuracy}, NLI, parts=("matched", "mismatched")),
        Task("qnli", "QNLI", ("question", "sentence"), "label", {"accuracy": accuracy}, TWO_WAY_NLI),
        Task("rte", "RTE", _PAIR, "label", {"accuracy": accuracy}, TWO_WAY_NLI),
        Task("wnli", "WNLI", _PAIR, "label", {"accuracy": accuracy}),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Examples:
    """The texts of one file (one or two per example) and its labels, if it has any: class numbers, or values."""

    texts: list[tuple[str, ...]]
    labels_N: np.ndarray | None
    skipped: int = 0  # rows with missing columns

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True)
class GlueData:
    train: Examples
    dev: dict[str, Examples]  # by part
    test: dict[str, Examples]


def read_glue(task: Task, folder: Path) -> GlueData:
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder} with {task.title}'s files.")

    def path(split: str, part: str = "") -> Path:
        return folder / f"{split}{'_' + part if part else ''}.tsv"

    return GlueData(
        train=read_tsv(task, path("train"), labelled=True),
        dev={part: read_tsv(task, path("dev", part), labelled=True) for part in task.parts},
        test={
            part: read_tsv(task, path("test", part), labelled=False)
            for part in task.parts
            if path("test", part).is_file()
        },
    )


def read_tsv(task: Task, path: Path, *, labelled: bool) -> Examples:
    """Rows of a TSV file. Quotes have no meaning in these files: a line is a row, a tab ends a column."""
    if not path.is_file():
        raise UserError(f"there is no file {path}.")
    try:
        # Only line feeds end a line; the texts contain other characters at which `splitlines` would split.
        lines = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n").split("\n")
    except UnicodeDecodeError as wrong:
        number = path.read_bytes()[: wrong.start].count(b"\n") + 1
        raise UserError(f"{path}:{number}: not UTF-8 text.") from None
    if lines[-1] == "":
        lines.pop()
    first = 0 if labelled and task.columns else 1
    names = list(task.columns) if first == 0 else (lines[0] if lines else "").split("\t")
    wanted = [*task.texts, *([task.label] if labelled else [])]
    for column in wanted:
        if column not in names:
            raise UserError(f"{path}:1: no column '{column}'.{did_you_mean(column, names)} Found: {', '.join(names)}.")
    places = [names.index(column) for column in wanted]
    texts: list[tuple[str, ...]] = []
    labels: list[float] = []
    skipped = 0
    for number, line in enumerate(lines[first:], start=first + 1):
        cells = line.split("\t")
        if len(cells) != len(names):
            if task.torn_rows and labelled:
                skipped += 1
                continue
            raise UserError(f"{path}:{number}: {len(cells)} columns, where {len(names)} were expected.")
        texts.append(tuple(cells[place] for place in places[: len(task.texts)]))
        if labelled:
            labels.append(_label(task, cells[places[-1]], path, number))
    if not texts or skipped > len(texts) // 100 + 1:
        raise UserError(f"{path}: {len(texts)} whole rows and {skipped} broken ones; is it a file of {task.title}?")
    return Examples(texts, np.array(labels) if labelled else None, skipped)


def _label(task: Task, cell: str, path: Path, number: int) -> float:
    if not task.labels:
        try:
            value = float(cell)
        except ValueError:
            value = float("nan")
        if not np.isfinite(value):
            raise UserError(f"{path}:{number}: the score '{cell}' is not a number.")
        return value
    if cell not in task.labels:
        raise UserError(f"{path}:{number}: the label '{cell}' is not one of {', '.join(task.labels)}.")
    return float(task.labels.index(cell))
