"""CONTRIBUTING.md: each thing it says how to add is added from a package of its own, and used through the real code."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import plait
from plait.algorithms.proxies import PROXIES
from plait.cli.main import VERBS, app
from plait.data import open_corpus
from plait.data.corpora import NAMED
from plait.device import quantities
from plait.device.measurements import Measurements, values
from plait.device.quantities import QUANTITIES, Setting
from plait.evals.evaluation import EVALUATIONS, Subject, load_evaluation
from plait.mixers.table import MIXERS
from plait.model import build
from plait.model.language_model import LanguageModel
from plait.records import open_store
from plait.searching.job import METHODS, Request, search_front
from plait.space.declaration import Declaration
from plait.space.objective_table import OBJECTIVES
from plait.space.space import Space
from plait.space.table import SPACES
from plait.tasks.task import TASKS
from plait.training.fit import fit_alone
from plait.training.recipe import OPTIMIZERS, Budget, Job, Recipe, fitted

ROOT = Path(__file__).resolve().parent.parent
GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
TABLES = (MIXERS, TASKS, OBJECTIVES, METHODS, OPTIMIZERS, EVALUATIONS, VERBS, SPACES, PROXIES, QUANTITIES, NAMED)
MODULES = dict(re.findall(r"```python\n# (\w+)\.py\n(.*?)```", GUIDE, re.DOTALL))
POINTS = {
    "plait.mixers": "scratch-mixer = scratch_mixer:MyMixer",
    "plait.tasks": "scratch-task = scratch_task:MyTask",
    "plait.objectives": "idle = scratch_objective:Idle",
    "plait.methods": "one-look = scratch_algorithm:OneLook",
    "plait.optimizers": "adamax = scratch_optimizer:adamax",
    "plait.evaluations": "surprise = scratch_evaluation:Surprise",
    "plait.quantities": "objects = scratch_quantity:LINE",
    "plait.corpora": "poems = scratch_corpus:poems",
    "plait.verbs": "params = scratch_verb:command",
}


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The guide's examples and templates as an installed package; what the tables learn of it is forgotten after."""
    for name, text in MODULES.items():
        (tmp_path / f"scratch_{name}.py").write_text(text)
    for kind in ("mixer", "task"):
        made = CliRunner().invoke(app, ["new", kind, str(tmp_path / f"scratch_{kind}.py")])
        assert made.exit_code == 0, made.output
    metadata = tmp_path / "scratch-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: scratch\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("\n".join(f"[{group}]\n{line}\n" for group, line in POINTS.items()))
    (tmp_path / "poems.txt").write_text("The fog comes on little cat feet.\n" * 400)
    known = {id(table): dict(table._registered) for table in TABLES}
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    quantities._discover.cache_clear()
    yield tmp_path
    quantities._discover.cache_clear()
    for table in TABLES:
        table._registered.clear()
        table._registered.update(known[id(table)])
    for name in [name for name in sys.modules if name.startswith("scratch_")]:
        del sys.modules[name]


@pytest.fixture
def space() -> Space:
    slots = [["attn[heads=2]", "gla[heads=2]"], ["moe[experts=2|4,active=1,inner=16]"]]
    return Space(Declaration("tiny", "1..3", "16|32", slots, "vocab=32", seq=16))


def test_every_file_and_table_of_the_guide_is_there() -> None:
    rows = re.findall(r"^\| (\w+) \| (.+?) \| (.+?) \| (.+?) \|$", GUIDE, re.MULTILINE)
    kinds = [kind for kind, *_ in rows if kind != "to"]
    assert kinds == ["mixer", "task", "objective", "quantity", "algorithm", "optimizer", "corpus", "evaluation", "verb"]
    for kind, written, line, _ in rows[-len(kinds) :]:
        files = {*re.findall(r"`(src/\S+\.py)`", written), *re.findall(r"`(src/\S+\.py)`", line)}
        assert len(files) <= 3, kind
        for file in files:
            assert (ROOT / file).is_file() or ("NAME" in file and (ROOT / file).parent.is_dir()), file
        table, home = re.findall(r"`([^`]+)`", line)
        assert table in (ROOT / home).read_text(encoding="utf-8"), kind
    groups = {table.group for table in TABLES}
    assert set(re.findall(r"`(plait\.\w+)`", GUIDE)) - {"plait.train", "plait.training"} == groups


def test_a_mixer(scratch: Path) -> None:
    assert plait.cost("d=16 vocab=8 | scratch-mixer swiglu").total_params > 0
    checked = CliRunner().invoke(app, ["check", "scratch-mixer", "--no-speed"])
    assert checked.exit_code == 0, checked.output
    assert "the contract holds" in checked.output


def test_a_task(scratch: Path) -> None:
    drawn = CliRunner().invoke(app, ["task", "show", "scratch-task", "--json"])
    assert drawn.exit_code == 0, drawn.output
    assert "scratch-task" in drawn.output


def test_an_objective_and_an_algorithm(scratch: Path, space: Space, tmp_path: Path) -> None:
    request = Request(
        space, Setting(seq=16), objectives=["idle", "decoder_params"], method="one-look", iterations=1, seed=3
    )
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        record = search_front(request, None, store, tmp_path)
        assert search_front(request, None, store, tmp_path) == record
    rows = record.result["front"]
    assert record.config["method"] == "one-look"
    for row in rows:
        cost = plait.cost(row["spec"])
        assert row["idle"] == cost.total_params - cost.active_params > 0


def test_a_quantity(scratch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QUANTITIES, "lines", {})  # alone: the others take seconds to measure
    listed = CliRunner().invoke(app, ["list", "quantities"])
    assert "objects" in listed.output
    assert "Python objects of a model" in listed.output
    with open_store(f"sqlite:///{tmp_path}/store.db") as store, Measurements(store, Setting(seq=8)) as meters:
        small = values(meters.measure("d=16 vocab=16 | attn[heads=2]"))
        large = values(meters.measure("d=16 vocab=16 | (attn[heads=2] swiglu)x8"))
    assert 0 < small["objects"] < large["objects"]


def test_a_corpus(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAIT_CACHE", str(scratch / "cache"))
    corpus = open_corpus("poems")
    assert corpus.tokenizer.decode(corpus.tokens("train")[:7]) == "The fog"
    with pytest.raises(plait.UserError, match=r"no corpus 'poens'.*Did you mean 'poems'"):
        open_corpus("poens")


#: Kind, as `plait list` names it, and the scratch package's thing.
KINDS = {
    "mixers": "scratch-mixer", "tasks": "scratch-task", "objectives": "idle", "quantities": "objects",
    "methods": "one-look", "optimizers": "adamax", "evaluations": "surprise", "corpora": "poems",
}  # fmt: skip


def test_lists_say_where_each_thing_comes_from(scratch: Path) -> None:
    for kind, name in KINDS.items():
        rows = {row["name"]: row for row in plait.listing(kind).rows()}
        assert rows[name]["from"] == "scratch 1.0", kind
        assert {row["from"] for key, row in rows.items() if key != name} == {"plait"}, kind
        assert "scratch 1.0" in CliRunner().invoke(app, ["list", kind], env={"COLUMNS": "300"}).output, kind


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("raise OSError('no meter')", "does not load: OSError: no meter"),
        ("LINE = 5", "is not a plait.device.quantities.Quantity."),
    ],
)
def test_a_faulty_quantity_stops_nothing_else(scratch: Path, text: str, fault: str) -> None:
    (scratch / "scratch_quantity.py").write_text(text)
    assert "latency" in quantities.on_device()
    listed = plait.listing("quantities")
    assert "latency" in listed.names
    (told,) = listed.faults
    assert told == f"the quantity 'objects' of scratch 1.0 (scratch_quantity:LINE) {fault}"


@pytest.mark.parametrize("kind", KINDS)
def test_a_faulty_package_is_named_and_the_rest_is_listed(scratch: Path, kind: str) -> None:
    """One faulty thing, and `plait list` showed nothing of its kind, not even plait's own."""
    metadata = scratch / "scratch-1.0.dist-info" / "entry_points.txt"
    metadata.write_text(f"[plait.{kind}]\n{KINDS[kind]} = builtins:None\n")
    listed = CliRunner().invoke(app, ["list", kind])
    assert listed.exit_code == 0, listed.output
    assert len(listed.stdout.splitlines()) > 3
    assert f"'{KINDS[kind]}' of scratch 1.0 (builtins:None) " in " ".join(listed.stderr.split())


def test_a_faulty_corpus_is_not_mistaken_for_another(scratch: Path) -> None:
    (scratch / "scratch_corpus.py").write_text("raise OSError('no poems')")
    with pytest.raises(plait.UserError, match=r"no corpus 'poens': neither a known name nor a file"):
        open_corpus("poens")
    with pytest.raises(plait.UserError, match=r"the corpus 'poems' of scratch 1.0 .* does not load: OSError: no poems"):
        open_corpus("poems")


def test_an_optimizer(scratch: Path, tmp_path: Path) -> None:
    corpus = open_corpus("builtin:language")
    recipe = Recipe(batch=2, seq_len=16, optimizer="adamax")
    arch = fitted("d=16 | attn[heads=2] swiglu[inner=16]", corpus)
    job = Job(arch, corpus, recipe, Budget(steps=2), validation_tokens=64)
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        found = fit_alone(job, store, tmp_path)
    assert found.steps == 2
    with pytest.raises(plait.UserError, match=r"unknown optimizer 'adamx'.* Did you mean 'adamax'"):
        Recipe(optimizer="adamx")


def test_an_evaluation(scratch: Path) -> None:
    model = build("d=16 vocab=500 | attn[heads=2]", seed=0)
    assert isinstance(model, LanguageModel)
    text = np.random.default_rng(0).integers(500, size=300)
    evaluation = load_evaluation("surprise").with_settings({"tokens": "64"})
    found = evaluation.measure(Subject(model, text, 64))
    assert found["share"] > 0.9  # an untrained model gives a token about one in five hundred
    assert evaluation.table({"mine": found})[1] == [["mine", f"{found['share']:.3f}"]]
    assert "surprise" in CliRunner().invoke(app, ["list", "evaluations", "--names"]).output


def test_a_verb(scratch: Path) -> None:
    runner = CliRunner()
    assert "Count the parameters of an architecture." in runner.invoke(app, ["--help"]).output
    counted = runner.invoke(app, ["params", "d=16 vocab=8 | attn[heads=2]"])
    assert counted.exit_code == 0, counted.output
    assert int(counted.output) == plait.cost("d=16 vocab=8 | attn[heads=2]").total_params
    unknown = runner.invoke(app, ["parms", "d=16 vocab=8 | attn"]).exception
    assert isinstance(unknown, plait.UserError)
    assert "Did you mean 'params'?" in str(unknown)


@pytest.mark.parametrize("text", ["import no_such_thing", "command = 5", "command = max"])
def test_a_faulty_verb_leaves_the_help(scratch: Path, text: str) -> None:
    (scratch / "scratch_verb.py").write_text(text)
    shown = CliRunner().invoke(app, ["--help"])
    assert shown.exit_code == 0, shown.output
    assert "Count the parameters" not in shown.stdout
    assert "Train a model." in shown.stdout
    asked = CliRunner().invoke(app, ["params", "d=16 vocab=8 | attn"]).exception
    assert isinstance(asked, plait.UserError)
    assert str(asked).startswith("the verb 'params' of scratch 1.0 (scratch_verb:command) ")
