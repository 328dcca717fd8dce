"""Loss, perplexity and bits per character at a stated evaluation length.

PPL = exp(Σ −log p / tokens) = 2^(bits per token) (Javaheripi et al. 2022, arXiv:2203.02094, eq. 1); bits per character
are Σ −log p / (ln 2 · characters). Every token but the first is scored exactly once, however the
text is split:

* consecutive windows of `length` tokens: a token sees 0 to length − 1 tokens before it (LTS: 192 and 32);
* windows that move by `stride`: after the first, a token sees at least length − stride;
* segments of `length` tokens after a Transformer-XL memory (Dai et al. 2019, arXiv:1901.02860): a token sees up to
  `memory` tokens of every layer's past. Distances may be clamped, as its authors do at evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
import torch

from plait.core.errors import UserError
from plait.core.progress import OnCount, silent
from plait.evals.evaluation import Evaluation, Results, ResultTable, Subject
from plait.evals.losses import check_length, losses_after, rows_at_once, token_losses
from plait.mixers.xl_attn_module import RelativeAttention
from plait.model.language_model import IGNORE, LanguageModel, perplexity_of

LONG = 2**18  # tokens; a longer text comes with the advice how to read less of it


@dataclass(frozen=True)
class Perplexity:
    nats: float  # of all scored tokens together
    tokens: int  # scored

    @property
    def loss(self) -> float:
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        return perplexity_of(self.loss)

    def bits_per(self, units: float) -> float:
        """Bits per character (or byte), given how many of them the scored tokens have."""
        return self.nats / math.log(2) / units


@dataclass(frozen=True)
class Span:
    """Tokens `start` … `stop`−1 are read; the tokens that follow positions from `scored` on are scored."""

    start: int
    stop: int
    scored: int


def spans(tokens: int, length: int, stride: int) -> list[Span]:
    """Windows over a text of so many tokens, in which each but the first is scored once."""
    windows: list[Span] = []
    end = 0
    while end < tokens - 1:
        start = len(windows) * stride
        stop = min(start + length, tokens - 1)
        windows.append(Span(start, stop, end))
        end = stop
    return windows


def perplexity(
    model: LanguageModel,
    tokens: np.ndarray,
    *,
    length: int,
    stride: int = 0,
    batch: int = 0,
    progress: OnCount = silent,
) -> Perplexity:
    """Over windows of `length` that move by `stride` (0: by their length). `batch` affects only the speed."""
    if length < 1 or not 0 <= stride <= length:
        raise UserError(f"length={length}, stride={stride}: the length must be at least 1, the stride 0 to length.")
    _check_text(model, tokens)
    nats, done, batch = 0.0, 0, batch or rows_at_once(length)
    for _, alike in groupby(spans(len(tokens), length, stride or length), key=lambda span: span.stop - span.start):
        rows = list(alike)
        for first in range(0, len(rows), batch):
            some = rows[first : first + batch]
            inputs = np.stack([tokens[span.start : span.stop] for span in some]).astype(np.int64)
            targets = np.stack([tokens[span.start + 1 : span.stop + 1] for span in some]).astype(np.int64)
            for row, span in zip(targets, some, strict=True):
                row[: span.scored - span.start] = IGNORE
            nats += token_losses(model, torch.from_numpy(inputs), torch.from_numpy(targets)).sum().item()
            done += int((targets != IGNORE).sum())
            progress(done, len(tokens) - 1)
    return _checked(Perplexity(nats, done), len(tokens))


def perplexity_with_memory(
    model: LanguageModel,
    tokens: np.ndarray,
    *,
    length: int,
    memory: int,
    streams: int = 1,
    clamp: int = 0,
    progress: OnCount = silent,
) -> Perplexity:
    """Segments of `length` after a memory of `memory` tokens. The text is read as one stream; with more `streams` it is
    split into as many and read faster, but each begins without a memory."""
    if min(length, memory, streams) < 1:
        raise UserError(f"length={length}, memory={memory}, streams={streams}: each must be at least 1.")
    _check_text(model, tokens)
    if model.arch.header.pos == "learned":
        check_length(model, len(tokens) - 1)
    per_stream = math.ceil((len(tokens) - 1) / streams)
    padded = np.zeros(per_stream * streams, dtype=np.int64)
    padded[: len(tokens) - 1] = tokens[:-1]
    inputs_BT = padded.reshape(streams, per_stream)
    padded = np.full(per_stream * streams, IGNORE, dtype=np.int64)
    padded[: len(tokens) - 1] = tokens[1:]
    targets_BT = padded.reshape(streams, per_stream)
    nats, done, state = 0.0, 0, model.init_memory(streams, memory)
    with clamped(model, clamp):
        for first in range(0, per_stream, length):
            inputs, targets = (torch.from_numpy(part[:, first : first + length]) for part in (inputs_BT, targets_BT))
            losses, state = losses_after(model, inputs, targets, state)
            nats += losses.sum().item()
            done += int((targets != IGNORE).sum())
            progress(done, len(tokens) - 1)
    return _checked(Perplexity(nats, done), len(tokens))


@contextmanager
def clamped(model: LanguageModel, clamp: int) -> Iterator[None]:
    """Within the context, distances beyond `clamp` count as `clamp` in every layer; 0 changes nothing."""
    layers = [block.mixer for block in model.backbone.blocks if isinstance(block.mixer, RelativeAttention)]
    before = [layer.clamp for layer in layers]
    try:
        for layer in layers:
            layer.clamp = clamp or layer.clamp
        yield
    finally:
        for layer, was in zip(layers, before, strict=True):
            layer.clamp = was


def _check_text(model: LanguageModel, tokens: np.ndarray) -> None:
    if len(tokens) < 2:
        raise UserError(f"a text of {len(tokens)} tokens has nothing to predict; give at least 2.")
    vocab, largest = model.arch.header.vocab, int(np.max(tokens))
    if largest >= vocab:
        raise UserError(f"the text holds token {largest}, but the model's vocabulary is {vocab}: another tokenizer's?")


def _checked(measured: Perplexity, tokens: int) -> Perplexity:
    assert measured.tokens == tokens - 1, "a token was scored twice or not at all"
    if not math.isfinite(measured.nats):
        raise UserError("the model's loss on this text is not finite; it diverged in training.")
    return measured


@dataclass(frozen=True)
class PerplexityEvaluation(Evaluation):
    name = "perplexity"
    what = "loss, perplexity and bits per character at one length"

    length: int = 0  # tokens read at once; 0: as in training
    stride: int = 0  # 0: the length
    memory: int = 0  # Transformer-XL: tokens of the past that every layer sees
    streams: int = 1  # with a memory: parts the text is cut into, to be faster
    clamp: int = 0  # with a memory: the farthest distance; 0: as trained
    tokens: int = 0  # of the text, from its start; 0: all

    @property
    def amount(self) -> str:
        if not self.tokens:
            return ""
        return f"{self.tokens:,} tokens" + ("; --set tokens=100000 reads fewer" if self.tokens > LONG else "")

    def resolved(self, subject: Subject) -> PerplexityEvaluation:
        self.require(self.memory == 0 or self.stride == 0, "stride", "not used with a memory, which replaces it")
        length = self.length or subject.trained_length
        tokens = min(self.tokens or len(subject.tokens), len(subject.tokens))
        self.require(self.length < tokens, "length", f"less than the {tokens:,} tokens of the text")
        return replace(self, length=length, stride=0 if self.memory else self.stride or length, tokens=tokens)

    def measure(self, subject: Subject, progress: OnCount = silent) -> dict[str, Any]:
        text = subject.tokens[: self.tokens]
        if self.memory:
            measured = perplexity_with_memory(
                subject.language_model,
                text,
                length=self.length,
                memory=self.memory,
                streams=self.streams,
                clamp=self.clamp,
                progress=progress,
            )
        else:
            measured = perplexity(
                subject.language_model, text, length=self.length, stride=self.stride, progress=progress
            )
        result: dict[str, Any] = {
            "loss": measured.loss,
            "perplexity": measured.perplexity if math.isfinite(measured.perplexity) else None,
            "bits_per_token": measured.bits_per(measured.tokens),
            "tokens": measured.tokens,
        }
        if subject.entropy is not None:
            result["entropy"] = subject.entropy
        for unit, units in {"character": subject.characters, "byte": subject.bytes}.items():
            if units:
                # The scored tokens' share of the split's text: exact if a token is a character.
                scored = units * measured.tokens / len(subject.tokens)
                result |= {f"{unit}s": scored, f"bits_per_{unit}": measured.bits_per(scored)}
        if subject.tokenizer is not None and not subject.tokenizer.keeps_text(text):
            result["text_kept"] = False  # text that the tokenizer drops costs no bits, so these are lower bounds
        return result

    def table(self, results: Results) -> ResultTable:
        columns = {"run": "left", "nats/token": "right", "entropy": "right", "perplexity": "right",
                   "bits/character": "right", "bits/byte": "right", "tokens": "right"}  # fmt: skip
        rows = [
            [
                run,
                f"{result['loss']:.4f}",
                f"{result['entropy']:.4f}" if "entropy" in result else "–",
                _number(result["perplexity"]),
                *(_bits(result, unit) for unit in ("character", "byte")),
                f"{result['tokens']:,}",
            ]
            for run, result in results.items()
        ]
        return columns, rows


def _bits(result: Mapping[str, Any], unit: str) -> str:
    shown = _number(result.get(f"bits_per_{unit}"))
    return shown if result.get("text_kept", True) or shown == "–" else f"≥ {shown}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}" if value >= 1000 else f"{value:.3f}"
