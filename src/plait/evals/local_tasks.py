"""Local task files of lm-evaluation-harness, prepared to run without a network.

task.yaml         one task. Paths under `data_files` are relative to the file's folder.
folder            every task file directly in it
hotpotqa.jsonl    LongBench (Bai et al. 2024, arXiv:2308.14508) as published: one JSON object per line with "input",
                  "context", "answers", "all_classes", …; the file's name says which of its tasks it is. Prompts,
                  answer lengths and metrics (F1, ROUGE-L, accuracy) are the harness's own.
piqa.jsonl        likewise the ten short-context tasks and WikiText, as `plait data tasks` writes them; also in a folder
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import lm_eval.api.metrics  # noqa: F401  (fills the registry below)
import yaml
from lm_eval import tasks as harness_tasks
from lm_eval.api.registry import metric_registry
from lm_eval.tasks._yaml_loader import load_yaml

from plait.core.errors import UserError, did_you_mean
from plait.core.files import json_lines
from plait.evals.published import BY_NAME

#: Loaders of `datasets` that read files from a disk.
LOCAL_LOADERS = ("json", "csv", "parquet", "text", "arrow")
HARNESS_TASKS = Path(harness_tasks.__file__).parent
LONGBENCH = HARNESS_TASKS / "longbench"
FUNCTION = "!function"


def task_configs(sources: Sequence[Path | str], cache: Path, *, trust: bool = False) -> list[dict[str, Any]]:
    """The configuration of every task, with its data files and metrics checked. `datasets` writes into `cache`. With
    `trust`, a task file may run its own code."""
    paths = [path for source in sources for path in _files(Path(source).expanduser(), trust)]
    configs = [published_config(path) if path.suffix == ".jsonl" else yaml_config(path, trust) for path in paths]
    names: dict[str, Path] = {}
    for config, path in zip(configs, paths, strict=True):
        if config["task"] in names:
            raise UserError(f"{path} and {names[config['task']]} both define the task '{config['task']}'.")
        names[config["task"]] = path
        config["dataset_kwargs"] = {**config["dataset_kwargs"], "cache_dir": str(cache)}
    return configs


def _files(path: Path, trust: bool) -> list[Path]:
    if path.is_dir():
        files = sorted([*path.glob("*.yaml"), *path.glob("*.yml")])
        # A file that is only included by others does not define a task.
        tasks = [file for file in files if "task" in _read(file, trust)]
        names = {file.stem for file in tasks}
        tasks += [file for file in sorted(path.glob("*.jsonl")) if file.stem in BY_NAME and file.stem not in names]
        if not tasks:
            raise UserError(
                f"{path} contains no task file (*.yaml with a 'task', or TASK.jsonl of `plait data tasks`)."
            )
        return tasks
    if not path.is_file():
        raise UserError(
            f"there is no task file {path}; give a YAML file, a folder of them, or a LongBench JSONL file. Tasks have "
            "no names here: `plait data tasks` writes files of some from their downloaded data."
        )
    if path.suffix not in (".yaml", ".yml", ".jsonl"):
        raise UserError(f"{path}: a task is a .yaml file, or one of LongBench's .jsonl files.")
    return [path]


def _read(path: Path, trust: bool) -> dict[str, Any]:
    read: set[Path] = set()  # the file and its includes
    try:
        config: dict[str, Any] = load_yaml(path, resolve_func=False, _seen=read)
        if runs := next((file for file in sorted(read) if not trust and _runs_code(file)), None):
            raise UserError(
                f"{path}: {runs.name} runs its own code (!function). Read what it runs, then pass --trust to allow it."
            )
        config = load_yaml(path)
    except yaml.YAMLError as wrong:
        mark = getattr(wrong, "problem_mark", None)
        at = f":{mark.line + 1}" if mark else ""
        raise UserError(f"{path}{at}: not YAML: {getattr(wrong, 'problem', None) or wrong}.") from None
    except UserError:
        raise
    except RecursionError:
        raise UserError(f"{path}: not YAML: nested too deeply.") from None
    except Exception as wrong:  # code of a trusted file may raise anything
        raise UserError(f"{path}: {wrong}") from None
    return config


def _runs_code(path: Path) -> bool:
    """Whether a task file refers to Python functions; those of the harness's installed package do not count."""
    if path.is_relative_to(HARNESS_TASKS.resolve()):
        return False
    events = yaml.parse(path.read_bytes(), Loader=yaml.SafeLoader)
    return any(getattr(event, "tag", None) == FUNCTION for event in events)


def yaml_config(path: Path, trust: bool = False) -> dict[str, Any]:
    config = _read(path, trust)
    name = config.get("task")
    if "group" in config or isinstance(name, list):
        raise UserError(f"{path} is a group of tasks; give the task files themselves, or their folder.")
    if not isinstance(name, str):
        raise UserError(f"{path}: a task file needs 'task: its-name'.")
    if callable(config.get("custom_dataset")):
        return {**config, "dataset_kwargs": config.get("dataset_kwargs") or {}}
    loader = config.get("dataset_path")
    if loader not in LOCAL_LOADERS:
        raise UserError(
            f"{path}: dataset_path: {loader} would be downloaded. Offline it is one of {', '.join(LOCAL_LOADERS)}, "
            "with dataset_kwargs: {data_files: {test: items.jsonl}}."
        )
    kwargs = dict(config.get("dataset_kwargs") or {})
    kwargs["data_files"] = _absolute(kwargs.get("data_files"), path)
    _require_known_metrics(config, path, trust)
    return {**config, "dataset_kwargs": kwargs}


def _absolute(files: Any, task: Path) -> Any:
    if isinstance(files, dict):
        return {split: _absolute(inner, task) for split, inner in files.items()}
    if isinstance(files, list):
        return [_absolute(inner, task) for inner in files]
    if not isinstance(files, str):
        raise UserError(f"{task}: dataset_kwargs needs data_files, such as {{test: items.jsonl}}.")
    where = (task.parent / files).resolve()
    if not any(where.parent.glob(where.name)):
        raise UserError(f"{task}: its data file {files} is not at {where}.")
    if where.suffix in (".jsonl", ".json") and where.is_file():
        check_json_lines(where)
    return str(where)


def check_json_lines(path: Path) -> None:
    """Raise a `UserError` that names the first broken line, which `datasets` does not."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if text.lstrip().startswith("[") or path.suffix == ".json":
        return  # a single JSON document
    for number, item in json_lines(text, str(path), constants=True):
        if not isinstance(item, dict):
            raise UserError(f"{path}:{number}: an item is a JSON object, not {type(item).__name__}.")


def _require_known_metrics(config: dict[str, Any], path: Path, trust: bool) -> None:
    """Refuse unknown metrics: the harness would look for them on the network, or run a script of that name."""
    if callable(config.get("process_results")):
        return
    for entry in config.get("metric_list") or []:
        if isinstance(entry, dict) and entry.get("hf_evaluate") and not trust:
            raise UserError(f"{path}: a metric with hf_evaluate runs a script of its name; pass --trust to allow it.")
        metric = entry.get("metric") if isinstance(entry, dict) else entry
        if isinstance(metric, str) and metric not in metric_registry:
            known = sorted(str(name) for name in metric_registry)
            hint = did_you_mean(metric, known) or f" It has {', '.join(known)}."
            raise UserError(f"{path}: the harness has no metric '{metric}'.{hint}")


def published_config(path: Path) -> dict[str, Any]:
    """The harness's own task for a published file, by its name, reading that file instead of the network."""
    if path.stem not in BY_NAME:
        return longbench_config(path)
    published = BY_NAME[path.stem]
    check_json_lines(path)
    dropped = ("dataset_name", "tag", "training_split", "validation_split", "test_split", "fewshot_split")
    config = {key: value for key, value in _read(HARNESS_TASKS / published.home, True).items() if key not in dropped}
    return {
        **config,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(path.resolve())}},
        "test_split": "test",
    }


def longbench_config(path: Path) -> dict[str, Any]:
    """The harness's own LongBench task, reading the published file instead of the network."""
    home = LONGBENCH / f"{path.stem}.yaml"
    if path.stem.startswith("_") or not home.is_file():
        known = sorted(file.stem for file in LONGBENCH.glob("[!_]*.yaml"))
        hint = did_you_mean(path.stem, known) or f" Known: {', '.join(known)}."
        raise UserError(f"{path}: LongBench has no task '{path.stem}' (the name of the file).{hint}")
    check_json_lines(path)
    config = {key: value for key, value in _read(home, True).items() if key not in ("dataset_name", "tag")}
    return {
        **config,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(path.resolve())}},
        "process_docs": question_from_input,
        "output_type": "generate_until",
    }


def question_from_input(docs: datasets.Dataset) -> datasets.Dataset:
    """The harness's prompts say `question` where the published files say "input"."""
    missing = {"input", "context", "answers"} - set(docs.column_names)
    if missing:
        raise UserError(f"a LongBench file has input, context and answers on every line; missing: {sorted(missing)}.")
    return docs.rename_column("input", "question")
