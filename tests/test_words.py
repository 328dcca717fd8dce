"""Words that only plait had for things the field has names for stay out of identifiers (docs/concepts/glossary.md)."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
#: The word → what to say instead.
BANNED = {
    "zygote": "fork server",
    "undecayed": "no weight decay",
    "davg": "front distance",
    "twins": "matched pairs",
    "wholefile": "atomic write",
    "brief": "config",
    "heard": "on_progress",
    "kit": "components",
    "mixes": "compositions",
    "confirmed": "validated",
    "dynamic_state": "kv_cache",
    "tail_state": "conv_state",
    "held_out_loss": "validation_loss",
}
#: `a` for `per`, as in tokens_a_step.
FOR_PER = re.compile(r"[a-z]s_a_(token|step|second|layer|model|sequence|task)\b")


def wrong_names(text: str) -> list[str]:
    """Identifiers that have a banned word as one of their words."""
    found = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", token.string).lower().strip("_")
            if FOR_PER.search(name) or any(re.search(rf"(^|_){word}(_|$)", name) for word in BANNED):
                found.append(token.string)
    return found


@pytest.mark.parametrize("package", sorted(path.parent.name for path in (ROOT / "src/plait").glob("*/__init__.py")))
def test_identifiers_use_the_fields_words(package: str) -> None:
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in (ROOT / "src/plait" / package).rglob("*.py")
        for name in wrong_names(path.read_text(encoding="utf-8"))
    }
    assert not found, f"docs/concepts/glossary.md has the words to use: {BANNED}"


def test_it_would_notice() -> None:
    assert wrong_names("find_twins(Brief(), tokens_a_step=3)") == ["find_twins", "Brief", "tokens_a_step"]
    assert wrong_names("matched_pairs(briefly, kite)  # twins and a brief") == []


def test_every_word_is_in_the_glossary() -> None:
    glossary = (ROOT / "docs" / "concepts" / "glossary.md").read_text(encoding="utf-8")
    for instead in BANNED.values():
        assert instead in glossary, instead
