"""Predicts latency, memory and other quantities of architectures on a device from its profile.

    latency = c · (outside + Σ layers)          c: ratio of whole models to the sum of their parts
    memory  = weights + max over the run of (state so far + activations at work) + what libraries keep

c and what libraries keep come from measured whole models with the same embedding and head, if there are enough: those
of another space may be a hundred times as large, and differ from their parts in another way.

Every additive quantity (`plait.device.quantities`) is predicted like latency, if the profile has it.

A layer's time depends only on its options, its width and the setting, and a space has few distinct layers: they are
predicted once (`layer_table`, `embedding_and_head_table`), and any number of candidates are sums over the tables
(`compose`).

Letters: N candidates, L layers of the deepest.

`compare` compares two profiles: how much slower one machine is than the other for each kind of layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from plait.analysis.distributions import t_quantile
from plait.analysis.intervals import NORMAL
from plait.core.errors import UserError
from plait.core.result import Result
from plait.device.features import EMBEDDING_AND_HEAD, Features, of_embedding_and_head, of_layer
from plait.device.profile import Point, Profile
from plait.device.quantities import BOTH, MODES, SUM, Setting, on_device
from plait.device.regression import Floats, Surface
from plait.mixers.options import MixerOptions, OptionError
from plait.model.architecture import Architecture, architecture, options_of
from plait.model.cost import model_cost
from plait.spec import Header, parse

if TYPE_CHECKING:
    from plait.device.measurements import AnswerPredictor

Ints = NDArray[np.integer]
Check = tuple[Point, dict[str, float]]  # a measured whole model, and the sum of its parts
LEAST_ALIKE = 4  # whole models with one embedding and head that tell what they need beyond their parts
LEAST_ERROR = 0.02  # smallest relative error of a prediction for a whole model, however well its parts are known


#: Columns with one entry per distinct layer (or header): every additive quantity and, under DEVIATION and its name, its
#: uncertainty; `activations`, bytes at the part's own peak; `state`, bytes that it adds to the state. Of headers also
#: what `Predictor._whole_models` tells: under FACTOR and its name, the ratio of a quantity to the sum of its parts, and
#: under ERROR the remaining relative error; KEPT, bytes that libraries allocate for themselves.
PartTable = dict[str, Floats]
DEVIATION, FACTOR, ERROR, KEPT = "deviation of ", "factor of ", "error of ", "kept"


@dataclass(frozen=True)
class Prediction:
    """Means and 95 % intervals, one entry per candidate, in the quantity's base unit."""

    mean: Floats
    low: Floats
    high: Floats


class Predictor:
    def __init__(self, profile: Profile, setting: Setting | None = None) -> None:
        """`setting` is what is predicted; device, dtype and threads are the profile's own."""
        wanted = setting or Setting()
        self.profile = profile
        self.setting = Setting(mode=wanted.mode, seq=wanted.seq, batch=wanted.batch, **profile.common)
        known = {name for point in profile.points for name in point.others}
        #: Additive quantities that the profile has.
        self.sums = [
            name
            for name, quantity in on_device().items()
            if quantity.predicted == SUM and (not quantity.optional or name in known)
        ]
        self._surfaces: dict[tuple[str, str], Surface] = {}  # kind of layer, column
        self._whole: dict[Header, dict[str, float]] = {}

    # ---- single architectures

    def latency(self, archs: Sequence[Architecture | str]) -> Prediction:
        """Seconds."""
        return self.predict(archs)["latency"]

    def memory(self, archs: Sequence[Architecture | str]) -> Prediction:
        """Bytes at the peak."""
        return self.predict(archs)["memory"]

    def predict(self, specs: Sequence[Architecture | str]) -> dict[str, Prediction]:
        """Predictions of all quantities that the profile has enough data for, by name."""
        archs = [architecture(spec) for spec in specs]
        keys = [(arch.header.d, options, arch.header.norm) for arch in archs for options in arch.layers]
        distinct = {key: at for at, key in enumerate(dict.fromkeys(keys))}
        headers = {header: at for at, header in enumerate(dict.fromkeys(arch.header for arch in archs))}
        layers_NL = np.full((len(archs), max((len(arch.layers) for arch in archs), default=0)), -1)
        for row, arch in enumerate(archs):
            where = [distinct[arch.header.d, options, arch.header.norm] for options in arch.layers]
            layers_NL[row, : len(where)] = where
        weights_N = self.setting.number_bytes * np.array([model_cost(arch, seq=1).total_params for arch in archs])
        return self.compose(
            self.embedding_and_head_table(list(headers)),
            np.array([headers[arch.header] for arch in archs], dtype=np.int64),
            self._table([(d, options, norm) for d, options, norm in distinct]),
            layers_NL,
            weights_N.astype(np.float64),
        )

    # ---- many candidates

    def layer_table(self, layers: Sequence[tuple[int, MixerOptions]], norm: str = "rms") -> PartTable:
        """The columns of the table of layers, one row per (width, options). Invalid pairs must be left out."""
        return self._table([(d, options, norm) for d, options in layers])

    def embedding_and_head_table(self, headers: Sequence[Header]) -> PartTable:
        """The same for embedding, final norm and output layer, one row per header."""
        table = self.empty_table(len(headers))
        self._fill(
            table, slice(None), EMBEDDING_AND_HEAD, [of_embedding_and_head(header, self.setting) for header in headers]
        )
        for place, header in enumerate(headers):
            for name, value in self._whole_models(header).items():
                table[name][place] = value
        return table

    def empty_table(self, size: int) -> PartTable:
        of_sums = [of + name for name in self.sums for of in ("", DEVIATION, FACTOR, ERROR)]
        return {name: np.zeros(size) for name in (*of_sums, "activations", "state", KEPT, ERROR + "memory")}

    def compose(
        self, embedding_and_head: PartTable, header_N: Ints, layers: PartTable, layers_NL: Ints, weights_N: Floats
    ) -> dict[str, Prediction]:
        """Quantities of candidates, which are given as indices into the tables; -1 means no layer."""
        # A last row of zeros, which index -1 selects: no layer.
        table = {name: np.append(column, 0.0) for name, column in layers.items()}
        # Errors of neighbouring layers are correlated: deviations add up, not their squares.
        adding = [*self.sums, *(DEVIATION + name for name in self.sums)]
        sums = {name: embedding_and_head[name][header_N] for name in adding}
        state_N, highest_N = np.zeros(len(header_N)), np.zeros(len(header_N))
        for layer_N in layers_NL.T:
            for name in adding:
                sums[name] = sums[name] + table[name][layer_N]
            np.maximum(highest_N, state_N + table["activations"][layer_N], out=highest_N)
            state_N = state_N + table["state"][layer_N]
        np.maximum(highest_N, state_N + embedding_and_head["activations"][header_N], out=highest_N)
        predicted = {}
        for name in self.sums:
            factor_N, error_N = (embedding_and_head[of + name][header_N] for of in (FACTOR, ERROR))
            mean_N = factor_N * sums[name]
            reach_N = NORMAL * np.hypot(factor_N * sums[DEVIATION + name], error_N * mean_N)
            predicted[name] = _around(mean_N, reach_N)
        memory_N = weights_N + self._held_before(state_N) + highest_N + embedding_and_head[KEPT][header_N]
        reach_N = NORMAL * embedding_and_head[ERROR + "memory"][header_N] * memory_N
        return {**predicted, "memory": _around(memory_N, reach_N)}

    # ---- contents of the profile

    @property
    def kinds(self) -> list[str]:
        """What was measured in this mode: names of mixers, and the embedding with the output layer."""
        return list(dict.fromkeys(features.kind for _, features in self._measured))

    def measured(self, kind: str) -> list[tuple[Point, Features]]:
        return [(point, features) for point, features in self._measured if features.kind == kind]

    def seconds_of(self, kind: str, asked: Sequence[Features]) -> Floats:
        return self._ask(kind, asked, "latency")[0]

    # ---- internals

    def _table(self, layers: Sequence[tuple[int, MixerOptions, str]]) -> PartTable:
        table = self.empty_table(len(layers))
        asked = [of_layer(d, options, norm, self.setting) for d, options, norm in layers]
        for kind in dict.fromkeys(features.kind for features in asked):
            at = np.array([place for place, features in enumerate(asked) if features.kind == kind])
            self._fill(table, at, kind, [asked[place] for place in at])
        length = self.setting.new_tokens + self.setting.held_tokens
        for place, (d, options, _) in enumerate(layers):
            cost = options.cost(d, length)
            numbers = cost.fixed_state + cost.conv_state + cost.kv_cache
            table["state"][place] = self.setting.number_bytes * self.setting.batch * float(numbers)
        return table

    def _fill(self, table: PartTable, at: Ints | slice, kind: str, asked: Sequence[Features]) -> None:
        for name in self.sums:
            mean, deviation = self._ask(kind, asked, name)
            table[name][at], table[DEVIATION + name][at] = mean, mean * deviation
        table["activations"][at] = self._ask(kind, asked, "activations")[0]

    def _ask(self, kind: str, asked: Sequence[Features], column: str) -> tuple[Floats, Floats]:
        if not asked:
            return np.zeros(0), np.zeros(0)
        if (kind, column) not in self._surfaces:
            self._surfaces[kind, column] = self._fit(kind, column)
        surface = self._surfaces[kind, column]
        return surface.predict(surface.inputs(asked))

    def _fit(self, kind: str, column: str) -> Surface:
        points = [(point, features) for point, features in self.measured(kind) if point.has(column)]
        if not self.kinds:
            modes = ", ".join(sorted({point.mode for point in self.profile.points})) or "nothing"
            raise UserError(
                f"the profile has nothing in mode {self.setting.mode}, only {modes}. "
                f"Add to it with `plait profile --mode {self.setting.mode}`."
            )
        if not points:
            known = ", ".join(sorted(set(self.kinds) - {EMBEDDING_AND_HEAD})) or "nothing"
            of = f"the {column} of {kind}" if self.measured(kind) else kind
            names = (point.spec.partition("[")[0] for point in self.profile.of("layer") if point.source)
            edited = f" {kind} was measured with another text of its file." if kind in names else ""
            raise UserError(
                f"the profile has no measurement of {of} in mode {self.setting.mode}; it knows {known}.{edited} "
                "Add to it with `plait profile`, naming a space that has it."
            )
        values, reaches = np.array([point.value(column) for point, _ in points]).T
        features = [row for _, row in points]
        return Surface(features, np.maximum(1e-9, values), reaches / NORMAL, tune=column != "activations")

    @cached_property
    def _measured(self) -> list[tuple[Point, Features]]:
        """Points with their features, without points of users' mixers that are not loaded here or were edited since."""
        measured = []
        for point in self.profile.points:
            if point.mode != self.setting.mode or point.what == "model":
                continue
            setting = point.setting(self.profile.common)
            if point.what == EMBEDDING_AND_HEAD:
                measured.append((point, of_embedding_and_head(parse(f"{point.spec} | identity").header, setting)))
            else:
                layer = parse(f"d={point.d} | {point.spec}").layers[0]
                with suppress(OptionError):
                    options = options_of(layer)
                    if options.source_hash == point.source:
                        measured.append((point, of_layer(point.d, options, point.norm, setting)))
        return measured

    @cached_property
    def _checks(self) -> list[Check]:
        """The measured whole models, each with the sum of its parts."""
        checks = []
        for point in self.profile.of("model"):
            if point.mode != self.setting.mode:
                continue
            if not {layer.name for layer in parse(point.spec).layers} <= set(self.kinds):
                continue
            if architecture(point.spec).source_hash != point.source:
                continue
            parts = Predictor(self.profile, point.setting(self.profile.common))
            parts.__dict__["_checks"] = []
            parts._surfaces = self._surfaces
            predicted = parts.predict([point.spec])
            checks.append((point, {name: float(prediction.mean[0]) for name, prediction in predicted.items()}))
        return checks

    def _whole_models(self, header: Header) -> dict[str, float]:
        """What the measured whole models tell of others with this embedding and head, at any width: columns of the
        table of headers."""
        like = _at_any_width(header)
        if like not in self._whole:
            known = [check for check in self._checks if _at_any_width(parse(check[0].spec).header) == like]
            columns = {}
            for name in self.sums:
                columns[FACTOR + name], columns[ERROR + name] = _ratio(self._or_all(known, name), name)
            columns[KEPT], columns[ERROR + "memory"] = _surplus(self._or_all(known, "memory"))
            self._whole[like] = columns
        return self._whole[like]

    def _or_all(self, known: list[Check], name: str) -> list[Check]:
        """These whole models if enough of them have the quantity, otherwise all that have it."""
        alike, every = (
            [check for check in checks if name == "memory" or check[0].has(name)] for checks in (known, self._checks)
        )
        return alike if len(alike) >= LEAST_ALIKE else every

    def _held_before(self, state_N: Floats) -> Floats:
        """Bytes of the state before a step, which is kept until the new state is complete."""
        return state_N if self.setting.mode == "decode" else np.zeros_like(state_N)


def predictor_of(profile: Profile, setting: Setting) -> Predictor | AnswerPredictor:
    """The predictor for a setting: mode both combines two predictors."""
    if setting.mode != BOTH:
        return Predictor(profile, setting)
    from plait.device.measurements import AnswerPredictor

    return AnswerPredictor(profile, setting)


def _at_any_width(header: Header) -> Header:
    return header.replace({"d": Header().d, "d_embed": 0})


def _ratio(checks: Sequence[Check], name: str) -> tuple[float, float]:
    """The ratio of whole models to the sum of their parts, and its spread."""
    if not checks:
        return 1.0, 2 * LEAST_ERROR
    ratio_N = np.log([point.value(name)[0] / parts[name] for point, parts in checks])
    middle = float(np.median(ratio_N))
    return float(np.exp(middle)), _error(ratio_N - middle)


def _surplus(checks: Sequence[Check]) -> tuple[float, float]:
    """The bytes that whole models need beyond their parts, and the remaining relative error."""
    if not checks:
        return 0.0, 2 * LEAST_ERROR
    surplus = np.array([point.memory - parts["memory"] for point, parts in checks])
    whole = np.array([point.memory for point, _ in checks])
    middle = float(np.median(surplus))
    return middle, _error((surplus - middle) / whole)


def _error(off_N: Floats) -> float:
    """A standard error from the deviations of a few models from their median, widened by Student's t for few models."""
    if len(off_N) < 2:
        return 2 * LEAST_ERROR
    freedom = len(off_N) - 1
    root = float(np.sqrt((off_N**2).sum() / freedom))
    return max(LEAST_ERROR, root * t_quantile(freedom) / NORMAL)


def _around(mean_N: Floats, reach_N: Floats) -> Prediction:
    return Prediction(mean_N, np.maximum(mean_N - reach_N, 0), mean_N + reach_N)


@dataclass(frozen=True)
class Ratio(Result):
    """Seconds on the second machine over seconds on the first, of the parts that the first was measured on."""

    kind: str
    mode: str
    parts: int
    median: float
    low: float  # 5th and 95th percentile over the parts
    high: float


def compare(first: Profile, second: Profile) -> list[Ratio]:
    """Compare the kinds of layers that both profiles have. The second one predicts what it has not measured."""
    rows = []
    for mode in MODES:
        first_predictor, second_predictor = (Predictor(profile, Setting(mode=mode)) for profile in (first, second))
        for kind in first_predictor.kinds:
            if kind in second_predictor.kinds:
                points, features = zip(*first_predictor.measured(kind), strict=True)
                ratios = second_predictor.seconds_of(kind, features) / np.array([point.seconds for point in points])
                low, middle, high = (float(value) for value in np.quantile(ratios, (0.05, 0.5, 0.95)))
                rows.append(Ratio(kind, mode, len(points), middle, low, high))
    return rows
