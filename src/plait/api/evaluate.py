"""Evaluations of trained models: `plait.evaluate`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.api.open_run import OpenRun, run_of
from plait.core.errors import UserError
from plait.core.files import write_text
from plait.core.progress import OnProgress, ignore
from plait.core.result import Result
from plait.evals import evaluation as evaluations
from plait.model.architecture import load_mixers
from plait.records.jobs import published_store

if TYPE_CHECKING:
    from plait.evals.evaluation import Evaluation, Subject
    from plait.records import Record, Store
    from plait.training.run import Run


@dataclass(frozen=True)
class EvaluatedText:
    """The text that a model was evaluated on; all fields are empty if the evaluation needs none."""

    name: str = ""
    fingerprint: str = ""
    split: str = ""
    changed: bool = False  # since the run was trained on it


@dataclass(frozen=True)
class EvaluationResult:
    """One evaluation of one run."""

    run: str
    on: str  # the evaluation's name
    key: str  # of its record
    stored: bool  # whether it was found in the store
    settings: dict[str, Any]
    data: EvaluatedText
    result: dict[str, Any]
    figures: tuple[str, ...]  # files that show all runs


@dataclass(frozen=True)
class EvaluateResult(Result):
    evaluations: tuple[EvaluationResult, ...]
    chosen: tuple[Evaluation, ...] = field(repr=False)  # in the order requested; each formats its own table

    def of(self, on: str) -> dict[str, EvaluationResult]:
        """The results of one evaluation, by run."""
        return {evaluation.run: evaluation for evaluation in self.evaluations if evaluation.on == on}

    def conditions(self, on: str) -> dict[str, dict[str, str]]:
        """By run, as text: its corpus and each setting. Results are comparable if these are equal."""
        (order,) = (evaluation.settings() for evaluation in self.chosen if evaluation.name == on)
        of_runs = self.of(on).items()
        return {
            run: _conditions(evaluation.data, {name: evaluation.settings[name] for name in order})
            for run, evaluation in of_runs
        }

    def rows(self) -> list[dict[str, Any]]:
        return [
            {
                "run": evaluation.run,
                "on": evaluation.on,
                **{k: v for k, v in evaluation.result.items() if not isinstance(v, (dict, list))},
            }
            for evaluation in self.evaluations
        ]


def evaluate(
    runs: str | Path | OpenRun | Sequence[str | Path | OpenRun],
    *,
    on: str | Sequence[str] = "perplexity",
    settings: Mapping[str, Any] | None = None,
    data: str = "",
    split: str = "test",
    out: str | Path | None = None,
    device: str = "cpu",
    mixers: Sequence[str | Path] = (),
    root: str | Path = "runs",
    store: str | Store | None = None,
    on_progress: OnProgress = ignore,
) -> EvaluateResult:
    """Evaluate trained models. Results in the store for the same weights and text are not measured again.

    runs      a run or several: a folder, the beginning of a key, or latest; or a Hugging Face folder, which is
              imported once
    on        evaluations (`plait.listing("evaluations")`), as a list or separated by commas
    settings  theirs, such as {"length": 4096}
    data      a corpus; default: the run's own
    root      folder of the trained models
    out       folder for the figures; default: RUN/evals
    """
    from plait.api.export import imported
    from plait.evals.evaluation import evaluated

    load_mixers(mixers)
    # Every name and setting is checked before anything is read or measured.
    chosen = _chosen([on] if isinstance(on, str) else on, settings or {})
    several = [runs] if isinstance(runs, (str, Path, OpenRun)) else runs
    opened = [run_of(run if isinstance(run, OpenRun) else imported(run, Path(root)), root) for run in several]
    records: dict[tuple[str, str], tuple[Record, bool, EvaluatedText]] = {}
    title = f"{', '.join(evaluation.name for evaluation in chosen)} of {', '.join(run.name for run in opened)}"
    with published_store(store, "eval", title, on_progress) as (records_store, report):
        for run in opened:
            subject, text = _subject(run, data, split, device, text=any(evaluation.needs_text for evaluation in chosen))
            for evaluation in (setting.resolved(subject) for setting in chosen):
                what = ", ".join(filter(None, (evaluation.name, run.name, evaluation.amount)))
                report(what, 0, None)
                record, stored = evaluated(
                    evaluation,
                    subject,
                    data={"fingerprint": text.fingerprint, "split": text.split},
                    store=records_store,
                    progress=lambda done, total, what=what: report(what, done, total),  # type: ignore[misc]
                )
                records[run.name, evaluation.name] = record, stored, text
    folder = Path(out) if out else opened[0].folder / "evals"
    figures = {}
    for evaluation in chosen:
        of_runs = {run.name: records[run.name, evaluation.name] for run in opened}
        conditions = {name: _conditions(text, record.config["settings"]) for name, (record, _, text) in of_runs.items()}
        differing = len({tuple(condition.items()) for condition in conditions.values()}) > 1
        label = {name: ", ".join([name, *filter(None, condition.values())]) for name, condition in conditions.items()}
        results = {label[name] if differing else name: record.result for name, (record, _, _) in of_runs.items()}
        figures[evaluation.name] = _draw(evaluation, results, folder)
    return EvaluateResult(
        tuple(
            EvaluationResult(run, on, record.key, stored, record.config["settings"], text, record.result, figures[on])
            for (run, on), (record, stored, text) in records.items()
        ),
        tuple(chosen),
    )


def _conditions(text: EvaluatedText, settings: Mapping[str, Any]) -> dict[str, str]:
    used = {name: "" if value in (0, -1) else f"{name} {value}" for name, value in settings.items()}
    return {"data": f"{text.name}, {text.split}" if text.name else "", **used}


def _chosen(on: Sequence[str], settings: Mapping[str, Any]) -> list[Evaluation]:
    """The evaluations named, each with the settings that apply to it; a setting that applies to none is an error."""
    chosen = [evaluations.load_evaluation(name.strip()) for names in on for name in names.split(",")]
    spare = {name: value for name, value in settings.items() if not any(name in e.settings() for e in chosen)}
    return [
        e.with_settings(spare or {name: value for name, value in settings.items() if name in e.settings()})
        for e in chosen
    ]


def _subject(run: Run, data: str, split: str, device: str, *, text: bool) -> tuple[Subject, EvaluatedText]:
    """The run's model and the text it is evaluated on, and a description of the text; without text if no
    evaluation needs it and none was given."""
    import numpy as np

    from plait.data import open_corpus
    from plait.data.corpora import needed_tokenizer
    from plait.evals.evaluation import Subject
    from plait.training.distributed import usable

    tokenizer = run.tokenizer()
    if not data and not text:
        return Subject(
            run.model(device=usable(device)), np.empty(0, np.int64), run.seq_len or 1024, tokenizer
        ), EvaluatedText()
    corpus = open_corpus(data, needed_tokenizer(data, run.folder / "tokenizer")) if data else run.corpus()
    if corpus.tokenizer.as_dict() != tokenizer.as_dict():
        raise UserError(
            f"{corpus.name} was tokenised with another tokenizer than {run.name}'s, so its ids mean other text."
        )
    tokens = corpus.tokens(split)
    model = run.model(device=usable(device))
    trained_length = run.seq_len
    assert trained_length is not None
    counts = corpus.characters(split), corpus.bytes(split)
    subject = Subject(model, tokens, trained_length, tokenizer, *counts, corpus.entropy)
    changed = bool(data) and _trained_on(run, data) and run.config["data"].get("fingerprint") != corpus.fingerprint
    return subject, EvaluatedText(corpus.name, corpus.fingerprint, split, changed)


def _trained_on(run: Run, data: str) -> bool:
    """Whether the run was trained on a text of this name, which may have changed since."""
    name = run.about.get("data")
    return name is not None and (name == data or os.path.abspath(name) == os.path.abspath(data))


def _draw(evaluation: Evaluation, results: Mapping[str, Mapping[str, Any]], folder: Path) -> tuple[str, ...]:

    paths = []
    for name, drawn in evaluation.figures(results).items():
        path = folder / f"{name}.svg"
        if folder.is_symlink():  # a run may come from someone else, with a link to a folder of yours
            raise UserError(f"{folder} is a link to another folder; give one for the figures with --out.")
        write_text(path, drawn)
        paths.append(str(path))
    return tuple(paths)
