"""`plait search` and `plait front`, on a simulated machine."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from plait.algorithms.evolution import LtsSearch
from plait.algorithms.search import Search
from plait.cli import front, search
from plait.core.errors import UserError
from plait.device import latency, memory
from plait.device.latency import Timing
from plait.device.memory import Memory
from plait.device.predictor import Predictor
from plait.device.profile import Profile
from plait.device.quantities import Setting
from plait.model.architecture import Architecture, architecture
from plait.records import Record, open_store
from plait.space.table import load_space

sys.path.insert(0, str(Path(__file__).parents[1] / "searching"))
from made_up import profile_of

TEXT = """
layers: 1..3
d: 32..128 step 32
header: vocab=64 tie=true
mixers: [attn[heads=2|4], gla[heads=2]]
channel: [mlp[inner=64|128], none]
seq: 32
"""
GPT = """
layers: 2..4
d: 32..64 step 32
header: vocab=64 tie=true
mixers: [attn[heads=2|4]]
channel: [mlp[inner=64..256 step 64]]
seq: 32
"""

app = typer.Typer()
app.command("search")(search.command)
app.add_typer(front.group, name="front")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PLAIT_STORE", raising=False)
    for name, text in (("mine", TEXT), ("gpt", GPT)):
        (tmp_path / f"{name}.txt").write_text(text)
        profile_of(load_space(str(tmp_path / f"{name}.txt")), Setting(seq=32)).save(tmp_path / f"{name}.json")
    return tmp_path


def run(*arguments: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False, env={"COLUMNS": "300", "NO_COLOR": "1"})
    assert result.exit_code == code, result.output
    return result


class Bench:
    """Stands for measuring: what the profile predicts, `slower` times; remembers what it measured."""

    slower = 1.0

    def __init__(self, profile: Path) -> None:
        self.predictor = Predictor(Profile.load(profile), Setting(seq=32))
        self.measured: list[str] = []

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *exception: object) -> None: ...

    def latency(self, arch: Architecture, setting: Setting) -> Timing:
        assert setting == Setting(seq=32)
        self.measured.append(arch.text)
        seconds = self.slower * float(self.predictor.latency([arch]).mean[0])
        return Timing(seconds, 0.99 * seconds, 1.01 * seconds, 0.01, 9, 1.0, 0.0, 0.5, False)

    def measure(self, arch: Architecture, setting: Setting) -> Memory:
        return Memory(int(self.predictor.memory([arch]).mean[0]), 0, 0, 0)


@pytest.fixture
def bench(here: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = Bench(here / "mine.json")
    monkeypatch.setattr(memory, "MemoryMeter", lambda: made)
    monkeypatch.setattr(latency, "measure_latency", made.latency)
    return made


SEARCH = ("search", "--space", "mine.txt", "--profile", "mine.json", "--iterations", "4", "--population", "30")
LIMITED = (*SEARCH, "--latency", "0.25ms", "--memory", "3MB")


def test_the_front_as_json(bench: Bench) -> None:
    found = json.loads(run(*LIMITED, "--front", "5", "--json").stdout)
    assert len(found["front"]) == found["measured"] == len(bench.measured) == 5
    assert found["evaluated"] >= 30
    assert found["cost"].keys() >= {"profile_seconds", "search_seconds", "measure_seconds"}
    for row in found["front"]:
        assert architecture(row["spec"]).text == row["spec"]
        assert row["latency_ms"]["measured"] == pytest.approx(row["latency_ms"]["predicted"])
        assert (
            row["latency_ms"]["interval"][0] < row["latency_ms"]["predicted"] < row["latency_ms"]["interval"][1] <= 0.6
        )
        assert row["memory_mb"]["interval"][1] <= 3
        assert row["within"] is True
        assert row["decoder_params"] > 0
    # Asked again, nothing is searched or measured; more of the front measures only what is new.
    assert json.loads(run(*LIMITED, "--front", "5", "--json").stdout) == found
    assert len(bench.measured) == 5
    more = json.loads(run(*LIMITED, "--front", "7", "--json").stdout)
    assert more["key"] == found["key"]
    assert len(bench.measured) == len(set(bench.measured)) == 7


def test_models_above_a_limit_are_replaced_or_flagged(bench: Bench) -> None:
    bench.slower = 1.3  # far beyond the intervals
    found = json.loads(run(*LIMITED, "--front", "0", "--json").stdout)
    for row in found["front"]:
        assert row["within"] == (row["latency_ms"]["measured"] <= 0.25)
    flagged = [row for row in found["front"] if not row["within"]]
    assert flagged  # the whole front was asked for, so no neighbours are left
    assert "not 0.25ms" in flagged[0]["exceeded"][0]
    few = json.loads(run(*LIMITED, "--front", "3", "--json").stdout)
    assert few["over_limit"]
    assert all(row["within"] for row in few["front"])
    shown = run(*LIMITED, "--front", "3").stdout
    assert "measured above a limit, so left out: " in shown


def test_without_measuring(bench: Bench) -> None:
    found = json.loads(run(*LIMITED, "--no-confirm", "--json").stdout)
    assert found["measured"] == 0
    assert bench.measured == []
    assert {row["within"] for row in found["front"]} == {None}


def test_what_is_exact_needs_no_profile(here: Path) -> None:
    arguments = ("search", "--space", "mine.txt", "--objectives", "decoder_params,flops", "--state", "20KB")
    found = json.loads(run(*arguments, "--constraint", "count(attn) >= 1", "--iterations", "2", "--json").stdout)
    assert found["profile"] is None
    assert {row["within"] for row in found["front"]} == {True}
    assert all(row["state"] <= 20_000 and "attn" in row["spec"] for row in found["front"])
    assert not (here / "runs" / "profiles").exists()


def test_the_tables(bench: Bench, here: Path) -> None:
    shown = run(*LIMITED, "--front", "4").stdout
    assert shown.count("within") == 4
    key = shown.split("plait front pick ")[1].split()[0]
    again = run("front", "show", key, "--front", "4").stdout
    assert again == run("front", "show", "--front", "4").stdout
    timeless = [re.sub(r"4 measured; .*", "", text) for text in (shown, again)]  # each says its own seconds
    assert timeless[0] == timeless[1]
    assert json.loads(run("front", "show", "--front", "4", "--json", "--svg", "a/front.svg").stdout)["measured"] == 4
    assert (here / "a" / "front.svg").read_text().count(" measured") == 8  # latency and memory of each
    table = run("front", "table", "--front", "4").stdout.splitlines()
    assert table[0].split() == ["model", "n-layer", "d-model", "layers", "decoder-params", "latency-ms", "memory-mb"]
    assert [line.split()[0] for line in table[1:]] == ["M1", "M2", "M3", "M4"]
    for row in json.loads(run("front", "table", "--front", "4", "--json").stdout)["models"]:
        # Layers as `plait show` counts them: a sequence mixer with its channel mixer is one.
        assert row["n_layer"] == architecture(f"d={row['d_model']} | {row['layers']}").num_layers


def test_candidates_as_json() -> None:
    run("search", "--space", "mine.txt", "--objectives", "decoder_params,flops", "--iterations", "2", "--no-validate")
    found = json.loads(run("front", "candidates", "--json").stdout)
    assert len(found["candidates"]) == found["evaluated"]
    assert {"candidate", "decoder_params", "flops", "on_front", "spec"} == set(found["candidates"][0])


def test_the_papers_table(bench: Bench) -> None:
    run("search", "--space", "gpt.txt", "--profile", "gpt.json", "--iterations", "4", "--no-confirm", "--json")
    rows = json.loads(run("front", "table", "--json").stdout)["models"]
    assert [row["decoder_params"] for row in rows] == sorted(row["decoder_params"] for row in rows)
    for row in rows:
        assert row["n_layer"] == len(row["n_head"]) == len(row["d_inner"])
        assert set(row["n_head"]) <= {2, 4}
        assert set(row["d_inner"]) <= {64, 128, 192, 256}
    assert f"[{', '.join(map(str, rows[0]['d_inner']))}]" in run("front", "table").stdout


def test_the_times_printed_are_those_of_the_command(bench: Bench) -> None:
    """Not those of a profile that was there before: the made-up one took a minute."""
    printed = run(*LIMITED, "--front", "3").stdout
    took = re.search(r"3 measured; profile ([\d.]+) s, search ([\d.]+) s, measuring ([\d.]+) s", printed)
    assert took
    assert float(took[1]) < 30
    assert "total: profile 60.0 s" in run("front", "show").stdout


def test_pick_prints_one_spec(bench: Bench) -> None:
    found = json.loads(run(*LIMITED, "--front", "6", "--json").stdout)
    largest = max(found["front"], key=lambda row: row["decoder_params"])
    picked = run("front", "pick")
    assert picked.stdout == f"{largest['spec']}\n"
    assert "measured" in picked.stderr
    fastest = min(found["front"], key=lambda row: row["latency_ms"]["measured"])
    assert run("front", "pick", "--by", "latency").stdout == f"{fastest['spec']}\n"
    limit = sorted(row["latency_ms"]["measured"] for row in found["front"])[2]
    below = [row for row in found["front"] if row["latency_ms"]["measured"] <= limit * 1.001]
    best = max(below, key=lambda row: row["decoder_params"])
    assert run("front", "pick", found["key"][:8], "--latency", f"{limit * 1.001}ms").stdout == f"{best['spec']}\n"
    assert json.loads(run("front", "pick", "--json").stdout)["spec"] == largest["spec"]
    for arguments, message in {
        ("--latency", "1us"): "no model of this front is within latency <= 0.001ms",
        ("--by", "latensy"): "Did you mean 'latency'",
    }.items():
        with pytest.raises(UserError, match=message):
            run("front", "pick", *arguments)


def test_what_was_not_measured_is_picked_by_its_interval(bench: Bench) -> None:
    found = json.loads(run(*LIMITED, "--no-confirm", "--front", "0", "--json").stdout)
    holding = [row for row in found["front"] if row["latency_ms"]["interval"][1] <= 0.15]
    best = max(holding, key=lambda row: row["decoder_params"])
    picked = run("front", "pick", "--latency", "0.15ms", "--no-validate")
    assert picked.stdout == f"{best['spec']}\n"
    assert "predicted, not measured" in picked.stderr


def test_ctrl_c_saves_and_the_same_command_goes_on(bench: Bench, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt_once(self: Search, rng: object) -> None:
        if self.iteration == 2 and not list(here.glob("runs/search-*.npz")):
            os.kill(os.getpid(), signal.SIGINT)
        step(self, rng)

    step: Callable[..., None] = LtsSearch.step
    monkeypatch.setattr(LtsSearch, "step", interrupt_once)
    stopped = run(*SEARCH, "--no-confirm", code=130)
    assert "stopped after 3 of 5 iterations. The same command resumes from there" in stopped.stderr
    (saved,) = here.glob("runs/search-*.npz")
    found = json.loads(run(*SEARCH, "--no-confirm", "--json").stdout)
    assert found["evaluated"] > 30
    assert not saved.exists()


def test_ctrl_c_while_measuring_loses_no_measurement(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(arch: Architecture, setting: Setting) -> Timing:
        if len(bench.measured) == 2:
            raise KeyboardInterrupt
        return bench.latency(arch, setting)

    monkeypatch.setattr(latency, "measure_latency", interrupted)
    assert "The same command resumes" in run(*LIMITED, "--front", "5", code=130).stderr
    monkeypatch.setattr(latency, "measure_latency", bench.latency)
    assert json.loads(run(*LIMITED, "--front", "5", "--json").stdout)["measured"] == 5
    assert len(bench.measured) == len(set(bench.measured)) == 5


def other_machine(here: Path) -> None:
    document = json.loads((here / "mine.json").read_text())
    document["device"]["cpu"] = "Abacus"
    document.pop("checksum", None)  # as a profile of before has none
    (here / "other.json").write_text(json.dumps(document))


def test_another_machine_is_refused_unless_asked_for(bench: Bench, here: Path) -> None:
    other_machine(here)
    arguments = ("search", "--space", "mine.txt", "--profile", "other.json", "--iterations", "2", "--json")
    with pytest.raises(UserError, match=r"other\.json is a profile of another machine"):
        run(*arguments)
    found = json.loads(run(*arguments, "--anywhere").stdout)
    assert found["measured"] == len(bench.measured) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--latency", "1us"),
            r"no candidate of mine satisfies every constraint:\n0 of 10,000 samples satisfy latency_high",
        ),
        (
            ("--constraint", "layers >= 3", "--constraint", "layers <= 2"),
            "no candidate of mine satisfies every constraint",
        ),
        (("--constraint", "layer >= 3"), "unknown name 'layer'. Did you mean 'layers'"),
        (("--latency", "fast"), "latency 'fast' given"),
        (("--space", "hybird"), "Did you mean 'hybrid'"),
        (("--space", "hybrid"), "the profile has no measurement of"),
        (("--profile", "none.json"), r"none\.json cannot be read.*plait profile -o none\.json"),
        (("--threads", "2"), "--threads 2 given, but mine.json is a profile of threads 1"),
        (("--method", "annealing"), "Known: lts, nsga2, nsga3, random"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        run(*SEARCH, *arguments)


@pytest.mark.parametrize(
    "arguments", [("--constraint", "layers >= 9"), ("--constraint", "count(attn) < 0"), ("--state", "1B")]
)
def test_the_impossible_is_refused_before_a_profile_is_made(arguments: tuple[str, ...], here: Path) -> None:
    with pytest.raises(
        UserError, match="no candidate of mine satisfies every constraint:\n0 of 10,000 samples satisfy"
    ):
        run("search", "--space", "mine.txt", *arguments)
    assert not (here / "runs" / "profiles").exists()


def test_a_space_without_a_valid_point(here: Path) -> None:
    (here / "odd.txt").write_text(TEXT.replace("d: 32..128 step 32", "d: 33").replace(", gla[heads=2]", ""))
    with pytest.raises(UserError, match="odd: none of 2 layers is allowed at any width by their own checks"):
        run("search", "--space", "odd.txt")


def test_fronts_that_are_not_there() -> None:
    with pytest.raises(UserError, match=r"there is no search in .*; make one with `plait search`"):
        run("front", "show")
    with pytest.raises(UserError, match="key that begins with 'abc'"):
        run("front", "pick", "abc")
    record = Record.of("train", {"protocol": 1}, {}, {})
    with open_store() as store:
        store.put(record)
    with pytest.raises(
        UserError, match=f"^{record.key[:10]} is not a front of `plait search` but a record of kind 'train'.$"
    ):
        run("front", "table", record.key)
    with pytest.raises(UserError, match="there is no search in"):
        run("front", "show", "latest")


def test_a_small_space_is_compared_whole_and_that_is_said() -> None:
    """The method asked for is not needed, and the user hears why it did not run."""
    given = ("search", "--space", "gpt.txt", "--profile", "gpt.json", "--no-validate")
    for method in ("nsga2", "lts"):
        told = run(*given, "--method", method).stderr
        assert f"all of it was compared instead of running {method}; --iterations forces {method}" in told
    assert "instead of running" not in run(*given).stderr
    asked = run(*given, "--method", "nsga2", "--iterations", "2", "--population", "10", "--json")
    assert json.loads(asked.stdout)["method"] == "nsga2"
    assert "in place of" not in asked.stderr


def test_models_of_a_differentiable_search_are_trained_from_scratch_and_shown() -> None:
    Path("choices.space").write_text("layers: 2\nd: 16\nmixers: [attn[heads=2], mlp[inner=32], none]\nseq: 16\n")
    asked = [
        "search", "--space", "choices.space", "--method", "gumbel", "--data", "builtin:language", "--steps", "6",
        "--retrain", "2", "--set", "batch=4", "--set", "seq_len=16", "--no-validate",
    ]  # fmt: skip
    shown = CliRunner().invoke(app, asked, catch_exceptions=False)
    assert shown.exit_code == 0, shown.output
    assert "retrained once each, so the noise between seeds is unknown" in shown.output
    found = json.loads(CliRunner().invoke(app, [*asked, "--json"], catch_exceptions=False).stdout)
    assert found["retrained"]["statement"] in " ".join(shown.output.split())
    assert all(row["retrained_loss"] > 0 for row in found["front"])
