"""Differentiable search (`--method gumbel`): every seed trains a supernet and compares its most likely architectures.

It shares spaces, constraints, limits, objectives, checkpoints, records and the Pareto front with the other methods; an
architecture that violates a constraint is replaced by the next likely one. An iteration is a few training steps, so
that a search can be interrupted and resumed anywhere.

Letters: N candidates, G genes, L layers with all slots in a row, K choices of a layer, S slots.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from plait.algorithms.front import Front
from plait.algorithms.objectives import Objective
from plait.algorithms.predicted import DevicePredictor
from plait.algorithms.search import Search, Seen
from plait.core.errors import UserError
from plait.device.predictor import Predictor
from plait.device.quantities import on_device
from plait.mixers.options import MixerOptions
from plait.model.language_model import Objective as TrainingLoss
from plait.space.space import FITS, LINKED, Genes, Space
from plait.supernet.loss import Path, SupernetLoss, cost_shares, likeliest
from plait.supernet.network import Supernet
from plait.supernet.settings import WEIGHTS, SupernetJob, layer_choices
from plait.supernet.training import SupernetTraining
from plait.training.distributed import Processes
from plait.training.trainer import Batches, Validation

AT_ONCE = 10  # training steps per iteration
VALIDATION = 2**14  # tokens on which architectures are compared


class GumbelSearch(Search):
    method: ClassVar[str] = "gumbel"
    save_every: ClassVar[float] = 60.0  # seconds; a checkpoint holds all weights

    def __init__(
        self,
        space: Space,
        objectives: Sequence[Objective],
        job: SupernetJob,
        *,
        predictor: Predictor | None = None,
        **rest: Any,
    ) -> None:
        self.loss = next((objective for objective in objectives if isinstance(objective, SupernetLoss)), SupernetLoss())
        per_seed = -(-job.settings.steps // AT_ONCE)
        super().__init__(space, objectives, iterations=job.seeds * per_seed, **rest)
        self.job, self.per_seed, self.predictor = job, per_seed, predictor
        self.places = layer_choices(self.space)
        self.header = self.space.headers.all[0]
        assert self.header is not None
        self.dist = Processes(0, 1, torch.device(job.device))
        self.training: SupernetTraining | None = None
        self.found: list[dict[str, object]] = []  # one per finished seed

    @property
    def choices(self) -> list[list[MixerOptions | None]]:
        slots = self.space.slots
        return [[slots[at % len(slots)].options[place] for place in places] for at, places in enumerate(self.places)]

    def settings(self) -> Mapping[str, Any]:
        settings = self.job.as_dict()
        if self.predictor is not None and self.job.settings.penalty in on_device():
            settings["priced_by"] = DevicePredictor(self.predictor).as_dict()
        return settings

    def step(self, rng: np.random.Generator) -> None:
        number, part = divmod(self.iteration, self.per_seed)
        if self.training is None:
            self.training = self._begin(number)
        for _ in range(AT_ONCE):
            if self.training.finished:
                break
            self.training.advance()
        if self.training.finished or part == self.per_seed - 1:
            self._take(number, self.training)
            self.training = None
            self.iteration = (number + 1) * self.per_seed - 1  # `run` counts this one

    def report(self) -> dict[str, object]:
        """In addition to the Pareto front: the choices of every layer, and what every seed found."""
        named = [[_text(option) for option in layer] for layer in self.choices]
        return {"choices": named, "seeds": self.found}

    def front(self) -> Front:
        if not len(self.archive):
            constraints = "; ".join(str(constraint) for constraint in self.space.constraints) or "at least one layer"
            raise UserError(
                f"{self.space.name}: none of the {self.proposed:,} most likely architectures satisfies every "
                f"constraint ({constraints}). Loosen one, or penalise what it limits: --supernet penalty=…, strength=…"
            )
        return super().front()

    # ---- one seed

    def _begin(self, number: int) -> SupernetTraining:
        job, seed = self.job, self.seed + number
        assert self.header is not None
        net = Supernet(self.header, self.choices, seed=seed, device=self.dist.device)
        architecture = net.architecture([0] * len(self.places))
        sources, epoch = {}, 1
        for stage, text in job.split().items():
            batches = Batches(architecture, text, job.recipe, seed, self.dist)
            sources[stage] = batches
            if stage == WEIGHTS:
                epoch = max(1, len(text.tokens("train")) // (job.recipe.batch * job.recipe.seq_len))
        costs_LK = None
        if job.settings.penalty:
            shares_LK = cost_shares(
                job.settings.penalty,
                self.header,
                self.choices,
                seq=self.evaluator.seq,
                memory=self.evaluator.memory,
                predictor=self.predictor,
            )
            costs_LK = torch.from_numpy(shares_LK).float()
        return SupernetTraining(
            net,
            sources,
            job.recipe,
            job.settings,
            seed=seed,
            epoch=epoch,
            costs_LK=costs_LK,
            precision=job.precision,
        )

    def _take(self, number: int, training: SupernetTraining) -> None:
        """Add the most likely feasible architectures of a trained supernet to the archive."""
        net = training.net
        probabilities = net.probabilities_LK.double().cpu().numpy()
        per_layer = [row[: len(places)] for row, places in zip(probabilities, self.places, strict=True)]
        in_order, waiting = (path for path, _ in likeliest(per_layer)), list[Path]()
        validation = Validation(self.job.corpus, self.job.recipe, net.header.kind, VALIDATION)
        objective = TrainingLoss(net.model)

        def loss_of(path: Path) -> float:
            net.walk(path)
            return validation.loss(objective, net.model, self.dist, training.autocast)

        self.loss.loss_of = loss_of
        # Every supernet scores its architectures itself, also those that an earlier seed's supernet has scored.
        self.seen = Seen()
        best = net.best
        self.found.append(
            {
                "seed": self.seed + number,
                "layers": [_name(option) for option in self._chosen(best)],
                "spec": self._spec(best),
                "loss": loss_of(best),
                "probabilities": [[round(float(p), 4) for p in row] for row in per_layer],
                "steps": training.step,
                "converged": training.converged,
                "settled": round(training.settled, 3),
            }
        )
        top = self.job.settings.top
        self.keep(self.collect(lambda n: self._propose(in_order, waiting, n), top))
        self.loss.loss_of = None
        self.loss.paths.clear()

    def _propose(self, in_order: Iterator[Path], waiting: list[Path], n: int) -> Genes:
        """The next likely paths, after those that were proposed before and not evaluated.

        `collect` asks for more candidates than it evaluates. If a limit rejects the ones it did evaluate, the others
        are still likelier than all that follow.
        """
        paths = [*waiting, *itertools.islice(in_order, n)]
        genes_NG = self._genes(paths)
        self.loss.remember(genes_NG, paths)
        new = self.seen.new(genes_NG)
        _, fine_N = self.evaluator.exact(genes_NG[new])
        waiting[:] = [paths[at] for at in new[fine_N]]
        return genes_NG

    def _genes(self, paths: Sequence[Path]) -> Genes:
        chosen = [[places[k] for places, k in zip(self.places, path, strict=True)] for path in paths]
        shape = (len(paths), self.space.depths[-1], len(self.space.slots))
        return self.space.of_layers(np.array(chosen, dtype=np.int16).reshape(shape))

    def _spec(self, path: Path) -> str | None:
        """The spec of a path; None if all its layers are empty or do not fit together. It may violate other
        constraints."""
        genes_NG = self._genes([path])
        passed = self.space.passed(genes_NG, {})
        whole = any(self._chosen(path)) and all(passed[name][0] for name in (FITS, LINKED) if name in passed)
        return self.space.spec(genes_NG[0]) if whole else None

    def _chosen(self, path: Path) -> list[MixerOptions | None]:
        return [layer[k] for layer, k in zip(self.choices, path, strict=True)]

    # ---- checkpoints

    def arrays(self) -> dict[str, NDArray[Any]]:
        held = {} if self.training is None else {f"now/{k}": v for k, v in self.training.arrays().items()}
        return {"found": np.array(json.dumps(self.found)), **held}

    def restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        self.found = json.loads(str(arrays["found"]))
        now = {name[4:]: array for name, array in arrays.items() if name.startswith("now/")}
        if now:
            self.training = self._begin(self.iteration // self.per_seed)
            self.training.restore(now)


def _name(option: MixerOptions | None) -> str:
    return "none" if option is None else option.name


def _text(option: MixerOptions | None) -> str:
    return "none" if option is None else option.to_layer().text
