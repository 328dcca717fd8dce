"""What reaches a script is JSON, whatever the numbers."""

from __future__ import annotations

import json
import math

import pytest

from plait.cli.output import print_json


def test_numbers_that_json_has_not_are_null(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": math.nan, "b": [1.5, math.inf, {"c": (-math.inf, "NaN")}], "d": True})
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {
        "a": None, "b": [1.5, None, {"c": [None, "NaN"]}], "d": True,
    }  # fmt: skip
