"""Corpora that need no files: Python's own sources, a language whose entropy is known exactly, and synthetic DNA.

The synthetic ones are Markov chains, sampled fast. Probabilities are multiples of 1/256: a random byte picks the next
context from a table of one row per context. No floating-point number decides a token, so a chain is the same on every
machine.

C  contexts (the last k tokens)      U  the 256 values of a byte      T  steps of a block      B  blocks
"""

from __future__ import annotations

import string
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import final

import numpy as np

from plait.core.errors import UserError
from plait.data.sources import Document, TextSource, TokenSource
from plait.data.text_files import text_pieces
from plait.data.tokenizers import Characters

BYTE = 256
BURN_IN = 1024  # steps after which a chain has forgotten its initial context
BLOCK_STEPS = 512


@final
@dataclass(frozen=True)
class Chain:
    next_CU: np.ndarray  # the context that follows context C if byte U is drawn
    token_C: np.ndarray  # the last token of each context: the one emitted on entering it

    @cached_property
    def transitions_CC(self) -> np.ndarray:
        """The probability of going from one context to another."""
        contexts = len(self.next_CU)
        counts_CC = np.zeros((contexts, contexts))
        np.add.at(counts_CC, (np.arange(contexts)[:, None], self.next_CU), 1)
        return counts_CC / BYTE

    @cached_property
    def stationary_C(self) -> np.ndarray:
        """How often each context occurs in the long run: π P = π, Σ π = 1."""
        contexts = len(self.next_CU)
        equations = np.vstack([self.transitions_CC.T - np.eye(contexts), np.ones(contexts)])
        solution: np.ndarray = np.linalg.lstsq(equations, np.append(np.zeros(contexts), 1.0), rcond=None)[0]
        return solution

    @cached_property
    def entropy(self) -> float:
        """Nats per token: Σ_c π(c) H(next | c). Exact, as different successors of a context emit different tokens."""
        p_CC = self.transitions_CC
        nats_C = -np.sum(p_CC * np.log(np.where(p_CC > 0, p_CC, 1.0)), axis=1)
        return float(self.stationary_C @ nats_C)

    def sample(self, count: int, stream: np.random.Generator) -> np.ndarray:
        """This many tokens of one continuous walk.

        A walk is sequential, NumPy is not: the walk is split into blocks that advance in parallel, each from a guessed
        context. Walks driven by the same bytes soon coincide, so on the second pass, which starts each block from the
        end of the previous one, nearly every block ends as before. When all do, the blocks form exactly the sequential
        walk.
        """
        blocks = -(-(count + BURN_IN) // BLOCK_STEPS)
        bytes_TB = np.frombuffer(stream.bytes(blocks * BLOCK_STEPS), dtype=np.uint8).reshape(blocks, BLOCK_STEPS).T
        bytes_TB = np.ascontiguousarray(bytes_TB, dtype=np.int64)
        table = (self.next_CU * BYTE).ravel()  # contexts as the offsets of their rows
        walked_TB = np.empty((BLOCK_STEPS, blocks), dtype=np.int64)
        starts_B = np.zeros(blocks, dtype=np.int64)
        while True:
            rows_B = starts_B
            for step in range(BLOCK_STEPS):
                rows_B = np.take(table, rows_B + bytes_TB[step], out=walked_TB[step])
            ends_B = np.append(0, rows_B[:-1])
            if np.array_equal(ends_B, starts_B):
                break
            starts_B = ends_B
        tokens: np.ndarray = self.token_C[walked_TB.T.ravel()[BURN_IN : BURN_IN + count] // BYTE]
        return tokens


def byte_shares(weights: np.ndarray) -> np.ndarray:
    """Positive weights (…, N) as integers of at least 1 that add up to 256."""
    choices = weights.shape[-1]
    share = weights / weights.sum(axis=-1, keepdims=True)
    counts: np.ndarray = 1 + np.floor(share * (BYTE - choices)).astype(np.int64)
    largest = np.argmax(counts, axis=-1)[..., None]
    left = BYTE - counts.sum(axis=-1, keepdims=True)
    np.put_along_axis(counts, largest, np.take_along_axis(counts, largest, axis=-1) + left, axis=-1)
    return counts


LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "lib-dynload"}


@final
class Stdlib(TextSource):
    """Real text that every machine has: the sources of the running Python's standard library, including docstrings.

    Excluded is everything that differs between two installations of one version or was not written by people: tests
    (missing on many systems), installed packages, and build information about the machine.
    """

    def __init__(self, root: Path) -> None:
        self._files = {
            path.relative_to(root).as_posix(): path for path in sorted(root.rglob("*.py")) if _is_prose(path, root)
        }
        if not self._files:
            raise UserError(f"builtin:stdlib: this Python keeps no sources in {root}; give another corpus.")

    def files(self) -> Mapping[str, Path]:
        return self._files

    def documents(self, digests: Mapping[str, str]) -> Iterator[Document]:
        for name, path in self._files.items():
            yield Document(digests[name], text_pieces(path, errors="surrogateescape"), path.stat().st_size)


def _is_prose(path: Path, root: Path) -> bool:
    parts = path.relative_to(root).parts
    return LEFT_OUT.isdisjoint(parts) and not parts[-1].startswith(("_sysconfigdata", "sitecustomize"))


def open_stdlib() -> Stdlib:
    return Stdlib(Path(sysconfig.get_path("stdlib")))


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


@cache  # takes half a second, and every training of a sweep and leg of a race opens it
def open_language() -> TokenSource:
    """A token may be followed by 8 of the 32 tokens; their probabilities also depend on the previous token. So there
    are 256 contexts of two tokens. The entropy is 1.37 nats per token; a model that sees one token stays above 1.9."""
    streams = {
        split: np.random.Generator(np.random.PCG64([LANGUAGE_SEED, place]))
        for place, split in enumerate(LANGUAGE_SIZES)
    }
    return TokenSource(
        tokenizer=Characters(ALPHABET, unknown=False),
        tokens={
            split: language_chain().sample(size, streams[split]).astype(np.uint8)
            for split, size in LANGUAGE_SIZES.items()
        },
        characters=LANGUAGE_SIZES.__getitem__,
        bytes=LANGUAGE_SIZES.__getitem__,
        entropy=language_chain().entropy,
    )


BASES = "ACGT"
ORDER = 4
DNA_SIZES = {"train": 1 << 22, "validation": 1 << 18, "test": 1 << 18}
DNA_SEED = 20241
MOTIFS = ("TATAAAAG", "CCAATCT", "GGGCGGGAC", "TTGACATTTATGC")
MOTIF_EVERY = 256  # bases, on average
REPEAT_EVERY = 1024
REPEAT_LENGTHS = (64, 256)
REPEAT_REACH = 4096
MISTAKES = 0.02  # the fraction of bases in motifs and repeats that are replaced at random


def dna_chain() -> Chain:
    stream = np.random.Generator(np.random.PCG64(DNA_SEED))
    contexts = len(BASES) ** ORDER
    shares_CV = byte_shares(np.square(stream.random((contexts, len(BASES)))) + 0.02)
    # The context is the last bases as a number in base 4: the oldest digit is dropped, the new one appended.
    next_CV = np.arange(contexts)[:, None] * len(BASES) % contexts + np.arange(len(BASES))
    next_CU = np.array([np.repeat(choices, shares) for choices, shares in zip(next_CV, shares_CV, strict=True)])
    return Chain(next_CU, np.arange(contexts) % len(BASES))


def bases(size: int, stream: np.random.Generator) -> np.ndarray:
    """A sequence of `size` bases, uint8."""
    sequence = dna_chain().sample(size, stream).astype(np.uint8)
    words = [np.array([BASES.index(base) for base in motif], dtype=np.uint8) for motif in MOTIFS]
    for at in np.flatnonzero(stream.random(size) < 1 / MOTIF_EVERY):
        _put(sequence, int(at), words[int(stream.integers(len(words)))], stream)
    for at in np.flatnonzero(stream.random(size) < 1 / REPEAT_EVERY):
        length = int(stream.integers(*REPEAT_LENGTHS))
        back = int(stream.integers(length, REPEAT_REACH))
        if at >= back:
            copied = sequence[at - back : at - back + length]
            reverse = stream.random() < 0.5
            _put(sequence, int(at), 3 - copied[::-1] if reverse else copied.copy(), stream)  # 3 − base: its complement
    return sequence


def _put(bases: np.ndarray, at: int, word: np.ndarray, stream: np.random.Generator) -> None:
    word = word[: len(bases) - at]
    anew = stream.integers(len(BASES), size=len(word), dtype=np.uint8)
    bases[at : at + len(word)] = np.where(stream.random(len(word)) < MISTAKES, anew, word)


def open_dna() -> TokenSource:
    """What a model gains at each range is known, though not the exact entropy.

    near     a fourth-order Markov chain over A, C, G, T
    motifs   a few short words with rare mistakes, at random places
    far      stretches copied from up to 4096 bases before, with rare mistakes, one in two as reverse complement
    """
    streams = {split: np.random.Generator(np.random.PCG64([DNA_SEED, place])) for place, split in enumerate(DNA_SIZES)}
    return TokenSource(
        tokenizer=Characters(BASES, unknown=False),
        tokens={split: bases(size, streams[split]) for split, size in DNA_SIZES.items()},
        characters=DNA_SIZES.__getitem__,
        bytes=DNA_SIZES.__getitem__,
    )
