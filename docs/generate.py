"""Writes what the pages state about the code, from the code: `make docs`.

A page marks such a part with `<!-- begin NAME -->` and `<!-- end NAME -->`; `PARTS` says who writes it. Outputs of
examples are brought up to date too (`examples.py`). With `--check` nothing is written: the differences are printed
and the exit code is 1 if there are any. Names choose pages: `python docs/generate.py commands api` takes seconds, all
pages with their examples take minutes.
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
import json
import math
import re
import sys
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from api_page import api
from benchmarks_page import peers, results
from examples import StaleExample, plait, refreshed
from reproduction_page import reproduction

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "plait"
PART = re.compile(r"<!-- begin (?P<name>[\w-]+) -->\n.*?<!-- end (?P=name) -->", re.DOTALL)


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def up_to_date(page: str) -> str:
    """The page with its generated parts and its examples' outputs as they should be."""
    return refreshed(filled(page))


def filled(page: str) -> str:
    return PART.sub(
        lambda m: f"<!-- begin {m['name']} -->\n{PARTS[m['name']]().strip()}\n<!-- end {m['name']} -->", page
    )


def rows(header: str, *body: tuple[Any, ...]) -> str:
    """A Markdown table; `header` is the cells' names, separated by bars."""
    names = header.split("|")
    lines = [names, ["---"] * len(names), *([_cell(value) for value in row] for row in body)]
    return "\n".join(f"| {' | '.join(cell.strip() for cell in line)} |" for line in lines)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return str(value).replace("|", r"\|")


def code(value: Any) -> str:
    """A default as the spec language writes it; an empty list has no spelling."""
    from plait.spec.header import format_value

    return f"`{format_value(value)}`" if value != () else "none"


# ---- README


def source_tree() -> str:
    """Every part of the package with the first sentence of its own docstring, then what stands beside it."""
    beside = {
        "tests/": "by package: tests/ops/test_gla.py tests ops/gla.py",
        "docs/": "the pages, and what writes and checks them",
        "benchmarks/": "measurements: `make bench`",
    }
    inside = {f"{part}/": first_sentence(PACKAGE / part / "__init__.py") for part in package_parts()}
    lines = ["src/plait/", *(f"  {name:<11} {what}" for name, what in inside.items())]
    return "```text\n" + "\n".join([*lines, *(f"{name:<13} {what}" for name, what in beside.items())]) + "\n```"


def package_parts() -> list[str]:
    """The packages under src/plait, in the order in which they build on each other."""
    order = list(storeys())
    found = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
    return sorted(found, key=lambda name: order.index(name) if name in order else len(order))


def first_sentence(path: Path) -> str:
    text = " ".join((ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split())
    return re.split(r"(?<=[.!])\s", text)[0].rstrip(".")


# ---- docs/reference/spec.md


def header_keys() -> str:
    from plait.spec import Header

    return rows(
        "key | default | allowed | what",
        *(
            (f"`{f.name}`", code(f.default), " ".join(f"`{c}`" for c in f.metadata["choices"]), f.metadata["about"])
            for f in fields(Header)
        ),
    )


def limits() -> str:
    """The bounds with their comments, which say what they bound."""
    from plait.spec import errors as module

    text = Path(module.__file__).read_text(encoding="utf-8")
    found = re.findall(r"^(MAX_\w+) = [^#\n]+?(?:  # (.+))?$", text, re.MULTILINE)
    return rows("limit | value | of", *((f"`{name}`", getattr(module, name), what) for name, what in found))


# ---- docs/howto/compare.md


def rate_transfer() -> str:
    """How well the best rate after a short training serves a four times longer one, of every architecture of the
    newest truth table."""
    path = sorted((ROOT / "benchmarks" / "results").glob("*-truth.json"))[-1]
    rates: dict[str, dict[float, list[float]]] = {}
    budgets: list[float] = []
    for row in json.loads(path.read_text(encoding="utf-8"))["rates"]:
        budgets = [tokens for tokens, _ in row["annealed"]]
        losses = [math.inf if loss is None else loss for _, loss in row["annealed"]]
        rates.setdefault(row["architecture"], {})[row["lr"]] = losses
    early, late = ({name: min(by, key=lambda lr: by[lr][i]) for name, by in rates.items()} for i in (0, -1))
    same = sum(early[name] == late[name] for name in rates)
    near = sum(0.5 <= early[name] / late[name] <= 2 for name in rates)
    chosen = [by[early[name]][-1] - by[late[name]][-1] for name, by in rates.items()]
    fixed = [by[0.002][-1] - by[late[name]][-1] for name, by in rates.items()]
    return rows(
        f"of {len(rates)} architectures | best after {budgets[0] / 1e6:.1f} M tokens | 0.002 for all",
        (f"is the best after {budgets[-1] / 1e6:.1f} M", same, sum(rate == 0.002 for rate in late.values())),
        ("within a factor of two of it", near, sum(0.001 <= rate <= 0.004 for rate in late.values())),
        ("nats lost, mean", f"{sum(chosen) / len(chosen):.4f}", f"{sum(fixed) / len(fixed):.4f}"),
        ("nats lost, most", f"{max(chosen):.4f}", f"{max(fixed):.4f}"),
    )


# ---- docs/howto/train.md


def recipe_keys() -> str:
    from plait.training.recipe import Recipe

    return rows(
        "key | default | allowed | what",
        *(
            (f"`{f.name}`", code(f.default), " ".join(f"`{c}`" for c in f.metadata["choices"]), f.metadata["about"])
            for f in fields(Recipe)
        ),
    )


# ---- docs/reference/mixers.md

WIDTH, TOKENS = 128, 1024


def mixer_overview() -> str:
    from plait.mixers import table as arch

    body = []
    for name in arch.names():
        options: Any = arch.load(name)()
        options.check(WIDTH)
        cost = options.cost(WIDTH, TOKENS)
        body.append((
            f"[`{name}`](#{name})", options.kind, int(cost.total_params), int(cost.total_flops // TOKENS),
            int(cost.fixed_state), int(cost.conv_state), int(cost.kv_cache),
        ))  # fmt: skip
    return rows("mixer|kind|parameters|FLOPs per token|fixed state|conv state|KV cache", *body)


def mixer_pages() -> str:
    from plait.mixers import table as arch

    shown: set[str] = set()
    text = []
    for name in arch.names():
        options = arch.load(name)
        text += [f"### {name}", _paragraphs(options.__doc__ or ""), f"{options.reference}."]
        if (equations := _equations(*options.module.split(":"))) not in shown:
            shown.add(equations)
            text.append(f"```text\n{equations}\n```")
        text.append(_options_table(options) if options.describe() else "It has no options.")
    return "\n\n".join(text)


def _equations(module: str, name: str) -> str:
    """Of a mixer's class where it has its own, else of its file."""
    path = PACKAGE.parent.joinpath(*module.split(".")).with_suffix(".py")
    file = ast.parse(path.read_text(encoding="utf-8"))
    own = next((ast.get_docstring(node) for node in file.body if getattr(node, "name", "") == name), None)
    return own if own and "Letters:" in own else ast.get_docstring(file) or ""


def _paragraphs(docstring: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in docstring.split("\n\n"))


def _options_table(options: Any) -> str:
    """Every option; of a mixer that is another with other defaults, only what differs."""
    from plait.mixers import table as arch

    base = options.__mro__[1]
    known = base.describe() if getattr(base, "name", None) in arch.names() else []
    least = {f.name: f.metadata["minimum"] for f in options.fields()}
    body = []
    for row in options.describe():
        if row in known:
            continue
        bound = least[row["option"]]
        allowed = " ".join(f"`{a}`" for a in row["allowed"]) or (f"≥ {bound:g}" if bound is not None else "")
        body.append((f"`{row['option']}`", row["type"], code(row["default"]), allowed, row["choices"], row["doc"]))
    differs = f"The options of [`{base.name}`](#{base.name}), but for these:\n\n" if known else ""
    return differs + rows("option | type | default | allowed | for a search | what", *body)


# ---- docs/reference/presets.md

#: How presets are named, what they are, and one of them. Every preset must fit exactly one row.
SCHEMES: dict[str, list[tuple[str, str, str]]] = {
    "gpt2": [(r"gpt2-\d+m", "GPT-2", "gpt2-124m")],
    "opt": [(r"opt-[\d.]+[mb]", "OPT (Table 1)", "opt-125m")],
    "open": [
        (
            r"(qwen3-next|kimi-linear|nemotron-[a-z0-9-]+b|minimax-01|olmo-hybrid|falcon-h1|hymba|samba)(-[\d.]+[mb])?",
            "hybrids",
            "qwen3-next",
        ),
        (r"(gpt-oss-[\d.]+[mb]|deepseek-v3)", "attention and experts", "deepseek-v3"),
        (r"(mamba|mamba2|mamba3|rwkv-7)-[\d.]+[mb]", "recurrent all through", "rwkv-7-1.5b"),
        (r"[a-z0-9.-]+", "attention and an MLP", "qwen3-0.6b"),
    ],
    "par": [
        (r"(txl|sandwich|par)-(base|large)", "WikiText-103 models (Tables 1, A1)", "par-base"),
        (r"(txl|sandwich|par)-24b-(enwik8|text8)", "24-block character models (Table 2)", "par-24b-enwik8"),
        (r"(bert-base|distilbert|par-bert-base)", "encoders (Table 3)", "par-bert-base"),
    ],
    "fox": [
        (r"(fox|transformer)-(llama|pro)-\d+m", "FoX and Transformer, LLaMA and Pro (Table 4)", "fox-pro-360m"),
        (r"(mamba2|hgrn2|deltanet|samba|swa)-\d+m", "the baselines", "samba-760m"),
        (r"fox-ablation-\d+", "the rows of Table 3, in order", "fox-ablation-8"),
    ],
    "mad": [
        (r"mad-[a-z-]+", "the 21 probe architectures (App. B.3)", "mad-striped-gla-moe"),
        (r"mad-(transformer|hyena|mh-hyena|mamba)-\d+m", "one mixer all through (Table C.2)", "mad-hyena-350m"),
        (r"mad-striped-(hyena|mamba)-1-\d+-\d+m", "1 attention block to n others (C.2)", "mad-striped-hyena-1-3-350m"),
        (r"mad-striped-hyena-(moe|experts)-\d+m", "with experts (Tables C.3, C.4)", "mad-striped-hyena-moe-350m"),
        (r"mad-topology-\d+", "the rows of Table D.1, in order", "mad-topology-7"),
    ],
    "lts": [
        (r"lts-(gpt2|xl)-(arm|corei7|titanxp)-M\d+", "found for a device (Tables 4 to 7)", "lts-gpt2-titanxp-M12"),
        (r"lts1-(gpt2|xl)-(arm|corei7|titanxp)-M\d+", "the same in the earlier version", "lts1-xl-arm-M1"),
        (r"lts-opt-(baseline|M\d+)", "against OPT-350M (Table 3)", "lts-opt-M1"),
        (r"lts-(gpt2|xl)-base-\d+", "the baselines at 1 to 16 layers", "lts-xl-base-4"),
    ],
}  # fmt: skip


def preset_families() -> str:
    from plait.spec import presets

    found: Any = presets.families()
    body = [(f"`{f['family']}`", f["what"], f["source"], len(f["presets"])) for f in found]
    return rows("family | what | paper | presets", *body, ("all", "", "", len(presets.names())))


def preset_names() -> str:
    from plait.spec import presets

    text = []
    for family in presets.families():
        names: Any = family["presets"]
        body = []
        left = set(names)
        for pattern, what, example in SCHEMES[str(family["family"])]:
            fitting = {name for name in left if re.fullmatch(pattern, name)}
            assert example in fitting, f"{example} is no example of {pattern}"
            left -= fitting
            shape = pattern.replace(r"\d+", "N").replace("[a-z-]+", "…").replace(r"[\d.]+[mb]", "N")
            body.append((f"`{shape}`", what, len(fitting), f"`{example}`"))
        assert not left, f"presets that no scheme describes: {sorted(left)[:5]}"
        what = str(family["what"])
        text += [f"### {family['family']}", f"{what[0].upper()}{what[1:]}. {family['source']}."]
        text.append(rows("name | what | presets | such as", *body))
        first = presets.describe(SCHEMES[str(family["family"])][0][2])
        text.append(f"`{first.name}` stands for\n\n```text\n{first.text}\n```")
    return "\n\n".join(text)


# ---- docs/tutorials


def example(name: str) -> str:
    """A script of examples/, as it is."""
    return f"```python\n{(ROOT / 'examples' / name).read_text(encoding='utf-8')}```"


#: Shown whole by a tutorial, which says what it prints.
SCRIPTS = ("best_under_a_latency", "compare_on_my_text", "scaling_plan", "results_as_tables", "sweep")


# ---- docs/reproduction.md, tutorials/your-mixer.md, concepts/design.md, reference/commands.md


def extras() -> str:
    """The optional dependencies, each with the comment above it, which may be that of several."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    text = text.split("[project.optional-dependencies]\n")[1].split("\n\n[")[0]
    body, why = [], ""
    for line in re.sub(r"\[\n(.*?)\n\]", lambda m: f"[{' '.join(m[1].split())}]", text, flags=re.DOTALL).splitlines():
        if line.startswith("#"):
            why = line[2:]
        elif found := re.match(r"(\w+) = (\[.*\])", line):
            packages = re.findall(r'"([A-Za-z][\w-]*)', found[2])
            body.append((f"`{found[1]}`", why.rstrip("."), packages))
    return rows("extra | for | brings", *body)


def checks() -> str:
    from plait.model.contract import CHECKS

    return rows("check | what must hold", *((name, _paragraphs(test.__doc__ or "")) for name, test in CHECKS.items()))


def storeys() -> dict[str, str]:
    """The packages, lowest first, and where torch may be imported in each, as the layer test has it."""
    path = ROOT / "tests" / "test_layers.py"
    found = importlib.util.spec_from_file_location("layer_table", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module  # its dataclasses look themselves up
    found.loader.exec_module(module)
    table: dict[str, str] = module.LAYERS
    return table


def layers() -> str:
    words = {"never": "no", "inside": "inside functions", "yes": "yes"}
    body = [
        (f"`{name}`", words[torch], first_sentence(PACKAGE / name / "__init__.py")) for name, torch in storeys().items()
    ]
    return rows("package | torch | holds", *body)


def verbs() -> list[str]:
    """The commands that `plait` has; those of a group with its name before theirs."""
    from typer.main import get_command

    from plait.cli.main import app

    found: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    inside = {name: list(getattr(command, "commands", [""])) for name, command in found.items()}
    return [f"{name} {rest}".strip() for name, commands in inside.items() for rest in commands]


def help_pages() -> str:
    text = []
    for words in ([], *(verb.split() for verb in verbs())):
        title = " ".join(["plait", *words])
        shown = "\n".join(line.rstrip() for line in plait(*words, "--help").strip("\n").splitlines())
        text.append(f"## {title}\n\n```text\n{shown.strip()}\n```")
    return "\n\n".join(text)


def controls() -> str:
    from plait.tasks.controls import CONTROLS

    body = [
        (f"`{task}`", f"`{one.model}`", one.setting, one.recipe, f"{one.accuracy:.3f}", "" if one.solves else "no")
        for task, one in CONTROLS.items()
    ]
    return rows("task | sequence mixers | setting | training | accuracy | solved", *body)


PARTS = {
    "controls": controls,
    "rate-transfer": rate_transfer,
    "tree": source_tree,
    "header-keys": header_keys,
    "recipe": recipe_keys,
    "limits": limits,
    "mixer-overview": mixer_overview,
    "mixers": mixer_pages,
    "preset-families": preset_families,
    "preset-names": preset_names,
    "reproduction": reproduction,
    "peers": peers,
    "benchmark-results": results,
    "checks": checks,
    "extras": extras,
    "layers": layers,
    "commands": help_pages,
    "api": api,
    **{f"example-{name}": partial(example, f"{name}.py") for name in SCRIPTS},
}


def main(chosen: list[str], check: bool) -> int:
    """Of the pages whose names are `chosen`, or of all."""
    wrong = 0
    for path in [path for path in pages() if not chosen or path.stem in chosen]:
        name, before = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        try:
            after = up_to_date(before)
        except StaleExample as stale:
            print(f"{name}: {stale}", file=sys.stderr)
            wrong += 1
            continue
        if after == before:
            continue
        if check:
            wrong += 1
            sys.stdout.writelines(difflib.unified_diff(before.splitlines(True), after.splitlines(True), name, name))
        else:
            path.write_text(after, encoding="utf-8")
            print(f"{name} rewritten")
    return 1 if wrong else 0


if __name__ == "__main__":
    names = [argument for argument in sys.argv[1:] if argument != "--check"]
    if unknown := set(names) - {path.stem for path in pages()}:
        sys.exit(f"there is no page {', '.join(sorted(unknown))}; give names such as commands, api, README.")
    sys.exit(main(names, "--check" in sys.argv[1:]))
