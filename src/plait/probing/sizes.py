"""The mixers at the sizes at which Mechanistic Architecture Design probes them; presets read it without NumPy."""

from __future__ import annotations

#: At the sizes at which the paper probes them, for a width of 128 (App. B.3).
SEQUENCE_MIXERS = {
    "hyena": "hyena[order=2,short=3,state=16]",
    "mh-hyena": "mh-hyena[heads=16,order=2,short=3,state=2]",
    "hyena-experts": "hyena-experts[experts=8,active=2,width=16,short=3,state=16]",
    "gla": "gla[heads=8]",
    "attn": "attn[heads=16]",
}
CHANNEL_MIXERS = {"swiglu": "swiglu[inner=512]", "moe": "moe[experts=8,active=2,inner=16]"}
