"""Templates to start from: a mixer's or task's file, or a package with both and their tests (`plait.new_plugin`).

A package is installed next to plait: its entry points register its mixer and task.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from plait import __version__
from plait.api.listing import listing
from plait.core.errors import UserError
from plait.core.registry import require_known
from plait.core.result import Result

PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{name}"
version = "0.1.0"
description = "A mixer and a task for plait."
requires-python = ">=3.10"
dependencies = ["plait>={plait}"]

[project.optional-dependencies]
test = ["pytest"]

# Further groups: plait.objectives, plait.quantities, plait.methods, plait.optimizers, plait.evaluations, plait.corpora,
# plait.spaces, plait.proxies, plait.verbs.
[project.entry-points."plait.mixers"]
{name}-mixer = "{module}.mixer:MyMixer"

[project.entry-points."plait.tasks"]
{name}-task = "{module}.task:MyTask"

[tool.setuptools.packages.find]
where = ["src"]
"""

README = """\
# {name}

Adds the mixer `{name}-mixer` and the task `{name}-task` to plait:

```sh
pip install -e '.[test]'
plait list mixers --match {name}
plait check {name}-mixer
plait compare {name}-mixer attn --data my.txt
plait task show {name}-task
pytest
```
"""

TESTS = '''\
"""The mixer keeps plait's contract, and the task is solved by its own rule."""

import plait


def test_plait_knows_both():
    whose = {{row["name"]: row["from"] for kind in ("mixers", "tasks") for row in plait.listing(kind).rows()}}
    assert whose["{name}-mixer"].startswith("{name} ")
    assert whose["{name}-task"].startswith("{name} ")


def test_the_mixer_keeps_the_contract():
    found = plait.check("{name}-mixer", speed=False)
    assert found.passed, found.failed


def test_the_mixer_learns():
    from plait.model import build

    assert build("d=32 vocab=50 | ({name}-mixer swiglu)x2").arch.text.count("{name}-mixer") == 1
'''


#: Kind of file → its template, and the command to try it.
TEMPLATES = {
    "mixer": ("model/mixer_template.txt", "plait check"),
    "task": ("tasks/task_template.txt", "plait task show"),
}


@dataclass(frozen=True)
class NewFile(Result):
    file: str
    kind: str  # mixer or task
    name: str  # its name in specs and --tasks
    next: str  # the command that shows what it does


def new_file(kind: str, path: Path) -> NewFile:
    """Write a working mixer or task into a new file. An existing file is never overwritten."""
    require_known(kind, TEMPLATES, "cannot make a new", ", plugin")
    if path.suffix != ".py" or not path.stem.isidentifier():
        rules = "letters, digits and underscores, and .py at the end"
        raise UserError(f"{path} is not the name of a Python file: {rules}, such as my_{kind}.py.")
    name = path.stem.replace("_", "-")
    if name in listing(f"{kind}s", describe=False).names:
        raise UserError(
            f"there is a {kind} '{name}' already, and the file's name becomes its name: choose another one."
        )
    template, look_with = TEMPLATES[kind]
    with _new(path), path.open("x", encoding="utf-8") as file:
        file.write(_template(template, f"my-{kind}", name))
    return NewFile(str(path), kind, name, f"{look_with} {path}")


@dataclass(frozen=True)
class NewPlugin(Result):
    folder: str
    files: tuple[str, ...]


def new_plugin(folder: str | Path) -> NewPlugin:
    """Write a package of that name into a new folder: pyproject, source, tests. Existing files are never
    overwritten."""
    folder = Path(folder)
    name, module = folder.name.replace("_", "-"), folder.name.replace("-", "_")
    if not module.isidentifier() or module != module.lower():
        raise UserError(f"{folder} is not a valid package name; use lower-case letters, such as my-mixers.")
    texts = {
        "pyproject.toml": PYPROJECT.format(name=name, module=module, plait=__version__),
        "README.md": README.format(name=name),
        f"src/{module}/__init__.py": "",
        f"src/{module}/mixer.py": _template("model/mixer_template.txt", "my-mixer", f"{name}-mixer"),
        f"src/{module}/task.py": _template("tasks/task_template.txt", "my-task", f"{name}-task"),
        f"tests/test_{module}.py": TESTS.format(name=name),
    }
    with _new(folder):
        folder.mkdir(parents=True)
        for path, text in texts.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
    return NewPlugin(str(folder), tuple(texts))


@contextmanager
def _new(target: Path) -> Iterator[None]:
    """Around code that writes a file or folder that must not exist yet."""
    try:
        yield
    except FileExistsError:
        raise UserError(f"{target} exists already; choose another name.") from None
    except OSError as wrong:
        raise UserError(f"cannot write {target}: {wrong.strerror}.") from None


def _template(path: str, old: str, new: str) -> str:
    return (files("plait") / path).read_text(encoding="utf-8").replace(old, new)
