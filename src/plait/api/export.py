"""Export models to other programs and import them: `plait.export`, `plait.import_weights`."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.api.open_run import OpenRun, run_of
from plait.core.errors import UserError
from plait.core.progress import OnProgress, ignore
from plait.core.registry import require_one_of
from plait.core.result import Result
from plait.model.architecture import load_mixers

if TYPE_CHECKING:
    from plait.model.language_model import Encoder, LanguageModel
    from plait.training.run import Run

    Model = LanguageModel | Encoder

#: Formats, and the part of the time, as measured, after which the model is loaded, and after which it is written.
FORMATS = {"hf": (0.35, 0.75), "native": (0.35, 0.75), "gguf": (0.35, 0.75), "onnx": (0.08, 0.84)}


@dataclass(frozen=True)
class ExportResult(Result):
    run: str
    to: str
    output: str  # folder or file
    largest_difference: float  # of reloaded logits in float64, relative to their standard deviation
    length: int | None = None  # onnx: the longest input
    text_tokens_compared: int | None = None  # hf: tokens of a sample text, equal in both tokenizers
    tokenizer: bool | None = None  # gguf: whether the file includes it
    load_with: str | None = None  # how a program without plait loads it

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in super().as_dict().items() if value is not None}


@dataclass(frozen=True)
class ImportResult(Result):
    run: str
    folder: str
    spec: str
    params: int


def export(
    run: str | Path | OpenRun,
    to: str,
    out: str | Path | None = None,
    *,
    length: int | None = None,
    force: bool = False,
    mixers: Sequence[str | Path] = (),
    runs: str | Path = "runs",
    on_progress: OnProgress = ignore,
) -> ExportResult:
    """Write a trained model in another program's format, then read it again and compare the logits.

    to      hf: a folder for Hugging Face's transformers, including the model's code for programs without plait;
            native: a folder for one of transformers' own classes, such as LlamaForCausalLM, if the model is equivalent;
            gguf: a file for llama.cpp, for models equivalent to Llama, Qwen2 or Qwen3; onnx: a file
    out     default: RUN-hf, RUN-native, RUN.gguf or RUN.onnx
    length  onnx: the longest input; default: the training length
    force   overwrite existing files
    runs    folder of the trained models
    """
    from plait.core.files import check_free

    require_one_of(to, FORMATS, f"--to {to}")
    if length is not None and to != "onnx":
        raise UserError(f"--length {length}: only an ONNX file has a longest input; leave it out with --to {to}.")
    load_mixers(mixers)
    opened = run_of(run, runs)
    target = Path(out or (f"{opened.name}.{to}" if to in ("onnx", "gguf") else f"{opened.name}-{to}"))
    check_free(target, force=force)  # before anything long
    loaded, written = FORMATS[to]
    on_progress("loading the model", 0, 1)
    model = opened.model()
    on_progress(f"writing {target}", loaded, 1)
    checking = partial(on_progress, f"reading {target} again and comparing its logits", written, 1)
    if to == "gguf":
        return _gguf(opened, model, target, force, checking)
    if to == "onnx":
        return _onnx(opened, model, target, length, force, checking)
    return _hf(opened, model, to, target, force, checking)


def _gguf(run: Run, model: Model, target: Path, force: bool, checking: Callable[[], None]) -> ExportResult:
    from plait.interop.gguf_file import check_gguf, export_gguf

    kept = export_gguf(model, run.tokenizer(), target, name=run.name, force=force)
    checking()
    gap, load_with = check_gguf(model, target), f"llama-cli -m {shlex.quote(str(target))}"
    return ExportResult(run.name, "gguf", str(target), gap, tokenizer=kept, load_with=load_with)


def _hf(run: Run, model: Model, to: str, target: Path, force: bool, checking: Callable[[], None]) -> ExportResult:
    from plait.interop.hf import CLASSES, check_hf, export_hf
    from plait.interop.hf import TOLERANCE as EXACT
    from plait.interop.native import TOLERANCE, export_native

    tokenizer = run.tokenizer()
    loader = CLASSES[run.arch.header.kind][0] if run.arch.header.kind in CLASSES else ""
    if to == "native":
        loader = export_native(model, tokenizer, target, force=force)
    else:
        export_hf(model, tokenizer, target, force=force)
    checking()
    from transformers.utils import logging

    logging.disable_progress_bar()
    checked = check_hf(model, tokenizer, target, tolerance=TOLERANCE if to == "native" else EXACT)
    trust = ", trust_remote_code=True" if to == "hf" else ""  # a program that imports plait can leave it out
    load_with = f'{loader}.from_pretrained("{target}"{trust})'
    return ExportResult(
        run.name, to, str(target), checked.logits_gap, text_tokens_compared=checked.text_tokens_compared,
        load_with=load_with,
    )  # fmt: skip


def _onnx(
    run: Run, model: Model, target: Path, length: int | None, force: bool, checking: Callable[[], None]
) -> ExportResult:
    from plait.interop.onnx import check_onnx, export_onnx

    longest = (run.seq_len or run.arch.header.max_len or 512) if length is None else length
    export_onnx(model, target, longest, force=force)
    checking()
    gap, load_with = check_onnx(model, target, longest), f'onnxruntime.InferenceSession("{target}")'
    return ExportResult(run.name, "onnx", str(target), gap, length=longest, load_with=load_with)


def imported(run: str | Path, runs: Path) -> str | Path:
    """The run; for a Hugging Face folder the run made from it, in `runs`; imported once."""
    folder = Path(run)
    if not os.path.isfile(folder / "config.json") or os.path.exists(folder / "run.json"):
        return run
    target = runs / f"import-{_digest(folder)[:10]}"
    if not target.exists():
        import_weights(folder, target)
    return target


def _digest(folder: Path) -> str:
    """Hash of the config, the weights and the tokenizer."""
    from plait.interop.import_hf import read_config

    read_config(folder)  # raises an error if it is not such a folder
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.iterdir() if path.suffix in (".json", ".safetensors")):
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
        with path.open("rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()


def import_weights(
    folder: str | Path, out: str | Path, *, force: bool = False, on_progress: OnProgress = ignore
) -> ImportResult:
    """Make a run, `out`, of a GPT-2, OPT, Llama (SmolLM2), Mistral, Qwen2, Qwen3, Mamba or Mamba-2 model
    in a local Hugging Face folder."""
    from plait.core.files import check_free, filled_folder
    from plait.interop.hf import weights_of
    from plait.interop.import_hf import import_hf, read_config, trained_length
    from plait.records import record_key
    from plait.training.run import Run

    source, target = Path(folder), Path(out)
    check_free(target, force=force)  # before anything long
    on_progress(f"reading {source}", 0, None)
    model, tokenizer = import_hf(source)
    if tokenizer is None:
        raise UserError(f"{source} has no tokenizer.json: a run needs its tokenizer.")
    config = {
        "protocol": 1,
        "spec": model.arch.text,
        "recipe": {"seq_len": trained_length(read_config(source))},
        "imported": {"sha256": _digest(source), "tokenizer": tokenizer.as_dict()},
    }
    on_progress(f"writing {target}", 0, None)
    with filled_folder(target, force=force) as scratch:
        run = Run(scratch)
        run.write_about({"key": record_key("import", config), "config": config, "tokenizer": str(target / "tokenizer")})
        run.save_weights(weights_of(model))
        tokenizer.save(scratch / "tokenizer")
    parameters = sum(p.numel() for p in model.parameters())
    return ImportResult(target.name, str(target), model.arch.text, parameters)
