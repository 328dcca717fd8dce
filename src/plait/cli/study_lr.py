"""`plait study lr`: which learning rate is the best for which architecture, and whether a fixed one changes ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from plait.cli.analyse_table import floats
from plait.cli.options import AsJson, FormerLength, Mixers, StoreUrl, Text
from plait.cli.output import console, plain, print_json, table
from plait.cli.study_progress import progress
from plait.training.devices import usable

if TYPE_CHECKING:
    from plait.studies.lr_sweep import SweepFindings


def lr(
    space: Annotated[str, typer.Option(help="study-gpt2, study-hybrid, a space's name or file.")] = "study-gpt2",
    models: Annotated[int, typer.Option(min=0, help="Architectures to draw from it.")] = 6,
    spec: Annotated[list[str] | None, typer.Option(help="Another architecture; any number.")] = None,
    rates: Annotated[str, typer.Option(help="Learning rates, with commas between them.")] = "1e-4,1e-3,1e-2,1e-1",
    seeds: Annotated[int, typer.Option(min=1, help="Trainings with each rate.")] = 2,
    data: Text = "builtin:stdlib",
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps of each training.")] = 60,
    batch: Annotated[int, typer.Option(min=1, help="Sequences per step.")] = 8,
    seq_len: Annotated[int, typer.Option(min=1, help="Tokens of a sequence.")] = 32,
    length: FormerLength = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the draw.")] = 0,
    device: Annotated[str, typer.Option(help="Where models are trained: cpu or cuda.")] = "cpu",
    mixers: Mixers = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Train architectures with several learning rates each. Interrupted, the same command goes on."""
    from plait.data import open_corpus
    from plait.model.architecture import architecture
    from plait.records import open_store
    from plait.studies.lr_sweep import RateSweep
    from plait.studies.proxies import drawn, study_space
    from plait.training.job import fitted

    usable(device)
    corpus = open_corpus(data)
    archs = [fitted(text, corpus) for text in spec or []]
    if models:
        whole = study_space(space)
        fitting = type(whole)(whole.declared.with_vocabulary(corpus.vocab))
        archs += [architecture(fitting.spec(row_G)) for row_G in drawn(fitting, models, seed)]
    sweep = RateSweep(archs, corpus, floats(rates, "--rates"), seeds, steps, batch, seq_len, device=device)
    with open_store(store) as opened, progress(len(archs), quiet=as_json) as watch:
        found = sweep.run(opened, watch)
    print_json(found.as_dict()) if as_json else _print(found)


def _print(found: SweepFindings) -> None:
    study, out = found.study, console()
    by_model = {(row["spec"], row["lr"]): row["loss"] for row in found.means}
    shown = {f"{one.rate:g}": "right" for one in study.rates}
    made = table(decoder_params="right", **shown, best="right", architecture="left")
    sizes = {row["spec"]: row["decoder_params"] for row in found.means}
    for spec, best in sorted(zip(study.models, study.best_rate.tolist(), strict=True), key=lambda one: sizes[one[0]]):
        losses = (f"{by_model[spec, one.rate]:.3f}" for one in study.rates)
        made.add_row(f"{sizes[spec]:,}", *losses, f"{best:g}", plain(spec.partition("|")[2].strip()))
    out.print(made)
    out.print()
    rates = table(rate="right", best_for="right", share="right", SRC="right", SRC_with_best="right")
    for one in study.rates:
        rates.add_row(f"{one.rate:g}", str(one.wins), f"{one.share:.0%}", f"{one.src:.2f}", f"{one.src_best:.2f}")
    out.print(rates)
    out.print(
        f"validation loss in nats per token, mean of {found.sweep.seeds} seeds; SRC: of decoder parameters with the "
        "loss at this rate; SRC with best: of that loss with the loss at each one's best rate",
        style="dim",
    )
    out.print(found.statement(), markup=False, soft_wrap=True)
