"""Generation: read the prompts, then one token per row and step, until every row has ended.

Each row has its own random stream and is sampled from its own logits, so its tokens do not depend on the other rows of
the batch (up to rounding: a larger matrix product may sum in another order). Finished rows leave the batch.

Prompts of different lengths are read as one batch. If every mixer supports padding, rows are padded on the left and
read together. Otherwise rows of equal length are read together and their states merged, so that no state ever contains
padding.

Text is shown as it is generated, but never half a character. A token of a byte-level vocabulary may end inside a UTF-8
character, and decoding it alone would give U+FFFD. Only the last character of a text can be incomplete in this way, so
it is held back until the next token completes it.

`Sampling` chooses the next token from logits: the most likely one, or a sample after temperature, top-k and top-p
("nucleus": Holtzman et al. 2020, arXiv:1904.09751, §3.1).

Letters: B batch, T time, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from plait.core.errors import UserError
from plait.core.registry import require_setting
from plait.model.backbone import Backbone, ModelState
from plait.model.decoding import Decoder, decodes
from plait.model.forgetting_cache import Dropped, check_forget, drop_forgotten
from plait.model.language_model import LanguageModel

#: Fewest tokens for which recording a graph pays off.
WORTH_A_GRAPH = 16


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen. The filters apply in this order: temperature, then top-k, then top-p."""

    temperature: float = 1.0  # 0: always the most likely token
    top_k: int = 0  # only the k most likely; 0: all
    top_p: float = 1.0  # only the most likely tokens whose probabilities first sum to p

    def __post_init__(self) -> None:
        finite = 0 <= self.temperature < float("inf")
        require_setting(self, "temperature", finite, "must be 0 (greedy) or a positive number")
        require_setting(self, "top_k", self.top_k >= 0, "must be 0 (no limit) or positive")
        require_setting(self, "top_p", 0 < self.top_p <= 1, "must be above 0 and at most 1")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


GREEDY = Sampling(temperature=0.0)


def choose(logits_BV: Tensor, sampling: Sampling, draws_B: Tensor | None) -> Tensor:
    """One token per row. `draws_B` are uniform numbers in [0, 1), each from its row's own stream (None if greedy).

    A row depends only on its own logits and draw, in float64, so other rows cannot affect it.
    """
    if sampling.greedy:
        return logits_BV.argmax(-1)
    assert draws_B is not None
    p_BV, order_BV = kept_probabilities(logits_BV, sampling)
    cumulative_BV = p_BV.cumsum(-1)
    # The draw is scaled to the remaining probability; `right` skips tokens of probability zero.
    aim_B1 = draws_B.to(p_BV)[:, None] * cumulative_BV[:, -1:]
    place_B1 = torch.searchsorted(cumulative_BV, aim_B1, right=True)
    last_B1 = (p_BV > 0).sum(-1, keepdim=True) - 1  # rounding may push the index past the end
    return order_BV.gather(-1, torch.minimum(place_B1, last_B1))[:, 0]


def kept_probabilities(logits_BV: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Probabilities in descending order, zero for tokens removed by a filter, and the tokens they belong to."""
    # A stable order: among equal logits the lower token comes first, on every device.
    sorted_BV, order_BV = (logits_BV.double() / sampling.temperature).sort(dim=-1, descending=True, stable=True)
    p_BV = sorted_BV.softmax(-1)
    if 0 < sampling.top_k < p_BV.shape[-1]:
        p_BV[:, sampling.top_k :] = 0.0
        p_BV = p_BV / p_BV.sum(-1, keepdim=True)
    if sampling.top_p < 1:
        before_BV = p_BV.cumsum(-1) - p_BV
        p_BV = p_BV.masked_fill(before_BV >= sampling.top_p, 0.0)
    return p_BV, order_BV


class Token(NamedTuple):
    """One event of a generation."""

    row: int
    token: int


@dataclass
class Lane:
    """Rows that step together."""

    rows: list[int]
    logits_BV: Tensor  # of the next token
    state: ModelState
    decoder: Decoder | None = None  # on a GPU: the state is in its buffers, and finished rows stay

    @property
    def nbytes(self) -> int:
        return self.state.nbytes if self.decoder is None else self.decoder.nbytes


class Generation:
    """An iterator over tokens as they are generated; `rows` holds those generated so far.

    tokens        the most that a row may get
    seeds         one a row, or one number, to which the row's number is added
    end           tokens that end a row (they are its last)
    forget        drop cache entries of forgetting attention whose probability stays below this bound
                  (`plait.model.forgetting_cache`), every `forget_every` tokens
    """

    def __init__(
        self,
        model: LanguageModel,
        prompts: Sequence[Sequence[int]],
        *,
        tokens: int,
        sampling: Sampling = GREEDY,
        seeds: int | Sequence[int] = 0,
        end: Collection[int] = (),
        forget: float | None = None,
        forget_every: int = 64,
    ) -> None:
        self.model, self.prompts, self.tokens, self.sampling = model, prompts, tokens, sampling
        self.end, self.forget, self.forget_every = frozenset(end), forget, forget_every
        self._check()
        #: Whether states are kept in buffers (`plait.model.decoding`), so that a GPU can record a graph.
        self.buffered = next(model.parameters()).is_cuda
        wanted = [seeds + row for row in range(len(prompts))] if isinstance(seeds, int) else list(seeds)
        if len(wanted) != len(prompts):
            raise UserError(f"{len(wanted)} seeds for {len(prompts)} prompts: give one for each, or one number.")
        self._streams = [torch.Generator().manual_seed(seed % 2**63) for seed in wanted]
        self.rows: list[list[int]] = [[] for _ in prompts]
        self.dropped = Dropped(0, 0)
        self.state_bytes = 0  # current
        self.peak_state_bytes = 0

    def run(self) -> Generation:
        """Generate everything."""
        for _ in self:
            pass
        return self

    def ended(self, row: int) -> bool:
        """Whether a row ended with an end token (and not at the maximum length)."""
        return bool(self.rows[row]) and self.rows[row][-1] in self.end

    @torch.no_grad()
    def __iter__(self) -> Iterator[Token]:
        if any(self.rows):
            raise UserError("this generation has been run: its tokens are in `rows`.")
        training = self.model.training
        self.model.eval()
        try:
            yield from self._run()
        finally:
            self.model.train(training)

    def _run(self) -> Iterator[Token]:
        if not self.tokens:
            return
        lanes = self._read_prompts()
        for count in range(1, self.tokens + 1):
            going = []
            for lane in lanes:
                chosen = self._choose(lane)
                for row, token in zip(lane.rows, chosen, strict=True):
                    if not self.ended(row):
                        self.rows[row].append(token)
                        yield Token(row, token)
                if count < self.tokens and not all(map(self.ended, lane.rows)):
                    going.append(self._step(lane, drop=count % self.forget_every == 0))
            lanes = going
            if not lanes:
                return
            self._measure(lanes)

    def _read_prompts(self) -> list[Lane]:
        """One lane, or one per prompt length if a mixer cannot batch rows of different lengths."""
        everyone = list(range(len(self.prompts)))
        lengths = sorted({len(prompt) for prompt in self.prompts})
        try:
            lanes = [self._read(everyone)]
        except UserError:
            if len(lengths) == 1:
                raise
            lanes = [self._read([row for row in everyone if len(self.prompts[row]) == n]) for n in lengths]
        self._measure(lanes)
        return lanes

    def _read(self, rows: list[int]) -> Lane:
        backbone = self.model.backbone
        device = next(backbone.parameters()).device
        tokens_BT, pad_B = pad_left([self.prompts[row] for row in rows], device)
        hidden_BTD, state = prefill(backbone, tokens_BT, pad_B)
        # Compute logits at the last position only: those of a whole prompt would be the largest tensor of all.
        lane = Lane(rows, self.model.output(hidden_BTD[:, -1]), state)
        if self.buffered and self.forget is None and self.tokens >= WORTH_A_GRAPH and decodes(self.model):
            lane.decoder = Decoder(self.model, state, capacity=tokens_BT.shape[1] + self.tokens)
        return self._forgotten(lane)

    def _choose(self, lane: Lane) -> list[int]:
        draws_B = None
        if not self.sampling.greedy:
            numbers = [torch.rand((), generator=self._streams[row], dtype=torch.float64) for row in lane.rows]
            draws_B = torch.stack(numbers).to(lane.logits_BV.device)
        chosen: list[int] = choose(lane.logits_BV, self.sampling, draws_B).tolist()
        return chosen

    def _step(self, lane: Lane, drop: bool) -> Lane:
        """Advance the lane by its newest tokens, and remove the rows that have ended."""
        if lane.decoder is not None:
            newest_B = torch.tensor([self.rows[row][-1] for row in lane.rows], device=lane.logits_BV.device)
            lane.logits_BV = lane.decoder.step(newest_B)
            return lane
        device, state = lane.state.pos_B.device, lane.state
        going = [place for place, row in enumerate(lane.rows) if not self.ended(row)]
        if len(going) < len(lane.rows):
            state = state.reorder(torch.tensor(going, device=device))
        rows = [lane.rows[place] for place in going]
        tokens_B = torch.tensor([self.rows[row][-1] for row in rows], device=device)
        lane = Lane(rows, *self.model.step(tokens_B, state))
        return self._forgotten(lane) if drop else lane

    def _forgotten(self, lane: Lane) -> Lane:
        if self.forget is None:
            return lane
        state, dropped = drop_forgotten(self.model, lane.state, self.forget)
        self.dropped = self.dropped + dropped
        return Lane(lane.rows, lane.logits_BV, state)

    def _measure(self, lanes: Sequence[Lane]) -> None:
        self.state_bytes = sum(lane.nbytes for lane in lanes)
        self.peak_state_bytes = max(self.peak_state_bytes, self.state_bytes)

    def _check(self) -> None:
        header = self.model.arch.header
        if header.kind != "lm":
            raise UserError(f"a model of kind={header.kind} does not generate; only kind=lm does.")
        if self.tokens < 0 or self.forget_every < 1:
            raise UserError(f"tokens={self.tokens}, forget_every={self.forget_every}: counts of tokens are positive.")
        if not self.prompts:
            raise UserError("no prompt given.")
        for row, prompt in enumerate(self.prompts):
            if not len(prompt):
                raise UserError(f"prompt {row + 1} is empty: a model continues at least one token.")
            wrong = next((token for token in prompt if not 0 <= token < header.vocab), None)
            if wrong is not None:
                raise UserError(f"prompt {row + 1} has token {wrong}, but the model's vocabulary is {header.vocab}.")
            # The last chosen token is never fed to the model.
            if header.pos == "learned" and len(prompt) + self.tokens - 1 > header.max_len:
                room = header.max_len - len(prompt) + 1
                remedy = f"ask for {room}" if room > 0 else f"shorten the prompt to {header.max_len} tokens or fewer"
                raise UserError(
                    f"prompt {row + 1} has {len(prompt)} tokens and {self.tokens} are asked for, but the model has "
                    f"max_len={header.max_len} learned positions; {remedy}."
                )
        if self.forget is not None:
            check_forget(self.model, self.forget)


def pad_left(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Tokens, with shorter rows padded with zeros on the left, and the amount of padding."""
    longest = max(len(prompt) for prompt in prompts)
    padded = [[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
    pads = [longest - len(prompt) for prompt in prompts]
    return torch.tensor(padded, device=device), torch.tensor(pads, device=device)


def prefill(backbone: Backbone, tokens_BT: Tensor, pad_B: Tensor | None) -> tuple[Tensor, ModelState]:
    """Hidden vectors of a batch's first tokens (meaningless at padding) and the state after them."""
    if pad_B is None or not pad_B.any():
        return backbone.extend(tokens_BT, backbone.init_state(len(tokens_BT)))
    if all(block.mixer.paddable for block in backbone.blocks):
        return backbone.extend(tokens_BT, backbone.init_state(len(tokens_BT), pad_B=pad_B))
    rows, hidden, states = [], [], []
    for pad in pad_B.unique().tolist():
        (same,) = (pad_B == pad).nonzero(as_tuple=True)
        part, state = backbone.extend(tokens_BT[same, pad:], backbone.init_state(len(same)))
        rows.append(same)
        hidden.append(torch.nn.functional.pad(part, (0, 0, pad, 0)))
        states.append(state)
    back = torch.cat(rows).argsort()
    return torch.cat(hidden)[back], backbone.merge(states).reorder(back)


UNFINISHED = "\N{REPLACEMENT CHARACTER}"

#: Preceding tokens that are decoded again with a new one, because spaces between words depend on the context.
CONTEXT = 8


class TextStream:
    """Turns tokens into text: `push` returns the text that is now certain, `finish` the rest."""

    def __init__(self, decode: Callable[[Sequence[int]], str], prompt: Sequence[int] = ()) -> None:
        """`prompt`: the tokens before the first one, which decide whether it starts with a space."""
        self._decode = decode
        self._tokens = list(prompt[-CONTEXT:])  # the newest ones
        self._shown = decode(self._tokens) if self._tokens else ""  # the part of their text that is not new

    def push(self, token: int) -> str:
        """The text that this token makes certain."""
        self._tokens.append(token)
        text = self._decode(self._tokens)
        new = self._show(text.removesuffix(UNFINISHED))
        if len(self._tokens) > 4 * CONTEXT and not text.endswith(UNFINISHED):
            # Forget older tokens; otherwise the cost per token would grow with the length of the text.
            self._tokens = self._tokens[-CONTEXT:]
            self._shown = self._decode(self._tokens)
        return new

    def finish(self) -> str:
        """The remaining text, complete or not."""
        return self._show(self._decode(self._tokens)) if self._tokens else ""

    def _show(self, text: str) -> str:
        new = text[len(self._shown) :]
        self._shown = text
        return new
