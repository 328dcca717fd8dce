"""The result of a search: its Pareto front, every candidate it evaluated, and the record that stores both.

Fields of the record's result:

space, method, objectives, front, evaluated, proposed    see `Front`
limits, setting   of the request; the front's models are measured in this setting
profile           the device profile behind the predictions; None if all objectives are exact
mixers            source files of the user's own mixers
candidates        every candidate that was evaluated, see `CandidateLog`
cost              seconds of searching and of profiling

Letters: N candidates, G genes, M objectives.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from plait.algorithms.objectives import Evaluated, Floats, Predicted
from plait.algorithms.predicted import DevicePredictor
from plait.core.errors import UserError
from plait.device.quantities import Setting
from plait.records import Record, Store, provenance_of
from plait.space.constraints import Limits
from plait.space.declaration import Declaration
from plait.space.space import Genes, Space

if TYPE_CHECKING:
    from plait.algorithms.search import Search


Row = Mapping[str, Any]


@dataclass(frozen=True)
class Front:
    """The non-dominated candidates of a search; `as_dict` is JSON.

    objectives   {"objective": name, "maximise": …} in order
    rows         {"spec": text, and every column by name}, sorted by the first objective, best first
    evaluated    number of feasible candidates that were compared
    proposed     number of candidates that were generated
    cost         {"seconds": …}
    """

    space: str
    method: str
    objectives: Sequence[Mapping[str, Any]]
    rows: Sequence[Row]
    evaluated: int
    proposed: int
    cost: Mapping[str, float]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def specs(self) -> list[str]:
        return [row["spec"] for row in self.rows]

    def column(self, name: str) -> list[float]:
        if self.rows and name not in self.rows[0]:
            raise UserError(f"the front has no column '{name}'; it has {', '.join(self.rows[0])}.")
        return [row[name] for row in self.rows]

    def as_dict(self) -> dict[str, object]:
        return {
            "space": self.space,
            "method": self.method,
            "objectives": [dict(objective) for objective in self.objectives],
            "front": [dict(row) for row in self.rows],
            "evaluated": self.evaluated,
            "proposed": self.proposed,
            "cost": dict(self.cost),
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Front:
        try:
            return cls(
                space=document["space"],
                method=document["method"],
                objectives=document["objectives"],
                rows=document["front"],
                evaluated=document["evaluated"],
                proposed=document["proposed"],
                cost=document["cost"],
            )
        except KeyError as missing:
            raise UserError(f"this is not a front: it has no field {missing}.") from None


MAX_STORED = 1 << 16  # candidates of one record: about 2 MB
_GENE_TYPES = ("int8", "int16")


@dataclass
class CandidateLog:
    """Every evaluated candidate in order, for later ground truth: LiteTransformerSearch (Javaheripi et al. 2022,
    arXiv:2203.02094) trains the 1,200 architectures it sampled. 2,500 candidates of `lts-gpt2` take about 80 kB of a
    record, as compressed columns. A record holds the first `MAX_STORED` candidates and the total number.
    """

    objectives: Sequence[str]
    _genes: list[Genes] = field(default_factory=list)
    _values: list[Floats] = field(default_factory=list)

    def __len__(self) -> int:
        return sum(map(len, self._genes))

    def add(self, evaluated: Evaluated) -> None:
        kept = evaluated[: MAX_STORED - len(self)]
        if len(kept):
            self._genes.append(kept.genes_NG)
            self._values.append(np.stack([kept.columns[name].astype(np.float64) for name in self.objectives], axis=1))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The log for a checkpoint; empty if nothing has been evaluated."""
        if not self._genes:
            return {}
        self._genes, self._values = [np.concatenate(self._genes)], [np.concatenate(self._values)]
        return {"genes": self._genes[0], "values": self._values[0]}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._genes, self._values = ([arrays["genes"]], [arrays["values"]]) if arrays else ([], [])

    def as_dict(self) -> dict[str, object]:
        arrays = self.arrays() or {"genes": np.zeros((0, 0), np.int16), "values": np.zeros((0, len(self.objectives)))}
        genes_NG, values_NM = arrays["genes"], arrays["values"]
        gene_type = next(name for name in _GENE_TYPES if not genes_NG.size or genes_NG.max() <= np.iinfo(name).max)
        return {
            "stored": len(self),
            "objectives": list(self.objectives),
            "gene_type": gene_type,
            "genes": _packed(genes_NG.astype(gene_type)),
            "values": _packed(values_NM),
        }


@dataclass(frozen=True)
class Candidates:
    """The candidates stored in the record of a search."""

    space: Space
    objectives: tuple[str, ...]
    genes_NG: Genes
    values_NM: Floats
    evaluated: int

    @classmethod
    def of(cls, config: Mapping[str, Any], result: Mapping[str, Any]) -> Candidates:
        """Read them from a record's config and result. The user's own mixers must be loaded already."""
        stored = result.get("candidates")
        if stored is None:
            raise UserError(
                "this search was stored without its candidates; remove it with `plait runs rm`, then search again."
            )
        # Constraints do not affect the meaning of genes, and those written in Python cannot be parsed from text.
        space = Space(Declaration.from_dict({**config["space"], "rules": ()}))
        shape = (stored["stored"], space.genes)
        try:
            genes_NG = _unpacked(stored["genes"], stored["gene_type"], shape).astype(np.int16)
            values_NM = _unpacked(stored["values"], "float64", (shape[0], len(stored["objectives"])))
        except (ValueError, zlib.error, binascii.Error):
            raise UserError("the candidates of this search cannot be read: the record is damaged.") from None
        return cls(space, tuple(stored["objectives"]), genes_NG, values_NM, int(result["evaluated"]))

    def __len__(self) -> int:
        return len(self.genes_NG)

    def rows(self, on_front: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
        """One row per candidate: its number in the search, its objectives, whether it is on the front, its spec."""
        front = set(on_front)
        for number, (row_G, values_M) in enumerate(zip(self.genes_NG, self.values_NM, strict=True), start=1):
            spec = self.space.spec(row_G)
            values = (int(value) if float(value).is_integer() else float(value) for value in values_M)
            named = dict(zip(self.objectives, values, strict=True))
            yield {"candidate": number, **named, "on_front": spec in front, "spec": spec}


def _packed(array: NDArray[Any]) -> str:
    """An array as compressed text: column by column, the bytes of a column grouped by significance."""
    columns = np.ascontiguousarray(array.T)
    size = columns.dtype.itemsize
    plain = columns.astype(columns.dtype.newbyteorder("<")).view(np.uint8).reshape(-1, size)
    return base64.b64encode(zlib.compress(np.ascontiguousarray(plain.T).tobytes(), 9)).decode("ascii")


def _unpacked(text: str, kind: str, shape: tuple[int, int]) -> NDArray[Any]:
    size = np.dtype(kind).itemsize
    plain = np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=np.uint8).reshape(size, -1)
    values = np.ascontiguousarray(plain.T).reshape(-1).view(np.dtype(kind).newbyteorder("<"))
    return np.ascontiguousarray(values.astype(kind).reshape(shape[1], shape[0]).T)


KIND = "search"
NO_LIMITS = Limits()


def search_record(
    search: Search,
    started: float,
    *,
    limits: Limits = NO_LIMITS,
    setting: Setting | None = None,
    predictor: DevicePredictor | None = None,
) -> Record:
    """The record of a finished search. `setting` and `predictor` default to those of the search's objectives."""
    result = {**search.front().as_dict(), **search.report(), "mixers": _mixers(search)}
    result["candidates"] = search.log.as_dict()
    result |= _request_fields(search, limits, setting, predictor)
    return Record.of(KIND, search.config(), result, provenance_of(started, search.seconds))


class RequestFields(TypedDict):
    """The part of a search's record about the request and its cost, besides its results."""

    limits: dict[str, float]
    setting: dict[str, object]
    profile: dict[str, object] | None
    cost: dict[str, float]


def with_request(
    stored: Record, search: Search, store: Store, limits: Limits, setting: Setting, predictor: DevicePredictor | None
) -> Record:
    """The stored record of the same search with the limits and setting of this request. They may differ, because a
    constraint can express the same as a limit; then the record is updated in the store."""
    fields = _request_fields(search, limits, setting, predictor)
    cost = stored.result.get("cost", {})
    fields["cost"]["search_seconds"] = cost.get("search_seconds", cost.get("seconds", 0.0))
    same = (stored.result.get(name, ...) == value for name, value in fields.items() if name != "cost")
    if all(same):
        return stored
    result = {**stored.result, "mixers": _mixers(search), **fields}
    record = Record(stored.key, stored.kind, stored.config, result, stored.provenance)
    store.delete([stored.key])
    store.put(record)
    return record


def _request_fields(
    search: Search, limits: Limits, setting: Setting | None, predictor: DevicePredictor | None
) -> RequestFields:
    device = predictor or _device_of(search)
    if setting is None:
        setting = device.predictor.setting if device is not None else Setting(seq=search.evaluator.seq)
    profile = device.predictor.profile if device is not None else None
    return {
        "limits": limits.as_dict(),
        "setting": setting.as_dict(),
        "profile": profile.describe() if profile is not None else None,
        "cost": {
            "search_seconds": round(search.seconds, 3),
            "profile_seconds": round(profile.seconds, 3) if profile is not None else 0.0,
        },
    }


def _mixers(search: Search) -> list[dict[str, str]]:
    return [source.as_dict() for source in search.space.mixer_sources.values()]


def _device_of(search: Search) -> DevicePredictor | None:
    predictors = (objective.predictor for objective in search.evaluator.objectives if isinstance(objective, Predicted))
    return next((predictor for predictor in predictors if isinstance(predictor, DevicePredictor)), None)
