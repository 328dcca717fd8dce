"""Users' mixers: one Python file each, which is executed and registers the mixer under its name.

    load_mixer("my_mixer.py")       # specs may now say "my-mixer"

Results are keyed by the hash of the file's text, and everything that can be reopened (a run, an export, a search)
contains a copy of the text, so that editing the file affects later results and no earlier ones.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from plait.core.errors import UserError
from plait.core.registry import split_options, split_path
from plait.core.user_files import MixerSource, class_from_file
from plait.mixers import table
from plait.mixers.interface import require_methods, require_options
from plait.mixers.options import MixerOptions
from plait.model.architecture import Architecture, architecture, options_of
from plait.spec import parse

Mixers = dict[str, type[MixerOptions]]
#: Former module names of what mixers import, still used in copies of users' files in run folders, exports and records.
FORMER = {"plait.mixers.cost": "plait.mixers.options", "plait.mixers.shared": "plait.mixers.mixer"}
_loaded_from: dict[str, str] = {}  # name → the file that its mixer came from; several files may have equal texts


def load_mixer(given: str | Path) -> MixerOptions:
    """Options of `name`, `my_mixer.py` or `my_mixer.py:Class`, each optionally followed by `[options]`. A file that has
    changed is executed again, and its name then refers to the new mixer; models built before are unaffected."""
    path, options = split_options(str(given))
    if file := split_path(path):
        mine = _registered(MixerSource.read(*file))
        return options_of(parse(f"{mine.name}{options}").layers[0]) if options else mine()
    layers = parse(str(given)).layers
    if len(layers) != 1:
        raise UserError(f"'{given}' has {len(layers)} layers; give one mixer, such as attn or gla[heads=8].")
    return options_of(layers[0])


def read_architectures(specs: str | Architecture | Sequence[str | Architecture]) -> list[Architecture]:
    """Read architectures, specs, presets and spec files; users' mixer files among them are loaded first. If there are
    only mixer files, each means two blocks of it."""
    sources = [specs] if isinstance(specs, (str, Architecture)) else specs
    is_mixer = [isinstance(source, str) and split_path(split_options(source)[0]) is not None for source in sources]
    mixers = [load_mixer(str(source)) for source, its in zip(sources, is_mixer, strict=True) if its]
    models = [source for source, its in zip(sources, is_mixer, strict=True) if not its]
    return [
        source if isinstance(source, Architecture) else architecture(source)
        for source in models or map(_blocks, mixers)
    ]


def _blocks(options: MixerOptions) -> str:
    layer = options.to_layer()
    return f"({layer} swiglu)x2" if options.kind == "sequence" else f"(attn {layer})x2"


def sources_of(archs: Iterable[Architecture]) -> tuple[MixerSource, ...]:
    """The source texts of all users' mixers in these architectures, each once."""
    return tuple({source.hash: source for arch in archs for source in arch.mixer_sources.values()}.values())


def mixers_option(specs: Iterable[str]) -> str:
    """The options that a command with these specs needs to load their mixers: ` --mixers my_mixer.py` for every user's
    file; empty if there is none. Specs that cannot be read are ignored."""
    sources: list[MixerSource] = []
    for spec in specs:
        with suppress(UserError):
            sources += architecture(spec).mixer_sources.values()
    return sources_option(sources)


def sources_option(sources: Iterable[MixerSource]) -> str:
    """The same for mixers that are known."""
    files: dict[str, None] = {}
    for source in sources:
        if not source.package:
            path, here = Path(source.file), Path.cwd()
            shown = path.relative_to(here) if path.is_relative_to(here) else path
            files[f"{shown}:{source.attribute}" if source.attribute else str(shown)] = None
    return "".join(f" --mixers {shlex.quote(file)}" for file in files)


def check_sound(layer: MixerOptions, d: int) -> None:
    """Raise a `UserError` if a layer with a user's mixer sees later tokens, miscounts its parameters, or returns what
    cannot be added to its input."""
    from plait.model.contract import Subject, causality, declared_parameters, usable_output

    source = next(part.source for part in layer.parts if part.name not in table.MIXERS.lines)
    file = layer.name if source is None or source.package else Path(source.file).name
    subject = Subject(layer, d)
    if wrong := usable_output(subject):
        raise UserError(f"{layer.name} {wrong}. See `plait check {file}`.")
    causal, moved = causality(subject)
    if causal is False:
        raise UserError(
            f"{layer.name} leaks the future ({moved}): its losses and scores would mean nothing. See `plait check "
            f"{file}`."
        )
    counted, numbers = declared_parameters(subject)
    if not counted:
        raise UserError(
            f"{layer.name} does not count its parameters (at width {d} {numbers}): its size, and what is matched to "
            f"it, would be wrong. Correct its `cost`; see `plait check {file}`."
        )


# ---- elsewhere: in worker processes, from records


def register_sources(sources: Iterable[MixerSource]) -> None:
    """In a worker process: register the mixers of its parent under the same names."""
    for source in sources:
        table.register(options_from(source))


def restore(stored: Iterable[Mapping[str, Any] | str], what: str) -> None:
    """Register the mixers contained in a record (older records contain paths). `what` is the record, for messages."""
    for entry in stored:
        if isinstance(entry, str):
            source = MixerSource.read(*split_path(entry) or (Path(entry), ""))
        else:
            source = MixerSource.from_dict(entry)
        options = options_from(source)
        known = table.registered(options.name)
        if known is not None and known is not options:
            raise UserError(
                f"{what} was made with another text of {options.name} than the one that is loaded. It carries its own "
                "copy: leave that mixer out of --mixers."
            )
        table.register(options)


# ---- copies stored with weights


def index_copies(model: Architecture) -> dict[str, dict[str, str]]:
    """What `read_copies` needs to load the users' mixers of an architecture again, by name."""
    return {name: _entry(name, source) for name, source in model.mixer_sources.items()}


def write_copies(model: Architecture, folder: Path) -> dict[str, dict[str, str]]:
    """Copy their files into a folder; returns `index_copies`. Mixers of installed packages are not copied."""
    index = index_copies(model)
    for name, entry in index.items():
        if "file" in entry:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / entry["file"]).write_text(model.mixer_sources[name].text, encoding="utf-8")
    return index


def _entry(name: str, source: MixerSource) -> dict[str, str]:
    where = {"package": source.package} if source.package else {"file": f"{name.replace('-', '_')}.py"}
    return {**where, "attribute": source.attribute, "source": source.hash}


def read_copies(index: Mapping[str, Mapping[str, str]], folder: Path) -> Mixers:
    """The mixers by name, without registering them globally."""
    return {name: _copy(name, entry, folder) for name, entry in index.items()}


def _copy(name: str, entry: Mapping[str, str], folder: Path) -> type[MixerOptions]:
    known = table.version(entry["source"])
    if known is not None:
        return known
    if "package" in entry:
        table.load_packaged(name)
        installed = table.registered(name)
        if installed is None or installed.source is None or installed.source.hash != entry["source"]:
            raise UserError(f"{folder} needs the mixer {name} of {entry['package']}; install that very version.")
        return installed
    source = MixerSource.read(folder / entry["file"], entry["attribute"])
    if source.hash != entry["source"]:
        raise UserError(f"{source.file} was edited after the weights next to it were saved; restore the file.")
    return options_from(source)


# ---- executing a file


def options_from(source: MixerSource) -> type[MixerOptions]:
    """The options class defined by this text, which is executed at most once."""
    known = table.version(source.hash)
    if known is not None:
        return known
    from plait.mixers.mixer import Mixer  # users' files import torch anyway

    for former, present in FORMER.items():
        if former in source.text:
            sys.modules.setdefault(former, import_module(present))
    path = Path(source.file)
    mixer = class_from_file(path, Mixer, source.attribute, source.text)  # type: ignore[type-abstract]
    options = require_options(mixer.Options, f"{path}: {mixer.__name__}")
    options.module = f"{mixer.__module__}:{mixer.__name__}"
    if options.name in table.MIXERS.lines:
        raise UserError(f"{path}: the name '{options.name}' is taken by a built-in mixer; choose another.")
    options.source = source
    table.remember(options)
    return options


def _registered(source: MixerSource) -> type[MixerOptions]:
    options = options_from(source)
    module, _, attribute = options.module.partition(":")
    mixer = getattr(sys.modules[module], attribute)
    require_methods(mixer, f"{source.file}: {attribute}")  # copies of older files in runs and records stay usable
    known = table.registered(options.name)
    if known is not None and known is not options and _loaded_from.get(options.name) != source.file:
        owner = known.source.package or known.source.file if known.source else "a mixer registered in this program"
        raise UserError(f"{source.file}: the name '{options.name}' is taken by {owner}; choose another.")
    table.register(options)
    _loaded_from[options.name] = source.file
    return options
