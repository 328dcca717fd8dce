"""`plait study shapes`: what depth against width changes at equal decoder parameters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plait.cli.options import AsJson, FormerLength, Mixers, Runs, StoreUrl, Text
from plait.cli.output import console, plain, print_json, table
from plait.cli.study_progress import progress
from plait.core.errors import UserError
from plait.device.quantities import in_rows

if TYPE_CHECKING:
    from plait.studies.shapes import ShapeFindings


def shapes(
    space: Annotated[str, typer.Option(help="study-gpt2, lts-gpt2, another space's name or file.")] = "study-gpt2",
    models: Annotated[int, typer.Option(help="Shapes to draw, from deep and narrow to shallow and wide.")] = 8,
    params: Annotated[
        str, typer.Option(help="Decoder parameters of all, 20M. \\[default: where shapes differ most]")
    ] = "",
    tolerance: Annotated[float, typer.Option(help="Sizes this close are equal: 0.01 is 1 %.")] = 0.01,
    seq: Annotated[int, typer.Option(min=1, help="Tokens at which latency and memory are measured.")] = 192,
    threads: Annotated[int, typer.Option(min=1, help="Of the processor.")] = 1,
    steps: Annotated[int, typer.Option(min=0, help="Train each for so many steps, too; 0: only measure.")] = 0,
    data: Text = "builtin:stdlib",
    batch: Annotated[int, typer.Option(min=1, help="Sequences per training step.")] = 8,
    seq_len: Annotated[int, typer.Option(min=1, help="Tokens of a training sequence.")] = 64,
    length: FormerLength = None,
    lr: Annotated[float, typer.Option(help="Peak learning rate.")] = 6e-3,
    seed: Annotated[int, typer.Option(min=0, help="Of the draw, the weights and the order of the data.")] = 0,
    runs: Runs = Path("runs"),
    mixers: Mixers = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Measure, and train, architectures of one size and many shapes. Interrupted, the same command goes on."""
    from plait.data import open_corpus
    from plait.device.setting import Setting
    from plait.records import open_store
    from plait.studies.proxies import RECIPE, study_space
    from plait.studies.shapes import ShapeStudy, Training

    chosen, training = study_space(space), None
    if steps:
        corpus = open_corpus(data)
        chosen = type(chosen)(chosen.declared.with_vocabulary(corpus.vocab))
        training = Training(corpus, steps, RECIPE.with_values({"batch": batch, "seq_len": seq_len, "lr": lr}))
    setting = Setting(seq=seq, threads=threads)
    study = ShapeStudy(chosen, setting, models, _number(params), tolerance, seed, training)
    with open_store(store) as opened, progress(models, quiet=as_json) as watch:
        found = study.run(opened, runs, watch)
    print_json(found.as_dict()) if as_json else _print(found)


def _number(text: str) -> float | None:
    if not text:
        return None
    scale = {"K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9}.get(text[-1].upper(), 1.0)
    try:
        return float(text[:-1] if scale > 1 else text) * scale
    except ValueError:
        raise UserError(f"--params {text}: a number of parameters, such as 200K or 20M.") from None


def _print(found: ShapeFindings) -> None:
    trained = "loss" in found.rows[0]
    columns = {"d_model": "right", "n_layer": "right", "aspect": "right", "decoder_params": "right"}
    shown = list(in_rows(found.rows).values())
    columns |= {**{each.unit: "right" for each in shown}, **({"perplexity": "right"} if trained else {})}
    made = table(**columns, layers="left")
    for row in found.rows:
        cells = [str(row["d_model"]), str(row["n_layer"]), f"{row['aspect']:.3g}", f"{row['decoder_params']:,}"]
        cells += [f"{row[each.column]:.3g}" for each in shown]
        cells[-len(shown)] += "*" if row["noisy"] else ""
        cells += [f"{row['perplexity']:.4g}"] if trained else []
        made.add_row(*cells, plain(row["spec"].partition("|")[2].strip()))
    out = console()
    out.print(made)
    if any(row["noisy"] for row in found.rows):
        out.print("* the machine was busy: measured with noise", style="yellow")
    out.print(found.statement(), markup=False, soft_wrap=True)
