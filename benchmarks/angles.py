"""How Mamba-3 learns parity: the rotation angle of its state at a one and at a zero.

    python benchmarks/angles.py [--steps 1500] [--seeds 2] [--mixer MIXER] [--betas 0.9/0.95] [--eps 1e-12]

One layer of width 32 and an MLP, parity of 32 tokens, short prefixes first, AdamW at 4e-3 along a cosine. Says
the validation loss, accuracies at 1, 2, 4 and 8 times the length, and of the turns of each replica (a head's step times
an angle) those that are nearest to what keeps a parity, 0 at a zero and π at a one, with their steps and decays. A
smaller eps, or a second moment that forgets sooner, tells whether the optimizer is what stops an angle that is off.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor
from tracking import split
from tracking_sets import ONE_LAYER, TURNING

from plait.mixers.mamba_module import Mamba3
from plait.model.architecture import architecture
from plait.probing.protocol import curriculum
from plait.tasks import baseline, draw, make_data
from plait.training.ensemble import Fleet
from plait.training.ensemble_plan import Plan, Replica
from plait.training.ensemble_step import AdamW

LOOKS = 5


def turns(fleet: Fleet, replica: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of a zero and a one: the turn of every head and angle in π, the step and −log of the decay of every head."""
    model = fleet.template.model
    weights = {name.removeprefix("model."): stack[replica] for name, stack in fleet.params.items()}
    path, mixer = next((name, part) for name, part in model.named_modules() if isinstance(part, Mamba3))
    seen: list[Tensor] = []
    hook = mixer.register_forward_pre_hook(lambda _, given: seen.append(given[0][:, 0]))
    with torch.no_grad():
        torch.func.functional_call(model, weights, (torch.tensor([[0], [1]]),))
        hook.remove()
        flat = seen[0] @ weights[f"{path}.input.weight"].T
        *_, delta, rate, _, angle = flat.split(mixer.splits, dim=-1)
        step_2H = F.softplus(delta + weights[f"{path}.step_bias_H"])
        return mixer._turned(angle[:, None], step_2H[:, None])[:, 0] / math.pi, step_2H, F.softplus(rate) * step_2H


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--mixer", default=TURNING)
    asked.add_argument("--spec", default=ONE_LAYER)
    asked.add_argument("--steps", type=int, default=1500)
    asked.add_argument("--seeds", type=int, default=2)
    asked.add_argument("--lr", type=float, default=4e-3)
    asked.add_argument("--betas", default="0.9/0.98")
    asked.add_argument("--eps", type=float, default=1e-8)
    given = asked.parse_args()
    torch.set_num_threads(1)
    task, seeds = baseline("parity"), range(given.seeds)
    data = [make_data(task, seed, evaluation=128) for seed in seeds]
    first, second = map(float, given.betas.split("/"))
    optimizer = replace(AdamW(), betas=(first, second), eps=given.eps)
    fleet = Fleet(
        architecture(given.spec.format(vocab=task.model_vocab, mixer=given.mixer)),
        [Replica(given.lr, 0.0, seed, seed) for seed in seeds],
        Plan(given.steps, 32, given.steps, solved=2.0, curriculum=curriculum(task), optimizer=optimizer),
        *(split([one.split(part) for one in data]) for part in ("train", "validation", "test")),
        others={str(n): split([draw(task.longer(n), seed, "test", 64) for seed in seeds]) for n in (2, 4, 8)},
    )
    while fleet.step < given.steps:
        fleet.run(until=fleet.step + -(-given.steps // LOOKS))
        losses = " ".join(f"{loss:.1e}" for loss in fleet.score("validation")[1])
        at = {n: [round(float(one), 3) for one in fleet.score(n)[0]] for n in ("validation", "2", "4", "8")}
        print(f"step {fleet.step}: loss {losses}, accuracy {at}", flush=True)
    for seed in seeds:
        turn_2HA, step_2H, decay_2H = turns(fleet, seed)
        off_2HA = torch.stack(((turn_2HA[0] + 1) % 2 - 1, turn_2HA[1] % 2 - 1))
        print(f"seed {seed}: off at a zero, at a one (in π) | steps | decays")
        for place in off_2HA.abs().sum(0).flatten().argsort()[:4].tolist():
            head, angle = divmod(place, off_2HA.shape[-1])
            off, steps, decays = off_2HA[:, head, angle], step_2H[:, head], decay_2H[:, head]
            print("  {:+.4f} {:+.4f} | {:.3f} {:.3f} | {:.4f} {:.4f}".format(*off, *steps, *decays))


if __name__ == "__main__":
    main()
