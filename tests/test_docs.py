"""The pages cannot lie: what is generated is up to date, examples run, links lead somewhere, nothing is left out."""

from __future__ import annotations

import difflib
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "docs"))
examples = importlib.import_module("examples")
generate = importlib.import_module("generate")
reproduction_page = importlib.import_module("reproduction_page")

PAGES = {path.relative_to(ROOT).as_posix(): path for path in generate.pages()}
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


#: Their examples train, search and export for half a minute or more.
LONG = {f"docs/howto/{name}.md" for name in ("compare", "eval", "export", "generate", "measure", "search")}
LONG |= {
    f"docs/tutorials/{name}.md" for name in ("best-under-a-latency", "compare-on-my-text", "scaling-plan", "sweep")
}
LONG |= {"docs/concepts/fleet.md", "docs/reproduction.md", "docs/tutorials/results-to-pandas.md"}


@pytest.mark.parametrize("page", [pytest.param(p, marks=pytest.mark.slow) if p in LONG else p for p in PAGES])
def test_page_is_up_to_date_and_its_examples_run(page: str) -> None:
    written = PAGES[page].read_text(encoding="utf-8")
    now = generate.up_to_date(written)
    difference = "".join(difflib.unified_diff(written.splitlines(True), now.splitlines(True), page, "make docs"))
    assert not difference, f"stale; run `make docs`:\n{difference}"


def test_every_command_is_documented() -> None:
    from typer.main import get_command

    from plait.cli.main import app

    page = PAGES["docs/reference/commands.md"].read_text(encoding="utf-8")
    documented = re.findall(r"^## plait (\S.*)$", page, re.MULTILINE)
    assert sorted(documented) == sorted(_commands(get_command(app)))
    for verb in documented:
        assert f"Usage: plait {verb}" in page


def _commands(group: Any) -> Iterator[str]:
    for name, command in group.commands.items():
        inner = _commands(command) if hasattr(command, "commands") else [""]
        yield from (f"{name} {rest}".strip() for rest in inner)


def modules_imported(text: str) -> set[str]:
    """The modules of plait, but for plait itself, that a page's Python examples import."""
    blocks = "".join(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    return set(re.findall(r"^\s*(?:from|import) (plait\.[\w.]+)", blocks, re.MULTILINE))


def test_examples_import_from_the_front_door_and_a_dozen_modules() -> None:
    used = {page: modules_imported(path.read_text(encoding="utf-8")) for page, path in PAGES.items()}
    assert not used["README.md"]
    assert len(set().union(*used.values())) <= 12, used


def test_imports_of_examples_are_found() -> None:
    page = (
        fenced("python", "import plait\nfrom plait.model import build\nimport plait.spec  # for this\n")
        + "import plait.x"
    )
    assert modules_imported(page) == {"plait.model", "plait.spec"}


def test_the_front_door_has_its_page() -> None:
    import plait

    page = PAGES["docs/reference/api.md"].read_text(encoding="utf-8")
    assert set(re.findall(r"^## plait\.(\w+)$", page, re.MULTILINE)) == {*plait.DOOR, *plait.GROUPS}


def test_readme_prints_the_tree_that_is_there() -> None:
    tree = re.search(r"begin tree -->\n```text\n(.*?)```", PAGES["README.md"].read_text(encoding="utf-8"), re.DOTALL)
    assert tree is not None
    printed = dict(re.findall(r"^  (\w+)/ +(\S.*)$", tree.group(1), re.MULTILINE))
    assert set(printed) == {path.parent.name for path in (ROOT / "src" / "plait").glob("*/__init__.py")}
    for folder in re.findall(r"^(\w\S*)/", tree.group(1), re.MULTILINE):
        assert (ROOT / folder).is_dir(), folder


def test_the_index_leads_to_every_page() -> None:
    index = PAGES["docs/index.md"].read_text(encoding="utf-8")
    linked = {f"docs/{target}" for target in LINK.findall(index)}
    assert {name for name in PAGES if name not in ("README.md", "docs/index.md")} <= linked
    assert "docs/index.md" in LINK.findall(PAGES["README.md"].read_text(encoding="utf-8"))


def test_every_generated_part_has_its_place() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in PAGES.values())
    assert sorted(part["name"] for part in generate.PART.finditer(text)) == sorted(generate.PARTS)
    assert len(re.findall("<!-- (?:begin|end) ", text)) == 2 * len(generate.PARTS)


def test_the_reproduction_page_has_every_feature_and_class_x_is_covered() -> None:
    from plait.papers.verify import all_facts

    page = PAGES["docs/reproduction.md"].read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| ([LPMFC]\d\d(?:\.\d)?) \| \S+ \| .* \| (\w[\w ]+) \| `", page, re.MULTILINE))
    facts = {fact.id: fact for fact in all_facts()}
    features = reproduction_page.features()
    assert len({feature.id for feature in features}) == len(features) == 130
    assert {feature.id for feature in features} <= set(listed)
    for feature in features:
        fact = facts.get(feature.id)
        if feature.kind.startswith("X"):
            assert fact is not None, f"{feature.id} is exact, and no fact of `plait verify` has it"
            assert listed[feature.id] in ("reproduced", "exact part reproduced"), feature.id
        elif fact is None:
            assert feature.status in reproduction_page.STATUSES, feature.id
            assert feature.command, feature.id
    assert {id for id in facts if id[0] != "E"} <= set(listed)
    for id, fact in facts.items():
        assert fact.what.replace("|", r"\|") in page or id[0] == "E", f"{id} is told otherwise: `make docs`"
        assert id[0] != "E" or f"**{id}**" in page, id


def test_messages_that_are_explained_are_the_sources_own() -> None:
    page = PAGES["docs/troubleshooting.md"].read_text(encoding="utf-8").split("## Symptoms")[0]
    messages = re.findall(r"^\| (.+?) \| ", page.split("|---|---|---|")[1], re.MULTILINE)
    assert len(messages) > 12
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    sources = re.sub(r'"\s*\n\s*f?"', "", sources)  # a text that is written in pieces
    for message in messages:
        longest = max(re.split("…|mixer", message), key=len).strip(" .'?")
        assert longest in sources, message


def test_every_dependency_is_explained() -> None:
    declared = re.findall(r'^  "([A-Za-z-]+)>=[^"]*",?$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert len(declared) > 5
    page = PAGES["docs/concepts/design.md"].read_text(encoding="utf-8")
    assert [name for name in declared if name not in page] == []


def test_no_page_names_a_folder_of_this_machine() -> None:
    for page, path in PAGES.items():
        text = path.read_text(encoding="utf-8")
        assert not [folder for folder in (str(ROOT), "/tmp") if folder in text], page


def fenced(language: str, body: str) -> str:
    return f"```{language}\n{body}```\n"


def test_a_wrong_output_is_put_right() -> None:
    block = fenced("python", "print(6 * 7)\n")
    assert examples.refreshed(block + fenced("output", "41\n")) == block + fenced("output", "42\n")
    wrong = "$ plait list\nnothing\n$ make test\nas written\n"
    right = examples.refreshed(fenced("console", wrong))
    assert "nothing" not in right
    assert "mixers" in right
    assert "$ make test\nas written\n" in right  # what is no plait command is left alone


@pytest.mark.parametrize(
    ("page", "message"),
    [
        (fenced("python", "print(1)\n"), "shown nowhere"),
        (fenced("python", "print(1)\n") + fenced("python", "x = 1\n"), "shown nowhere"),
        (fenced("output", "1\n"), "no python block"),
        (fenced("python", "print('a b')\n") + fenced("output", "a [...] c\n"), "but it prints"),
    ],
)
def test_an_example_that_needs_a_person_says_so(page: str, message: str) -> None:
    with pytest.raises(examples.StaleExample, match=message):
        examples.refreshed(page)


def test_a_broken_example_is_an_error() -> None:
    with pytest.raises(ZeroDivisionError):
        examples.refreshed(fenced("python", "1 / 0\n"))


@pytest.mark.parametrize(
    ("written", "actual", "same"),
    [
        ("a [...] c\n", "a b c\n", True),
        ("a [...]\n", "a b\nc\n", False),  # within a line it stays in the line
        ("a\n[...]\nd\n", "a\nb\nc\nd\n", True),
        ("a\n[...]\nd\n", "a\nd\n", True),
        ("a\n[...]\nd\n", "a\nb\n", False),
        ("a.c\n", "abc\n", False),
    ],
)
def test_elisions(written: str, actual: str, same: bool) -> None:
    assert examples.matches(written, actual) == same
