"""lm-evaluation-harness on a model in this process: its task files, its metrics, our forward passes.

A task file's templates are rendered in a sandbox, where an expression can use the fields of the item and nothing else.
"""

from __future__ import annotations

import io
import logging
import math
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from plait.core.errors import UserError
from plait.core.progress import OnProgress
from plait.model.language_model import Encoder, LanguageModel

if TYPE_CHECKING:
    from plait.data import Tokenizer


try:
    import datasets
    import jinja2
    import lm_eval
    import lm_eval.utils
    from jinja2.exceptions import SecurityError
    from jinja2.runtime import Context
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from lm_eval.evaluator import evaluate as run_harness
    from lm_eval.tasks import TaskManager

    from plait.evals.harness_lm import PlaitLM
    from plait.evals.local_tasks import task_configs
except ImportError as missing:
    raise UserError(f"this needs lm-evaluation-harness ({missing}): pip install 'plait[eval]'.") from None


#: The harness's own seed for drawing few-shot examples: the same examples as every other model sees.
FEWSHOT_SEED = 1234
#: Bootstrap samples for standard errors without a formula. The harness's 100,000 take minutes; 1,000 give two digits.
BOOTSTRAP_DRAWS = 1000


class HarnessRow(TypedDict):
    """One number of the harness's table."""

    task: str
    metric: str
    filter: str
    value: float
    stderr: float | None  # None if the harness has none
    items: int


class HarnessRun(TypedDict):
    results: dict[str, dict[str, Any]]  # as returned by the harness
    table: tuple[HarnessRow, ...]
    shots: dict[str, int]  # by task
    max_length: int
    lm_eval: str  # the harness's version


def evaluate(
    model: LanguageModel | Encoder,
    tokenizer: Tokenizer,
    tasks: Sequence[Path | str],
    *,
    shots: int | None = None,
    limit: int | None = None,
    max_length: int | None = None,
    progress: OnProgress | None = None,
    trust: bool = False,
) -> HarnessRun:
    """The harness's results on local tasks: YAML files, folders of them, or LongBench's JSONL files.

    `shots=None` keeps each task's own number of examples. `table` has one row per number: task, metric, filter, value,
    standard error (None if the harness has none) and the number of items. Without `trust` a task file cannot
    run code: no functions of its own, and templates can access nothing but the item.
    """
    if not tasks:
        raise UserError("no task given: name a task file (YAML), a folder of them, or a LongBench file (JSONL).")
    lm = PlaitLM(model, tokenizer, max_length=max_length, progress=progress)
    with tempfile.TemporaryDirectory(prefix="plait-harness-") as cache, _quiet(), templates(sandboxed=not trust):
        loaded = _load(task_configs(tasks, Path(cache), trust=trust))
        for task in loaded["tasks"].values():
            own = task.get_config("num_fewshot") or 0
            task.set_config(key="num_fewshot", value=own if shots is None else shots)
            task.set_fewshot_seed(seed=FEWSHOT_SEED)
        try:
            raw = run_harness(lm=lm, task_dict=loaded, limit=limit, bootstrap_iters=BOOTSTRAP_DRAWS, log_samples=False)
        except UserError:
            raise
        except (jinja2.TemplateError, ValueError) as wrong:  # a missing field; more shots than examples
            raise UserError(f"the harness cannot run {', '.join(loaded['tasks'])}: {wrong}.") from wrong
        except Exception as wrong:  # malformed items, an overflowing perplexity: failures caused by the file
            names = ", ".join(loaded["tasks"])
            raise UserError(f"the harness cannot run {names}: {type(wrong).__name__}: {wrong}.") from wrong
    counts = {name: counted["effective"] for name, counted in raw["n-samples"].items()}
    return {
        "results": raw["results"],
        "table": tuple(_rows(raw["results"], counts)),
        "shots": raw["n-shot"],
        "max_length": lm.max_length,
        "lm_eval": lm_eval.__version__,
    }


def _load(configs: list[dict[str, Any]]) -> dict[str, Any]:
    try:
        loaded: dict[str, Any] = TaskManager(include_defaults=False).load(configs)
    except UserError:
        raise
    except Exception as wrong:  # a task file may refer to any code and data, so any failure is a user error
        names = ", ".join(config["task"] for config in configs)
        raise UserError(f"the harness cannot load {names}: {type(wrong).__name__}: {wrong}") from wrong
    return loaded


def _rows(results: Mapping[str, Mapping[str, Any]], items: Mapping[str, int]) -> Iterator[HarnessRow]:
    for task, numbers in results.items():
        for key, value in numbers.items():
            metric, comma, chosen = key.partition(",")
            if comma and not metric.endswith("_stderr"):
                stderr = numbers.get(f"{metric}_stderr,{chosen}")  # "N/A" if it has none
                known = isinstance(stderr, float) and not math.isnan(stderr)
                yield {
                    "task": task, "metric": metric, "filter": chosen, "value": float(value),
                    "stderr": stderr if known else None, "items": items[task],
                }  # fmt: skip


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the harness from printing, drawing progress bars and starting worker processes. Errors are still raised."""
    logger, level = logging.getLogger("lm_eval"), logging.getLogger("lm_eval").level
    before = os.environ.get("DISABLE_MULTIPROC")
    bars = datasets.utils.are_progress_bars_disabled()
    logger.setLevel(logging.ERROR)
    os.environ["DISABLE_MULTIPROC"] = "1"
    datasets.disable_progress_bars()
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)
        if before is None:
            del os.environ["DISABLE_MULTIPROC"]
        else:
            os.environ["DISABLE_MULTIPROC"] = before
        if not bars:
            datasets.enable_progress_bars()


MOST = 10**7  # characters, items or digits that an expression may produce


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, which hides names with a leading underscore, with limits on products and powers."""

    intercepted_binops = frozenset(("*", "**"))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for many, times in ((left, right), (right, left)):
                if isinstance(times, int) and hasattr(many, "__len__") and len(many) * times > MOST:
                    raise SecurityError(f"a product of {len(many)} and {times} is too large for a template.")
        elif isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > MOST:
            raise SecurityError("a power is too large for a template.")
        return super().call_binop(context, operator, left, right)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Any:
        # Raised at once, because the harness would render undefined values as empty text.
        raise SecurityError(
            f"a template may not use {attribute!r} of a {type(obj).__name__}; pass --trust to allow it."
        )


@contextmanager
def templates(*, sandboxed: bool) -> Iterator[None]:
    """Replace the one environment that the harness uses for all its templates."""
    before = lm_eval.utils.env
    if sandboxed:
        sandbox = Sandbox(
            loader=before.loader, undefined=before.undefined, keep_trailing_newline=before.keep_trailing_newline
        )
        sandbox.filters.update(before.filters)
        lm_eval.utils.env = sandbox
    try:
        yield
    finally:
        lm_eval.utils.env = before
