"""What is built from the sources holds what plait reads: data files in the wheel, all of the sources in the sdist."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src"


def tracked() -> list[Path]:
    """Files of the package that are not leftovers of running it."""
    found = (path for path in (SOURCES / "plait").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return [path for path in found if path.suffix != ".pyc"]


def package_data() -> list[str]:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    line = text.split("[tool.setuptools.package-data]\nplait = ", 1)[1].partition("\n\n")[0]
    return [pattern.strip().strip('"') for pattern in line.strip("[]\n ").split(",")]


def test_every_file_that_is_no_module_is_declared() -> None:
    patterns = package_data()
    assert "py.typed" in patterns
    inside = [path.relative_to(SOURCES / "plait").as_posix() for path in tracked() if path.suffix != ".py"]
    left = [name for name in inside if not any(fnmatch(name, pattern.replace("**/", "*")) for pattern in patterns)]
    assert not left, "package-data in pyproject.toml leaves these out of the wheel"


def test_every_folder_of_modules_is_a_package() -> None:
    folders = {path.parent for path in tracked() if path.suffix == ".py"}
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


#: Beside torch. Megabytes of the wheel and of those that it brings alone (Linux, Python 3.11; docs/howto/install.md).
CORE = {"numpy": 17, "pyyaml": 0.8, "rich": 2, "safetensors": 0.5, "sqlalchemy": 5, "typer": 3}

#: What commands that need an extra import.
EXTRAS = {
    "cairosvg", "datasets", "gguf", "jinja2", "lm_eval", "mlflow", "pandas", "pyarrow", "ray", "starlette", "submitit",
    "tensorboard", "tokenizers", "transformers", "triton", "uvicorn", "wandb",
}  # fmt: skip


def test_the_core_is_small_and_nothing_else_is_imported_but_extras() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    listed = re.findall(r'"([a-z]+)[>=]', text.partition("\ndependencies = [")[2].partition("]")[0])
    assert {*listed} == {*CORE, "torch"}, "another dependency: measure what it downloads"
    assert sum(CORE.values()) < 60
    known = {*CORE, "torch", "yaml", "plait", *sys.stdlib_module_names}
    found = {
        (path.relative_to(SOURCES / "plait").as_posix(), name)
        for path in tracked()
        if path.suffix == ".py" and not path.name.endswith("_triton.py")
        for statement in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in roots_of(statement) - known
    }
    assert {name for _, name in found} <= EXTRAS, "imported, but neither in the core nor in an extra"


def roots_of(statement: ast.AST) -> set[str]:
    if isinstance(statement, ast.Import):
        return {alias.name.partition(".")[0] for alias in statement.names}
    if isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
        return {statement.module.partition(".")[0]}
    return set()


@pytest.mark.slow
def test_the_sdist_builds_a_wheel_that_runs_alone(tmp_path: Path) -> None:
    build(ROOT, "sdist", tmp_path)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path / "sources", filter="data")
    (unpacked,) = (tmp_path / "sources").iterdir()
    for name in (
        "tests/conftest.py",
        "docs/build.py",
        "examples/README.md",
        "constraints.txt",
        "Makefile",
        "CHANGELOG.md",
    ):
        assert (unpacked / name).is_file(), name
    build(unpacked, "wheel", tmp_path)
    wheel = next(tmp_path.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path / "installed")
    assert {path.relative_to(SOURCES).as_posix() for path in tracked()} <= names
    assert not [name for name in names if name.startswith(("tests/", "docs/", "benchmarks/")) or ".pyc" in name]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PLAIT")}
    environment["PYTHONPATH"] = str(tmp_path / "installed")
    program = "import plait, sys; from plait.cli.main import main; assert sys.argv[1] in plait.__file__; main()"
    for arguments in (["show", "fox-pro-360m"], ["list", "mixers"], ["new", "mixer", "m.py"], ["verify", "L03"]):
        code = program.replace("main()", f"sys.argv = ['plait', *{arguments!r}]; main()")
        command = [sys.executable, "-c", code, str(tmp_path)]
        ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr


def build(sources: Path, kind: str, out: Path) -> None:
    """With the build backend that is installed: no network."""
    code = f"from setuptools import build_meta; build_meta.build_{kind}({str(out)!r})"
    built = subprocess.run([sys.executable, "-c", code], cwd=sources, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
