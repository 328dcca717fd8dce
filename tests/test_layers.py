"""The house has storeys: imports go down, never up and never in a circle, and half of it stands without torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

import plait

PACKAGE = Path(plait.__file__).parent

#: The storeys, lowest first: a package may import those before it. With each, where torch may be imported: "never" (not
#: even inside a function), "inside" functions only, or anywhere ("yes"). One that is not here fails the test.
LAYERS: dict[str, str] = {
    "core": "never",
    "spec": "never",
    "records": "never",
    "analysis": "never",
    "tasks": "never",
    "data": "never",
    "ops": "yes",
    "mixers": "yes",
    "model": "yes",
    "training": "yes",
    "workers": "inside",
    "device": "yes",
    "reporting": "never",
    "space": "inside",
    "probing": "yes",
    "interop": "yes",
    "evals": "yes",
    "algorithms": "yes",
    "supernet": "yes",
    "searching": "inside",
    "racing": "yes",
    "scaling": "inside",
    "studies": "yes",
    "designing": "inside",
    "papers": "yes",
    "api": "inside",
    "serving": "never",
    "cli": "inside",
}
ORDER = tuple(LAYERS)
TOP = ("cli", "__main__", "")  # may import everything; the root is the front door

#: Modules of packages that have torch which must be importable without it.
WITHOUT_TORCH = (
    *(f"mixers.{name}" for name in ("options", "table", "attn", "gla", "mamba", "hyena", "mlp", "deltanet")),
    *(f"model.{name}" for name in ("architecture", "cost", "resize", "traits", "reference_curves")),
    *(f"device.{name}" for name in ("setting", "features", "regression", "profile", "predictor", "quantities")),
    *(f"algorithms.{name}" for name in ("objectives", "search", "evolution", "nsga")),
    *("papers.verify", "papers.conventions", "papers.open_models", "training.recipe"),
    *(f"papers.{paper}.presets" for paper in ("lts", "par", "mad", "fox")),
)


@dataclass(frozen=True)
class Import:
    importer: str
    target: str  # a module of the tree, or the name of a foreign package
    line: int
    at_import: bool  # runs when the importer is imported: neither in a function nor for type checkers only

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.target}"


def modules_of(root: Path) -> dict[str, Path]:
    """Dotted name → file of every module below (and of) the package at `root`."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = (root.name, *path.relative_to(root).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(root: Path) -> list[Import]:
    modules = modules_of(root)
    found = []
    for importer, path in modules.items():
        for node, at_import in _statements(ast.parse(path.read_text(encoding="utf-8")), True):
            targets = _targets(node, importer, path.name == "__init__.py", modules)
            found += [Import(importer, target, node.lineno, at_import) for target in targets]
    return found


def _statements(node: ast.AST, at_import: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, at_import
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _statements(child, False)
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from _statements(ast.Module(child.body, []), False)
            yield from _statements(ast.Module(child.orelse, []), at_import)
        else:
            yield from _statements(child, at_import)


def _targets(
    node: ast.Import | ast.ImportFrom, importer: str, is_package: bool, modules: Mapping[str, Path]
) -> Iterator[str]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.name
        return
    base = node.module or ""
    if node.level:
        parts = importer.split(".")
        kept = parts[: len(parts) - node.level + is_package]
        base = ".".join([*kept, *([base] if base else [])])
    for alias in node.names:
        # `from plait import arch` names a module; `from plait.arch import load` a thing inside one.
        yield f"{base}.{alias.name}" if f"{base}.{alias.name}" in modules else base


def part_of(module: str) -> str:
    """The package or module right below the root; empty for the root itself."""
    return module.split(".")[1] if "." in module else ""


def part_graph(imports: Iterable[Import], root: str) -> dict[str, set[str]]:
    graph: dict[str, set[str]] = {}
    for found in imports:
        if found.target.split(".")[0] == root and part_of(found.importer) and part_of(found.target):
            graph.setdefault(part_of(found.importer), set()).add(part_of(found.target))
    return {part: others - {part} for part, others in graph.items()}


def upward(imports: Iterable[Import], root: str) -> list[str]:
    """Every import of a part that the importer does not stand on."""
    wrong = []
    for found in imports:
        above, below = part_of(found.importer), part_of(found.target)
        if found.target.split(".")[0] != root or above in (*TOP, below) or not below:
            continue
        if above not in ORDER:
            wrong.append(f"'{above}' has no place in LAYERS ({found})")
        elif below not in ORDER[: ORDER.index(above)]:
            wrong.append(str(found))
    return wrong


def cycle(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """The nodes of some cycle in order, the first repeated at the end; empty where there is none."""
    done: set[str] = set()

    def visit(node: str, path: list[str]) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return []
        for other in sorted(graph.get(node, ())):
            if found := visit(other, [*path, node]):
                return found
        done.add(node)
        return []

    return next((found for node in sorted(graph) if (found := visit(node, []))), [])


def way_to_torch(start: str, imports: Iterable[Import]) -> list[str]:
    """The chain of imports by which importing `start` imports torch; empty where it does not."""
    graph: dict[str, list[str]] = {}
    for found in imports:
        if found.at_import:
            graph.setdefault(found.importer, []).append(found.target)
    seen, chains = set(), [[start]]
    while chains:
        chain = chains.pop(0)
        name = chain[-1]
        if name.split(".")[0] == "torch":
            return chain
        if name in seen:
            continue
        seen.add(name)
        parent = name.rpartition(".")[0]  # importing a.b.c runs a and a.b first
        chains += [[*chain, other] for other in (*graph.get(name, ()), *([parent] if parent else ()))]
    return []


def torch_imports(imports: Iterable[Import], root: str) -> list[str]:
    """Every way in which a part that should not has to do with torch."""
    imports = list(imports)
    wrong = [
        str(found)
        for found in imports
        if found.target.split(".")[0] == "torch" and LAYERS.get(part_of(found.importer)) == "never"
    ]
    starts = {
        found.importer
        for found in imports
        if LAYERS.get(part_of(found.importer)) in ("never", "inside") or _within(found.importer, WITHOUT_TORCH, root)
    }
    chains = [way_to_torch(start, imports) for start in sorted(starts)]
    return wrong + [" → ".join(chain) for chain in chains if chain]


def _within(module: str, places: Iterable[str], root: str) -> bool:
    return any(module == f"{root}.{place}" or module.startswith(f"{root}.{place}.") for place in places)


@pytest.fixture(scope="module")
def imports() -> list[Import]:
    return imports_of(PACKAGE)


def test_the_walker_sees_the_package(imports: list[Import]) -> None:
    seen = {(found.importer, found.target, found.at_import) for found in imports}
    assert ("plait.mixers.attn_module", "torch", True) in seen
    assert ("plait.api.listing", "plait.mixers.table", False) in seen  # in a function
    assert ("plait.model", "plait.model.language_model", False) in seen  # for type checkers only
    assert ("plait.model.cost", "plait.mixers.options", True) in seen


def test_no_import_goes_up(imports: list[Import]) -> None:
    assert not upward(imports, "plait")


def test_no_parts_import_each_other_in_a_circle(imports: list[Import]) -> None:
    assert not cycle(part_graph(imports, "plait"))


def test_no_modules_import_each_other_in_a_circle(imports: list[Import]) -> None:
    graph: dict[str, set[str]] = {}
    for found in imports:
        if found.at_import and found.target.startswith("plait."):
            graph.setdefault(found.importer, set()).add(found.target)
    assert not cycle(graph)


def test_what_needs_no_torch_gets_none(imports: list[Import]) -> None:
    assert not torch_imports(imports, "plait")


def planted(root: Path, files: dict[str, str]) -> list[Import]:
    """The imports of a package `house` with these files in it."""
    for name, text in files.items():
        path = root / "house" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return imports_of(root / "house")


@pytest.mark.parametrize(
    "statement",
    [
        "import house.model.cost",
        "from house.model.cost import model_cost",
        "from house import model",
        "from ..model import cost",
        "def f():\n    from house.model import cost",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house.model import cost",
        "try:\n    import house.model\nexcept ImportError:\n    pass",
    ],
)
def test_a_planted_upward_import_is_caught(tmp_path: Path, statement: str) -> None:
    found = planted(
        tmp_path, {"mixers/attn": statement, "model/__init__": "", "model/cost": "import house.core.errors"}
    )
    (wrong,) = upward(found, "house")
    assert wrong.startswith("house.mixers.attn:")
    assert "imports house.model" in wrong


def test_a_part_without_a_place_is_caught(tmp_path: Path) -> None:
    (wrong,) = upward(planted(tmp_path, {"attic/box": "import house.core.errors"}), "house")
    assert "'attic' has no place" in wrong


def test_a_planted_circle_is_caught(tmp_path: Path) -> None:
    files = {
        "spec/a": "def f():\n    import house.ops.b",
        "ops/b": "from house import data",
        "data": "import house.spec",
    }
    found = planted(tmp_path, files)
    assert cycle(part_graph(found, "house")) == ["data", "spec", "ops", "data"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"spec/a": "import torch.nn"}, "house.spec.a:1 imports torch.nn"),
        ({"data/a": "def f():\n    from torch import nn"}, "house.data.a:2 imports torch"),
        ({"cli/a": "import torch"}, "house.cli.a → torch"),
        ({"cli/a": "from house.model import x", "model/x": "import torch"}, "house.cli.a → house.model.x → torch"),
        (
            {"model/cost": "from house.core.errors import E", "model/__init__": "import torch"},
            "house.model.cost → house.model → torch",
        ),
    ],
)
def test_planted_torch_is_caught(tmp_path: Path, files: dict[str, str], message: str) -> None:
    assert message in torch_imports(planted(tmp_path, files), "house")


def test_torch_inside_a_function_of_the_command_line_is_allowed(tmp_path: Path) -> None:
    assert not torch_imports(planted(tmp_path, {"cli/a": "def f():\n    import torch"}), "house")


#: Importing the store's database and numpy takes three times as long as these commands themselves.
INSTANT = ("--help", "show gpt2-124m", "show gpt2-124m --json", "list mixers", "list presets")
QUICK = (*INSTANT, "runs list", "list tasks", "task show compression")
RUN_ALL = """
import sys
from contextlib import redirect_stdout
from io import StringIO
from plait.cli.main import main
heavy, *commands = sys.argv[1:]
for command in commands:
    sys.argv[1:] = command.split()
    with redirect_stdout(StringIO()) as said:
        try:
            main()
        except SystemExit as left:
            assert not left.code, command
    assert said.getvalue(), command
    imported = set(heavy.split()) & set(sys.modules)
    assert not imported, f"{command} imported {imported}"
"""


@pytest.mark.parametrize(("commands", "heavy"), [(QUICK, "torch"), (INSTANT, "torch sqlalchemy numpy")])
def test_quick_commands_start_without(commands: tuple[str, ...], heavy: str) -> None:
    ran = subprocess.run([sys.executable, "-c", RUN_ALL, heavy, *commands], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
