"""A plait language model with the interface of lm-evaluation-harness.

`PlaitLM` implements the harness's three requests: the likelihood of a continuation, the likelihood of a whole text, and
generation up to a stop string. Every mixer is causal, so padding on the right does not change what is scored.

Letters: B batch, T time, D width, V vocabulary, N scored tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from plait.core.errors import UserError
from plait.core.progress import OnProgress, ignore
from plait.data.tokenizers import boundary_token
from plait.evals.losses import require_same_vocabulary
from plait.model.generation import Generation
from plait.model.language_model import Encoder, LanguageModel

if TYPE_CHECKING:
    from plait.data import Tokenizer

#: The harness's default context length, for models without a limit.
DEFAULT_CONTEXT = 2048
DEFAULT_NEW_TOKENS = 256
#: Rows of the output layer at once: bounds the (N, V) logits.
SCORED_AT_ONCE = 1024


@dataclass(frozen=True)
class Scored:
    """A context and the continuation to score after it."""

    inputs: tuple[int, ...]  # the model's input: everything but the last token
    targets: list[int]  # the continuation


@dataclass(frozen=True)
class Prompt:
    """A prompt to continue."""

    index: int  # of the request
    tokens: list[int]
    stops: list[str]
    room: int  # maximum number of new tokens


class UntilStop(Generation):
    """Greedy generation in which a row also ends where one of its stop strings appears."""

    def __init__(self, model: LanguageModel, tokenizer: Tokenizer, prompts: Sequence[Prompt]) -> None:
        end = () if tokenizer.end is None else (tokenizer.end,)
        super().__init__(model, [prompt.tokens for prompt in prompts], tokens=prompts[0].room, end=end)
        self.tokenizer, self.stops = tokenizer, [prompt.stops for prompt in prompts]

    def ended(self, row: int) -> bool:
        text = self._decoded(row)
        return super().ended(row) or any(stop in text for stop in self.stops[row])

    def text(self, row: int) -> str:
        """The generated text before the first stop string."""
        text = self._decoded(row)
        return text[: min((at for stop in self.stops[row] if (at := text.find(stop)) >= 0), default=len(text))]

    def _decoded(self, row: int) -> str:
        tokens = self.rows[row][:-1] if super().ended(row) else self.rows[row]
        # A model's vocabulary may be padded beyond the tokenizer's: those ids represent no text.
        return self.tokenizer.decode([token for token in tokens if token < self.tokenizer.vocab])


class PlaitLM(TemplateLM):  # type: ignore[misc]  # the harness is untyped
    """A plait language model with the harness's interface. The harness sets the boundary between context and
    continuation (`TemplateLM._encode_pair`): trailing spaces move to the continuation, the tail of the whole text."""

    def __init__(
        self,
        model: LanguageModel | Encoder,
        tokenizer: Tokenizer,
        *,
        max_length: int | None = None,
        batch_tokens: int = 8192,
        progress: OnProgress | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(model, LanguageModel):
            raise UserError(f"the harness scores language models (kind=lm), not kind={model.arch.header.kind}.")
        require_same_vocabulary(model.arch, tokenizer)
        bound = model.arch.header.max_len
        if max_length is not None and (max_length < 2 or 0 < bound < max_length):
            raise UserError(f"max_length={max_length}: must be between 2 and {bound or 'whatever fits'}.")
        self.model: LanguageModel = model.eval()
        self.words = tokenizer
        self.max_length = max_length or bound or DEFAULT_CONTEXT
        self.batch_tokens = batch_tokens
        self.progress = progress or ignore
        self._device = next(model.parameters()).device

    @property
    def eot_token_id(self) -> int:
        return boundary_token(self.words)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        return [int(token) for token in self.words.encode(string)]

    # -- likelihoods

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        answers: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=True)
        return answers

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = True) -> list[float]:
        """Log-likelihood of whole texts, each in windows that predict every token exactly once."""
        windows, owners = [], []
        for index, request in enumerate(requests):
            rolling = get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            for context, predicted in map(make_disjoint_window, rolling):
                windows.append((None, context, predicted))
                owners.append(index)
        totals = [0.0] * len(requests)
        for index, (value, _) in zip(owners, self._loglikelihood_tokens(windows), strict=True):
            totals[index] += value
        return totals

    def _loglikelihood_tokens(self, requests: Sequence[tuple[Any, list[int], list[int]]], **_: Any) -> list[Any]:
        scored = [self._scored(*request) for request in requests]
        # Single-token choices have the same input, which is processed once.
        reads: dict[tuple[int, ...], list[int]] = {}
        for index, item in enumerate(scored):
            reads.setdefault(item.inputs, []).append(index)
        answers: list[Any] = [None] * len(scored)
        done = 0
        for batch in _by_length(list(reads), len, self.batch_tokens):
            asked = [(row, scored[index]) for row, inputs in enumerate(batch) for index in reads[inputs]]
            indices = [index for inputs in batch for index in reads[inputs]]
            for index, answer in zip(indices, self._score(batch, asked), strict=True):
                answers[index] = answer
            done += len(indices)
            self.progress("scoring", done, len(scored))
        return answers

    def _scored(self, texts: Any, context: list[int], continuation: list[int]) -> Scored:
        if not continuation:
            raise UserError(f"there is no token to score after this context: {texts!r}.")
        if len(continuation) > self.max_length:
            raise UserError(f"a continuation of {len(continuation)} tokens does not fit into {self.max_length}.")
        # The last token is only predicted, so one more than the context length fits; the rest is cut on the left.
        whole = (context + continuation)[-(self.max_length + 1) :]
        return Scored(tuple(whole[:-1]), continuation)

    @torch.inference_mode()
    def _score(self, batch: Sequence[tuple[int, ...]], asked: Sequence[tuple[int, Scored]]) -> list[Any]:
        width = max(map(len, batch))
        tokens_BT = torch.tensor([[*inputs, *[0] * (width - len(inputs))] for inputs in batch], device=self._device)
        hidden_BTD = self.model.backbone(tokens_BT)
        # Only scored positions go through the output layer, since the vocabulary is far wider than the model.
        hidden_ND = torch.cat([
            hidden_BTD[row, len(item.inputs) - len(item.targets) : len(item.inputs)] for row, item in asked
        ])  # fmt: skip
        targets_N = torch.tensor([token for _, item in asked for token in item.targets], device=self._device)
        values, greedy = [], []
        for some_ND, some_N in zip(hidden_ND.split(SCORED_AT_ONCE), targets_N.split(SCORED_AT_ONCE), strict=True):
            logp_NV = self.model.output(some_ND).float().log_softmax(-1)
            values.append(logp_NV.gather(-1, some_N[:, None])[:, 0].double())
            greedy.append(logp_NV.argmax(-1) == some_N)
        lengths = [len(item.targets) for _, item in asked]
        parts = zip(torch.cat(values).cpu().split(lengths), torch.cat(greedy).cpu().split(lengths), strict=True)
        return [(float(value.sum()), bool(best.all())) for value, best in parts]

    # -- generation

    def generate_until(self, requests: list[Any], disable_tqdm: bool = True) -> list[str]:
        """Greedy continuations, each up to its first stop string, the end-of-text token or its number of tokens."""
        prompts = [self._prompt(index, *request.args) for index, request in enumerate(requests)]
        texts = [""] * len(prompts)
        done = 0
        for _, alike in groupby(sorted(prompts, key=_room), key=_room):
            for batch in _by_length(list(alike), lambda prompt: len(prompt.tokens) + prompt.room, self.batch_tokens):
                generation = UntilStop(self.model, self.words, batch)
                generation.run()
                for row, prompt in enumerate(batch):
                    texts[prompt.index] = generation.text(row)
                done += len(batch)
                self.progress("generating", done, len(prompts))
        return texts

    def _prompt(self, index: int, context: str, settings: dict[str, Any]) -> Prompt:
        options = normalize_gen_kwargs(settings, DEFAULT_NEW_TOKENS)
        if options.get("do_sample"):
            raise UserError("plait answers the harness greedily; set do_sample: false in the task's generation_kwargs.")
        room: int = options["max_gen_toks"]
        if not 0 < room < self.max_length:
            raise UserError(
                f"max_gen_toks={room} leaves no room for a prompt in a context of {self.max_length} tokens."
            )
        tokens = self.tok_encode(context)[-(self.max_length - room) :] or [self.prefix_token_id]
        return Prompt(index, tokens, [stop for stop in options["until"] if stop], room)


def _room(prompt: Prompt) -> int:
    return prompt.room


def _by_length(items: list[Any], length: Callable[[Any], int], batch_tokens: int) -> Iterator[list[Any]]:
    """Batches of similar length, longest first: memory errors come early, and the time left is not underestimated."""
    batch: list[Any] = []
    for item in sorted(items, key=length, reverse=True):
        if batch and (len(batch) + 1) * length(batch[0]) > batch_tokens:
            yield batch
            batch = []
        batch.append(item)
    if batch:
        yield batch
