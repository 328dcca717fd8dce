"""The supernet: one model with a mixture in every layer, its architecture a table of logits.

    net = Supernet(header, [["attn[heads=4]", "mlp", None]] * 12 as options)
    net.mix(mixture(net.logits_LK, noise(0, 0, net.logits_LK.shape), 1.0, "soft"))
    net.model.loss(tokens, targets).backward()
    net.extract([0, 1, 2, …])            # a plain model with the weights of one path

Letters: L layers, K choices of a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from plait.core.errors import UserError
from plait.mixers.mixer import Loan
from plait.mixers.options import MixerOptions
from plait.model import build
from plait.model.architecture import Architecture
from plait.model.backbone import share_biases, share_weights
from plait.model.language_model import KINDS, Encoder, LanguageModel, init_weights
from plait.spec import Header
from plait.supernet.mixture import Mixture
from plait.supernet.settings import refuse_readers

Choices = Sequence[Sequence[MixerOptions | None]]


class Supernet(nn.Module):
    """`choices` lists the options of every layer; None is an empty layer."""

    def __init__(self, header: Header, choices: Choices, *, seed: int = 0, device: torch.device | str = "cpu") -> None:
        super().__init__()
        if header.kind not in ("lm", "encoder"):
            raise UserError(f"kind={header.kind}: a supernet is a language model (kind=lm) or an encoder.")
        if not choices or not all(choices):
            raise UserError("a supernet needs at least one layer, and every layer at least one choice.")
        refuse_readers(choice for layer in choices for choice in layer)
        self.header, self.choices = header, tuple(tuple(layer) for layer in choices)
        with torch.random.fork_rng(devices=[]), torch.device(device):
            model = KINDS[header.kind](Architecture(header, ()))
            assert isinstance(model, (LanguageModel, Encoder))
            loan: Loan = {}
            layers = [Mixture(header, layer, loan, first=not place) for place, layer in enumerate(self.choices)]
        model.backbone.blocks = nn.ModuleList(layers)  # type: ignore[assignment] # a mixture runs as a block does
        blocks = [block for layer in layers for block in layer.each_block]
        share_biases(block.mixer for block in blocks)
        share_weights(blocks)
        init_weights(model, seed)
        self.model = model
        most = max(len(layer) for layer in self.choices)
        #: All choices start equal.
        self.scores_LK = nn.Parameter(torch.zeros(len(self.choices), most, device=device))
        missing_LK = [[0.0 if k < len(layer) else -torch.inf for k in range(most)] for layer in self.choices]
        self.register_buffer("missing_LK", torch.tensor(missing_LK, device=device), persistent=False)
        self.missing_LK: Tensor

    @property
    def logits_LK(self) -> Tensor:
        """The trained scores, and -inf for choices that a layer does not have."""
        return self.scores_LK + self.missing_LK

    @property
    def mixtures(self) -> list[Mixture]:
        return [layer for layer in self.model.backbone.blocks if isinstance(layer, Mixture)]

    def mix(self, weights_LK: Tensor) -> None:
        """Make every layer this mixture of its choices, until it is changed again."""
        for layer, weights_K in zip(self.mixtures, weights_LK, strict=True):
            layer.path, layer.weights_K = None, weights_K

    def walk(self, path: Sequence[int], weights_LK: Tensor | None = None) -> None:
        """Make every layer one of its choices, until it is changed again. The choices' weights in `weights_LK`, if
        given, are 1 and get a gradient."""
        for at, (layer, k) in enumerate(zip(self.mixtures, path, strict=True)):
            layer.path, layer.weights_K = int(k), None if weights_LK is None else weights_LK[at]

    @contextmanager
    def comparing(self, path: Sequence[int]) -> Iterator[Callable[[Sequence[int]], None]]:
        """Yields a function to use instead of `walk` while paths are compared on the same input. `path` has to come
        first; of the others, only the layers from the first one that differs from it are computed."""

        def walk(tried: Sequence[int]) -> None:
            first = next((at for at, (a, b) in enumerate(zip(tried, path, strict=True)) if a != b), None)
            for at, layer in enumerate(self.mixtures):
                layer.keeps, layer.replays = first is None, first is not None and at < first
            self.walk(tried)

        try:
            yield walk
        finally:
            for layer in self.mixtures:
                layer.keeps, layer.replays, layer.kept = False, False, None

    @property
    def probabilities_LK(self) -> Tensor:
        """The probability of every choice, which is m without noise at temperature 1."""
        return self.logits_LK.detach().softmax(dim=1)

    @property
    def best(self) -> tuple[int, ...]:
        """The most likely path; the first one among ties."""
        return tuple(self.logits_LK.detach().argmax(dim=1).tolist())

    def architecture(self, path: Sequence[int]) -> Architecture:
        """The architecture of a path, without its empty layers."""
        chosen = (layer[k] for layer, k in zip(self.choices, path, strict=True))
        return Architecture(self.header, tuple(options for options in chosen if options is not None))

    def extract(self, path: Sequence[int]) -> LanguageModel | Encoder:
        """A plain model with a copy of the path's weights; it gives exactly the supernet's logits for that path."""
        like = next(self.model.parameters())
        model = build(self.architecture(path), device=like.device, dtype=like.dtype)
        assert isinstance(model, (LanguageModel, Encoder))
        weights = self._embedding_and_head()
        at = 0
        for layer, k in zip(self.mixtures, path, strict=True):
            if layer.choices[k] is not None:
                mine = layer.blocks[str(k)].state_dict()
                weights |= {f"backbone.blocks.{at}.{name}": value for name, value in mine.items()}
                at += 1
        model.load_state_dict(weights)
        return model.train(self.model.training)

    def _embedding_and_head(self) -> dict[str, object]:
        held = self.model.state_dict()
        return {name: value for name, value in held.items() if not name.startswith("backbone.blocks.")}
