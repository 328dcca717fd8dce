"""`plait new mixer|task FILE`: a working mixer or task to start from."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from plait.core.errors import UserError, did_you_mean

#: Kind → its template, and the command to look at what was made.
TEMPLATES = {
    "mixer": ("model/mixer_template.txt", "plait check"),
    "task": ("tasks/task_template.txt", "plait task show"),
}


def command(
    kind: Annotated[str, typer.Argument(help="What to make: mixer or task.")],
    path: Annotated[Path, typer.Argument(help="The file to write, such as my_mixer.py.")],
) -> None:
    """Write a working template."""
    if kind not in TEMPLATES:
        raise UserError(f"cannot make a new '{kind}'.{did_you_mean(kind, TEMPLATES)} Known: {', '.join(TEMPLATES)}.")
    if path.suffix != ".py" or not path.stem.isidentifier():
        raise UserError(f"{path} is no Python module's name; give one such as my_{kind}.py.")
    template, look = TEMPLATES[kind]
    text = (files("plait") / template).read_text(encoding="utf-8")
    name = path.stem.replace("_", "-")
    try:
        # "x": a file that is there already is never overwritten.
        with path.open("x") as file:
            file.write(text.replace(f"my-{kind}", name))
    except FileExistsError:
        raise UserError(f"{path} exists already; choose another name.") from None
    except OSError as wrong:
        raise UserError(f"cannot write {path}: {wrong.strerror}.") from None
    print(f"{path} written. Try: {look} {path}")
