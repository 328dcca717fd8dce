"""Tasks by name, and a user's own from one file; every mistake in it is a clear message."""

from __future__ import annotations

import pytest

from plait.core.errors import UserError
from plait.tasks import baseline, load, load_task, make_data, names

MINE = '''
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from plait.tasks import IGNORE, Examples, Task


@dataclass(frozen=True)
class Echo(Task):
    """Say the first token again at the end."""

    name: ClassVar[str] = "echo"
    steps: ClassVar[dict] = {"length": (16, 32)}
    length: int = 16
    train_size: int = 50

    @property
    def layout(self):
        return {"token": self.vocab, "insert": 1}

    def generate(self, stream, count, *, training):
        inputs_NT = stream.integers(self.vocab, size=(count, self.length)).astype(self.dtype)
        inputs_NT[:, -1] = self.vocab
        targets_NT = np.full_like(inputs_NT, IGNORE)
        targets_NT[:, -1] = inputs_NT[:, 0]
        return Examples(inputs_NT, targets_NT)

    def answers(self, inputs):
        return [IGNORE] * (len(inputs) - 1) + [inputs[0]]
'''


def written(tmp_path, text, name="mine.py"):
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def test_the_table_loads_every_task_under_its_name():
    assert [load(name).name for name in names()] == names()
    kinds = {name: baseline(name).model_kind for name in names()}
    assert kinds.pop("compression") == "autoencoder"
    assert set(kinds.values()) == {"lm"}


def test_a_users_task_is_one_file(tmp_path):
    task = load_task(written(tmp_path, MINE))
    assert [setting.label for setting in task.grid()] == ["baseline", "length=32"]
    data = make_data(task, 0, evaluation=20)
    assert data.ceiling == 1
    assert all(task.valid(*item) for item in zip(data.test.inputs_NT, data.test.targets_NT, strict=True))
    assert task.describe_token(16) == "insert"
    assert load_task(written(tmp_path, MINE) + ":Echo").key() == task.key()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 / 0", "does not run: ZeroDivisionError"),
        ("x = 1", "should hold one subclass of Task, found: none"),
        (MINE.replace('"echo"', '"compression"'), "is taken by a built-in task"),
        (MINE.replace('    name: ClassVar[str] = "echo"\n', ""), "has no `name`"),
        (MINE.replace("def answers", "def solves"), "Echo does not define answers"),
        (MINE.replace("train_size: int = 50", "train_size: int = 0"), "train_size=0"),
        (
            MINE.replace("    length: int = 16\n", "    length: int = 16\n    def check(self): 1 / 0\n"),
            "Echo.. fails: Zero",
        ),
    ],
)
def test_mistakes_in_the_file(tmp_path, text, message):
    with pytest.raises(UserError, match=message):
        load_task(written(tmp_path, text))


@pytest.mark.parametrize(
    ("given", "message"),
    [("nowhere.py", "no file"), ("in-context-recal", "Did you mean 'in-context-recall'"), ("zzz", "Known: in-context")],
)
def test_mistakes_in_the_name(given, message):
    with pytest.raises(UserError, match=message):
        load_task(given)


def test_one_of_several_classes_is_named(tmp_path):
    path = written(tmp_path, MINE + '\n\nclass Other(Echo):\n    name = "other"\n')
    with pytest.raises(UserError, match="found: Echo, Other"):
        load_task(path)
    assert load_task(f"{path}:Other").name == "other"
    with pytest.raises(UserError, match=r"no task class 'Othr'. Did you mean 'Other'"):
        load_task(f"{path}:Othr")


def test_a_token_that_is_none_of_the_tasks():
    with pytest.raises(UserError, match="its ids are 0 to 15"):
        baseline("in-context-recall").describe_token(16)
