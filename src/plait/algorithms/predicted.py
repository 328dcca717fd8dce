"""Predicted latency, memory and energy of many candidates at once.

A space has a few hundred distinct layers and headers. Each is predicted once, on first use; the prediction for a
candidate is then a lookup of its parts, and sums and maxima over them.

Letters: N candidates, L layers times slots at maximum depth, B layers, S slots, R rows of a table.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from plait.algorithms.objectives import Batch
from plait.core.errors import UserError
from plait.device.measurements import AnswerPredictor
from plait.device.predictor import PartTable, Prediction, Predictor
from plait.mixers.options import MixerOptions
from plait.space.slot_tables import layer_fits
from plait.space.space import Space

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
CHUNK = 1024  # rows predicted together: the regression computes their distances to every measured point


class DevicePredictor:
    """A `plait.algorithms.objectives.Predictor` for one device in one setting."""

    def __init__(self, predictor: Predictor | AnswerPredictor) -> None:
        self.predictor = predictor
        self._spaces: dict[Space, list[SpaceTables]] = {}
        self._last: tuple[Batch, dict[str, Prediction]] | None = None

    def predict(self, quantity: str, batch: Batch) -> tuple[Floats, Floats]:
        prediction = self._all(batch).get(quantity)
        if prediction is None:
            raise UserError(
                f"the profile has no {quantity}: it was made where that could not be read. See `plait measure "
                f"--{quantity}`, then make another with `plait profile`."
            )
        return prediction.mean, prediction.high - prediction.mean

    def as_dict(self) -> dict[str, object]:
        return {"profile": self.predictor.profile.hash, "setting": self.predictor.setting.as_dict()}

    def _all(self, batch: Batch) -> dict[str, Prediction]:
        """All quantities of a batch, cached: objectives ask for them one after the other."""
        if self._last is None or self._last[0] is not batch:
            if batch.space not in self._spaces:
                parts = [self.predictor] if isinstance(self.predictor, Predictor) else self.predictor.parts
                self._spaces[batch.space] = [SpaceTables(batch.space, part) for part in parts]
            predictions = [tables.predict(batch) for tables in self._spaces[batch.space]]
            self._last = (
                batch,
                predictions[0] if isinstance(self.predictor, Predictor) else self.predictor.joined(predictions),
            )
        return self._last[1]


class SpaceTables:
    """Predictions for the headers and layers of one space, filled in on demand."""

    def __init__(self, space: Space, predictor: Predictor) -> None:
        self.space, self.predictor = space, predictor
        headers = space.headers.all
        self.norms = list(dict.fromkeys(header.norm for header in headers if header is not None))
        self._norm_H = np.array([self.norms.index(header.norm) if header else 0 for header in headers])
        self._sizes = [len(slot.options) for slot in space.slots]
        self._starts = np.cumsum([0, *self._sizes])
        layers = len(self.norms) * len(space.widths) * int(self._starts[-1])
        self._headers = LazyTable(predictor.empty_table(len(headers)), self._predict_headers)
        self._layers = LazyTable(predictor.empty_table(layers), self._predict_layers)

    def predict(self, batch: Batch) -> dict[str, Prediction]:
        parts = self.space.parts(batch.genes_NG)
        # The row of a layer is ordered by norm, width, slot and option.
        first_N = (self._norm_H[parts.header_N] * len(self.space.widths) + parts.width_N) * self._starts[-1]
        rows_NBS = first_N[:, None, None] + self._starts[:-1] + parts.options_NBS
        layers = rows_NBS.shape[1] * rows_NBS.shape[2]
        rows_NL = np.where(parts.options_NBS >= 0, rows_NBS, -1).reshape(len(batch), layers)
        weights_N = self.predictor.setting.number_bytes * batch.columns["total_params"].astype(np.float64)
        tables = self._headers.filled(parts.header_N), self._layers.filled(rows_NL)
        return self.predictor.compose(tables[0], parts.header_N, tables[1], rows_NL, weights_N)

    def _predict_headers(self, rows: list[int]) -> tuple[list[int], PartTable]:
        valid = {row: header for row in rows if (header := self.space.headers.all[row]) is not None}
        return list(valid), self.predictor.embedding_and_head_table(list(valid.values()))

    def _predict_layers(self, rows: list[int]) -> tuple[list[int], PartTable]:
        kept: list[int] = []
        tables: list[PartTable] = []
        for norm_at, norm in enumerate(self.norms):
            layers: list[tuple[int, MixerOptions]] = []
            for row in rows:
                at, d, options = self._part(row)
                if at == norm_at and options is not None and layer_fits(options, d):
                    kept.append(row)
                    layers.append((d, options))
            tables.append(self.predictor.layer_table(layers, norm))
        return kept, _joined(tables)

    def _part(self, row: int) -> tuple[int, int, MixerOptions | None]:
        """The index of the norm, the width and the options of a row."""
        above, option = divmod(row, int(self._starts[-1]))
        norm, width = divmod(above, len(self.space.widths))
        slot = int(np.searchsorted(self._starts, option, side="right")) - 1
        return norm, self.space.widths[width], self.space.slots[slot].options[option - int(self._starts[slot])]


class LazyTable:
    """A table whose rows are predicted on first use. Rows of invalid parts stay zero: no valid candidate has them."""

    def __init__(self, table: PartTable, predict: Callable[[list[int]], tuple[list[int], PartTable]]) -> None:
        self.table = table
        self._known_R = np.zeros(len(table["state"]), dtype=np.bool_)
        self._predict = predict

    def filled(self, rows: Ints) -> PartTable:
        """The table, with at least these rows filled in; -1 is no row."""
        needed_R = np.zeros(len(self._known_R) + 1, dtype=np.bool_)
        needed_R[rows] = True  # -1 marks the extra entry at the end
        missing = np.flatnonzero(needed_R[:-1] & ~self._known_R).tolist()
        for start in range(0, len(missing), CHUNK):
            chunk = missing[start : start + CHUNK]
            predicted, table = self._predict(chunk)
            for name, column in self.table.items():
                column[predicted] = table[name]
            self._known_R[chunk] = True
        return self.table


def _joined(tables: list[PartTable]) -> PartTable:
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
