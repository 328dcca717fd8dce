"""Every help page: each option has one meaning, one default, and a sentence of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from plait.cli.main import app

DEFAULT = re.compile(r"(?<!\\)\[default")


def commands(command: Any, path: str = "plait") -> Iterator[tuple[str, Any]]:
    """Of click, or of the copy inside typer."""
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, f"{path} {name}")


PAGES = dict(commands(get_command(app)))


def test_all_pages_are_read() -> None:
    assert {"plait design", "plait study shapes", "plait analyse ranks"} <= set(PAGES)


@pytest.mark.parametrize("path", PAGES)
def test_a_flag_means_one_thing(path: str) -> None:
    flags = [flag for option in PAGES[path].params for flag in (*option.opts, *option.secondary_opts)]
    assert len(flags) == len(set(flags)), sorted(flag for flag in flags if flags.count(flag) > 1)


@pytest.mark.parametrize("path", PAGES)
def test_a_default_is_shown_once(path: str) -> None:
    """rich takes what is in brackets for markup, and drops it, unless the bracket is escaped."""
    for option in PAGES[path].params:
        words = getattr(option, "help", "") or ""
        assert not DEFAULT.search(words), f"{option.opts}: write \\[default"
        if "[default" in words:
            none = option.default is None or option.default is False or option.default == ""
            assert none or getattr(option, "show_default", True) is False, (
                f"{option.opts}: {words} and {option.default}"
            )


@pytest.mark.parametrize("path", PAGES)
def test_help_is_a_sentence(path: str) -> None:
    for option in PAGES[path].params:
        words = (getattr(option, "help", "") or "").partition("\\[default")[0].strip()
        assert not words or words.endswith((".", "…")), f"{option.opts}: {words}"
