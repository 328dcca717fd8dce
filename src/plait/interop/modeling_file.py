"""The Python file next to exported weights that runs a model without plait installed (`trust_remote_code=True`).

It contains the sources of the plait modules that the model needs and nothing else: those that its classes import,
directly or indirectly, at the top or inside functions. If plait is installed, that is used instead.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import plait
from plait.model.language_model import Encoder, LanguageModel

NAME = "modeling_plait.py"
START = "plait.interop.hf_model"
PACKAGES = ("core", "spec", "mixers", "ops", "model", "interop")
ROOT = Path(plait.__file__).parent

HEAD = '''"""A model made with plait {version}, and of plait what it needs: only torch and transformers have to be
installed. Load it with trust_remote_code=True. The sources are plait's own, under its license (MIT)."""

import importlib
import importlib.abc
import importlib.util
import sys

'''
TAIL = '''

class _Bundled(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports plait's modules from the sources in this file."""

    def find_spec(self, name, path=None, target=None):
        if name not in SOURCES:
            return None
        return importlib.util.spec_from_loader(name, self, is_package=self.is_package(name))

    def is_package(self, name):
        return name in PACKAGES

    def get_source(self, name):
        return SOURCES[name]

    def get_code(self, name):
        return self.source_to_code(SOURCES[name], name.replace(".", "/") + ".py, of modeling_plait.py")


if importlib.util.find_spec("plait") is None:
    sys.meta_path.append(_Bundled())

_classes = importlib.import_module("plait.interop.hf_model")
PlaitConfig = _classes.PlaitConfig
PlaitForCausalLM = _classes.PlaitForCausalLM
PlaitForMaskedLM = _classes.PlaitForMaskedLM

__all__ = ["PlaitConfig", "PlaitForCausalLM", "PlaitForMaskedLM"]
'''


def modeling_file(model: LanguageModel | Encoder) -> str:
    """The file for the mixers of this model; users' mixers have their own files, whose imports are included."""
    used = {type(part).__module__ for part in model.modules()}
    used |= {type(options).__module__ for options in model.arch.layers}
    own = [text for source in model.arch.mixer_sources.values() for text in _imported(source.text)]
    modules = bundled([START, *used, *own])
    lines = [HEAD.format(version=plait.__version__), "SOURCES = {\n"]
    for name in modules:
        lines.append(f"    {name!r}: (\n")
        lines += [f"        {line!r}\n" for line in _file(name).read_text(encoding="utf-8").splitlines(keepends=True)]  # type: ignore[union-attr]
        lines.append("        ''\n    ),\n")
    packages = [name for name in modules if (path := _file(name)) is not None and path.name == "__init__.py"]
    return "".join([*lines, "}\n", f"PACKAGES = {packages!r}\n", TAIL])


def bundled(start: Iterable[str]) -> list[str]:
    """These modules of plait and all that they import, at the top or inside functions."""
    modules: set[str] = set()
    open_ = list(start)
    while open_:
        name = open_.pop()
        if name in modules or _file(name) is None or name.partition(".")[0] != "plait":
            continue
        if name.count(".") and name.split(".")[1] not in PACKAGES:
            continue
        modules.add(name)
        open_ += [name.rpartition(".")[0], *_imports(name)]
    return sorted(modules)


@cache
def _file(name: str) -> Path | None:
    if not name:
        return None
    below = ROOT.joinpath(*name.split(".")[1:])
    for path in (below.with_suffix(".py"), below / "__init__.py"):
        if path.is_file():
            return path
    return None


@cache
def _imports(name: str) -> tuple[str, ...]:
    path = _file(name)
    if path is None or name == "plait":  # the package imports every verb for type checkers
        return ("plait.core.errors",)
    return _imported(path.read_text(encoding="utf-8"))


def _imported(text: str) -> tuple[str, ...]:
    names: list[str] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return tuple(names)
