"""A track: replicas of one architecture trained on one or several texts, which can be scored at any budget as if their
training ended there.

The learning rate stays constant after the warm-up (WSD: warm-up, stable, decay). `annealed` branches off: it decays the
rate to zero over the last part of a budget, takes the held-out loss, and restores the track to the state before the
decay. So one training serves every budget along the way, and each loss is exactly that of a run of `plait train` with
`schedule=wsd` and that many steps.

Replicas differ in learning rate, seed (initial weights and order of the windows) and text; they are stacked and advance
in one step, which on a GPU is one captured graph.

Letters: M replicas, B batch, T time, N held-out windows.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plait.data import Corpus
from plait.data.stream import Windows, require_validation
from plait.model import build
from plait.model.architecture import Architecture
from plait.ops.paths import autocast_on
from plait.training.ensemble_step import AdamW, Batch, Stepper, Tensors, stack_models, zeros_like
from plait.training.optimizer import decayed_parameters
from plait.training.recipe import Recipe

AHEAD = 64  # steps whose windows are sent to the device at once
SLICE = 8  # most steps between two checks of the clock and of a request to stop
SEEN = 64  # tokens in a row that a text repeats by copying and not by chance
SEARCHED = 2**24  # most training tokens that are searched for them
SLICE_SECONDS = 0.5  # most seconds between them, but at least one step: on a busy machine eight can take half a minute


@dataclass(frozen=True)
class Replica:
    """`text` is the index of the text it is trained on."""

    lr: float
    seed: int
    text: int = 0
    weight_decay: float = 0.1


@dataclass(frozen=True)
class Text:
    """A corpus as used by a track: training tokens, and held-out windows on which all replicas are scored.
    `weights_NT`: weights of the targets, which sum to the number of windows; None: all equal."""

    train: np.ndarray
    inputs_NT: np.ndarray
    targets_NT: np.ndarray
    weights_NT: np.ndarray | None = None

    @classmethod
    def of(cls, corpus: Corpus, seq_len: int, held_out: int) -> Text:
        """With `held_out` tokens of the validation split, in whole windows spread over it, or all of them if there are
        fewer."""
        return cls.cut(corpus.name, corpus.tokens("train"), corpus.tokens("validation"), seq_len, held_out)

    @classmethod
    def cut(cls, name: str, train: np.ndarray, tokens: np.ndarray, seq_len: int, held_out: int) -> Text:
        there = require_validation(name, tokens, seq_len)
        taken = np.linspace(0, there, min(there, max(1, held_out // seq_len)), endpoint=False).astype(np.int64)
        rows = np.asarray(tokens)[taken[:, None] * seq_len + np.arange(seq_len + 1)].astype(np.int64)
        return cls(train, rows[:, :-1], rows[:, 1:])

    def windows_seen(self) -> int:
        """How many held-out windows repeat the training text: their middle `SEEN` tokens are in it. A repeated
        paragraph may be in both splits, and is then predicted from memory."""
        train = np.asarray(self.train[:SEARCHED])
        text, length = train.tobytes(), min(SEEN, self.inputs_NT.shape[1])
        first = (self.inputs_NT.shape[1] - length) // 2
        middle_NT = self.inputs_NT[:, first : first + length].astype(train.dtype)
        return sum(row_T.tobytes() in text for row_T in middle_NT)


def require_text(corpus: Corpus, batch: int, seq_len: int) -> None:
    """Refuse a text that is too short for a training step or for scoring, before anything else is done."""
    Windows(corpus.tokens("train"), seq_len, batch, 0)
    Text.of(corpus, seq_len, seq_len)


class Track:
    def __init__(
        self,
        arch: Architecture,
        replicas: Sequence[Replica],
        texts: Sequence[Text],
        recipe: Recipe,
        *,
        device: torch.device | str = "cpu",
        compiled: bool = True,
    ) -> None:
        """`recipe` gives batch size, sequence length, warm-up (in steps), AdamW's betas and clipping. `compiled`:
        compile for a minute or more on a GPU, for faster steps."""
        self._compiled = compiled
        self.arch, self.recipe, self.device = arch, recipe, torch.device(device)
        self.optimizer = AdamW((recipe.beta1, recipe.beta2), recipe.eps, recipe.clip)
        self.replicas, self._texts = tuple(replicas), tuple(texts)
        self.step, self.seconds = 0, 0.0
        models = [build(arch, seed=replica.seed, device=self.device) for replica in replicas]
        self.template, self.params = stack_models(models)
        self.decayed = decayed_parameters(self.template)
        self.first, self.second = zeros_like(self.params), zeros_like(self.params)
        ends = np.cumsum([0, *(len(text.train) for text in texts)])
        self._begins = ends[:-1]
        kind = np.int32 if arch.header.vocab > 2**15 else np.int16
        joined = np.concatenate([np.asarray(text.train).astype(kind) for text in texts])
        self._tokens = torch.from_numpy(joined).to(self.device)
        self._time = torch.arange(recipe.seq_len, device=self.device)
        # Tensors, so that a captured graph sees them change: the first step of a decay and its length.
        self._decay_from = torch.tensor(torch.inf, device=self.device)
        self._decay_steps = torch.tensor(1.0, device=self.device)
        self._ahead: tuple[int, Tensor] | None = None
        # A CPU gains nothing from stacked products of small matrices; one replica at a time is as fast as `plait
        # train`.
        self._stepper = Stepper(self, vectorised=self.device.type != "cpu", compiled=compiled)

    @property
    def tokens_per_step(self) -> int:
        return self.recipe.batch * self.recipe.seq_len

    def advance_to(self, step: int, seconds: float = math.inf) -> np.ndarray:
        """Train to a step, or until so many seconds have passed; returns the last training losses, (M,)."""
        began = time.perf_counter()
        loss_M = torch.full((len(self.replicas),), torch.nan, device=self.device)
        while self.step < step:
            loss_M = self._stepper(self._starts(self.step))
            self.step += 1
            if time.perf_counter() - began > seconds:
                break
        losses = loss_M.float().cpu().numpy()
        self.seconds += time.perf_counter() - began
        return losses

    def annealed(self, steps: int, decay: int, on_step: Callable[[int], None] = lambda step: None) -> np.ndarray:
        """Held-out losses by window, (M, N), as if the training ended at `steps`, with the learning rate decaying to
        zero over the last `decay` steps. The track advances to the start of that decay and is restored to it
        afterwards, even if `on_step`, which is called during the decay and the scoring, raises."""
        self.advance_to(steps - decay)
        kept = [{name: p.clone() for name, p in stack.items()} for stack in self._stacks]
        self._decay_from.fill_(float(self.step))
        self._decay_steps.fill_(float(decay))
        try:
            while self.step < steps:
                self.advance_to(min(steps, self.step + SLICE), SLICE_SECONDS)
                on_step(self.step)
            return self.score(lambda: on_step(self.step))
        finally:
            self._decay_from.fill_(torch.inf)
            for stack, before in zip(self._stacks, kept, strict=True):
                for name, p in stack.items():
                    p.copy_(before[name])
            self._set_step(steps - decay)

    @torch.no_grad()
    def score(self, on_batch: Callable[[], object] = lambda: None) -> np.ndarray:
        """Held-out nats per token of every window with the current parameters, (M, N); `on_batch` is called between
        batches and may raise."""
        began = time.perf_counter()
        texts = [self._texts[replica.text] for replica in self.replicas]
        weights = [text.weights_NT for text in texts]
        weights_MNT = None
        if any(w is not None for w in weights):
            alike_NT = np.full(texts[0].targets_NT.shape, 1 / texts[0].targets_NT.shape[1])
            weights_MNT = np.stack([alike_NT if w is None else w for w in weights])
        losses: list[Tensor] = []
        count = min(len(text.inputs_NT) for text in texts)
        for begin in range(0, count, self.recipe.batch):
            rows = slice(begin, min(count, begin + self.recipe.batch))
            tokens = torch.from_numpy(np.stack([text.inputs_NT[rows] for text in texts])).to(self.device)
            targets = torch.from_numpy(np.stack([text.targets_NT[rows] for text in texts])).to(self.device)
            with autocast_on(self.device):
                logits_MBTV = self._forward_all(tokens).float()
            nll_MBT = -logits_MBTV.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
            if weights_MNT is None:
                losses.append(nll_MBT.mean(-1))
            else:
                losses.append((nll_MBT * torch.from_numpy(weights_MNT[:, rows]).to(nll_MBT)).sum(-1))
            on_batch()
        loss_MN = torch.cat(losses, dim=1).double().cpu().numpy()
        self.seconds += time.perf_counter() - began
        return loss_MN

    # ---- the interface that a stepper uses

    def batch(self, rows_MB: Tensor) -> Batch:
        # Two gathers: a traced graph expects contiguous inputs, which slices of a single gather would not be.
        places = rows_MB[..., None] + self._time
        return self._tokens[places].long(), self._tokens[places + 1].long()

    def rate(self, step: Tensor) -> Tensor:
        """`training.recipe.rate` for `schedule=wsd`, computed with tensors."""
        warm = (step / max(1.0, self.recipe.warmup)).clamp(max=1.0)
        into = ((step - self._decay_from) / self._decay_steps).clamp(min=0.0)
        return warm * (1 - into.sqrt())

    # ---- on disk

    def state(self, m: int) -> dict[str, object]:
        """Everything `restore` needs of a replica: tensors and plain data."""
        names = ("params", "first", "second")
        tensors = {f"{kind}/{name}": p[m] for kind, s in zip(names, self._stacks, strict=True) for name, p in s.items()}
        return {"tensors": tensors, "step": self.step}

    def restore(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Resume from saved states of the same replicas, all at one step."""
        steps = {int(state["step"]) for state in states}
        if len(steps) != 1:
            raise ValueError(f"replicas of a track advance together; the states are of steps {sorted(steps)}")
        for kind, stack in zip(("params", "first", "second"), self._stacks, strict=True):
            for name, p in stack.items():
                p.copy_(torch.stack([state["tensors"][f"{kind}/{name}"].to(p) for state in states]))
        self._set_step(steps.pop())

    def restart(self, replicas: Sequence[Replica]) -> None:
        """Start again with the same number of other replicas, keeping the compiled step."""
        fresh = Track(self.arch, replicas, self._texts, self.recipe, device=self.device, compiled=self._compiled)
        self.replicas = fresh.replicas
        self._ahead = None
        self.restore([fresh.state(m) for m in range(len(replicas))])
        self._stepper.set_replicas(replicas)

    def _set_step(self, step: int) -> None:
        self.step = step
        self._stepper.set_step(step)

    @property
    def _stacks(self) -> tuple[Tensors, Tensors, Tensors]:
        return self.params, self.first, self.second

    def _starts(self, step: int) -> Tensor:
        """Start positions of a step's windows in the concatenated texts, (M, B)."""
        if self._ahead is None or not 0 <= step - self._ahead[0] < AHEAD:
            numbers = [self._window_starts(step + i) for i in range(AHEAD)]
            self._ahead = (step, torch.from_numpy(np.stack(numbers)).to(self.device))
        return self._ahead[1][step - self._ahead[0]]

    def _window_starts(self, step: int) -> np.ndarray:
        recipe, rows = self.recipe, []
        for replica in self.replicas:
            windows = Windows(self._texts[replica.text].train, recipe.seq_len, recipe.batch, replica.seed)
            rows.append(windows.starts(step) + self._begins[replica.text])
        return np.stack(rows)

    def _forward_all(self, tokens_MBT: Tensor) -> Tensor:
        if self.device.type != "cpu" and self._compiled:
            stacked: Tensor = torch.func.vmap(self.template.logits)(self.params, tokens_MBT)
            return stacked
        replicas = ({name: p[m] for name, p in self.params.items()} for m in range(len(tokens_MBT)))
        return torch.stack([self.template.logits(p, tokens) for p, tokens in zip(replicas, tokens_MBT, strict=True)])


def track_recipe(recipe: Recipe, warmup: int) -> Recipe:
    """The recipe of a track, on which runs of any length are branches: its warm-up is a number of steps."""
    return replace(recipe, schedule="wsd", warmup=float(warmup), min_lr_ratio=0.0)
