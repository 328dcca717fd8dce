"""From tokens to hidden vectors: embedding, positions, residual blocks, final norm. All kinds of models are built on
it.

Adaptive embeddings (Baevski and Auli 2019, arXiv:1809.10853) split the vocabulary, ordered by frequency, at `cutoffs`:
cluster i has width d_embed / div^i and, when `div` > 1 or its width is not d, a projection to d.

A block is a pre-norm residual layer, x + mixer(norm(x)). `ModelState` is what a model keeps between calls: one state
per layer, and the position of each row of the batch.

Letters: B batch, T time, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from plait.core.errors import UserError
from plait.mixers.mixer import Loan, Mixer, State, make_mixer, make_norm
from plait.mixers.options import NOT_SHARED, MixerOptions
from plait.mixers.xl_attn_module import RelativeAttention
from plait.model.architecture import Architecture
from plait.ops.elementwise import embedding, take_tokens
from plait.ops.paths import recording
from plait.ops.relative import sinusoid
from plait.spec import Header


@dataclass(frozen=True)
class ModelState:
    """Never modified in place: every call returns a new state, and old ones remain valid."""

    layers: tuple[State, ...]
    pos_B: Tensor  # tokens seen, padding included
    pad_B: Tensor | None = None  # padded positions at the start of each row

    def reorder(self, rows: Tensor) -> ModelState:
        """The rows given by index, in that order, repeats allowed (beam search)."""
        layers = tuple({key: value[rows] for key, value in layer.items()} for layer in self.layers)
        return ModelState(layers, self.pos_B[rows], None if self.pad_B is None else self.pad_B[rows])

    @property
    def nbytes(self) -> int:
        """Bytes of the layers' states."""
        return sum(value.numel() * value.element_size() for layer in self.layers for value in layer.values())


def cluster_bounds(vocab: int, cutoffs: Sequence[int]) -> list[tuple[int, int]]:
    """[first, last) of every cluster; one cluster without cutoffs."""
    edges = [0, *cutoffs, vocab]
    return list(pairwise(edges))


class AdaptiveEmbedding(nn.Module):
    """Embeddings whose width shrinks by a factor of `div` per cluster; with div = 1, one table of width d_embed."""

    def __init__(self, vocab: int, d: int, d_embed: int, cutoffs: Sequence[int], div: int) -> None:
        super().__init__()
        self.d, self.bounds = d, cluster_bounds(vocab, cutoffs if div > 1 else ())
        widths = [max(1, d_embed // div**i) for i in range(len(self.bounds))]
        self.tables = nn.ModuleList(
            nn.Embedding(last - first, width) for (first, last), width in zip(self.bounds, widths, strict=True)
        )
        self.projections = nn.ModuleList(
            nn.Linear(width, d, bias=False) if div > 1 or width != d else nn.Identity() for width in widths
        )

    @property
    def first_table(self) -> nn.Parameter:
        """The table of the most frequent words; of all words if there are no clusters."""
        return cast("nn.Parameter", self.tables[0].weight)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        if len(self.bounds) == 1:
            # Calling a module runs hooks registered by others; a traced graph is of our own models only.
            embedded = embedding(tokens_BT, self.first_table) if recording() else self.tables[0](tokens_BT)
            out: Tensor = self.projections[0](embedded)
            return out
        flat_N = tokens_BT.reshape(-1)
        out_ND = self.first_table.new_zeros(flat_N.numel(), self.d)
        for (first, last), table, projection in zip(self.bounds, self.tables, self.projections, strict=True):
            (where,) = ((flat_N >= first) & (flat_N < last)).nonzero(as_tuple=True)
            rows: Tensor = projection(table(flat_N[where] - first))
            out_ND = out_ND.index_copy(0, where, rows.to(out_ND.dtype))
        return out_ND.view(*tokens_BT.shape, self.d)


class ResidualSum(nn.Module):
    """x + dropout(y). Every block has its own instance, even if blocks share a mixer, so a hook here sees what that one
    layer adds to the residual stream."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = 0.0  # set by training recipes that use it

    def forward(self, x_BTD: Tensor, mixed_BTD: Tensor) -> Tensor:
        if mixed_BTD.shape != x_BTD.shape:  # addition might broadcast silently
            returned, expected = tuple(mixed_BTD.shape), tuple(x_BTD.shape)
            raise UserError(
                f"a mixer returned {returned} for an input of {expected}; these must be equal: `plait check`."
            )
        return x_BTD + (F.dropout(mixed_BTD, self.dropout) if self.dropout and self.training else mixed_BTD)


class Block(nn.Module):
    """One pre-norm residual layer, x + mixer(norm(x)), with all the ways to run a mixer."""

    def __init__(self, header: Header, options: MixerOptions) -> None:
        super().__init__()
        self.norm = make_norm(header.norm, header.d, header.eps) if options.prenorm else nn.Identity()
        self.mixer = make_mixer(options, header.d)
        self.residual = ResidualSum()

    def forward(self, x_BTD: Tensor, pad_B: Tensor | None = None) -> Tensor:
        inner = self.norm(x_BTD)
        # Only sequence mixers need to know about padding; `Backbone` has checked that they support it.
        mixed: Tensor = (
            self.mixer(inner) if pad_B is None or self.mixer.options.kind == "channel" else self.mixer(inner, pad_B)
        )
        out: Tensor = self.residual(x_BTD, mixed)
        return out

    def forward_with_loss(self, x_BTD: Tensor) -> tuple[Tensor, Tensor | None]:
        """The output, and the mixer's auxiliary loss if it has one (load balancing of experts)."""
        mixed, loss = self.mixer.forward_with_loss(self.norm(x_BTD))
        return self.residual(x_BTD, mixed), loss

    def forward_at(self, x_BTD: Tensor, at_BN: Tensor) -> tuple[Tensor, Tensor | None]:
        """The same, with the output only at some positions of each sequence."""
        mixed, loss = self.mixer.forward_at(self.norm(x_BTD), at_BN)
        return self.residual(take_tokens(x_BTD, at_BN), mixed), loss

    def extend(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        mixed, state = self.mixer.extend(self.norm(x_BTD), state)
        return self.residual(x_BTD, mixed), state

    def connected(
        self, x_BTD: Tensor, state: State | None, loan: Loan, pad_B: Tensor | None
    ) -> tuple[Tensor, State, Loan]:
        """`extend` (without a state: `forward`) for a layer that reads other layers' tensors or lends its own."""
        mixed, new, lent = self.mixer.connected(self.norm(x_BTD), state, loan, pad_B)
        return self.residual(x_BTD, mixed), new, lent

    def init_memory(self, batch: int, tokens: int) -> State:
        """Segment memory: the layer's last `tokens` inputs, if it attends to them."""
        if isinstance(self.mixer, RelativeAttention):
            return self.mixer.init_memory(batch, tokens)
        if self.mixer.options.kind != "channel" or self.mixer.options.canon != "none":
            raise UserError(f"segment memory is for xl-attn; {self.mixer.options.to_layer()} has its own state.")
        return {}

    def remember(self, x_BTD: Tensor, memory: State) -> State:
        """Segment memory after these inputs, without running the layer on them."""
        return self.mixer.remember(self.norm(x_BTD), memory) if isinstance(self.mixer, RelativeAttention) else memory

    def step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        mixed, state = self.mixer.step(self.norm(x_BD), state)
        return x_BD + mixed, state


class Blocks(nn.ModuleList):
    """A list of blocks that a type checker knows to be blocks."""

    def __iter__(self) -> Iterator[Block]:
        return cast("Iterator[Block]", super().__iter__())


class Loans:
    """Which layer reads which other layer's tensors, and the tensors available so far during one pass over the
    layers."""

    def __init__(self, links: dict[int, int]) -> None:
        self.links, self.lent = links, dict[int, Loan]()
        self._taking_part = {*links, *links.values()}

    def before(self, x_BTD: Tensor) -> Loans:
        """A fresh instance for a pass that starts with these embeddings."""
        fresh = Loans(self.links)
        fresh.lent[-1] = {"embedding": x_BTD}
        return fresh

    def __contains__(self, place: int) -> bool:
        return place in self._taking_part

    def of(self, place: int) -> Loan:
        return self.lent[self.links[place]] if place in self.links else {}

    def lend(self, place: int, lent: Loan) -> None:
        self.lent[place] = lent


class Backbone(nn.Module):
    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        h = arch.header
        self.arch, self.pos, self.max_len, self.scale = arch, h.pos, h.max_len, math.sqrt(h.d) if h.embed_scale else 1.0
        self.embedding = AdaptiveEmbedding(h.vocab, h.d, h.d_embed or h.d, h.cutoffs, h.div)
        self.position = nn.Embedding(h.max_len, h.d) if h.pos == "learned" else None
        self.segment = nn.Embedding(h.segments, h.d) if h.segments else None
        self.embedding_norm = make_norm(h.norm, h.d, h.eps) if h.embed_norm else nn.Identity()
        self.blocks = Blocks(Block(h, options) for options in arch.layers)
        self.final_norm = make_norm(h.norm, h.d, h.eps) if h.final_norm else nn.Identity()
        # Set by trainings that use them: dropout on the embeddings, and activation checkpointing of the blocks.
        self.dropout, self.activation_checkpointing = 0.0, False
        #: Set by `compile_blocks`: the blocks, grouped into compiled regions.
        self.regions: Sequence[nn.Module] = ()
        share_biases(block.mixer for block in self.blocks)
        share_weights(self.blocks)
        self._loans = Loans(arch.links)

    def forward(
        self,
        tokens_BT: Tensor,
        *,
        pad_B: Tensor | None = None,
        segments_BT: Tensor | None = None,
    ) -> Tensor:
        if pad_B is not None:
            self._require_paddable()
        x_BTD = self.embed(tokens_BT, self._positions(tokens_BT, None, pad_B), segments_BT)
        loans = self._loans.before(x_BTD)
        for place, block in enumerate(self.blocks):
            if place in loans:
                x_BTD, _, lent = block.connected(x_BTD, None, loans.of(place), pad_B)
                loans.lend(place, lent)
            else:
                x_BTD = block(x_BTD, pad_B)
        out: Tensor = self.final_norm(x_BTD)
        return out

    def forward_with_loss(self, tokens_BT: Tensor, segments_BT: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Hidden vectors, and the sum of the mixers' auxiliary losses (zero without experts)."""
        x_BTD = self.embed(tokens_BT, self._positions(tokens_BT, None, None), segments_BT)
        own = x_BTD.new_zeros(())
        parts: Sequence[Callable[..., Any]] = self.regions or [block.forward_with_loss for block in self.blocks]
        loans = self._loans.before(x_BTD)
        for place, part in enumerate(parts):
            if place in loans:
                x_BTD, _, lent = self._run(self._block(place).connected, x_BTD, None, loans.of(place), None)
                loans.lend(place, lent)
                continue
            x_BTD, loss = self._run(part, x_BTD)
            own = own if loss is None else own + loss
        return self.final_norm(x_BTD), own

    def forward_at(self, tokens_BT: Tensor, at_BN: Tensor) -> tuple[Tensor, Tensor]:
        """`forward_with_loss` with the vectors only at some positions of each sequence: after the last sequence mixer,
        no other positions are computed."""
        mixing = [place for place, block in enumerate(self.blocks) if not block.mixer.pointwise]
        if not mixing or self._loans.links:
            hidden_BTD, own = self.forward_with_loss(tokens_BT)
            return take_tokens(hidden_BTD, at_BN), own
        x = self.embed(tokens_BT, self._positions(tokens_BT, None, None), None)
        own = x.new_zeros(())
        for place, block in enumerate(self.blocks):
            args = (block.forward_at, x, at_BN) if place == mixing[-1] else (block.forward_with_loss, x)
            x, loss = self._run(*args)
            own = own if loss is None else own + loss
        return self.final_norm(x), own

    def init_state(self, batch: int, *, rollback: int = 0, pad_B: Tensor | None = None) -> ModelState:
        """The state before the first token. With `pad_B`, the first `pad_B[b]` tokens of row b are padding."""
        layers = [block.mixer.init_state(batch, rollback=rollback) for block in self.blocks]
        if pad_B is not None:
            self._require_paddable()
            for block, layer in zip(self.blocks, layers, strict=True):
                # A layer that reads from another finds the padding there.
                if block.mixer.options.kind == "sequence" and not block.mixer.options.reads:
                    layer["pad"] = pad_B
        device = next(self.parameters()).device
        return ModelState(tuple(layers), torch.zeros(batch, dtype=torch.long, device=device), pad_B)

    def init_memory(self, batch: int, tokens: int) -> ModelState:
        """Segment memory for Transformer-XL training: each layer's last `tokens` inputs."""
        layers = tuple(block.init_memory(batch, tokens) for block in self.blocks)
        device = next(self.parameters()).device
        return ModelState(layers, torch.zeros(batch, dtype=torch.long, device=device))

    def extend(self, tokens_BT: Tensor, state: ModelState) -> tuple[Tensor, ModelState]:
        """Hidden vectors of the next T tokens."""
        positions_BT = self._positions(tokens_BT, state.pos_B, state.pad_B)
        x_BTD = self.embed(tokens_BT, positions_BT, None)
        layers, loans = [], self._loans.before(x_BTD)
        for place, (block, layer) in enumerate(zip(self.blocks, state.layers, strict=True)):
            if place in loans:
                x_BTD, layer, lent = self._run(block.connected, x_BTD, layer, loans.of(place), None)
                loans.lend(place, lent)
            else:
                x_BTD, layer = self._run(block.extend, x_BTD, layer)
            layers.append(layer)
        return self.final_norm(x_BTD), ModelState(tuple(layers), state.pos_B + tokens_BT.shape[1], state.pad_B)

    def step(self, tokens_B: Tensor, state: ModelState) -> tuple[Tensor, ModelState]:
        """Hidden vectors of the next token."""
        tokens_BT = tokens_B[:, None]
        x_BD = self.embed(tokens_BT, self._positions(tokens_BT, state.pos_B, state.pad_B), None)[:, 0]
        layers, loans = [], self._loans.before(x_BD[:, None])
        for place, (block, layer) in enumerate(zip(self.blocks, state.layers, strict=True)):
            if place in loans:
                x_BTD, layer, lent = block.connected(x_BD[:, None], layer, loans.of(place), None)
                loans.lend(place, lent)
                x_BD = x_BTD[:, 0]
            else:
                x_BD, layer = block.step(x_BD, layer)
            layers.append(layer)
        return self.final_norm(x_BD), ModelState(tuple(layers), state.pos_B + 1, state.pad_B)

    def crop(self, state: ModelState, tokens: int) -> ModelState:
        """The state as it was `tokens` tokens earlier."""
        layers = tuple(block.mixer.crop(layer, tokens) for block, layer in zip(self.blocks, state.layers, strict=True))
        return ModelState(layers, state.pos_B - tokens, state.pad_B)

    def merge(self, states: Sequence[ModelState]) -> ModelState:
        """One batch from the rows of several states, which may have different lengths."""
        layers = tuple(
            block.mixer.merge([state.layers[i] for state in states]) if states[0].layers[i] else {}
            for i, block in enumerate(self.blocks)
        )
        pads = [torch.zeros_like(s.pos_B) if s.pad_B is None else s.pad_B for s in states]
        padded = any(s.pad_B is not None for s in states)
        return ModelState(layers, torch.cat([s.pos_B for s in states]), torch.cat(pads) if padded else None)

    def embed(self, tokens_BT: Tensor, positions_BT: Tensor | None, segments_BT: Tensor | None) -> Tensor:
        x_BTD: Tensor = self.embedding(tokens_BT)
        if self.scale != 1.0:
            x_BTD = x_BTD * self.scale
        if self.position is not None:
            x_BTD = x_BTD + self.position(positions_BT)
        elif self.pos == "sinusoidal":
            assert positions_BT is not None
            x_BTD = x_BTD + sinusoid(positions_BT, x_BTD.shape[-1]).to(x_BTD.dtype)
        if self.segment is not None:
            x_BTD = x_BTD + self.segment(torch.zeros_like(tokens_BT) if segments_BT is None else segments_BT)
        out: Tensor = self.embedding_norm(x_BTD)
        return F.dropout(out, self.dropout) if self.dropout and self.training else out

    def _block(self, place: int) -> Block:
        block = self.blocks[place]
        assert isinstance(block, Block)
        return block

    def _run(self, part: Callable[..., Any], *args: Any) -> Any:
        if self.activation_checkpointing and torch.is_grad_enabled():
            return checkpoint(part, *args, use_reentrant=False)
        return part(*args)

    def _positions(self, tokens_BT: Tensor, start_B: Tensor | None, pad_B: Tensor | None) -> Tensor | None:
        """The position of every token, counted from the row's first real token."""
        if self.pos == "none":
            return None
        positions = torch.arange(tokens_BT.shape[1], device=tokens_BT.device).expand(tokens_BT.shape)
        if start_B is not None:
            positions = positions + start_B[:, None]
        if pad_B is not None:
            positions = (positions - pad_B[:, None]).clamp(min=0)
        if self.pos == "learned" and start_B is None and tokens_BT.shape[1] > self.max_len:
            raise UserError(f"{tokens_BT.shape[1]} tokens given, but the model has max_len={self.max_len} positions.")
        return positions

    def _require_paddable(self) -> None:
        for block in self.blocks:
            if not block.mixer.paddable:
                raise UserError(
                    f"{block.mixer.options.name} takes no padding: extend each row by itself and `merge` the states."
                )


def share_weights(blocks: Iterable[Block]) -> None:
    """Share one mixer's weights among all layers with the same `share` name, which also have the same options. Choices
    of a supernet may have the same name but different options; then each has its own weights."""
    owners: dict[MixerOptions, Mixer] = {}
    for block in blocks:
        options = block.mixer.options
        if options.share != NOT_SHARED:
            owner = owners.setdefault(options, block.mixer)
            if owner is not block.mixer:
                block.mixer = block.mixer.share_with(owner)


def share_biases(mixers: Iterable[Mixer]) -> None:
    """One pair of relative biases for all attention layers that request it (Dai et al. 2019).

    Layers of one model need it in one shape; the choices of a supernet may need several shapes, with one pair for each.
    """
    owners: dict[tuple[int, ...], RelativeAttention] = {}
    for mixer in mixers:
        if isinstance(mixer, RelativeAttention) and mixer.shares_biases:
            mixer.share_biases(owners.setdefault(tuple(mixer.content_bias_HP.shape), mixer))
