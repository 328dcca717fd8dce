"""Trainings of a few steps need no long validation text: evaluating one takes ten times as long as they do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from plait.training.recipe import VALIDATION_TOKENS, Job

TOKENS = 2**12


@pytest.fixture(autouse=True, scope="module")
def _validation_is_short() -> Iterator[None]:
    """For the tests of a folder whose conftest.py imports this: `Job` has another default."""
    defaults = tuple(TOKENS if value == VALIDATION_TOKENS else value for value in Job.__init__.__defaults__ or ())
    assert defaults != Job.__init__.__defaults__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Job.__init__, "__defaults__", defaults)
        yield
