"""The registry: a table for each kind of thing that has a name (mixers, tasks, spaces, objectives, optimizers …).

    SPACES: Table[type[Space]] = Table("space", {"par": "plait.papers.spaces:Par"})
    SPACES.load("par")  # imports plait.papers.spaces now, not before

A table is an explicit dictionary, so that every name can be found in the source. It is lazy: each line names a
"module:attribute", which is imported on first use. If a listing needs more without importing the thing, the line is an
`Entry` with a one-sentence description, or a subclass of `Entry` with additional fields. Users add things with
`register`, installed packages through entry points of the table's group.

`lazy` does the same for the names that a package exports. In its `__init__.py`,

    __getattr__ = lazy(__name__, {"Predictor": "predictor", "Setting": "setting"})

makes `from plait.device import Predictor` import `plait.device.predictor` on first use.

Where a name is expected, users may give their own file instead (`split_path`). Settings are written key=value and
converted to the types of the dataclass's fields. An unknown name is refused with the nearest known one
(`require_known`), a wrong value with what is allowed (`require_one_of`, `require_setting`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
from pathlib import Path
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


def first_paragraph(thing: object) -> str:
    """The beginning of a docstring in one line, wherever its lines were broken."""
    return " ".join((thing.__doc__ or "").strip().partition("\n\n")[0].split())


@dataclass(frozen=True)
class Declared:
    """A thing that an installed package declares by an entry point."""

    kind: str
    name: str
    value: str  # "module:attribute"
    package: str  # with its version

    def __str__(self) -> str:
        return f"the {self.kind} '{self.name}' of {self.package} ({self.value})"


Accept = Callable[[Any, Declared], Any]


def accept_callable(thing: Any, declared: Declared) -> Any:
    if not callable(thing):
        raise UserError(f"{declared} is not a function.")
    return thing


def accept_subclass(base: str) -> Accept:
    """Accepts subclasses of the class at "module:attribute"."""

    def accept(thing: Any, declared: Declared) -> Any:
        if not (isinstance(thing, type) and issubclass(thing, load_attribute(base))):
            raise UserError(f"{declared} is not a subclass of {base.replace(':', '.')}.")
        return thing

    return accept


@dataclass(eq=False)
class Table(Generic[Thing]):
    """Iterates over its names: the built-in ones in the order they are written, then the registered ones.

    kind   what an entry is called in messages: "mixer"
    lines  name → where the built-in thing is defined
    group  entry-point group in which installed packages declare additions; "" if there is none
    hint   appended to the message about an unknown name: what else may be given
    accept returns the thing that an entry point stands for, or raises a `UserError` if it is of a wrong kind
    """

    kind: str
    lines: Mapping[str, str | Entry]
    group: str = ""
    hint: str = ""
    accept: Accept = accept_callable
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
        """A short description: from the table, the thing's attribute `what`, or its docstring."""
        if name in self.lines and (stated := self.entry(name).what):
            return stated
        thing = self.load(name)
        return str(getattr(thing, "what", "") or first_paragraph(thing))

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

    def discover(self, name: str = "") -> list[str]:
        """Register what installed packages declare in the table's group: the thing of that name, whose faults are
        raised, or all. Then a faulty one is left out, so that it affects nothing else, and its fault returned."""
        if not self.group:
            return []
        from importlib.metadata import entry_points  # slow to import, and needed only for unknown names

        faults = []
        for point in entry_points(group=self.group):
            package = f"{point.dist.name} {point.dist.version}" if point.dist else point.module
            if (name and point.name != name) or (point.name in self and self.origin(point.name) == package):
                continue
            declared = Declared(self.kind, point.name, point.value, package)
            if point.name in self:
                faults.append(f"{declared} is left out: there is one of {self.origin(point.name)} already.")
                continue
            try:
                self._registered[point.name] = self.accept(_loaded(point, declared), declared)
                self._packages[point.name] = package
            except UserError as wrong:
                if name:
                    raise
                faults.append(str(wrong))
        return faults


def _loaded(point: EntryPoint, declared: Declared) -> Any:
    try:
        return point.load()
    except (Exception, SystemExit) as wrong:
        raise UserError(f"{declared} does not load: {type(wrong).__name__}: {wrong}") from wrong


def lazy(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's `__getattr__`: public name → the module of the package that defines it."""

    def getattribute(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return getattribute


# ---- users' files in place of names


def split_path(text: str) -> tuple[Path, str] | None:
    """`my_file.py` or `my_file.py:Class` as path and class name; None if it is not a Python file but a name."""
    path, _, attribute = text.partition(":")
    return (Path(path), attribute) if path.endswith(".py") else None


def split_options(text: str) -> tuple[str, str]:
    """`my_file.py[heads=4]` as `my_file.py` and `[heads=4]`; anything else is returned unchanged, with an empty
    text."""
    file, bracket, rest = text.partition("[")
    return (file, f"{bracket}{rest}") if bracket and split_path(file) and rest.endswith("]") else (text, "")


# ---- settings as key=value

_TAKES = {int: "a whole number", float: "a number", bool: "true or false"}


def names(text: str | Sequence[str]) -> list[str]:
    """Names as a list, from text in which commas separate them."""
    return [name.strip() for name in text.split(",") if name.strip()] if isinstance(text, str) else list(text)


def pairs(texts: Sequence[str], option: str, example: str = "") -> dict[str, str]:
    """`["d=256", …]` as a dictionary of texts. `option` names the command-line option in messages."""
    values: dict[str, str] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not key or not value:
            raise UserError(f"{option} {text}: write key=value{f', such as {example}' * bool(example)}.")
        values[key] = value
    return values


def read_value(value: Any, kind: type) -> Any:
    """A text converted to this type: a number, true or false, words separated by slashes. Other values are converted in
    the same way."""
    if kind is bool:
        return _TRUTH[str(value).lower()]
    if kind is tuple:
        return tuple(part for part in value.split("/") if part) if isinstance(value, str) else tuple(value)
    return kind(value)


_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def kinds_of(settings: Any) -> dict[str, type]:
    """Field name → type of its default, for a dataclass or an instance of one."""
    return {spec.name: type(spec.default) for spec in fields(settings)}


def current_names(values: Mapping[str, Any], of: Any) -> dict[str, Any]:
    """The same with former names of fields (the field's metadata `formerly`) replaced by their current names."""
    names = {spec.metadata["formerly"]: spec.name for spec in fields(of) if spec.metadata.get("formerly")}
    return {names.get(key, key): value for key, value in values.items()}


def with_fields(of: Thing, values: Mapping[str, Any], wrong: str) -> Thing:
    """A dataclass with some fields set, by their current or former names; unknown ones are refused."""
    values = current_names(values, of)
    for name in values:
        require_known(name, kinds_of(of), wrong)
    return replace(of, **values)  # type: ignore[type-var]


def read_values(
    values: Mapping[str, Any], kinds: Mapping[str, type], owner: str, noun: str = "setting"
) -> dict[str, Any]:
    """The given values, texts or not, converted to the types in `kinds`. `owner` is what the keys belong to, for
    messages."""
    converted: dict[str, Any] = {}
    for name, value in values.items():
        require_known(name, kinds, f"{owner} has no {noun}")
        try:
            converted[name] = read_value(value, kinds[name])
        except (ValueError, KeyError):
            raise UserError(f"{owner}: {name}={value} given, but it is {_TAKES[kinds[name]]}.") from None
    return converted


def read_pairs(texts: Sequence[str], option: str, of: Any) -> dict[str, Any]:
    """`["lr=0.01", …]` as fields of the dataclass `of`, with values of the right types."""
    kinds, values = kinds_of(of), {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        key = next(iter(current_names({key: value}, of)))
        if not equals or key not in kinds:
            wrong = f"there is no key '{key}'" if equals else "write key=value"
            raise UserError(f"{option} {text}: {wrong}.{did_you_mean(key, kinds)} Keys: {', '.join(kinds)}.")
        try:
            values[key] = read_value(value, kinds[key])
        except (ValueError, KeyError):
            raise UserError(f"{option} {text}: {key} takes {_TAKES[kinds[key]]}.") from None
    return values


def require_known(name: str, known: Iterable[str], wrong: str, others: str = "") -> None:
    """Raise a `UserError` unless the name is known: "unknown split 'tset'. Did you mean 'test'? Known: train, test." is
    that of `wrong` "unknown split". `others`: what else is allowed, as a phrase after the list."""
    names = list(known)
    if name not in names:
        listed = f"Known: {', '.join(names)}{others}." if names else "It has none."
        raise UserError(f"{wrong} '{name}'.{did_you_mean(name, names)} {listed}")


def require_setting(of: object, name: str, holds: bool, rule: str) -> None:
    """Raise a `UserError` unless the setting `name` of an object keeps its rule: "lr=0: must be greater than 0."."""
    if not holds:
        raise UserError(f"{name}={getattr(of, name)}: {rule}.")


def require_one_of(value: object, allowed: Iterable[str], given: str) -> None:
    """Raise a `UserError` unless the value is one of these. `given`: the option with its value, as in messages."""
    if value not in (choices := tuple(allowed)):
        raise UserError(f"{given}: must be one of {', '.join(choices)}.{did_you_mean(str(value), choices)}")
