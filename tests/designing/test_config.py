"""Time is divided alike whatever is stored; a space takes the vocabulary of the text."""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import plait
from plait.analysis.forecast import SO_FEW_STEPS
from plait.core.errors import UserError
from plait.designing import workflow
from plait.designing.config import SHARES, DesignConfig, TrainFor
from plait.designing.racing import within_reach
from plait.device.quantities import Setting
from plait.model.architecture import architecture
from plait.model.user_mixers import mixers_option
from plait.probing.protocol import QUICK
from plait.records import open_store, record
from plait.space.constraints import Limits
from plait.space.space import Space
from plait.space.table import SPACES, load_space


def config(seconds: float) -> DesignConfig:
    return DesignConfig(
        load_space("small-hybrid"),
        Setting(seq=32),
        Limits.read(latency="20ms", memory="100MB"),
        "builtin:stdlib",
        seconds,
    )


def test_shares_leave_time_for_the_rest() -> None:
    given = config(300)
    assert 255 < sum(given.share(stage) for stage in SHARES) < 295  # starting up takes some, too
    assert given.few == 7
    assert len(given.tasks) == 1
    assert config(60).few == 4
    assert config(3600).few == 8
    assert set(config(3600).tasks) == set(QUICK)


def test_too_little_time() -> None:
    with pytest.raises(UserError, match="5 s given; a design takes 20 s"):
        config(5)


def test_vocabulary() -> None:
    space = load_space("small-hybrid")
    assert space.with_vocabulary(256) is space
    other = space.with_vocabulary(99)
    assert other.headers.base.vocab == 99
    assert other.headers.base.tie
    assert other.widths == space.widths


@pytest.mark.parametrize("name", SPACES)
def test_every_space_takes_a_small_vocabulary(name: str) -> None:
    """Bands of an adaptive softmax that the vocabulary does not reach go with the old one."""
    space = load_space(name)
    other = space.with_vocabulary(256)
    assert type(other) is type(space)
    genes_NG = other.sample(np.random.default_rng(0), 1000)
    row_G = genes_NG[other.valid(genes_NG)][0]
    header = architecture(other.spec(row_G)).header
    assert (header.vocab, header.cutoffs) == (256, ())


def test_a_vocabulary_that_varied_is_settled() -> None:
    space = Space(replace(load_space("small-hybrid").declared, vary={"vocab": "256|512"}))
    assert {header.vocab for header in space.with_vocabulary(256).headers.all if header} == {256}


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("2h", "seconds", 7200),
        ("90s", "seconds", 90),
        ("1e9 tokens", "tokens", 1e9),
        ("20M tokens", "tokens", 2e7),
        ("1e18 FLOPs", "flops", 1e18),
    ],
)
def test_what_a_training_budget_may_be(text: str, unit: str, value: float) -> None:
    found = TrainFor.read(text)
    assert (found.unit, found.value) == (unit, value)
    assert TrainFor.read(found.text) == found
    assert found.tokens(seconds_per_token=1e-4, flops_per_token=1e6) == pytest.approx(
        {"seconds": value / 1e-4, "tokens": value, "flops": value / 1e6}[unit]
    )


@pytest.mark.parametrize("text", ["lots", "-3 tokens", "0 tokens", "5 apples", "nan tokens"])
def test_budgets_that_are_none(text: str) -> None:
    with pytest.raises(UserError, match="train-for"):
        TrainFor.read(text)


def test_millions_of_tokens_are_not_read_as_minutes() -> None:
    with pytest.raises(UserError, match="write '20M tokens', or 20m for minutes"):
        TrainFor.read("20M")


def test_what_is_left_of_the_time_is_the_budget_unless_stated() -> None:
    assert config(300).budget == TrainFor("seconds", 42.0)
    assert replace(config(300), train_for=TrainFor("tokens", 5.0)).budget.tokens(1, 1) == 5.0


def test_what_a_user_asks_for_reaches_the_design(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the front door to its config and the commands that do it again."""
    seen: list[DesignConfig] = []

    def stop(config: DesignConfig, *_: object) -> None:
        seen.append(config)
        raise KeyboardInterrupt

    monkeypatch.setattr(workflow, "design", stop)
    monkeypatch.setattr(record, "cores", lambda: 2)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        plait.design(
            data="builtin:language", tokenizer=None, mode="both", answer=8, tokens_per_second=500, ttft="30ms",
            batch=2, threads=2, constraints=["count(attn) >= 1"], state="1MB", latency=None, memory=None,
        )  # fmt: skip
    (config,) = seen
    assert config.setting == Setting("both", 256, batch=2, threads=2, answer=8)
    assert config.limits.as_dict() == {"ttft": 0.03, "token_time": 0.002, "state": 1e6}
    assert config.constraints == ("count(attn) >= 1",)
    document = {
        "config": config.as_dict(), "pick": {"spec": "d=8 | attn"}, "train": {"recipe": {"lr": 0.1}},
        "race": {"architectures": []}, "budget": {"tokens": 1e6},
    }  # fmt: skip
    whole, searching, measuring, *_ = workflow.commands(document, config)
    for command in (whole, searching):
        assert "--ttft 30ms --token-time 2ms --state 1MB --constraint 'count(attn) >= 1'" in command
        assert "--seq 256 --mode both --batch 2 --threads 2 --answer 8" in command
    assert measuring == "plait measure 'd=8 | attn' --seq 256 --mode both --batch 2 --threads 2 --answer 8"


def test_a_text_too_short_to_race_on_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text("some words. " * 10)
    limits = Limits.read(latency="20ms", memory="100MB")
    with pytest.raises(UserError, match=r"a batch of 8 windows of 256 tokens needs more data"):
        workflow.design_config("small-hybrid", limits, str(short), Setting(seq=256), 60.0, 0)
    short.write_text("some words. " * 300)  # enough to train on, too few to be scored on
    with pytest.raises(UserError, match=r"held-out tokens are fewer than one sequence of 256"):
        workflow.design_config("small-hybrid", limits, str(short), Setting(seq=256), 60.0, 0)


def test_nothing_is_forecast_beyond_what_the_race_can_speak_about() -> None:
    """Budgets of equal time are other numbers of tokens for each; their ratios stay."""
    budgets = {"fast": 4e6, "slow": 1e6}
    assert within_reach(budgets, 1e6) == pytest.approx({"fast": 1e6, "slow": 2.5e5})
    assert within_reach(budgets, 5e6) == budgets


def test_the_vocabulary_that_is_told_is_the_candidates_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a space has it as a key that might vary."""
    monkeypatch.setattr(workflow, "design", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    monkeypatch.chdir(tmp_path)
    Path("own.space").write_text("layers: 1..2\nd: 32\nvocab: 256\nmixers: [attn[heads=2]]\nchannel: [mlp]\n")
    Path("text.txt").write_text("some words. " * 2000)
    told: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        plait.design(space="own.space", data="text.txt", on_progress=lambda stage, share, now: told.append(now))
    assert told[-1] == "text.txt: a vocabulary of 256"


def test_the_commands_name_a_users_own_space_and_mixers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By their files: typed in the same folder they run."""
    template = files("plait").joinpath("model/mixer_template.txt").read_text()
    (tmp_path / "mine.py").write_text(template.replace('"my-mixer"', '"of-the-commands"'))
    (tmp_path / "own.space").write_text(
        "name: other\nlayers: 1..2\nd: 32\nmixers: [attn[heads=2], of-the-commands]\nchannel: [mlp]\nfiles: [mine.py]\n"
    )
    monkeypatch.chdir(tmp_path)
    limits = Limits.read(latency="20ms", memory="100MB")
    given = workflow.design_config("own.space", limits, "builtin:language", Setting(seq=32), 60.0, 0)
    attn, mine = "d=32 vocab=64 | attn[heads=2] mlp", "d=32 vocab=64 | of-the-commands mlp"
    document = {
        "config": given.as_dict(), "pick": {"spec": mine}, "train": {"recipe": {"lr": 0.1}},
        "race": {"architectures": [{"spec": attn}, {"spec": attn}, {"spec": attn}, {"spec": mine}]},
        "budget": {"tokens": 1e6},
    }  # fmt: skip
    whole, searching, measuring, comparing, training = workflow.commands(document, given)
    for command in (whole, searching):
        assert "--space own.space" in command
    assert all(command.endswith(" --mixers mine.py") for command in (whole, searching, measuring, training))
    assert "--mixers" not in comparing  # of the three it names, none is a user's own
    document["race"]["architectures"].pop()  # where none of its models is raced, the space needs the file none the less
    assert workflow.commands(document, given)[0].endswith(" --mixers mine.py")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert mixers_option([mine]) == f" --mixers {tmp_path / 'mine.py'}"
    assert mixers_option([attn, "no spec at all"]) == ""


def test_the_next_steps_go_on_where_the_design_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A race that left something undecided is given more time; what is stored elsewhere is looked for there."""
    monkeypatch.chdir(tmp_path)
    limits = Limits.read(latency="20ms", memory="100MB")
    given = workflow.design_config("small-hybrid", limits, "builtin:language", Setting(seq=32), 45.0, 0)
    document: Any = {
        "config": given.as_dict(), "pick": {"spec": "d=8 | attn", "pattern": "attn"}, "budget": {"tokens": 1e6},
        "train": {"recipe": {"lr": 0.1}, "folder": "my runs/train-1"}, "cut": [],
        "race": {"architectures": [{"spec": "d=8 | attn"}], "notes": [], "verdict": "not distinguishable"},
        "not_distinguishable": ["attn", "gla"],
    }  # fmt: skip
    document["commands"] = workflow.commands(document, given)
    with open_store(None) as store:
        settle, use, longer = workflow.next_steps(document, given, store)
    assert settle["to"] == "settle the choice"
    assert settle["command"] == document["commands"][0].replace("--time 45s", "--time 3m")
    assert settle["command"] != document["commands"][0]
    assert " --train-for " in settle["command"]
    blind = {**document, "race": {**document["race"], "verdict": f"not distinguishable {SO_FEW_STEPS}"}}
    asked = replace(given, train_for=given.budget)
    with open_store(None) as store:
        assert " --train-for " not in workflow.next_steps(blind, given, store)[0]["command"]  # nobody chose so few
        assert " --train-for " in workflow.next_steps(blind, asked, store)[0]["command"]
    assert use["command"] == "plait export 'my runs/train-1' --to hf"
    assert longer["command"] == document["commands"][-1]
    document["not_distinguishable"] = ["attn"]
    with open_store("sqlite:///other/plait.db") as store:
        steps = workflow.next_steps(document, replace(given, runs=Path("other")), store)
    assert [step["to"] for step in steps] == ["use the model", "train it longer"]
    assert steps[-1]["command"].endswith(" --runs other --store sqlite:///other/plait.db")
