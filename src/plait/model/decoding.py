"""Fast generation: every step has the same shapes and addresses, so a GPU can replay one CUDA graph.

Growing caches have spare capacity and are filled in place. A state of fixed size is copied back into its buffers. A
cache that can only be read as a whole (of a window, of relative positions) is padded in front, and loses one entry of
the padding with every token. When the capacity is used up, everything moves into buffers of twice the size, and another
graph is recorded.

On a CPU the same steps run without a graph; only a GPU benefits.

Letters: B batch, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from plait.mixers.mixer import Mixer, State
from plait.model.backbone import ModelState
from plait.model.language_model import LanguageModel

#: Smallest capacity of caches, in tokens.
SMALLEST = 1024
WARM_UP = 2


class Decoder:
    """Steps one token at a time from a state returned by `extend`, without modifying that state."""

    def __init__(self, model: LanguageModel, state: ModelState, *, capacity: int = 0) -> None:
        """`capacity`: total number of tokens before the buffers have to grow."""
        self.model = model
        self.pos_B = state.pos_B.clone()
        self.pad_B = None if state.pad_B is None else state.pad_B.clone()
        self.tokens_B = torch.zeros_like(state.pos_B)
        self._mixers = [block.mixer for block in model.backbone.blocks]
        self._growing = [growing(mixer, layer) for mixer, layer in zip(self._mixers, state.layers, strict=True)]
        #: Tokens in the caches that grow without bound; None if there are no such caches.
        self.held: int | None = None
        for mixer, layer, keys in zip(self._mixers, state.layers, self._growing, strict=True):
            if keys and not _window(mixer):
                self.held = layer[keys[0]].shape[1]
        self._move([dict(layer) for layer in state.layers], capacity)

    @torch.no_grad()
    def step(self, tokens_B: Tensor) -> Tensor:
        """Logits after the next token of every row, in a buffer that the next call overwrites."""
        if self.held is not None:
            if self.held >= self.capacity:
                self._move(self.layers, 2 * self.capacity)
            self.held += 1
        self.tokens_B.copy_(tokens_B)
        if not self.tokens_B.is_cuda:
            return self._advance()
        if self._graph is None:
            self._capture()
        assert self._graph is not None
        self._graph.replay()
        return self.logits_BV

    @property
    def nbytes(self) -> int:
        """Memory of the buffers."""
        return sum(value.numel() * value.element_size() for layer in self.layers for value in layer.values())

    def _move(self, layers: list[State], tokens: int) -> None:
        """Copy the state into buffers with this capacity in tokens."""
        self.capacity = rounded(max(SMALLEST, tokens, 1 + (self.held or 0)))
        every = zip(self._mixers, layers, self._growing, strict=True)
        self.layers = [_roomy(mixer, layer, keys, self.capacity) for mixer, layer, keys in every]
        self._graph: torch.cuda.CUDAGraph | None = None

    def _advance(self) -> Tensor:
        """One step on the buffers."""
        before = ModelState(tuple(self.layers), self.pos_B, self.pad_B)
        logits_BV, after = self.model.step(self.tokens_B, before)
        for buffers, new in zip(self.layers, after.layers, strict=True):
            _keep(buffers, new)
        self.pos_B.copy_(after.pos_B)
        return logits_BV

    def _capture(self) -> None:
        """Warm up and record on a side stream, then undo the changes of the warm-up steps."""
        kept = [{key: value.clone() for key, value in layer.items()} for layer in self.layers]
        pos_B = self.pos_B.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                self._advance()
                self._put_back(kept, pos_B)
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self.logits_BV = self._advance()
        self._put_back(kept, pos_B)

    def _put_back(self, kept: list[State], pos_B: Tensor) -> None:
        for layer, before in zip(self.layers, kept, strict=True):
            for key, value in before.items():
                layer[key].copy_(value)
        self.pos_B.copy_(pos_B)


def decodes(model: LanguageModel) -> bool:
    """Whether every mixer's state can be kept in buffers: a growing cache must have such a form or support padding."""
    state = model.init_state(1)
    for block, layer in zip(model.backbone.blocks, state.layers, strict=True):
        mixer = block.mixer
        if growing(mixer, layer) and mixer.with_capacity(layer, 2) is None and not mixer.paddable:
            return False
    # An adaptive embedding looks rows up by cluster, with shapes that depend on the tokens.
    return len(model.backbone.embedding.bounds) == 1


@torch.no_grad()
def growing(mixer: Mixer, layer: State) -> list[str]:
    """The entries of a state that grow with every token."""
    if not layer:
        return []
    rows = len(next(iter(layer.values())))
    _, after = mixer.step(mixer.zeros(rows, mixer.d), layer)
    return [key for key, value in layer.items() if after[key].shape != value.shape]


def rounded(tokens: int) -> int:
    """Round up to a power of two or 1.5 times one, for few distinct graphs and little padding to attend to."""
    size = SMALLEST
    while size < tokens:
        size = size * 3 // 2 if size & (size - 1) == 0 else size // 3 * 4
    return size


def _window(mixer: Mixer) -> int:
    return int(getattr(mixer, "window", 0))


def _roomy(mixer: Mixer, layer: State, keys: list[str], capacity: int) -> State:
    """Buffers of this capacity, filled with the layer's state."""
    if "held" in layer:  # moving from smaller ones
        held = int(layer["held"])
        layer = {key: value[:, :held] if key in keys else value for key, value in layer.items() if key != "held"}
    roomy = mixer.with_capacity(layer, capacity) if keys else None
    if roomy is None:
        roomy = dict(layer)
        wanted = _window(mixer) - 1 if _window(mixer) else capacity
        lack = max(0, wanted - layer[keys[0]].shape[1]) if keys else 0
        for key in keys:
            roomy[key] = F.pad(layer[key], (0, 0) * (layer[key].dim() - 2) + (lack, 0))
        if lack:
            like = layer[keys[0]]
            pad_B = layer.get("pad", torch.zeros(len(like), dtype=torch.long, device=like.device))
            roomy["pad"] = pad_B + lack
    return {key: value.clone() for key, value in roomy.items()}


def _keep(buffers: State, new: State) -> None:
    """The state after a step in the same buffers."""
    longer = False
    for key, value in new.items():
        if value is buffers[key]:
            continue
        if value.shape != buffers[key].shape:  # one token longer: drop one entry of the padding
            value, longer = value[:, 1:], True
        buffers[key].copy_(value)
    if "held" in buffers:
        buffers["held"] += 1
    elif longer:
        buffers["pad"] -= 1
