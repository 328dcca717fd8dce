"""The table of mixers: name → where its options are declared. Adding a mixer adds one line here."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from plait.core.errors import UserError
from plait.core.registry import Declared, Table
from plait.core.user_files import MixerSource
from plait.mixers.interface import require_methods, require_options
from plait.mixers.options import MixerOptions

MIXERS: Table[type[MixerOptions]] = Table(
    "mixer",
    {
        # sequence mixers
        "attn": "plait.mixers.attn:AttnOptions",
        "fox": "plait.mixers.attn:FoxOptions",
        "xl-attn": "plait.mixers.attn:XlAttnOptions",
        "mamba": "plait.mixers.mamba:MambaOptions",
        "hyena": "plait.mixers.hyena:HyenaOptions",
        "mh-hyena": "plait.mixers.hyena:MhHyenaOptions",
        "hyena-experts": "plait.mixers.hyena:HyenaExpertsOptions",
        "linear": "plait.mixers.gla:LinearOptions",
        "gla": "plait.mixers.gla:GlaOptions",
        "hgrn2": "plait.mixers.gla:Hgrn2Options",
        "rwkv6": "plait.mixers.rwkv:Rwkv6Options",
        "deltanet": "plait.mixers.deltanet:DeltaNetOptions",
        "gated-deltanet": "plait.mixers.deltanet:GatedDeltaNetOptions",
        "mamba2": "plait.mixers.mamba:Mamba2Options",
        "mla": "plait.mixers.mla:MlaOptions",
        "retnet": "plait.mixers.gla:RetNetOptions",
        "deltaproduct": "plait.mixers.deltanet:DeltaProductOptions",
        "kda": "plait.mixers.deltanet:KdaOptions",
        "rwkv7": "plait.mixers.rwkv:Rwkv7Options",
        "mamba3": "plait.mixers.mamba:Mamba3Options",
        "sparse-attn": "plait.mixers.sparse_attn:SparseAttnOptions",
        "parallel": "plait.mixers.parallel:ParallelOptions",
        "cross-attn": "plait.mixers.reading:CrossAttnOptions",
        "gmu": "plait.mixers.reading:GmuOptions",
        "zamba2": "plait.mixers.reading:Zamba2Options",
        # channel mixers
        "mlp": "plait.mixers.mlp:MlpOptions",
        "swiglu": "plait.mixers.mlp:SwigluOptions",
        "moe": "plait.mixers.mlp:MoeOptions",
        "identity": "plait.mixers.mlp:IdentityOptions",
    },
    # Packages register their mixers through entry points of this group: name = "package.module:Mixer".
    group="plait.mixers",
    accept=lambda mixer, declared: _packaged(mixer, declared),
)
names, load, registered = MIXERS.names, MIXERS.load, MIXERS.registered

# Every loaded version of a mixer that is not in the table, by the hash of its text.
_versions: dict[str, type[MixerOptions]] = {}


def register(options: type[MixerOptions]) -> None:
    """Register a mixer under its name, in addition to those of the table."""
    MIXERS.register(options.name, options)
    remember(options)


def remember(options: type[MixerOptions]) -> None:
    """Keep a version so that it can be found by its hash, without changing what the name refers to."""
    if options.source is not None:
        _versions[options.source.hash] = options


def version(source_hash: str) -> type[MixerOptions] | None:
    """The mixer with this source hash, if it was loaded in this process."""
    return _versions.get(source_hash)


def load_packaged(name: str = "") -> list[str]:
    """Register the mixers of installed packages: the one of that name, or all. plait's own names take precedence."""
    return MIXERS.discover(name)


def _packaged(mixer: Any, declared: Declared) -> type[MixerOptions]:
    # A package may register the options instead of the mixer: they need no torch.
    options = mixer if isinstance(mixer, type) and issubclass(mixer, MixerOptions) else getattr(mixer, "Options", None)
    options = require_options(options, str(declared))
    if options.name != declared.name:
        raise UserError(f"{declared} calls itself '{options.name}'; the entry point's name and the mixer's must agree.")
    if mixer is not options:
        require_methods(mixer, str(declared))
        options.module = f"{mixer.__module__}:{mixer.__qualname__}"
    file = find_spec(options.module.partition(":")[0])
    if file is None or file.origin is None:
        raise UserError(f"{declared}: Options.module is '{options.module}', which is not a module with a source file.")
    options.source = MixerSource.read(Path(file.origin), package=declared.package)
    remember(options)
    return options
