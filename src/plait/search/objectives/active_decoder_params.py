"""Parameters of the layers that one token uses, embeddings left out: decoder parameters without idle experts.

Where layers may have experts, more of them give decoder parameters that hardly cost time, and a search that wants
decoder parameters fills every layer with experts. What a token uses is the fairer guess at quality.
"""

from __future__ import annotations

from typing import Any, ClassVar

from numpy.typing import NDArray

from plait.search.objectives.exact import Exact
from plait.search.objectives.objective import Batch


class ActiveDecoderParams(Exact):
    name: str = "active_decoder_params"
    unit: ClassVar[str] = "parameters"
    maximise: bool = True

    def columns(self, batch: Batch) -> dict[str, NDArray[Any]]:
        embeddings_N = batch.columns["total_params"] - batch.columns["decoder_params"]
        return {self.name: batch.columns["active_params"] - embeddings_N}
