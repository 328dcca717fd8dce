"""The whole workflow in one call, from limits to a trained model, a recommendation and a report: `plait.design`."""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.core.result import Result, card, text_table
from plait.core.units import parse_duration
from plait.designing.document import DesignDocument, race_of
from plait.device.quantities import Setting
from plait.model.architecture import architecture, load_mixers
from plait.records import Store
from plait.records.comparison import RaceResult
from plait.records.jobs import keep_answer, published
from plait.records.store import writable_store
from plait.space.constraints import Limits
from plait.workers.pool import Place

if TYPE_CHECKING:
    from plait.designing.config import DesignConfig

#: Stage, the fraction of it that is done (None: unknown; 1 once, at its end), and the current activity.
OnStage = Callable[[str, "float | None", str], object]
LIMITS = {"latency": "20ms", "memory": "100MB"}


@dataclass(frozen=True)
class DesignResult(Result):
    """`document` is the complete result, as printed by `--json` and shown on the page at `report`."""

    spec: str  # of the pick
    advice: str
    report: str
    folder: str  # of the trained model
    document: DesignDocument

    @cached_property
    def race(self) -> RaceResult:
        return race_of(self.document)

    def as_dict(self) -> dict[str, Any]:
        return {**self.document, "report": self.report}

    def headline(self) -> str:
        return self.document["points"][0]

    def __str__(self) -> str:
        """The recommendation as a list, then the candidates."""
        verdict, *points = self.document["points"]
        steps = [f"To {step['to']}: {step['command']}" for step in self.document["next"]]
        return "\n".join([verdict, self.spec, *(f"- {point}" for point in [*points, *steps]), text_table(self.rows())])

    def _repr_html_(self) -> str:
        _, *points = self.document["points"]
        reasons = "".join(f"<li>{escape(point)}</li>" for point in points)
        return (
            f"{card([], headline=self.headline())}<code>{escape(self.spec)}</code><ul>{reasons}</ul>{card(self.rows())}"
        )

    def rows(self) -> list[dict[str, Any]]:
        """The candidates that were measured, probed and raced, the best first."""
        raced = {row.name: row for row in self.race.architectures}
        probed = {row["name"]: row["mean"]["accuracy"] for row in self.document["probe"]["architectures"]}
        order = list(raced)
        return [
            {
                "pattern": row["pattern"],
                "picked": row["pattern"] == self.document["pick"]["pattern"],
                "loss": raced[row["pattern"]].loss,
                "p_best": raced[row["pattern"]].p_best,
                **{name: value["measured"] for name, value in row.items() if isinstance(value, dict)},
                "probe_accuracy": probed.get(row["pattern"]),
                **{name: value for name, value in row.items() if not isinstance(value, (dict, list))},
            }
            for row in sorted(self.document["candidates"], key=lambda row: order.index(row["pattern"]))
        ]


def design(
    *,
    space: str = "small-hybrid",
    data: str = "builtin:stdlib",
    tokenizer: str | None = None,
    seq_len: int = 256,
    constraints: Sequence[str] = (),
    mode: str = "prefill",
    answer: int | None = None,
    tokens_per_second: float | None = None,
    batch: int = 1,
    device: str = "cpu",
    threads: int = 1,
    time: str | float = "5m",
    train_for: str = "",
    out: str | Path = "report.html",
    seed: int = 0,
    cluster: str = "",
    gpus_per_training: float | None = None,
    log: str | Sequence[str] = (),
    mixers: Sequence[str | Path] = (),
    runs: str | Path = "runs",
    store: str | Store | None = None,
    on_progress: OnStage = lambda stage, share, now: None,
    **limits: str | float | None,
) -> DesignResult:
    """Design a model for this machine under `limits` (default `latency="20ms"`, `memory="100MB"`): profile the machine,
    search, probe the best few candidates, race them on the text, train the selected one and write the report `out`.
    `train_for` is the budget of that training, to which the race extrapolates ("2h", "20M tokens", "1e18 FLOPs";
    default: the rest of `time`). If interrupted, the same call resumes. `mode`, `answer`, `tokens_per_second`, `batch`,
    `device`, `threads`: how the model will run, as for `plait.search`; `constraints`: further ones of the search.
    `cluster`, `gpus_per_training`: where candidates are probed and raced, as for `plait.compare`. `log`: also log the
    trainings for tensorboard, wandb or mlflow."""
    started = clock.perf_counter()
    from plait.designing.config import TrainFor
    from plait.designing.page import report_page
    from plait.designing.workflow import design as run
    from plait.designing.workflow import design_config
    from plait.reporting.page import check_writable, write
    from plait.space.table import require_chosen
    from plait.training.distributed import usable
    from plait.training.sinks import sink_names

    load_mixers(mixers)
    sinks = sink_names(log)
    seconds, page = parse_duration(time), Path(out)
    check_writable(page)
    on_progress("text", None, f"opening {data}")
    setting = Setting.of(mode, answer, seq=seq_len, batch=batch, device=device, threads=threads).here()
    held = Limits.read(tokens_per_second, **{**LIMITS, **limits})
    usable(device)
    config = design_config(
        space,
        held,
        data,
        setting,
        seconds,
        seed,
        runs=Path(runs),
        place=Place.of(cluster, None, device, gpus_per_training),
        train_for=TrainFor.read(train_for) if train_for else None,
        tokenizer=tokenizer,
        constraints=tuple(constraints),
        log=sinks,
    )
    on_progress("text", 1.0, f"{data}: a vocabulary of {config.space.headers.vocab}")
    require_chosen(config.space, mixers)
    with writable_store(store) as opened, published(opened, "design", f"{space} on {data}") as job:

        def report(stage: str, share: float | None, now: str) -> None:
            job.update(stage, share, now)
            on_progress(stage, share, now)

        document = run(config, opened, report, started)
        took = clock.perf_counter() - started
        keep_answer(opened, "design", _question(config, document), dict(document), clock.time() - took, took)
    write(page, report_page(document))
    return DesignResult(
        spec=document["pick"]["spec"],
        advice=document["advice"],
        report=str(page),
        folder=document["train"]["folder"],
        document=document,
    )


def _question(config: DesignConfig, document: DesignDocument) -> dict[str, object]:
    """What identifies a design in the store: the identities include users' mixers, the training's key the data."""
    raced = [architecture(row["spec"]).identity() for row in document["candidates"]]
    return {**config.as_dict(), "candidates": raced, "training": document["train"]["run"]}
