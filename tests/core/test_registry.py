"""Tables of named things: lazy, in order, with the nearest name, and open to users' and packages' things."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

import plait
from plait.core.errors import UserError
from plait.core.registry import Entry, Table, accept_subclass, load_attribute

LINES: dict[str, str | Entry] = {
    "largest": "builtins:max",
    "smallest": Entry("builtins:min", "the least of several"),
    "nowhere": Entry("no_such_module:Thing", "a thing that would fail to import"),
}


@pytest.fixture
def table() -> Table[Callable[..., object]]:
    return Table("function", LINES, group="plait.test_functions", hint=", or a .py file")


def test_names_come_in_the_order_they_are_written_and_users_after_them(table: Table[Callable[..., object]]) -> None:
    table.register("first", sorted)
    assert list(table) == table.names() == ["largest", "smallest", "nowhere", "first"]
    assert len(table) == 4
    assert "first" in table
    assert "second" not in table


def test_only_what_is_asked_for_is_imported(table: Table[Callable[..., object]]) -> None:
    assert table.load("largest") is max
    assert table.what("nowhere") == "a thing that would fail to import"
    with pytest.raises(ModuleNotFoundError):
        table.load("nowhere")


def test_a_line_says_what_a_thing_is_or_else_its_docstring(table: Table[Callable[..., object]]) -> None:
    assert table.what("smallest") == "the least of several"
    assert table.what("largest") == " ".join((max.__doc__ or "").split("\n\n")[0].split())  # its lines joined


def test_an_unknown_name_is_answered_with_the_nearest(table: Table[Callable[..., object]]) -> None:
    with pytest.raises(UserError) as raised:
        table.load("smalest")
    assert str(raised.value) == (
        "unknown function 'smalest'. Did you mean 'smallest'? Known: largest, smallest, nowhere, or a .py file."
    )


def test_a_registered_name_may_change_its_meaning_but_not_take_a_tables_own(
    table: Table[Callable[..., object]],
) -> None:
    table.register("mine", min)
    table.register("mine", max)
    assert table.load("mine") is table.registered("mine") is max
    with pytest.raises(UserError, match="'largest' is taken by a built-in function"):
        table.register("largest", min)
    assert table.load("largest") is max


def install(folder: Path, points: str) -> None:
    """A package as installers leave it: a folder of metadata with entry points."""
    metadata = folder / "their_package-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[plait.test_functions]\n{points}\n")


def test_installed_packages_add_theirs(
    table: Table[Callable[..., object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "theirs = builtins:sum\nlargest = builtins:min\nbroken = no_such_module:thing")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert table.load("theirs") is sum
    assert table.load("largest") is max  # a table's own name stays its own
    table.register("mine", min)
    assert [table.origin(name) for name in ("largest", "theirs", "mine")] == ["plait", "their-package 1.0", "yours"]
    with pytest.raises(UserError, match=r"'broken' of their-package 1.0 \(no_such_module:thing\) does not load"):
        table.load("broken")


def test_a_faulty_package_affects_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fault names the package; one that ended the program when it was imported ended plait without a word."""
    points = ["broken = no_such_module:thing", "gone = math:nothing", "five = their_five:FIVE", "ends = their_exit:X"]
    install(tmp_path, "\n".join([*points, "largest = builtins:min", "theirs = builtins:sum"]))
    (tmp_path / "their_five.py").write_text("FIVE = 5\n")
    (tmp_path / "their_exit.py").write_text("import sys\nsys.exit(3)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    functions: Table[Callable[..., object]] = Table("function", LINES, group="plait.test_functions")
    for _ in range(2):  # nothing is half registered
        faults = functions.discover()
        assert [fault.partition(" of their-package 1.0 ")[0] for fault in faults] == [
            f"the function '{name}'" for name in ("broken", "gone", "five", "ends", "largest")
        ]
        assert faults[2].endswith("(their_five:FIVE) is not a function.")
        assert faults[4].endswith("is left out: there is one of plait already.")
        assert functions.names() == [*LINES, "theirs"]
    with pytest.raises(UserError, match=r"'ends' of their-package 1.0 .* does not load: SystemExit: 3"):
        functions.load("ends")
    classes: Table[type[object]] = Table("path", {}, "plait.test_functions", accept=accept_subclass("pathlib:PurePath"))
    assert all(fault.endswith("is not a subclass of pathlib.PurePath.") for fault in classes.discover()[-2:])


def test_a_table_without_a_group_asks_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "theirs = builtins:sum")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match="unknown function 'theirs'"):
        Table("function", LINES).load("theirs")


def test_known_names_cost_no_search_through_packages() -> None:
    program = (
        "import sys; from plait.core.registry import Table\n"
        "Table('function', {'a': 'builtins:max'}, group='plait.x').load('a'); "
        "print('importlib.metadata' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


SOURCES = sorted(Path(plait.__file__).parent.rglob("*.py"))


def test_every_place_that_a_table_names_is_there() -> None:
    """ "package.module:attribute" is text, which no type checker follows when the attribute is renamed."""
    places = {place for path in SOURCES for place in re.findall(r'"(plait\.[\w.]+:\w+)"', path.read_text())}
    assert len(places) > 60
    for place in places:
        load_attribute(place)


def test_every_folder_that_is_read_from_is_a_package() -> None:
    folders = {name for path in SOURCES for name in re.findall(r'files\("([\w.]+)"\)', path.read_text())}
    assert folders
    for folder in folders:
        import_module(folder)
