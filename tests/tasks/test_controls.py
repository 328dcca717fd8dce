"""Controls are of tasks that there are, at settings that can be drawn, and of mixers that there are."""

from __future__ import annotations

import pytest

from plait.model.architecture import architecture
from plait.tasks import SUITES, baseline
from plait.tasks.controls import CONTROLS, Control
from plait.tasks.task import stream


def test_every_task_beside_mads_has_one() -> None:
    assert set(CONTROLS) == {task for suite, tasks in SUITES.items() if suite != "mad" for task in tasks}


@pytest.mark.parametrize("name", CONTROLS)
def test_the_setting_and_the_model_are_there(name: str) -> None:
    control = CONTROLS[name]
    task = baseline(name).with_settings(dict(pair.split("=") for pair in control.setting.split()))
    assert task.name == name
    assert architecture(f"d=128 vocab=8 | {control.model.split()[0]}").text
    assert 0 < control.accuracy <= control.ceiling
    assert control.solves
    if not task.ceiling_by_training:
        nothing = task.generate(stream("ceiling"), 1, training=False)
        assert control.ceiling == pytest.approx(task.ceiling(nothing, nothing), abs=5e-4)


def test_what_does_not_solve_is_marked() -> None:
    assert str(Control("attn[canon=ab] x2", "", "", 0.94)) == "none (attn 0.94)"
    assert str(Control("attn x2", "", "", 0.94, 0.96)) == "attn 0.94"
