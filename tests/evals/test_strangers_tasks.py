"""A task file from a stranger: it may say what is asked and how it is scored, and runs no code of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from plait.core.errors import UserError
from plait.evals.harness import evaluate
from plait.model import build

sys.path.insert(0, str(Path(__file__).parent))
from test_harness import CHOICE_TASK, CHOICES, SPECS, TOKENS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "choices.jsonl").write_text("".join(json.dumps(item) + "\n" for item in CHOICES))
    (tmp_path / "theirs.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w').close()\ndef f(doc):\n    return doc['question']\n"
    )
    return tmp_path


def run(folder: Path, text: str, *, trust: bool = False) -> None:
    (folder / "task.yaml").write_text(text)
    evaluate(build(SPECS["attention"]), TOKENS, [folder / "task.yaml"], trust=trust)


FUNCTION = CHOICE_TASK.replace('"{{question}}?"', "!function theirs.f")


def test_functions_of_a_task_file_run_only_when_trusted(folder: Path) -> None:
    with pytest.raises(UserError, match=r"task\.yaml runs its own code \(!function\).*--trust"):
        run(folder, FUNCTION)
    (folder / "base.yaml").write_text(FUNCTION)
    with pytest.raises(UserError, match=r"base\.yaml runs its own code"):
        run(folder, "include: base.yaml\ntask: other\n")
    assert not (folder / "ran").exists()
    run(folder, FUNCTION, trust=True)
    assert (folder / "ran").exists()


@pytest.mark.parametrize(
    "expression",
    [
        "cycler.__init__.__globals__.os.system('touch FILE')",
        "''.__class__.__mro__[1].__subclasses__()",
        "self._TemplateReference__context",
        "question.__class__.__base__",
    ],
)
def test_templates_reach_nothing_but_the_item(folder: Path, expression: str) -> None:
    template = expression.replace("FILE", str(folder / "ran"))
    with pytest.raises(UserError, match=r"cannot (run|load) toy_choices"):
        run(folder, CHOICE_TASK.replace("{{question}}", "{{question}}{{ " + template + " }}"))
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("expression", ["'a' * 10**10", "10 ** (10 ** 10)", "[0] * 10**10"])
def test_templates_make_nothing_huge(folder: Path, expression: str) -> None:
    with pytest.raises(UserError, match=r"cannot (run|load) toy_choices: .* too large"):
        run(folder, CHOICE_TASK.replace("{{question}}", "{{question}}{{ " + expression + " }}"))


def test_metrics_are_the_harnesss_own(folder: Path) -> None:
    (folder / "acc").mkdir()
    (folder / "acc" / "acc.py").write_text((folder / "theirs.py").read_text())
    for wrong in ("metric: acc, hf_evaluate: true", f"metric: {folder / 'acc'}"):
        with pytest.raises(UserError, match="metric"):
            run(folder, CHOICE_TASK.replace("metric: acc,", wrong + ",") + "process_results: yes\n")
    assert not (folder / "ran").exists()
