"""The front door: every name leads somewhere, opening it imports next to nothing, and results are plain data."""

from __future__ import annotations

import doctest
import importlib
import inspect
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import plait
from plait.core.result import Result

PACKAGES = {path.parent.name for path in Path(plait.__file__).parent.glob("*/__init__.py")}
HEAVY = ("torch", "numpy", "scipy", "pandas", "sqlalchemy", "typer", "rich", "safetensors", "tokenizers")


def test_opening_it_imports_nothing_heavy() -> None:
    program = (
        "import sys; before = set(sys.modules); import plait; new = set(sys.modules) - before; dir(plait);"
        f"print(sorted(m for m in new if m.split('.')[0] in {HEAVY}), sorted(m for m in new if m.startswith('plait.')))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[] []"


def test_what_an_architecture_costs_needs_no_torch() -> None:
    program = "import sys, plait; plait.cost('gpt2-124m'); plait.listing('presets'); print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


def test_running_a_model_does_not_import_the_compiler() -> None:
    """Which takes twice as long as importing torch, in every worker again."""
    program = (
        "import sys, torch; from plait.model import build; t = torch.arange(10)[None];"
        "build('d=16 vocab=11 | attn[heads=2] gla[heads=2] mamba hyena swiglu').loss(t, t).backward();"
        "print('torch._dynamo' in sys.modules, 'sympy' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False False"


@pytest.mark.parametrize("name", sorted(plait.DOOR))
def test_every_name_leads_somewhere(name: str) -> None:
    found = getattr(plait, name)
    assert found.__name__ == name
    assert (found.__doc__ or "").strip()
    assert name in plait.__all__
    assert name in dir(plait)


@pytest.mark.parametrize("name", sorted(plait.GROUPS))
def test_every_group_leads_somewhere(name: str) -> None:
    assert isinstance(getattr(plait, name), ModuleType)
    assert name in dir(plait)


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_what_a_package_offers_is_there(package: str) -> None:
    module = importlib.import_module(f"plait.{package}")
    for name in getattr(module, "HOMES", {}):
        assert getattr(module, name).__class__ is not ModuleType
        assert not (Path(module.__file__).parent / f"{name}.py").exists()  # the module would hide it once imported


def test_no_verb_has_a_packages_name() -> None:
    # `plait.data` is a package as soon as one of its modules is imported, whatever the table says.
    assert not PACKAGES & {*plait.DOOR, *plait.GROUPS}
    assert not {"list", "open", "eval", "import"} & set(plait.__all__)  # `from plait import *` hides no built-in


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'plait' has no attribute 'sarch'"):
        plait.sarch  # noqa: B018


def verbs() -> list[str]:
    """The functions that the front door has for verbs: those of `plait.api`."""
    return sorted(name for name, where in plait.DOOR.items() if where.startswith("plait.api."))


@pytest.mark.parametrize("name", verbs())
def test_a_verbs_arguments_are_typed_and_mostly_by_keyword(name: str) -> None:
    verb = getattr(plait, name)
    found = inspect.signature(verb)
    assert found.return_annotation is not inspect.Signature.empty
    assert all(p.annotation is not inspect.Parameter.empty for p in found.parameters.values())
    positional = [p for p in found.parameters.values() if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    assert len(positional) <= 3


#: Calls that take no training; the other verbs' results are tested where their commands are.
QUICK = {
    "check": lambda: plait.check("gla", d=16, speed=False),
    "corpus": lambda: plait.corpus("builtin:dna", sample=10),
    "listing": lambda: plait.listing("mixers"),
    "show": lambda: plait.show("fox-llama-360m"),
    "task": lambda: plait.task("compression", examples=2),
    "verify": lambda: plait.verify("L03"),
}


@pytest.mark.parametrize("name", sorted(QUICK))
def test_results_are_plain_data(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("PLAIT_CACHE", str(tmp_path))
    result = QUICK[name]()
    assert isinstance(result, Result)
    assert json.loads(json.dumps(result.as_dict())) == result.as_dict()
    rows = result.rows()
    assert rows
    assert json.loads(json.dumps(rows)) == rows
    assert result._repr_html_().count("<tr>") == len(rows) + 1
    with pytest.raises(AttributeError):
        result.anything = 1


def test_the_command_prints_what_the_function_gives(plait_json: Any) -> None:
    assert plait_json("task", "show", "compression", "--count", "2") == plait.task("compression", examples=2).as_dict()
    assert plait_json("list", "header") == json.loads(json.dumps(plait.listing("header").rows()))


@pytest.fixture
def plait_json() -> Any:
    def run(*arguments: str) -> Any:
        program = [sys.executable, "-m", "plait", *arguments, "--json"]
        return json.loads(subprocess.run(program, capture_output=True, text=True, check=True).stdout)

    return run


#: Verbs whose docstring ends with an example that takes a second or two.
WITH_EXAMPLES = {
    *("architecture", "build", "check", "corpus", "cost", "listing", "show", "task", "train", "verify"),
}


@pytest.mark.parametrize("name", sorted(WITH_EXAMPLES))
def test_the_examples_of_docstrings_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PLAIT_STORE", raising=False)
    (found,) = doctest.DocTestFinder(recurse=False).find(getattr(plait, name), name, globs={"plait": plait})
    said: list[str] = []
    results = doctest.DocTestRunner(verbose=False).run(found, out=said.append)
    assert results.attempted > 0
    assert not results.failed, "".join(said)
