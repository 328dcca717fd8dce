"""Text from a trained model: `plait.generate`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.api.open_run import OpenRun, run_of
from plait.core.errors import UserError
from plait.core.progress import OnProgress, ignore
from plait.core.result import Result
from plait.model.architecture import load_mixers

if TYPE_CHECKING:
    from plait.data import Tokenizer
    from plait.model.forgetting_cache import Dropped
    from plait.model.generation import Generation

#: Default number of tokens, unless the model has fewer learned positions.
USUAL_TOKENS = 200


@dataclass(frozen=True)
class GenerateResult(Result):
    run: str
    prompts: tuple[str, ...]
    completions: tuple[str, ...]
    tokens: tuple[int, ...]  # number generated for each text
    ended: tuple[bool, ...]  # by the end-of-text token
    tokens_per_second: float
    state_bytes: int
    peak_state_bytes: int
    dropped: Dropped | None  # from forgetting attention's KV cache

    @property
    def texts(self) -> tuple[str, ...]:
        """Each prompt with its continuation."""
        return tuple(prompt + rest for prompt, rest in zip(self.prompts, self.completions, strict=True))

    def rows(self) -> list[dict[str, Any]]:
        parts = zip(self.prompts, self.completions, self.tokens, self.ended, strict=True)
        return [{"prompt": p, "completion": c, "tokens": t, "ended": e} for p, c, t, e in parts]


def generate(
    run: str | Path | OpenRun,
    prompts: str | Sequence[str] = "",
    *,
    tokens: int | None = None,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    greedy: bool = False,
    seed: int = 0,
    stop: bool = True,
    forget: float | None = None,
    device: str = "cpu",
    mixers: Sequence[str | Path] = (),
    runs: str | Path = "runs",
    on_text: Callable[[str], None] | None = None,
    on_progress: OnProgress = ignore,
) -> GenerateResult:
    """Continue one text or several with a trained model.

    run       its folder, its name, the beginning of its key, or latest
    tokens    maximum number of new tokens per text; default: 200
    seed      random seed; text n uses seed + n
    stop      whether the end-of-text token ends a text
    runs      folder of the trained models
    forget    drop cache entries that can never exceed this probability
    on_text   with one prompt: called with the prompt, then with each new piece of text
    """
    from plait.model.generation import GREEDY, Generation, Sampling
    from plait.model.language_model import LanguageModel
    from plait.training.distributed import usable

    load_mixers(mixers)
    opened = run_of(run, runs)
    tokenizer = opened.tokenizer()
    texts = [prompts] if isinstance(prompts, str) else list(prompts)
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
    if on_text is not None and len(texts) == 1:
        _stream(generation, texts[0], encoded[0], tokenizer, on_text)
    else:
        for done, _ in enumerate(generation, start=1):
            on_progress("generating", done, generation.tokens * len(texts))
    seconds = time.perf_counter() - started
    return GenerateResult(
        run=opened.name,
        prompts=tuple(texts),
        completions=tuple(
            _continuation([token for token in row if token not in generation.end], text, ids, tokenizer)
            for text, ids, row in zip(texts, encoded, generation.rows, strict=True)
        ),
        tokens=tuple(len(row) for row in generation.rows),
        ended=tuple(generation.ended(row) for row in range(len(texts))),
        tokens_per_second=sum(map(len, generation.rows)) / seconds,
        state_bytes=generation.state_bytes,
        peak_state_bytes=generation.peak_state_bytes,
        dropped=None if forget is None else generation.dropped,
    )


def _stream(
    generation: Generation, prompt: str, ids: Sequence[int], tokenizer: Tokenizer, on_text: Callable[[str], None]
) -> None:
    from plait.model.generation import TextStream

    stream = TextStream(lambda ids: _text(ids, tokenizer), _context(prompt, ids, tokenizer))
    on_text(prompt)
    for _, token in generation:
        if token not in generation.end:
            on_text(stream.push(token))
    on_text(stream.finish())


def _continuation(row: Sequence[int], prompt: str, ids: Sequence[int], tokenizer: Tokenizer) -> str:
    context = list(_context(prompt, ids, tokenizer))
    return _text([*context, *row], tokenizer)[len(_text(context, tokenizer)) :]


def _context(prompt: str, ids: Sequence[int], tokenizer: Tokenizer) -> Sequence[int]:
    """The prompt's tokens that the new ones are decoded after: tokenizers of words put a space between two, and none
    before the first. None of them if the prompt ends with a space that its tokens have lost."""
    lost_space = prompt[-1:].isspace() and not _text(ids, tokenizer)[-1:].isspace()
    return () if not prompt or lost_space else ids


def _encoded(text: str, tokenizer: Tokenizer) -> list[int]:
    """The token ids of a prompt; an empty one starts a new text, if the vocabulary has a token for that."""
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


def _text(ids: Sequence[int], tokenizer: Tokenizer) -> str:
    """The text of these ids; ids beyond the tokenizer's (vocabularies are rounded up for speed) are left out."""
    return tokenizer.decode([token for token in ids if token < tokenizer.vocab])
