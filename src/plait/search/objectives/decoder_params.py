"""Parameters of the layers, embeddings left out: LiteTransformerSearch's proxy of quality, so more is wanted
(Javaheripi et al. 2022, arXiv:2203.02094; rank correlation with perplexity 0.95 to 0.97 over its trained models)."""

from __future__ import annotations

from typing import ClassVar

from plait.search.objectives.exact import Exact


class DecoderParams(Exact):
    name: str = "decoder_params"
    unit: ClassVar[str] = "parameters"
    maximise: bool = True
