"""Every candidate that a search compared, kept for later ground truth: its genes and its objectives, a few bytes each.

LiteTransformerSearch (Javaheripi et al. 2022, arXiv:2203.02094) keeps the 1,200 architectures it sampled and trains
them afterwards. Here 2,500 candidates of `lts-gpt2` take about 80 kB of a record: columns of small integers and of
floats sorted into bytes of equal rank, compressed, as text. A record holds the first `MOST` candidates and says of how
many.

Letters: N candidates, G genes, M objectives.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plait.algorithms.evaluate import Evaluated, Floats
from plait.core.errors import UserError
from plait.space.declaration import Declaration
from plait.space.space import Genes, Space

MOST = 1 << 16  # candidates of one record: some 2 MB
_WIDTHS = ("int8", "int16")  # of a gene


@dataclass
class CandidateLog:
    """Grows while a search runs; in the order in which candidates were compared."""

    objectives: Sequence[str]
    _genes: list[Genes] = field(default_factory=list)
    _values: list[Floats] = field(default_factory=list)

    def __len__(self) -> int:
        return sum(map(len, self._genes))

    def add(self, found: Evaluated) -> None:
        kept = found[: MOST - len(self)]
        if len(kept):
            self._genes.append(kept.genes_NG)
            self._values.append(np.stack([kept.columns[name].astype(np.float64) for name in self.objectives], axis=1))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """For a checkpoint; empty before anything was compared."""
        if not self._genes:
            return {}
        self._genes, self._values = [np.concatenate(self._genes)], [np.concatenate(self._values)]
        return {"genes": self._genes[0], "values": self._values[0]}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._genes, self._values = ([arrays["genes"]], [arrays["values"]]) if arrays else ([], [])

    def as_dict(self) -> dict[str, Any]:
        arrays = self.arrays() or {"genes": np.zeros((0, 0), np.int16), "values": np.zeros((0, len(self.objectives)))}
        genes_NG, values_NM = arrays["genes"], arrays["values"]
        width = next(name for name in _WIDTHS if not genes_NG.size or genes_NG.max() <= np.iinfo(name).max)
        return {
            "stored": len(self),
            "objectives": list(self.objectives),
            "gene_type": width,
            "genes": _packed(genes_NG.astype(width)),
            "values": _packed(values_NM),
        }


@dataclass(frozen=True)
class Candidates:
    """What a record of a search has stored of them."""

    space: Space
    objectives: tuple[str, ...]
    genes_NG: Genes
    values_NM: Floats
    evaluated: int

    @classmethod
    def of(cls, config: Mapping[str, Any], result: Mapping[str, Any]) -> Candidates:
        """From a record's two halves. Mixers of the user's own must be known already."""
        stored = result.get("candidates")
        if stored is None:
            raise UserError(
                "this search was stored without its candidates; remove it with `plait runs rm`, then search again."
            )
        # Constraints decide which candidates there are, not what their genes mean; those of a Python file are no text.
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
        """One for every candidate: its number in the search, its objectives, whether it is on the front, its spec."""
        best = set(on_front)
        for number, (row_G, values_M) in enumerate(zip(self.genes_NG, self.values_NM, strict=True), start=1):
            spec = self.space.spec(row_G)
            values = (int(value) if float(value).is_integer() else float(value) for value in values_M)
            named = dict(zip(self.objectives, values, strict=True))
            yield {"candidate": number, **named, "on_front": spec in best, "spec": spec}


def _packed(array: NDArray[Any]) -> str:
    """Column by column, and of a column first all lowest bytes: neighbours are alike, so they compress."""
    columns = np.ascontiguousarray(array.T)
    size = columns.dtype.itemsize
    plain = columns.astype(columns.dtype.newbyteorder("<")).view(np.uint8).reshape(-1, size)
    return base64.b64encode(zlib.compress(np.ascontiguousarray(plain.T).tobytes(), 9)).decode("ascii")


def _unpacked(text: str, kind: str, shape: tuple[int, int]) -> NDArray[Any]:
    size = np.dtype(kind).itemsize
    plain = np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=np.uint8).reshape(size, -1)
    values = np.ascontiguousarray(plain.T).reshape(-1).view(np.dtype(kind).newbyteorder("<"))
    return np.ascontiguousarray(values.astype(kind).reshape(shape[1], shape[0]).T)
