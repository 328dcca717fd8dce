"""A synthetic language whose entropy is known exactly, so that a loss can be compared with the truth.

A token may be followed by 8 of the 32 tokens; which of them is likely depends on the token before, too. So there are
256 contexts of two tokens. A model that sees one token only stays at 1.95 nats a token; the truth is 1.35.
"""

from __future__ import annotations

import string
from functools import cache

import numpy as np

from plait.data.corpora.source import TokenSource
from plait.data.markov import Chain, byte_shares
from plait.data.tokenizers.chars import Characters

TOKENS = 32
SUCCESSORS = 8
ALPHABET = (string.ascii_lowercase + string.ascii_uppercase)[:TOKENS]
LANGUAGE_SIZES = {"train": 1 << 23, "validation": 1 << 19, "test": 1 << 19}
LANGUAGE_SEED = 20240


@cache
def language_chain() -> Chain:
    """Context number a·8 + j: token a, then its j-th successor."""
    stream = np.random.Generator(np.random.PCG64(LANGUAGE_SEED))
    follows_AJ = np.sort(np.argsort(stream.random((TOKENS, TOKENS)), axis=1)[:, :SUCCESSORS], axis=1)
    last_C = follows_AJ.ravel()
    # Fourth powers spread the weights: usually one or two successors are likely, the others rare.
    weights_CJ = np.square(np.square(stream.random((len(last_C), SUCCESSORS))))
    next_CJ = last_C[:, None] * SUCCESSORS + np.arange(SUCCESSORS)
    shares_CJ = byte_shares(weights_CJ)
    next_CU = np.array([np.repeat(choices, shares) for choices, shares in zip(next_CJ, shares_CJ, strict=True)])
    return Chain(next_CU, last_C)


def open_language() -> TokenSource:
    streams = {split: np.random.Generator(np.random.PCG64([LANGUAGE_SEED, place])) for place, split in enumerate(LANGUAGE_SIZES)}
    return TokenSource(
        tokenizer=Characters(ALPHABET, unknown=False),
        identity={"corpus": "builtin:language", "version": 1},
        tokens={split: language_chain().sample(size, streams[split]).astype(np.uint8) for split, size in LANGUAGE_SIZES.items()},
        characters=LANGUAGE_SIZES.__getitem__,
        entropy=language_chain().entropy,
    )
