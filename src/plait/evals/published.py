"""The ten short-context tasks (and WikiText) as local files, from data sets as published on the Hugging Face hub.

The data sets are folders, however they were downloaded: `piqa/…/validation-00000-of-00001.parquet`,
`ai2_arc/ARC-Easy/test-….parquet`, `hellaswag/validation.jsonl`, an `.arrow` file that `datasets` saved. Each task
becomes one file `TASK.jsonl` with its published columns, which `plait harness --tasks FOLDER` runs with the harness's
own task.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plait.core.errors import UserError
from plait.core.files import json_lines, loads

ENDINGS = (".parquet", ".jsonl", ".json", ".arrow")


@dataclass(frozen=True)
class Published:
    """A task of the harness: the folders its data may be in (all names of one tuple must be in the path), the split
    that is scored, the columns its prompts need, and where the harness keeps its own task."""

    task: str
    folders: tuple[tuple[str, ...], ...]
    split: str
    columns: tuple[str, ...]
    home: str


#: In the order of the Forgetting Transformer's Table 1 (Lin et al. 2025, arXiv:2503.02130).
TASKS = (
    Published("wikitext", (("wikitext_document_level",), ("wikitext",)), "test", ("page",), "wikitext/wikitext.yaml"),
    Published(
        "lambada_openai", (("lambada_openai",), ("lambada",)), "test", ("text",), "lambada/lambada_openai.yaml"
    ),
    Published("piqa", (("piqa",),), "validation", ("goal", "sol1", "sol2", "label"), "piqa/piqa.yaml"),
    Published(
        "hellaswag", (("hellaswag",),), "validation", ("activity_label", "ctx_a", "ctx_b", "endings", "label"),
        "hellaswag/hellaswag.yaml",
    ),
    Published(
        "winogrande", (("winogrande_xl",), ("winogrande",)), "validation", ("sentence", "option1", "option2", "answer"),
        "winogrande/default.yaml",
    ),
    Published(
        "arc_easy", (("arc-easy",), ("arc_easy",)), "test", ("question", "choices", "answerKey"), "arc/arc_easy.yaml"
    ),
    Published(
        "arc_challenge", (("arc-challenge",), ("arc_challenge",)), "test", ("question", "choices", "answerKey"),
        "arc/arc_challenge.yaml",
    ),
    Published(
        "copa", (("copa",),), "validation", ("premise", "question", "choice1", "choice2", "label"),
        "super_glue/copa/default.yaml",
    ),
    Published(
        "openbookqa", (("openbookqa", "main"), ("openbookqa",)), "test", ("question_stem", "choices", "answerKey"),
        "openbookqa/openbookqa.yaml",
    ),
    Published(
        "sciq", (("sciq",),), "test",
        ("support", "question", "distractor1", "distractor2", "distractor3", "correct_answer"), "sciq/sciq.yaml",
    ),
    Published("boolq", (("boolq",),), "validation", ("passage", "question", "label"), "super_glue/boolq/default.yaml"),
)  # fmt: skip
BY_NAME = {published.task: published for published in TASKS}


@dataclass(frozen=True)
class Prepared:
    task: str
    items: int
    file: Path
    source: tuple[Path, ...]


def prepare(folder: Path, out: Path, tasks: Sequence[str] = ()) -> tuple[list[Prepared], list[str]]:
    """Write a file per task whose data is below `folder`; also returns the tasks that were not found."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; give the one that holds the published data sets.")
    files = sorted(path for path in folder.rglob("*") if path.suffix in ENDINGS and path.is_file())
    done, missing = [], []
    for published in TASKS:
        if tasks and published.task not in tasks:
            continue
        source = find(published, folder, files)
        if not source:
            missing.append(published.task)
            continue
        rows = [_item(published, row, path) for path in source for row in read_rows(path)]
        if not rows:
            raise UserError(f"{source[0]}: no items in it.")
        out.mkdir(parents=True, exist_ok=True)
        file = out / f"{published.task}.jsonl"
        file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
        done.append(Prepared(published.task, len(rows), file, tuple(source)))
    return done, missing


def find(published: Published, folder: Path, files: Iterable[Path]) -> list[Path]:
    """The files of the scored split, all shards of it. A data set is recognised by its folder names, ignoring an
    owner's name (`allenai--sciq`), or by the name of its only file (`sciq.jsonl`)."""
    listed = list(files)
    for names in published.folders:
        shards = []
        for path in listed:
            inside = path.relative_to(folder)
            parts = [part.lower().replace("___", "--").split("--")[-1] for part in inside.parts[:-1]]
            stem = inside.stem.lower()
            here = all(any(part == name or part.endswith(f"-{name}") for part in parts) for name in names)
            of_split = stem == published.split or stem.startswith((f"{published.split}-", f"{published.split}_"))
            of_split = of_split or stem.endswith((f"-{published.split}", f"_{published.split}"))
            named = stem in (names[-1], f"{names[-1]}_{published.split}", f"{names[-1]}-{published.split}")
            if (here and of_split) or named:
                shards.append(path)
        if shards:
            nearest = shards[0].parent, shards[0].suffix  # a copy in another format is not another shard
            return [path for path in shards if (path.parent, path.suffix) == nearest]
    return []


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    if path.suffix in (".jsonl", ".json"):
        yield from _json_rows(path)
        return
    import pyarrow
    from pyarrow import ipc, parquet

    try:
        if path.suffix == ".parquet":
            table = parquet.read_table(path)
        else:
            with pyarrow.memory_map(str(path)) as source:
                table = ipc.open_stream(source).read_all()
    except (pyarrow.ArrowInvalid, OSError) as wrong:
        raise UserError(f"cannot read {path}: {wrong}.") from None
    yield from table.to_pylist()


def _json_rows(path: Path) -> Iterator[dict[str, Any]]:
    text = path.read_text(encoding="utf-8")
    if text.lstrip().startswith("["):
        yield from loads(text)
        return
    yield from (row for _, row in json_lines(text, str(path)))


def _item(published: Published, row: dict[str, Any], path: Path) -> dict[str, Any]:
    """The columns that prompts need; booleans become 1 and 0, as in the harness's tasks."""
    if published.task == "boolq" and "label" not in row and "answer" in row:
        row = {**row, "label": row["answer"]}  # the column's name in BoolQ's own data set
    if lacking := [name for name in published.columns if name not in row]:
        raise UserError(f"{path}: {published.task} needs {', '.join(lacking)}; its columns are {', '.join(row)}.")
    return {name: int(row[name]) if isinstance(row[name], bool) else row[name] for name in published.columns}
