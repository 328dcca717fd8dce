"""`plait export RUN --to hf|onnx` and `plait import FOLDER -o RUN`: export models to other programs and import them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plait.cli.options import AsJson, Mixers, Runs
from plait.cli.output import console, count, print_result, progress_bar, wrote

if TYPE_CHECKING:
    from plait.api.export import ExportResult


def command(
    run: Annotated[str, typer.Argument(help="A run: its folder, its name, a prefix of its key, or latest.")],
    to: Annotated[
        str,
        typer.Option(
            help="hf: a folder for transformers; native: with its own classes; gguf: for llama.cpp; onnx: a file."
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--out", "--output", help="Folder or file. \\[default: RUN-hf, RUN-native, RUN.gguf …]"),
    ] = None,
    length: Annotated[
        int | None, typer.Option(help="onnx: the longest input. \\[default: the training length]")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    mixers: Mixers = None,
    runs: Runs = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Write a trained model in another program's format, then read it again and compare the logits."""
    from plait.api.export import export

    with progress_bar(quiet=as_json) as bar:
        result = export(
            run, to, output, length=length, force=force, mixers=mixers or (), runs=runs, on_progress=bar
        )  # fmt: skip
    wrote(result.output, as_json=as_json)
    print_result(result, _print, as_json=as_json)


def _print(result: ExportResult) -> None:
    out = console()
    gap = f"{result.largest_difference:.1g} of their standard deviation"
    checked = f"[green]checked[/]: read again, its logits differ from the model's in float64 by at most {gap}"
    out.print(checked, soft_wrap=True)
    if result.tokenizer is False:
        out.print("the file has no tokenizer: GGUF supports only bytes and byte-level BPE")
    if result.text_tokens_compared is not None:
        out.print(f"[green]checked[/]: {result.text_tokens_compared} tokens of a sample text, all equal")
    out.print(f"load with: {result.load_with}", markup=False, soft_wrap=True)


def import_command(
    folder: Annotated[Path, typer.Argument(help="A folder with config.json and safetensors.")],
    output: Annotated[Path, typer.Option("-o", "--out", "--output", help="The run's folder.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    as_json: AsJson = False,
) -> None:
    """Import a GPT-2, OPT, Llama, Mistral, Qwen or Mamba model from a local Hugging Face folder as a run."""
    from plait.api.export import import_weights

    with progress_bar(quiet=as_json) as bar:
        result = import_weights(folder, output, force=force, on_progress=bar)
    wrote(output, as_json=as_json)
    said = f"{count(result.params)} parameters\n{result.spec}"
    print_result(result, lambda _: console().print(said, markup=False), as_json=as_json)
