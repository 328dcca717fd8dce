"""What a training is, said in full."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from plait.core.errors import UserError
from plait.training.recipe import Budget
from plait.training.run import Run

sys.path.insert(0, str(Path(__file__).parent))
from small_job import small_job


@pytest.mark.parametrize("length", [{"tokens": math.nan}, {"tokens": math.inf}, {"flops": math.inf}, {"steps": 0}])
def test_a_length_is_a_positive_number(length: dict[str, float]) -> None:
    with pytest.raises(UserError, match="positive and finite"):
        Budget(**length)  # type: ignore[arg-type]


def test_more_steps_than_anyone_has_are_refused() -> None:
    with pytest.raises(UserError, match="--steps 99999999999999999999: at most"):
        Budget(steps=99999999999999999999)


def test_the_key_of_a_training_stays_what_it_is() -> None:
    """Else nothing stored is found again: a change of what a result means raises PROTOCOL, and changes this key."""
    job = small_job()
    assert job.config()["data"] == {
        "fingerprint": job.corpus.fingerprint,
        "tokenizer": job.corpus.tokenizer.as_dict(),
    }
    assert job.key == "55db4420d15c99200855bc669a4ef39c"


def test_a_run_of_before_says_length(tmp_path):
    """Its folder opens, and what asks for the length of training gets it."""
    run = Run(tmp_path)
    for recipe, expected in (({"length": 24}, 24), ({"seq_len": 32}, 32), ({}, None)):
        run.write_about({"key": "0" * 64, "config": {"spec": "attn", "recipe": recipe}})
        assert run.seq_len == expected
