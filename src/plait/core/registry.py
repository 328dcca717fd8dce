"""The registry: a table for each kind of thing that has a name (mixers, tasks, spaces, objectives, optimizers …).

    SPACES: Table[type[Space]] = Table("space", {"par": "plait.papers.spaces:Par"})
    SPACES.load("par")  # imports plait.papers.spaces now, not before

A table is written out as a dictionary, so that a search of the source finds every name. It is lazy: each line names a
"module:attribute", which is imported on first use. Where a listing needs more without importing the thing, the line is
an `Entry` with one sentence on it, or a subclass of `Entry` with further fields. Users add things with `register`,
installed packages by entry points of the table's group.

`lazy` does the same for the names that a package exports. In its `__init__.py`,

    __getattr__ = lazy(__name__, {"Predictor": "predictor", "Setting": "setting"})

makes `from plait.device import Predictor` import `plait.device.predictor` on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from plait.core.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


Thing = TypeVar("Thing")


@dataclass(frozen=True)
class Entry:
    where: str  # "module:attribute"
    what: str = ""  # one sentence; empty: the first line of the thing's docstring


def load_attribute(where: str) -> Any:
    """The object that "module:attribute" names."""
    module, _, attribute = where.partition(":")
    return getattr(import_module(module), attribute)


@dataclass(eq=False)
class Table(Generic[Thing]):
    """Iterates over its names: the built-in ones in the order they are written, then the registered ones.

    kind   what an entry is called in messages: "mixer"
    lines  name → where the built-in thing is defined
    group  entry-point group in which installed packages declare additions; "" if there is none
    hint   appended to the message about an unknown name: what else may be given
    accept makes the thing from its entry point, where loading the entry point is not enough
    """

    kind: str
    lines: Mapping[str, str | Entry]
    group: str = ""
    hint: str = ""
    accept: Callable[[EntryPoint], Thing] | None = None
    _registered: dict[str, Thing] = field(default_factory=dict)
    _packages: dict[str, str] = field(default_factory=dict)  # name → the installed package that declares it

    def __iter__(self) -> Iterator[str]:
        yield from self.lines
        yield from (name for name in self._registered if name not in self.lines)

    def __contains__(self, name: object) -> bool:
        return name in self.lines or name in self._registered

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def names(self) -> list[str]:
        return list(self)

    def entry(self, name: str) -> Entry:
        """The line of a built-in thing."""
        line = self.lines[name]
        return line if isinstance(line, Entry) else Entry(line)

    def load(self, name: str) -> Thing:
        """The thing of this name; a `UserError` that suggests the nearest name if there is none."""
        self.require(name)
        if name in self._registered:
            return self._registered[name]
        thing: Thing = load_attribute(self.entry(name).where)
        return thing

    def require(self, name: str) -> None:
        """Raise a `UserError` if neither the table nor an installed package has this name."""
        if name not in self:
            self.discover(name)
        if name not in self:
            raise self.unknown(name)

    def unknown(self, name: str) -> UserError:
        known = ", ".join(self)
        return UserError(f"unknown {self.kind} '{name}'.{did_you_mean(name, self)} Known: {known}{self.hint}.")

    def what(self, name: str) -> str:
        """One line of description: from the table, the thing's attribute `what`, or its docstring."""
        if name in self.lines and (stated := self.entry(name).what):
            return stated
        thing = self.load(name)
        return str(getattr(thing, "what", "") or (thing.__doc__ or "").strip().partition("\n")[0])

    def register(self, name: str, thing: Thing) -> None:
        """Add a user's thing; registering a name again replaces the earlier thing."""
        if name in self.lines:
            raise UserError(f"the name '{name}' is taken by a built-in {self.kind}; choose another.")
        self._registered[name] = thing

    def origin(self, name: str) -> str:
        """Where a thing comes from: "plait", an installed package ("theirs 1.2"), or "yours"."""
        return "plait" if name in self.lines else self._packages.get(name, "yours")

    def registered(self, name: str) -> Thing | None:
        return self._registered.get(name)

    def discover(self, name: str = "") -> None:
        """Register what installed packages declare in the table's group: the thing of that name, or all."""
        if not self.group:
            return
        from importlib.metadata import entry_points  # only an unknown name needs what takes this long to import

        for point in entry_points(group=self.group):
            if (not name or point.name == name) and point.name not in self:
                package = f"{point.dist.name} {point.dist.version}" if point.dist else point.module
                self._packages[point.name] = package
                if self.accept is not None:
                    self._registered[point.name] = self.accept(point)
                    continue
                try:
                    self._registered[point.name] = point.load()
                except Exception as wrong:
                    raise UserError(
                        f"the {self.kind} '{point.name}' ({point.value}) does not load: {type(wrong).__name__}: {wrong}"
                    ) from wrong


def lazy(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's `__getattr__`: public name → the module of the package that defines it."""

    def getattribute(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return getattribute
