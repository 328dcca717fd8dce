"""`plait eval RUN…`: what can a trained model do?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plait.cli.options import AsJson, Mixers, StoreUrl
from plait.cli.output import console, plain, print_json, table
from plait.core.settings import pairs
from plait.evals import evaluation as evaluations
from plait.training.devices import usable

if TYPE_CHECKING:
    from plait.data import Corpus
    from plait.evals.evaluation import Evaluation, Progress, Subject
    from plait.records import Record, Store
    from plait.training.run import Run


def command(
    runs: Annotated[
        list[str], typer.Argument(help="Runs: a folder, the beginning of a key, or latest.", metavar="RUN")
    ],
    on: Annotated[str, typer.Option(help=f"Separated by commas: {', '.join(evaluations.names())}.")] = "perplexity",
    length: Annotated[int | None, typer.Option(min=1, help="Tokens; as in training unless given.")] = None,
    data: Annotated[str, typer.Option(help="A corpus; the run's own unless given.", show_default=False)] = "",
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    stride: Annotated[int | None, typer.Option(min=1, help="perplexity: step of a sliding window.")] = None,
    memory: Annotated[int | None, typer.Option(min=1, help="perplexity: tokens of Transformer-XL memory.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="Another setting: name=value.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the pictures; RUN/evals unless given.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, …")] = "cpu",
    mixers: Mixers = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate trained models: tables, pictures, and records, so that nothing is measured twice."""
    from plait.records import open_store
    from plait.training.run import open_run

    opened = [open_run(given) for given in runs]
    # Every name and setting is checked before anything is measured.
    chosen = _chosen(on, _assigned(settings, {"length": length, "stride": stride, "memory": memory}))
    folder = out or opened[0].folder / "evals"
    documents: list[dict[str, Any]] = []
    found: list[tuple[Evaluation, dict[str, Record]]] = [(evaluation, {}) for evaluation in chosen]
    with open_store(store) as records:
        for run in opened:
            subject, about = _subject(run, data, split, device)
            for evaluation, by_run in found:
                record, stored = _evaluated(evaluation, subject, about, records, run.name, quiet=as_json)
                by_run[run.name] = record
                documents.append(
                    {"run": run.name, "on": evaluation.name, "key": record.key, "stored": stored,
                     "settings": record.config["settings"], "data": about, "result": record.result}
                )  # fmt: skip
    for evaluation, by_run in found:
        results = {name: record.result for name, record in by_run.items()}
        paths = _draw(evaluation, results, folder)
        for document in documents:
            if document["on"] == evaluation.name:
                document["pictures"] = [str(path) for path in paths]
        if not as_json:
            _print(evaluation, by_run, paths)
    if as_json:
        print_json({"evaluations": documents})


def _chosen(on: str, settings: dict[str, Any]) -> list[Evaluation]:
    """The evaluations named, each with those of the settings that it has; one that none has is an error."""
    found = [evaluations.load_evaluation(name.strip()) for name in on.split(",")]
    spare = {name: value for name, value in settings.items() if not any(name in e.settings() for e in found)}
    return [
        e.with_settings(spare or {name: value for name, value in settings.items() if name in e.settings()})
        for e in found
    ]


def _assigned(given: list[str] | None, options: Mapping[str, int | None]) -> dict[str, Any]:
    """The settings given by `--set` and by options of their own."""
    own = {name: value for name, value in options.items() if value is not None}
    return {**own, **pairs(given or [], "--set")}


def _subject(run: Run, data: str, split: str, device: str) -> tuple[Subject, dict[str, Any]]:
    """The run's model and the text it is evaluated on, and which text that is."""
    from plait.core.errors import UserError
    from plait.evals.evaluation import Subject

    tokenizer = run.tokenizer()
    corpus = _corpus(data, run.folder / "tokenizer") if data else run.corpus()
    if corpus.tokenizer.as_dict() != tokenizer.as_dict():
        raise UserError(f"{corpus.name} was tokenised by another tokenizer than {run.name}'s; its ids mean other text.")
    text = corpus.tokens(split)
    model = run.model(device=usable(device))
    trained_length = run.config["recipe"]["length"]
    subject = Subject(model, text, trained_length, tokenizer, corpus.characters(split), corpus.entropy)
    return subject, {"name": corpus.name, "fingerprint": corpus.fingerprint, "split": split}


def _corpus(data: str, tokenizer: Path) -> Corpus:
    """The corpus as the run's tokenizer writes it; one that comes as tokens has its own."""
    from plait.data import open_corpus
    from plait.data.corpora import open_source
    from plait.data.corpus import TokenSource

    return open_corpus(data, None if isinstance(open_source(data), TokenSource) else str(tokenizer))


def _evaluated(
    evaluation: Evaluation, subject: Subject, data: dict[str, Any], store: Store, run: str, *, quiet: bool
) -> tuple[Record, bool]:
    from plait.evals.stored import evaluated

    with _progress(f"{evaluation.name}, {run}", quiet) as progress:
        return evaluated(evaluation, subject, data=data, store=store, progress=progress)


@contextmanager
def _progress(what: str, quiet: bool) -> Iterator[Progress]:
    """A bar on standard error that disappears when it is full; nothing where nobody watches."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    errors = Console(stderr=True)
    with Bar(console=errors, transient=True, disable=quiet or not errors.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _draw(evaluation: Evaluation, results: Mapping[str, Mapping[str, Any]], folder: Path) -> list[Path]:
    from plait.core.errors import UserError

    paths = []
    for name, picture in evaluation.pictures(results).items():
        path = folder / f"{name}.svg"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(picture, encoding="utf-8")
        except OSError as wrong:
            raise UserError(f"cannot write {path}: {wrong.strerror}.") from wrong
        paths.append(path)
    return paths


def _print(evaluation: Evaluation, records: Mapping[str, Record], paths: list[Path]) -> None:
    out = console()
    first = next(iter(records.values())).config
    used = {name: first["settings"][name] for name in evaluation.settings()}  # in the order of their definition
    said = ", ".join(f"{name} {value}" for name, value in used.items() if value not in (0, -1))
    out.print(f"[bold]{evaluation.name}[/]  {first['data']['name']}, {first['data']['split']}; {said}", markup=True)
    columns, rows = evaluation.table({name: record.result for name, record in records.items()})
    made = table(**columns)
    for row in rows:
        made.add_row(*map(plain, row))
    out.print(made)
    for path in paths:
        out.print(f"picture {path}", markup=False, soft_wrap=True)
