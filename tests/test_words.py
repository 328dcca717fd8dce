"""Words that only plait had for things the field has names for stay out of identifiers (docs/concepts/glossary.md),
words that say nothing out of variables, and turns of phrase that a reader stumbles over out of pages and messages."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable
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


#: Names of variables that say nothing.
SAYS_NOTHING = ("found", "made", "one", "given", "each")


#: In pages and in what a user is shown: the phrase → what to say instead.
PROSE = {
    r"\b(?:is|are|was|were|been|be) told\b(?! apart)": "knows, is informed; or name the flag",
    r"\bg(?:o|oes|one|oing) on with\b": "resume",
    r"\bbeside\b": "next to",
    r"\bheld against\b": "compared with",
    r"\bthe least is\b": "must be at least",
    r"\bknown are\b": "known:",
    r"\blikelie(?:r|st)\b": "more likely, most likely",
    r"\banew\b": "again",
    r", too(?=[.,;:)])": "also",
    r"\bto be had\b": "possible",
    r"\bof one's own\b": "your own",
    r"(?<!here )\b(?:is|are) no (?!longer|more|less|other)": "is not a",
    r"(?<=[0-9}])%(?![0-9A-F]{2}|;)": "a space before the percent sign (core.units.percent)",
}
#: Titles of results, which stay as they were when measured.
TITLES_OF_RESULTS = ROOT / "docs" / "benchmarks.md"


def wrong_names(text: str) -> list[str]:
    """Identifiers that have a banned word as one of their words."""
    names = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", token.string).lower().strip("_")
            if FOR_PER.search(name) or any(re.search(rf"(^|_){word}(_|$)", name) for word in BANNED):
                names.append(token.string)
    return names


PACKAGES = sorted(path.parent.name for path in (ROOT / "src/plait").glob("*/__init__.py"))


def mistakes_in(package: str, wrong: Callable[[str], list[str]]) -> set[str]:
    """What is wrong with a package's sources, each with its file."""
    paths = (ROOT / "src/plait" / package).rglob("*.py")
    return {f"{path.relative_to(ROOT)}: {text}" for path in paths for text in wrong(path.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("package", PACKAGES)
def test_identifiers_use_the_fields_words(package: str) -> None:
    mistakes = mistakes_in(package, wrong_names)
    assert not mistakes, f"docs/concepts/glossary.md has the words to use: {BANNED}"


def others_use(tree: ast.Module) -> set[ast.AST]:
    """The fields of classes and the parameters of public functions: changing their names would break callers."""
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    inner = {node for function in functions for node in ast.walk(function) if node is not function}
    public = [node for node in functions if node not in inner and not re.match("_(?!_)", node.name)]
    parameters = [node for function in public for node in ast.iter_child_nodes(function.args)]
    lines = [line for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for line in node.body]
    fields = [
        node for line in lines if isinstance(line, (ast.Assign, ast.AnnAssign)) for node in ast.iter_child_nodes(line)
    ]
    return {*parameters, *fields}


def wrong_variables(text: str) -> list[str]:
    """Variables and parameters whose name says nothing, with their lines."""
    tree = ast.parse(text)
    kept = others_use(tree)
    wrong = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name: str | None = node.id
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)):
            name = node.name
        else:
            continue
        if name in SAYS_NOTHING and node not in kept:
            wrong.append((node.lineno, name))
    return [f"line {line}: {name}" for line, name in sorted(wrong)]


def test_variables_say_what_they_are() -> None:
    mistakes = mistakes_in("", wrong_variables)
    assert not mistakes, "\n".join(["Name what the thing is (records, row, candidate, path):", *sorted(mistakes)])


def prose_of_page(text: str) -> str:
    """A Markdown page in one line, without its code."""
    text = re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))
    return " ".join(text.split())


def strings_of(text: str) -> list[str]:
    """Texts of three words and more in a source that are no docstrings: messages, help, parts of pages."""
    tree = ast.parse(text)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    first = [node.body[0] for node in ast.walk(tree) if isinstance(node, documented) and node.body]
    docstrings = {id(node.value) for node in first if isinstance(node, ast.Expr)}
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docstrings]
    return [node.value for node in constants if isinstance(node.value, str) and len(node.value.split()) > 2]


def wrong_prose(text: str) -> list[str]:
    matches = ((match, instead) for phrase, instead in PROSE.items() for match in re.finditer(phrase, text))
    return [f"…{text[max(0, m.start() - 30) : m.end() + 20]}…: {instead}" for m, instead in matches]


def test_pages_are_in_plain_english() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    texts = {page: prose_of_page(page.read_text(encoding="utf-8")) for page in pages if page != TITLES_OF_RESULTS}
    mistakes = {str(page.relative_to(ROOT)): wrong for page, text in texts.items() if (wrong := wrong_prose(text))}
    assert not mistakes


def wrong_messages(source: str) -> list[str]:
    texts = [text for text in strings_of(source) if "/beside?" not in text]  # an address
    return [wrong for text in texts for wrong in wrong_prose(text)]


@pytest.mark.parametrize("package", PACKAGES)
def test_messages_are_in_plain_english(package: str) -> None:
    mistakes = mistakes_in(package, wrong_messages)
    assert not mistakes


def test_it_would_notice_prose() -> None:
    for wrong in (
        "it is told so",
        "this is no store",
        "the table beside it",
        "53% of it",
        "and this one, too.",
        "likeliest",
    ):
        assert wrong_prose(wrong), wrong
    for right in ("cannot be told apart", "there is no file", "it is no longer there", "53 % of it", ", too few"):
        assert not wrong_prose(right), right
    assert strings_of('def f():\n    """A docstring of words."""\n    raise ValueError("it is no store")\n') == [
        "it is no store"
    ]


def test_it_would_notice() -> None:
    assert wrong_names("find_twins(Brief(), tokens_a_step=3)") == ["find_twins", "Brief", "tokens_a_step"]
    assert wrong_names("matched_pairs(briefly, kite)  # twins and a brief") == []


def test_it_would_notice_variables() -> None:
    wrong = """
def search(given):
    for one in given:
        made = [each for each in one if (found := each)]

    def inner(*, given): ...
    try: ...
    except ValueError as found: ...

def _search(given): return lambda one: one
"""
    assert [line.removeprefix("line ") for line in wrong_variables(wrong)] == [
        "3: one", "4: each", "4: found", "4: made", "6: given", "8: found", "10: given", "10: one",
    ]  # fmt: skip
    right = """
class Setting:
    given: str
    made = ""

    def __init__(self, given): self.found = given.one
    def search(self, *given, found=None): return dict(each=given)
"""
    assert wrong_variables(right) == []


def test_every_word_is_in_the_glossary() -> None:
    glossary = (ROOT / "docs" / "concepts" / "glossary.md").read_text(encoding="utf-8")
    for instead in BANNED.values():
        assert instead in glossary, instead
