"""Synthetic DNA: what a model gains at each range is known, though not its exact entropy.

near     a fourth-order Markov dna_chain over A, C, G, T
motifs   a few short words with rare mistakes, at random places
far      stretches copied from up to 4096 bases before, with rare mistakes, one in two as reverse complement
"""

from __future__ import annotations

import numpy as np

from plait.data.corpora.source import TokenSource
from plait.data.markov import Chain, byte_shares
from plait.data.tokenizers.chars import Characters

BASES = "ACGT"
ORDER = 4
DNA_SIZES = {"train": 1 << 22, "validation": 1 << 18, "test": 1 << 18}
DNA_SEED = 20241
MOTIFS = ("TATAAAAG", "CCAATCT", "GGGCGGGAC", "TTGACATTTATGC")
MOTIF_EVERY = 256  # bases, on average
REPEAT_EVERY = 1024
REPEAT_LENGTHS = (64, 256)
REPEAT_REACH = 4096
MISTAKES = 0.02  # the share of bases in motifs and repeats that are drawn anew


def dna_chain() -> Chain:
    stream = np.random.Generator(np.random.PCG64(DNA_SEED))
    contexts = len(BASES) ** ORDER
    shares_CV = byte_shares(np.square(stream.random((contexts, len(BASES)))) + 0.02)
    # The context is the last bases as a number to base 4: the oldest drops out, the new one comes in.
    next_CV = np.arange(contexts)[:, None] * len(BASES) % contexts + np.arange(len(BASES))
    next_CU = np.array([np.repeat(choices, shares) for choices, shares in zip(next_CV, shares_CV, strict=True)])
    return Chain(next_CU, np.arange(contexts) % len(BASES))


def bases(size: int, stream: np.random.Generator) -> np.ndarray:
    """So many bases, uint8."""
    found = dna_chain().sample(size, stream).astype(np.uint8)
    words = [np.array([BASES.index(base) for base in motif], dtype=np.uint8) for motif in MOTIFS]
    for at in np.flatnonzero(stream.random(size) < 1 / MOTIF_EVERY):
        _put(found, int(at), words[int(stream.integers(len(words)))], stream)
    for at in np.flatnonzero(stream.random(size) < 1 / REPEAT_EVERY):
        length = int(stream.integers(*REPEAT_LENGTHS))
        back = int(stream.integers(length, REPEAT_REACH))
        if at >= back:
            copied = found[at - back : at - back + length]
            reverse = stream.random() < 0.5
            _put(found, int(at), 3 - copied[::-1] if reverse else copied.copy(), stream)  # 3 − base: its complement
    return found


def _put(bases: np.ndarray, at: int, word: np.ndarray, stream: np.random.Generator) -> None:
    word = word[: len(bases) - at]
    anew = stream.integers(len(BASES), size=len(word), dtype=np.uint8)
    bases[at : at + len(word)] = np.where(stream.random(len(word)) < MISTAKES, anew, word)


def open_dna() -> TokenSource:
    streams = {split: np.random.Generator(np.random.PCG64([DNA_SEED, place])) for place, split in enumerate(DNA_SIZES)}
    return TokenSource(
        tokenizer=Characters(BASES, unknown=False),
        identity={"corpus": "builtin:dna", "version": 1},
        tokens={split: bases(size, streams[split]) for split, size in DNA_SIZES.items()},
        characters=DNA_SIZES.__getitem__,
    )
