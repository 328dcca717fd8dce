"""PAR Transformer (Mandava et al. 2020, arXiv:2009.04534): the patterns of Tables 1 to 3, with the sizes of Table A1.

s is an attention block, f a feed-forward block. Parameters of the base models: 191,950,298 for Transformer-XL and
Sandwich, 199,840,218 for PAR (Table A2 prints 192M, 192M, 200M).

From the paper: the patterns, widths and heads. By way of the counts of Table A2: WikiText-103's whole vocabulary, one
table for all bands, tied, and relative biases shared by all layers. Not stated, so the usual choice: 204 characters in
enwik8 and 27 in text8, with a plain softmax. BERT has the original's sizes and count, its norms before the layers as in
the paper's equations 1 to 4 and none after the last; DistilBERT has no segments.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from plait.spec.presets import Catalog, Preset


@dataclass(frozen=True)
class ParSize:
    """What models of one size share. `evaluation` is the paper's target, memory and clamp length."""

    header: str
    heads: int
    inner: int
    evaluation: str = ""


@dataclass(frozen=True)
class ParRow:
    """A row of Tables 1 to 3: `score` is perplexity (WikiText-103), bits per character, or SQuAD F1."""

    size: str
    pattern: str
    table: int
    latency_ms: float
    score: float
    what: str


_XL = "norm=layer eps=1e-5 final_norm=false"
_WORDS = f"vocab=267735 tie=true embed=adaptive cutoffs=19997/39997/199997 {_XL}"
_BERT = "d=768 vocab=30522 kind=encoder pos=learned max_len=512 tie=true head_bias=true norm=layer eps=1e-12"

SIZES = {
    "base": ParSize(f"d=512 {_WORDS}", 8, 2048, "64/640/400"),
    "large": ParSize(f"d=1024 {_WORDS}", 16, 4096, "128/1600/1000"),
    "enwik8": ParSize(f"d=512 vocab=204 tie=true head_bias=true {_XL}", 8, 2048, "128/2052/820"),
    "text8": ParSize(f"d=512 vocab=27 tie=true head_bias=true {_XL}", 8, 2048, "128/2052/820"),
    "bert": ParSize(f"{_BERT} final_norm=false embed_norm=true segments=2", 12, 3072),
    "distilbert": ParSize(f"{_BERT} final_norm=false embed_norm=true", 12, 3072),
}

ROWS = {
    "txl-base": ParRow("base", "(sf)x16", 1, 15.2, 22.7, "Transformer-XL Base"),
    "sandwich-base": ParRow("base", "(s)x6 (sf)x10 (f)x6", 1, 15.2, 22.6, "Sandwich Transformer Base"),
    "par-base": ParRow("base", "(sfff)x6 (f)x8", 1, 9.9, 22.7, "PAR Transformer Base"),
    "txl-large": ParRow("large", "(sf)x18", 2, 18.9, 18.4, "Transformer-XL Large"),
    "sandwich-large": ParRow("large", "(s)x6 (sf)x12 (f)x6", 2, 18.9, 18.2, "Sandwich Transformer Large"),
    # Its seventh attention is block 25 of 36, outside the first two thirds: the paper breaks its own first rule here.
    "par-large": ParRow("large", "(sfff)x7 (f)x8", 2, 13.4, 18.4, "PAR Transformer Large"),
    "txl-24b-enwik8": ParRow("enwik8", "(sf)x12", 2, 12.5, 1.10, "Transformer-XL 24B"),
    "sandwich-24b-enwik8": ParRow("enwik8", "(s)x5 (sf)x7 (f)x5", 2, 12.5, 1.10, "Sandwich Transformer 24B"),
    "par-24b-enwik8": ParRow("enwik8", "(sff)x5 (f)x9", 2, 8.4, 1.11, "PAR Transformer 24B"),
    "txl-24b-text8": ParRow("text8", "(sf)x12", 2, 12.5, 1.18, "Transformer-XL 24B"),
    "sandwich-24b-text8": ParRow("text8", "(s)x3 (sf)x9 (f)x3", 2, 12.5, 1.18, "Sandwich Transformer 24B"),
    "par-24b-text8": ParRow("text8", "(sff)x5 (f)x9", 2, 8.4, 1.18, "PAR Transformer 24B"),
    "distilbert": ParRow("distilbert", "(sf)x6", 3, 5.3, 86.9, "DistilBERT"),
    "bert-base": ParRow("bert", "(sf)x12", 3, 8.6, 88.4, "BERT Base"),
    "par-bert-base": ParRow("bert", "(sff)x5 (f)x9", 3, 5.7, 87.4, "PAR BERT Base"),
}


def catalog() -> Catalog:
    return {name: partial(_preset, name) for name in ROWS}


def _preset(name: str) -> Preset:
    row = ROWS[name]
    size = SIZES[row.size]
    if size.evaluation:
        attention, feed_forward = f"xl-attn[heads={size.heads},shared_bias]", f"mlp[inner={size.inner},act=relu]"
        what = f"{row.what}, {row.pattern}; evaluated with target/memory/clamp {size.evaluation}"
    else:
        attention, feed_forward = f"attn[heads={size.heads},pos=none,causal=false,bias]", f"mlp[inner={size.inner}]"
        what = f"{row.what}, {row.pattern}"
    text = f"{size.header} | par[s={attention},f={feed_forward}]:{row.pattern}"
    return Preset(name, text, "par", f"Table {row.table}", what)
