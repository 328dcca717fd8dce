"""The page of the front door: every name that `import plait` gives, with its arguments and the fields of its result."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

WIDTH = 100


def api() -> str:
    import plait

    text = [_entry(f"plait.{name}", getattr(plait, name)) for name in plait.DOOR]
    for group in plait.GROUPS:
        module = getattr(plait, group)
        text.append(f"## plait.{group}\n\n{_prose(module.__doc__ or '')}")
        text += [_entry(f"plait.{group}.{name}", found, "###") for name, found in _functions(module)]
    return "\n\n".join(text)


def _functions(module: ModuleType) -> Iterator[tuple[str, Any]]:
    offered = getattr(module, "__all__", ())
    for name, found in vars(module).items():
        own = name in offered or (found is not None and getattr(found, "__module__", "") == module.__name__)
        if inspect.isfunction(found) and own and not name.startswith("_"):
            yield name, found


def _entry(name: str, found: Any, level: str = "##") -> str:
    parts = [f"{level} {name}"]
    if inspect.isfunction(found):
        parts.append(f"```text\n{_call(name, found)}\n```")
    parts.append(_prose(found.__doc__ or ""))
    if inspect.isfunction(found):
        parts += [_fields(result) for result in _results(found)]
    return "\n\n".join(parts)


def _call(name: str, function: Any) -> str:
    """The signature, in lines of one argument where it is long."""
    signature = inspect.signature(function)
    arguments, starred = [], False
    for p in signature.parameters.values():
        if p.kind is p.KEYWORD_ONLY and not starred:
            arguments, starred = [*arguments, "*"], True
        star = "*" if p.kind is p.VAR_POSITIONAL else "**" if p.kind is p.VAR_KEYWORD else ""
        starred = starred or star == "*"
        default = "" if p.default is p.empty else f" = {_default(p.default)}"
        arguments.append(f"{star}{p.name}: {p.annotation}{default}")
    line = f"{name}({', '.join(arguments)}) -> {signature.return_annotation}"
    if len(line) <= WIDTH:
        return line
    return "\n".join(
        [f"{name}(", *(f"    {argument}," for argument in arguments), f") -> {signature.return_annotation}"]
    )


def _default(value: Any) -> str:
    return value.__name__ if inspect.isfunction(value) else repr(value)


def _prose(docstring: str) -> str:
    """Paragraphs; lines of a name and what it means as a list."""
    paragraphs = []
    for part in inspect.cleandoc(docstring).split("\n\n"):
        if part.startswith(">>>"):
            paragraphs.append(f"```pycon\n{part}\n```")
            continue
        items: list[str] = []
        for line in part.splitlines():
            told = re.fullmatch(r"(\w+) {2,}(\S.*)", line)
            if told:
                items.append(f"- `{told[1]}`: {told[2]}")
            elif items:
                items[-1] += f" {line.strip()}"
        paragraphs.append("\n".join(items) if items else " ".join(part.split()))
    return "\n\n".join(paragraphs)


def _results(function: Any) -> list[type]:
    """The dataclass that a function gives, then those in its fields."""
    names, seen = _words(function.__annotations__.get("return", "")), []
    queue = [(function.__module__, name) for name in names]
    while queue:
        found = _class(*queue.pop(0))
        if found is not None and found not in seen and found.__module__.startswith("plait."):
            seen.append(found)
            queue += [(found.__module__, name) for f in dataclasses.fields(found) for name in _words(f.type)]
    return seen


def _words(annotation: Any) -> list[str]:
    return re.findall(r"\b[A-Z]\w+", annotation if isinstance(annotation, str) else getattr(annotation, "__name__", ""))


def _class(module: str, name: str) -> Any:
    """A result's class by its name in a module, where it may be imported for type checkers only."""
    from plait.core.result import Result

    found = getattr(import_module(module), name, None)
    if found is None:
        tree = ast.parse(inspect.getsource(import_module(module)))
        homes = [
            n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and name in [a.name for a in n.names]
        ]
        found = getattr(import_module(homes[0]), name, None) if homes and homes[0] else None
    plain = isinstance(found, type) and dataclasses.is_dataclass(found)
    told = plain and (issubclass(found, Result) or found.__module__.startswith(("plait.api", "plait.probing.report")))
    return found if told else None


def _fields(result: Any) -> str:
    said: dict[str, str] = {}
    for cls in reversed(result.__mro__[:-1]):
        said |= dict(re.findall(r"^    (\w+): [^#\n]*?  # (.*)$", inspect.getsource(cls), re.MULTILINE))
    rows = [(f"`{f.name}`", f"`{f.type}`", said.get(f.name, "")) for f in dataclasses.fields(result)]
    lines = [
        ("field", "type", "what"),
        ("---",) * 3,
        *(tuple(cell.replace("|", r"\|") for cell in row) for row in rows),
    ]
    return "\n".join([f"`{result.__name__}`:", "", *(f"| {' | '.join(line)} |" for line in lines)])
