"""`plait import FOLDER -o RUN`: GPT-2, LLaMA or OPT from a Hugging Face folder as a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from plait.cli.options import AsJson
from plait.cli.output import console, count, print_json


def command(
    folder: Annotated[Path, typer.Argument(help="A folder with config.json and safetensors (gpt2, llama).")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The run's folder, which must not exist.")],
    as_json: AsJson = False,
) -> None:
    """Make a run of a GPT-2, LLaMA or OPT model that lies in a local Hugging Face folder."""
    from plait.core.errors import UserError
    from plait.interop.hf import weights_of
    from plait.interop.import_hf import import_hf, read_config, trained_length
    from plait.interop.target import check_free, filled_folder
    from plait.records import record_key
    from plait.training.run import Run

    check_free(output, force=False)  # before anything long
    model, tokenizer = import_hf(folder)
    if tokenizer is None:
        raise UserError(f"{folder} has no tokenizer.json: a run needs its tokenizer.")
    config = {
        "protocol": 1,
        "spec": model.arch.text,
        "recipe": {"seq_len": trained_length(read_config(folder))},
        "imported": {"folder": folder.resolve().name, "tokenizer": tokenizer.as_dict()},
    }
    with filled_folder(output, force=False) as scratch:
        run = Run(scratch)
        run.write_about({"key": record_key("import", config), "config": config, "tokenizer": str(output / "tokenizer")})
        run.save_weights(weights_of(model))
        tokenizer.save(scratch / "tokenizer")
    parameters = sum(p.numel() for p in model.parameters())
    if as_json:
        print_json({"run": output.name, "folder": str(output), "spec": model.arch.text, "params": parameters})
        return
    console().print(f"{output}: {count(parameters)} parameters\n{model.arch.text}", markup=False)
