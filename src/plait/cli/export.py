"""`plait export RUN --to hf|onnx`: a trained model for other programs, checked after it is written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plait.cli.options import AsJson, Mixers
from plait.cli.output import console, print_json

if TYPE_CHECKING:
    from plait.training.run import Run

FORMATS = ("hf", "onnx")


def command(
    run: Annotated[str, typer.Argument(help="A run: its folder, its name, the beginning of its key, or latest.")],
    to: Annotated[str, typer.Option(help="hf: a folder for Hugging Face's transformers; onnx: a file.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder or file. \\[default: RUN-hf or RUN.onnx]")
    ] = None,
    length: Annotated[
        int | None, typer.Option(help="onnx: the longest input. \\[default: what it was trained on]")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite what is there.")] = False,
    mixers: Mixers = None,
    as_json: AsJson = False,
) -> None:
    """Write a trained model in another program's format, read it again and compare."""
    from plait.core.errors import UserError, did_you_mean
    from plait.interop.target import check_free
    from plait.training.run import open_run

    if to not in FORMATS:
        raise UserError(f"--to {to}: known are {', '.join(FORMATS)}.{did_you_mean(to, FORMATS)}")
    opened = open_run(run)
    target = output or Path(f"{opened.name}-hf" if to == "hf" else f"{opened.name}.onnx")
    check_free(target, force=force)  # before anything long
    with _busy(f"writing {target}", as_json):
        found = _hf(opened, target, force) if to == "hf" else _onnx(opened, target, length, force)
    if as_json:
        print_json({"run": opened.name, "to": to, "output": str(target), **found})
        return
    out = console()
    out.print(f"wrote [bold]{target}[/]")
    gap = f"{found['largest_difference']:.1g} of their standard deviation"
    out.print(f"[green]checked[/]: read again, its logits differ from the model's in float64 by at most {gap}")
    if to == "hf":
        out.print(f"[green]checked[/]: {found['text_tokens_compared']} tokens of a sample text, all equal")
        auto = "AutoModelForCausalLM" if opened.arch.header.kind == "lm" else "AutoModelForMaskedLM"
        trust = ", trust_remote_code=True" if opened.arch.mixer_sources else ""  # it runs the mixers' copies
        out.print(f'import plait.interop.hf_model, then {auto}.from_pretrained("{target}"{trust})')


def _hf(run: Run, target: Path, force: bool) -> dict[str, Any]:
    from plait.interop.hf import check_hf, export_hf

    model, tokenizer = run.model(), run.tokenizer()
    export_hf(model, tokenizer, target, force=force)
    from transformers.utils import logging

    logging.disable_progress_bar()
    found = check_hf(model, tokenizer, target)
    return {"largest_difference": found.logits_gap, "text_tokens_compared": found.text_tokens_compared}


def _onnx(run: Run, target: Path, length: int | None, force: bool) -> dict[str, Any]:
    from plait.interop.onnx import check_onnx, export_onnx

    model = run.model()
    longest = length or run.seq_len or run.arch.header.max_len or 512
    export_onnx(model, target, longest, force=force)
    return {"length": longest, "largest_difference": check_onnx(model, target, longest)}


def _busy(what: str, quiet: bool) -> Any:
    """A sign of life: exporters report no progress."""
    from contextlib import nullcontext

    from rich.console import Console

    out = Console(stderr=True)
    return nullcontext() if quiet or not out.is_terminal else out.status(what)
