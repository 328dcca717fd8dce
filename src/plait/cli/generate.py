"""`plait generate RUN PROMPT…`: text from a trained model, as it is made."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plait.cli.options import AsJson, Mixers
from plait.cli.output import count, print_json
from plait.training.devices import usable

if TYPE_CHECKING:
    from plait.data import Tokenizer
    from plait.model.generation import Generation

#: Asked for when no number is given, unless the model's learned positions end before.
USUAL_TOKENS = 200


def command(
    run: Annotated[str, typer.Argument(help="A run: its folder, its name, the beginning of its key, or latest.")],
    prompts: Annotated[
        list[str] | None, typer.Argument(help="Texts to continue; - reads one from standard input.", show_default=False)
    ] = None,
    tokens: Annotated[int | None, typer.Option(help="The most tokens a text may get. \\[default: 200]", min=0)] = None,
    temperature: Annotated[float, typer.Option(help="Below 1 likelier tokens gain, above 1 they lose.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Only the k likeliest tokens; 0: all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Only the likeliest tokens that hold this probability.")] = 1.0,
    greedy: Annotated[bool, typer.Option("--greedy", help="Always the likeliest token.")] = False,
    seed: Annotated[int, typer.Option(help="Of the draws; text n takes seed + n.")] = 0,
    stop: Annotated[bool, typer.Option(help="Whether the end-of-text token ends a text.")] = True,
    forget: Annotated[
        float | None, typer.Option(help="Drop cache entries that can never hold more than this probability: 1e-4.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, …")] = "cpu",
    mixers: Mixers = None,
    as_json: AsJson = False,
) -> None:
    """Continue texts with a trained model."""
    from plait.core.errors import UserError
    from plait.model.generation import Generation
    from plait.model.heads import LanguageModel
    from plait.model.sampling import GREEDY, Sampling
    from plait.training.run import open_run

    opened = open_run(run)
    tokenizer = opened.tokenizer()
    texts = [sys.stdin.read() if prompt == "-" else prompt for prompt in prompts or [""]]
    model = opened.model(device=usable(device))
    if not isinstance(model, LanguageModel):
        raise UserError(f"{opened.name} is of kind={opened.arch.header.kind}; only language models generate.")
    encoded = [_encoded(text, tokenizer) for text in texts]
    generation = Generation(
        model,
        encoded,
        tokens=_room(opened.arch.header, encoded) if tokens is None else tokens,
        sampling=GREEDY if greedy else Sampling(temperature, top_k, top_p),
        seeds=seed,
        end=() if tokenizer.end is None or not stop else (tokenizer.end,),
        forget=forget,
    )
    started = time.perf_counter()
    if as_json or len(texts) > 1:
        _run(generation, shown=not as_json)
    else:
        _stream(generation, texts[0], tokenizer)
    seconds = time.perf_counter() - started
    completions = [_decoded(row, generation, tokenizer) for row in generation.rows]
    made = sum(map(len, generation.rows))
    if as_json:
        print_json({
            "run": opened.name,
            "prompts": texts,
            "completions": completions,
            "tokens": [len(row) for row in generation.rows],
            "ended": [generation.ended(row) for row in range(len(texts))],
            "tokens_per_second": made / seconds,
            "state_bytes": generation.state_bytes,
            "peak_state_bytes": generation.peak_state_bytes,
            "dropped": None if forget is None else vars(generation.dropped),
        })  # fmt: skip
        return
    if len(texts) > 1:
        for text, completion in zip(texts, completions, strict=True):
            print(f"{text}{completion}\n")
    print(_summary(generation, made, seconds), file=sys.stderr)


def _stream(generation: Generation, prompt: str, tokenizer: Tokenizer) -> None:
    """One text as it comes. Written plainly: what a model says is no markup."""
    from plait.model.generation import TextStream

    stream = TextStream(lambda ids: _text(ids, tokenizer))
    _write(prompt)
    for _, token in generation:
        if token not in generation.end:
            _write(stream.push(token))
    _write(stream.finish() + "\n")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _run(generation: Generation, *, shown: bool) -> None:
    """Several texts at once cannot share a terminal line by line: a bar, then the texts."""
    from rich.console import Console
    from rich.progress import Progress

    out = Console(stderr=True)
    with Progress(console=out, transient=True, disable=not shown or not out.is_terminal) as progress:
        bar = progress.add_task("generating", total=generation.tokens * len(generation.rows))
        for _ in generation:
            progress.advance(bar)


def _summary(generation: Generation, made: int, seconds: float) -> str:
    parts = [f"{made} tokens", f"{made / seconds:.0f} a second", f"state {count(generation.state_bytes)} bytes"]
    if generation.forget is not None:
        dropped = generation.dropped
        parts.append(f"dropped {count(dropped.entries)} cache entries ({count(dropped.bytes)} bytes)")
    return ", ".join(parts)


def _encoded(text: str, tokenizer: Tokenizer) -> list[int]:
    """A prompt's ids; an empty one starts a new text, where the vocabulary says how."""
    from plait.core.errors import UserError

    ids: list[int] = tokenizer.encode(text).tolist()
    if ids:
        return ids
    if tokenizer.end is None:
        raise UserError("this run's vocabulary has no end-of-text token to start from: give a prompt.")
    return [tokenizer.end]


def _room(header: Any, encoded: Sequence[Sequence[int]]) -> int:
    if header.pos != "learned":
        return USUAL_TOKENS
    return int(max(0, min(USUAL_TOKENS, header.max_len - max(map(len, encoded)) + 1)))


def _decoded(row: Sequence[int], generation: Generation, tokenizer: Tokenizer) -> str:
    return _text([token for token in row if token not in generation.end], tokenizer)


def _text(ids: Sequence[int], tokenizer: Tokenizer) -> str:
    """A model may have more ids than its tokenizer (rounded up for speed); those say nothing."""
    return tokenizer.decode([token for token in ids if token < tokenizer.vocab])
