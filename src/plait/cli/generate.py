"""`plait generate RUN PROMPT…`: text from a trained model, printed as it is generated."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plait.cli.options import AsJson, Device, Mixers, Runs
from plait.cli.output import count, passed, print_json, progress_bar

if TYPE_CHECKING:
    from plait.api.generate import GenerateResult


def command(
    run: Annotated[str, typer.Argument(help="A run: its folder, its name, a prefix of its key, or latest.")],
    prompts: Annotated[
        list[str] | None, typer.Argument(help="Texts to continue; - reads one from standard input.", show_default=False)
    ] = None,
    tokens: Annotated[int | None, typer.Option(help="Maximum number of new tokens. \\[default: 200]", min=0)] = None,
    temperature: Annotated[float, typer.Option(help="Sampling temperature; below 1 favours likely tokens.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Sample from the k most likely tokens; 0: all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Nucleus sampling: total probability of the tokens kept.")] = 1.0,
    greedy: Annotated[bool, typer.Option("--greedy", help="Always take the most likely token.")] = False,
    seed: Annotated[int, typer.Option(help="Random seed; text n uses seed + n.")] = 0,
    stop: Annotated[bool, typer.Option(help="Stop at the end-of-text token.")] = True,
    forget: Annotated[
        float | None,
        typer.Option(help="Drop cache entries that can never exceed this probability, such as 1e-4."),
    ] = None,
    device: Device = "cpu",
    mixers: Mixers = None,
    runs: Runs = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Continue texts with a trained model."""
    arguments = dict(locals())
    from plait.api.generate import generate

    texts = [sys.stdin.read() if prompt == "-" else prompt for prompt in prompts or [""]]
    streamed = not as_json and len(texts) == 1
    with progress_bar(quiet=as_json or streamed) as on_progress:
        changed = {"prompts": texts, "on_text": _write if streamed else None, "on_progress": on_progress}
        result = generate(**passed(arguments, "as_json", **changed))
    if as_json:
        print_json(result.as_dict())
        return
    print("" if streamed else "".join(f"{text}\n\n" for text in result.texts), end="\n" if streamed else "")
    print(_summary(result), file=sys.stderr)


def _write(text: str) -> None:
    """Print without reading markup: a model's text may contain brackets."""
    sys.stdout.write(text)
    sys.stdout.flush()


def _summary(result: GenerateResult) -> str:
    tokens, speed = sum(result.tokens), result.tokens_per_second
    parts = [f"{tokens} tokens", f"{speed:.0f} per second", f"state {count(result.state_bytes)} bytes"]
    if result.dropped is not None:
        parts.append(f"dropped {count(result.dropped.entries)} cache entries ({count(result.dropped.bytes)} bytes)")
    return ", ".join(parts)
