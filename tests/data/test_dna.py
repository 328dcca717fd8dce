from __future__ import annotations

import hashlib

import numpy as np

from plait.data.builtin import BASES, MOTIFS, bases, dna_chain, open_dna


def test_motifs_and_repeats_are_there_and_the_background_is_not_even() -> None:
    found = bases(300_000, np.random.default_rng(0))
    text = "".join(BASES[base] for base in found)
    plain = "".join(BASES[base] for base in dna_chain().sample(300_000, np.random.default_rng(0)))
    for motif in MOTIFS:
        assert text.count(motif) > plain.count(motif) + 100
    complement = str.maketrans("ACGT", "TGCA")

    def copied(sequence: str, reverse: bool) -> int:
        """Stretches of 32 that stood in the 4096 bases before."""
        return sum(
            (part.translate(complement)[::-1] if reverse else part) in sequence[at - 4096 : at]
            for at in range(4096, len(sequence), 301)
            if (part := sequence[at : at + 32])
        )

    for reverse in (False, True):
        assert copied(text, reverse) > 20 > 5 > copied(plain, reverse)
    assert dna_chain().entropy < 1.25 < np.log(4)


def test_it_is_the_same_everywhere() -> None:
    source = open_dna()
    assert source.entropy is None
    assert source.tokenizer.vocab == 4
    assert hashlib.sha256(source.tokens["test"].tobytes()).hexdigest()[:16] == "b0b1742087a6f614"
