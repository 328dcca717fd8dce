"""Mechanistic Architecture Design (Poli et al. 2024, arXiv:2403.17844), appendix B.3: the architectures it probes.

Two blocks of width 128; a block is a sequence mixer and a channel mixer, or two Mambas. The paper counts 21:

    10  each of hyena, mh-hyena, hyena-experts, gla, attn, with each of the two channel mixers: the block twice
     1  mamba: four layers of it
    10  striped, "each unique block … with a second block composed of multi-headed attention and one of the two channel
        mixers": the eight blocks above without attention, each before attention with the same channel mixer, and
        Mamba before attention with either

Those without attention have a state of 4096 numbers in all. The vocabulary is that of the tasks' baseline setting;
`vocab=32 | preset:mad-hyena-moe` changes it.
"""

from __future__ import annotations

from functools import cache, partial

from plait.papers.mad import scaling_presets
from plait.spec.presets import Catalog, Preset

SEQUENCE_MIXERS = {
    "hyena": "hyena[order=2,short=3,state=16]",
    "mh-hyena": "mh-hyena[heads=16,order=2,short=3,state=2]",
    "hyena-experts": "hyena-experts[experts=8,active=2,width=16,short=3,state=16]",
    "gla": "gla[heads=8]",
    "attn": "attn[heads=16]",
}
CHANNEL_MIXERS = {"swiglu": "swiglu[inner=512]", "moe": "moe[experts=8,active=2,inner=16]"}
_MAMBA = "mamba[state=4,expand=2,conv=4,conv_bias=false]"


def catalog() -> Catalog:
    return {**{name: partial(_preset, name) for name in _bodies()}, **scaling_presets.catalog()}


def suite() -> list[str]:
    """The 21 architectures."""
    return list(_bodies())


@cache
def _bodies() -> dict[str, tuple[str, str]]:
    """name -> (layers, what it is)."""
    bodies = {
        f"mad-{mixer}-{channel}": (f"({SEQUENCE_MIXERS[mixer]} {CHANNEL_MIXERS[channel]})x2", f"{mixer} and {channel}")
        for mixer in SEQUENCE_MIXERS
        for channel in CHANNEL_MIXERS
    }
    bodies["mad-mamba"] = f"({_MAMBA})x4", "four Mambas"
    for channel, channel_text in CHANNEL_MIXERS.items():
        attention = f"{SEQUENCE_MIXERS['attn']} {channel_text}"
        for mixer, text in SEQUENCE_MIXERS.items():
            if mixer != "attn":
                striped = f"{text} {channel_text} {attention}"
                bodies[f"mad-striped-{mixer}-{channel}"] = striped, f"{mixer}, then attention, both with {channel}"
        bodies[f"mad-striped-mamba-{channel}"] = f"({_MAMBA})x2 {attention}", f"Mamba, then attention with {channel}"
    return bodies


def _preset(name: str) -> Preset:
    layers, what = _bodies()[name]
    return Preset(name, f"d=128 vocab=16 | {layers}", "mad", "Appendix B.3", f"probe: {what}, width 128")
