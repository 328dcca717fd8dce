"""How often predictions of whole models hold, and what a second space in the profile changes.

    python benchmarks/whole_models.py [--repetitions 40] [--out PAGE.md]

`plait profile` runs on simulated machines: its own choice of layers and models, its own regression, but the clock and
the meter are simulated. A layer takes a roofline of its terms, times what no term explains: a smooth random function
of its sizes, of 12 % and a length of two octaves. A whole model takes its parts times a factor of its space, times a
deviation of its own; measurements repeat to 1.5 %. What models need in memory beyond their parts depends on the space
too. Then models that are not in the profile are predicted and measured once.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import numpy as np

from plait.device import profiling
from plait.device.features import Components, Features, of_embedding_and_head, of_layer
from plait.device.predictor import Prediction, Predictor
from plait.device.profile import Point, Profile
from plait.device.quantities import Setting
from plait.mixers.options import MixerOptions
from plait.model.architecture import Architecture
from plait.model.cost import model_cost
from plait.space.table import load_space
from plait.spec import Header

SMOOTH, OCTAVES, REPEATS, WAVES = 0.12, 2.0, 0.015, 64
PART_SECONDS, MODEL_SECONDS = 0.4, 1.5  # what a measurement takes
UNSEEN = 12  # models of each space


@dataclass(frozen=True)
class Kind:
    """What a space's whole models take: `factor` times their parts, ± `own`; `kept` bytes beyond them."""

    factor: float
    own: float
    kept: float


class SimulatedMachine:
    """In place of `PartMeter`; `now` is its clock."""

    def __init__(self, seed: int, kinds: dict[int, Kind]) -> None:
        self.seed, self.kinds, self.now = seed, kinds, 0.0
        self.rng = np.random.default_rng(seed)
        self._waves: dict[str, tuple[dict[str, np.ndarray], np.ndarray]] = {}

    def layer(self, d: int, options: MixerOptions, norm: str, setting: Setting) -> Point:
        self.now += PART_SECONDS
        features = of_layer(d, options, norm, setting)
        point = self._point("layer", str(options.to_layer()), d, norm, setting, self._seconds(features))
        return replace(point, source=options.source_hash, activations=_layer_bytes(features))

    def embedding_and_head(self, header: Header, setting: Setting) -> Point:
        self.now += PART_SECONDS
        features = of_embedding_and_head(header, setting)
        point = self._point("outside", header.text, header.d, header.norm, setting, self._seconds(features))
        return replace(point, activations=int(4 * features.terms[5]))

    def model(self, arch: Architecture, setting: Setting) -> Point:
        self.now += MODEL_SECONDS
        header, kind = arch.header, self.kinds[arch.header.vocab]
        around = of_embedding_and_head(header, setting)
        parts = [of_layer(header.d, options, header.norm, setting) for options in arch.layers]
        seconds = kind.factor * np.exp(kind.own * self.rng.normal()) * sum(map(self._seconds, [around, *parts]))
        cost, state, highest = model_cost(arch, seq=setting.seq), 0.0, 0.0
        for part, layer in zip(parts, cost.layers, strict=True):
            highest = max(highest, state + _layer_bytes(part))
            state += 4 * (layer.fixed_state + layer.conv_state + layer.kv_cache)
        peak = 4 * cost.total_params + max(highest, state + 4 * around.terms[5]) + kind.kept
        point = self._point("model", arch.text, header.d, header.norm, setting, float(seconds))
        return replace(point, memory=int(peak * np.exp(0.005 * self.rng.normal())), source=arch.source_hash)

    def _seconds(self, features: Features) -> float:
        """Without the noise of measuring."""
        terms = features.terms
        return float((2e-5 + 1e-11 * (terms[1] + terms[2]) + 4e-11 * sum(terms[3:5])) * np.exp(self._smooth(features)))

    def _smooth(self, features: Features) -> float:
        """A sample of a Gaussian process with a Matérn 3/2 covariance, from random waves: a function of its own for
        every combination of options that are not numbers."""
        name = f"{features.kind} {sorted(features.names.items())}"
        rng = np.random.default_rng([self.seed, crc32(name.encode())])
        phase = rng.uniform(0, 2 * np.pi, WAVES)
        # The spectrum of a Matérn 3/2 covariance is a Student's t with 3 degrees of freedom: one scale for all sizes.
        scale = np.sqrt(3 / rng.chisquare(3, WAVES)) / OCTAVES
        along = np.zeros(WAVES)
        for coordinate, value in sorted(features.place.items()):
            own = np.random.default_rng([self.seed, crc32(f"{name} {coordinate}".encode())])
            along += own.normal(size=WAVES) * value
        return float(SMOOTH * np.sqrt(2 / WAVES) * np.cos(scale * along + phase).sum())

    def _point(self, what: str, spec: str, d: int, norm: str, setting: Setting, seconds: float) -> Point:
        measured = seconds * float(np.exp(REPEATS * self.rng.normal()))
        at = {"mode": setting.mode, "seq": setting.seq, "batch": setting.batch}
        return Point(what, spec, d, norm, **at, seconds=measured, noise=0.005, noisy=False, activations=0)  # type: ignore[arg-type]


def _layer_bytes(features: Features) -> int:
    return int(4 * (2 * features.terms[4] + features.terms[5]))


class NoMemoryMeter:
    def __enter__(self) -> NoMemoryMeter:
        return self

    def __exit__(self, *exception: object) -> None: ...


def profiled(machine: SimulatedMachine, spaces: list[tuple[str, float]], setting: Setting) -> Profile:
    """Runs of `plait profile` one after the other: a space, and how many seconds."""
    profiling.time = SimpleNamespace(monotonic=lambda: machine.now)  # type: ignore[attr-defined]
    profiling.PartMeter = lambda *_: machine  # type: ignore[assignment,misc]
    profiling.MemoryMeter = NoMemoryMeter  # type: ignore[assignment,misc]
    profile = Profile.here(setting)
    for name, seconds in spaces:
        profiling.extend_profile(profile, Components.of(load_space(name)), [setting], seconds=seconds)
    return profile


def told(profile: Profile, machine: SimulatedMachine, space: str, setting: Setting) -> list[dict[str, Any]]:
    """Each model that is not in the profile: its error, whether its interval holds it, and the half-width."""
    known, rng = {point.spec for point in profile.points}, np.random.default_rng([1, machine.seed])
    components = Components.of(load_space(space))
    archs = [components[at % len(components)].model(rng) for at in range(UNSEEN)]
    archs = [arch for arch in archs if arch.text not in known]
    points = [machine.model(arch, setting) for arch in archs]
    predicted, rows = Predictor(profile, setting).predict(archs), []
    for quantity, true in (("latency", [p.seconds for p in points]), ("memory", [float(p.memory) for p in points])):
        rows += _rows(quantity, predicted[quantity], np.array(true))
    return rows


def _rows(quantity: str, found: Prediction, true_N: np.ndarray) -> list[dict[str, Any]]:
    off_N, wide_N = found.mean / true_N - 1, found.high / found.mean - 1
    held_N = (found.low <= true_N) & (true_N <= found.high)
    return [
        {"quantity": quantity, "off": float(off), "held": bool(held), "width": float(width)}
        for off, held, width in zip(off_N, held_N, wide_N, strict=True)
    ]


SMALL, LARGE = "small-hybrid", "lts-gpt2"


def vocabulary(space: str) -> int:
    return Components.of(load_space(space))[0].header.vocab


#: Name, the factor of the small space, the runs of `plait profile`, the space that is predicted.
CASES: list[tuple[str, float, list[tuple[str, float]], str]] = [
    (f"{LARGE}, 60 s", 1.04, [(LARGE, 60.0)], LARGE),
    (f"{LARGE}, 180 s", 1.04, [(LARGE, 180.0)], LARGE),
    (f"{SMALL}, 60 s", 1.04, [(SMALL, 60.0)], SMALL),
    (f"{SMALL}, 180 s", 1.04, [(SMALL, 180.0)], SMALL),
    (f"{LARGE} 60 s, then {SMALL} 60 s, the same factor", 1.04, [(LARGE, 60.0), (SMALL, 60.0)], LARGE),
    (f"{LARGE} 60 s, then {SMALL} 60 s, its factor 1.25 times", 1.30, [(LARGE, 60.0), (SMALL, 60.0)], LARGE),
    (f"{LARGE} 60 s, then {SMALL} 60 s, its factor 1.25 times", 1.30, [(LARGE, 60.0), (SMALL, 60.0)], SMALL),
    (f"{LARGE} 60 s, then {SMALL} 60 s, its factor 0.8 times", 0.83, [(LARGE, 60.0), (SMALL, 60.0)], SMALL),
]  # fmt: skip


def simulated(repetitions: int, on_row: Callable[[list[str]], object]) -> list[list[str]]:
    setting, table = Setting(), []
    for name, factor, spaces, asked in CASES:
        kinds = {vocabulary(LARGE): Kind(1.04, 0.02, 40e6), vocabulary(SMALL): Kind(factor, 0.02, 2e6)}
        found: list[dict[str, Any]] = []
        for seed in range(repetitions):
            machine = SimulatedMachine(seed, kinds)
            found += told(profiled(machine, spaces, setting), machine, asked, setting)
        for quantity in ("latency", "memory"):
            own = [row for row in found if row["quantity"] == quantity]
            off = np.array([row["off"] for row in own])
            values = (np.median(np.abs(off)), np.median(off), np.mean([row["held"] for row in own]),
                      np.median([row["width"] for row in own]))  # fmt: skip
            table.append([name, asked, quantity, *(f"{100 * value:.1f} %" for value in values)])
            on_row(table[-1])
    return table


COLUMNS = ["profile", "models of", "quantity", "median error", "bias", "in the 95 % interval", "half-width"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=40)
    parser.add_argument("--out", type=Path, help="a page with the table")
    given = parser.parse_args()
    rows = simulated(given.repetitions, lambda row: print(" | ".join(row), flush=True))
    lines = [COLUMNS, ["---"] * len(COLUMNS), *rows]
    if given.out:
        given.out.write_text("\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
