"""The table of mixers: name → where its options are declared. Adding a mixer adds one line here."""

from __future__ import annotations

from importlib import import_module

from plait.arch.options import MixerOptions, OptionError
from plait.core.errors import did_you_mean
from plait.spec import Layer

MIXERS: dict[str, str] = {
    # sequence mixers
    "attn": "plait.arch.attn:AttnOptions",
    "fox": "plait.arch.attn:FoxOptions",
    "xl-attn": "plait.arch.xl_attn:XlAttnOptions",
    "mamba": "plait.arch.mamba:MambaOptions",
    "hyena": "plait.arch.hyena:HyenaOptions",
    "mh-hyena": "plait.arch.hyena:MhHyenaOptions",
    "hyena-experts": "plait.arch.hyena:HyenaExpertsOptions",
    "linear": "plait.arch.linear:LinearOptions",
    "gla": "plait.arch.gla:GlaOptions",
    "hgrn2": "plait.arch.hgrn2:Hgrn2Options",
    "rwkv6": "plait.arch.rwkv6:Rwkv6Options",
    "deltanet": "plait.arch.deltanet:DeltaNetOptions",
    "gated-deltanet": "plait.arch.gated_deltanet:GatedDeltaNetOptions",
    "mamba2": "plait.arch.mamba2:Mamba2Options",
    # channel mixers
    "mlp": "plait.arch.mlp:MlpOptions",
    "swiglu": "plait.arch.mlp:SwigluOptions",
    "moe": "plait.arch.moe:MoeOptions",
    "identity": "plait.arch.mlp:IdentityOptions",
}

# Mixers that come from a user's file rather than from the table, by name.
_registered: dict[str, type[MixerOptions]] = {}


def register(options: type[MixerOptions]) -> None:
    """Make a user's mixer known under its name, beside the table's own."""
    _registered[options.name] = options


def names() -> list[str]:
    return [*MIXERS, *(name for name in _registered if name not in MIXERS)]


def load(name: str) -> type[MixerOptions]:
    """The options class of a mixer the table knows."""
    if name in _registered:
        return _registered[name]
    module, _, attribute = MIXERS[name].partition(":")
    found: type[MixerOptions] = getattr(import_module(module), attribute)
    return found


def options_of(layer: Layer) -> MixerOptions:
    """The typed options of a parsed layer."""
    known = names()
    if layer.name not in known:
        from plait.spec import presets  # only a mistake needs the presets' names

        near = did_you_mean(layer.name, [*known, *presets.names()])
        raise OptionError(f"unknown mixer '{layer.name}'.{near} Known: {', '.join(known)}.")
    return load(layer.name).from_layer(layer)
