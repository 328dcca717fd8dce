"""A key stands for what was asked, all of it and nothing else."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from plait.core.errors import UserError
from plait.records import Record, record_key

CONFIG: dict[str, Any] = {"protocol": 1, "spec": "d=64 | attn", "seed": 0, "task": {"name": "copy", "lengths": [1, 2]}}


def test_the_order_of_fields_is_no_matter() -> None:
    turned = {name: CONFIG[name] for name in reversed(CONFIG)}
    turned["task"] = {"lengths": [1, 2], "name": "copy"}
    assert record_key("probe", turned) == record_key("probe", CONFIG)


@pytest.mark.parametrize(
    "change",
    [
        {"protocol": 2},
        {"seed": 1},
        {"seed": "0"},
        {"seed": False},
        {"task": {"name": "copy", "lengths": [2, 1]}},
        {"lr": 0.1},
    ],
    ids=str,
)
def test_another_config_has_another_key(change: dict[str, Any]) -> None:
    assert record_key("probe", CONFIG | change) != record_key("probe", CONFIG)


def test_another_kind_has_another_key() -> None:
    assert record_key("train", CONFIG) != record_key("probe", CONFIG)


def test_neighbouring_floats_differ() -> None:
    assert record_key("probe", CONFIG | {"lr": 0.1 + 0.2}) != record_key("probe", CONFIG | {"lr": 0.3})


def test_keys_stay_what_they_are() -> None:
    """A store holds keys for years: this one must never change."""
    assert record_key("probe", {"protocol": 1, "lr": 1e-05, "name": "é"}) == "ec85fce072e7c20dd3d19881468ff6f9"


def test_keys_do_not_depend_on_the_process() -> None:
    program = f"from plait.records import record_key; print(record_key('probe', {CONFIG!r}))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == record_key("probe", CONFIG)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float("nan"), "config.x is nan"),
        ([0.0, float("inf")], "config.x.1 is inf"),
        ((1, 2), "config.x is a tuple"),
        ({"a": {3: 4}}, "config.x.a has the field 3"),
        ({1, 2}, "config.x is a set"),
        (b"x", "config.x is a bytes"),
    ],
)
def test_what_json_cannot_hold_is_refused(value: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        record_key("probe", CONFIG | {"x": value})


@pytest.mark.parametrize("protocol", [None, True, "1", 1.0])
def test_a_config_says_which_protocol(protocol: Any) -> None:
    with pytest.raises(UserError, match="needs the whole number 'protocol'"):
        record_key("probe", CONFIG | {"protocol": protocol})


def test_a_record_gets_its_key() -> None:
    made = Record.of("probe", CONFIG, {"loss": 1.0}, {})
    assert made.key == record_key("probe", CONFIG)
    assert made.document() == {"key": made.key, "kind": "probe", "config": CONFIG, "result": {"loss": 1.0}, "about": {}}
