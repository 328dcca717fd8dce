"""A mixer in a user's file is a mixer in every command, and what is made with it is keyed by the file's text."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import plait
from plait.cli.main import app
from plait.core.errors import UserError
from plait.mixers import table
from plait.model.architecture import architecture
from plait.model.user_mixers import restore
from plait.training import fit as fitting
from plait.training.run import open_run

TEMPLATE = files("plait").joinpath("model/mixer_template.txt").read_text()
SPEC = "d=16 | (my-mixer swiglu)x2"
TRAIN = ("train", SPEC, "--data", "builtin:stdlib", "--tokenizer", "bytes", "--steps", "4", "--batch", "2")
TRAIN = (*TRAIN, "--seq-len", "16", "--mixers", "my_mixer.py")
SPACE = "layers: 1..2\nd: 16|32\nheader: vocab=64\nmixers: [my-mixer[memory=*], gla]\nchannel: [swiglu]\n"
PLAN = ("--plan", "--tasks", "compression", "--workers", "1")

Json = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Json:
    """A command's JSON, as if in a process of its own: no mixer is known that it was not told."""
    monkeypatch.chdir(tmp_path)
    Path("my_mixer.py").write_text(TEMPLATE)

    def invoke(*arguments: str) -> Any:
        table.MIXERS._registered.clear()
        table._versions.clear()
        found = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
        assert found.exit_code == 0, found.output
        return json.loads(found.stdout)

    return invoke


def edit() -> None:
    """Another mixer under the same name: its gate is tanh."""
    Path("my_mixer.py").write_text(TEMPLATE.replace("F.silu(gate)", "torch.tanh(gate)"))


def test_without_the_file_the_name_is_unknown_and_the_option_is_named(run: Json) -> None:
    with pytest.raises(UserError, match=r"unknown mixer 'my-mixer'.*--mixers my_mixer\.py"):
        run("show", SPEC)
    with pytest.raises(UserError, match=r"--mixers gla: give a Python file"):
        run("show", SPEC, "--mixers", "gla")


def test_shown_and_listed(run: Json) -> None:
    shown = run("show", SPEC, "--mixers", "my_mixer.py")
    assert [layer["mixer"] for layer in shown["mixers"]] == ["my-mixer", "swiglu"] * 2
    assert shown["state"]["fixed"] == 2 * 16
    assert "my-mixer" in [row["name"] for row in run("list", "mixers", "--mixers", "my_mixer.py")]
    assert [row["name"] for row in run("list", "my-mixer", "--mixers", "my_mixer.py")] == ["memory", "canon", "share"]


def test_checked_and_probed_with_options(run: Json) -> None:
    found = run("check", "my_mixer.py[memory=4]", "--no-speed")
    assert (found["layer"], found["passed"]) == ("my-mixer[memory=4.0]", True)
    plan = run("probe", "my_mixer.py[memory=4]", "gla", *PLAN)
    assert [one["name"] for one in plan["architectures"]] == ["my-mixer[memory=4.0]", "gla"]
    with pytest.raises(UserError, match="has no option 'memry'"):
        run("check", "my_mixer.py[memry=4]")


def test_a_run_is_opened_with_the_mixer_it_was_trained_with(run: Json) -> None:
    trained = run(*TRAIN)
    before = run("eval", trained["run"], "--set", "tokens=512")["evaluations"][0]
    said = run("generate", trained["run"], "def", "--tokens", "4", "--greedy")["completions"]
    edit()
    again = run("eval", trained["run"], "--set", "tokens=512")["evaluations"][0]
    assert (again["key"], again["stored"]) == (before["key"], True)
    assert run("generate", trained["run"], "def", "--tokens", "4", "--greedy")["completions"] == said
    # Even where the name means the edited file, the run is what it was.
    plait.load_mixer("my_mixer.py")
    opened = open_run(trained["run"])
    assert opened.arch.mixer_sources["my-mixer"].text == TEMPLATE
    assert architecture(SPEC).mixer_sources["my-mixer"].text != TEMPLATE
    Path(trained["folder"], "mixers", "my_mixer.py").write_text("pass")
    table._versions.clear()
    with pytest.raises(UserError, match="was edited after the weights"):
        open_run(trained["run"]).arch  # noqa: B018


def test_a_report_draws_it_if_its_file_is_given(run: Json) -> None:
    key = run(*TRAIN)["run"].removeprefix("train-")
    without, given = (
        Path(run("report", key, *mixers)["page"]).read_text() for mixers in ((), ("--mixers", "my_mixer.py"))
    )
    assert "give its file with --mixers" in without
    assert "give its file with --mixers" not in given
    assert "fixed state per sequence" in given


def test_an_edited_file_is_trained_anew(run: Json) -> None:
    first = run(*TRAIN)
    assert not run(*TRAIN)["trained_now"]
    edit()
    second = run(*TRAIN)
    assert second["trained_now"]
    assert second["run"] != first["run"]
    assert second["loss"] != first["loss"]
    Path("my_mixer.py").write_text(TEMPLATE)
    back = run(*TRAIN)
    assert (back["trained_now"], back["loss"]) == (False, first["loss"])


def test_a_training_interrupted_before_an_edit_is_not_gone_on_with(run: Json, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, said = fitting._Fit._evaluate, []

    def stop(self: Any, *_: Any) -> float:
        self._save(self.trainer_now, must=True)
        raise KeyboardInterrupt

    monkeypatch.setattr(fitting._Fit, "_evaluate", stop)
    monkeypatch.setattr(fitting._Fit, "_report_note", lambda self, note: said.append(note))
    train = fitting._Fit._train

    def noting(self: Any, trainer: Any, *rest: Any) -> None:
        self.trainer_now = trainer
        train(self, trainer, *rest)

    monkeypatch.setattr(fitting._Fit, "_train", noting)
    table.MIXERS._registered.clear()
    CliRunner().invoke(app, [*TRAIN])
    (begun,) = Path("runs").glob("train-*")
    assert list(begun.glob("step-*"))
    monkeypatch.setattr(fitting._Fit, "_evaluate", whole)
    edit()
    trained = run(*TRAIN)
    assert trained["run"] != begun.name
    assert [note for note in said if note] == [
        f"my-mixer has changed since {begun.name} was started with it, so this is a new training and starts from step 0"
    ]


def test_an_export_carries_the_mixer_and_runs_it_only_where_it_is_trusted(run: Json) -> None:
    trained = run(*TRAIN)
    edit()
    assert run("export", trained["run"], "--to", "hf", "-o", "out")["largest_difference"] < 1e-5
    assert Path("out/my_mixer.py").read_text() == TEMPLATE
    program = (
        "import sys\nfrom transformers import AutoModelForCausalLM\nimport plait.interop.hf_model\n"
        "try:\n    AutoModelForCausalLM.from_pretrained('out')\n"
        "except Exception as wrong:\n    print('trust_remote_code=True' in str(wrong))\n"
        "model = AutoModelForCausalLM.from_pretrained('out', trust_remote_code=True)\n"
        "model.save_pretrained('again')\n"
        "import torch\nprint(model(torch.tensor([[1, 2, 3]])).logits.double().sum().item())\n"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    refused, total = found.stdout.split()
    assert refused == "True"
    model = open_run(trained["run"]).model()
    with torch.no_grad():
        assert float(total) == pytest.approx(model(torch.tensor([[1, 2, 3]])).double().sum().item(), abs=1e-4)
    assert Path("again/my_mixer.py").read_text() == TEMPLATE


def test_a_search_after_an_edit_is_another_and_its_record_carries_the_mixer(run: Json) -> None:
    Path("mine.space").write_text(SPACE)
    asked = ("search", "--space", "mine.space", "--objectives", "max:decoder_params,min:flops", "--method", "random")
    asked = (*asked, "--iterations", "2", "--population", "8", "--no-confirm", "--mixers", "my_mixer.py")
    first = run(*asked)
    assert run(*asked)["key"] == first["key"]
    edit()
    second = run(*asked)
    assert second["key"] != first["key"]
    assert run("front", "show", first["key"])["front"]
    with pytest.raises(UserError, match="made with another text of my-mixer"):
        run("front", "show", first["key"], "--mixers", "my_mixer.py")


def test_measured_and_probed_results_are_keyed_by_the_text(run: Json) -> None:
    measure = ("measure", SPEC, "--seq", "8", "--mixers", "my_mixer.py")
    first = run(*measure)["models"][0]
    edit()
    assert run(*measure)["models"][0]["key"] != first["key"]
    probe = ("probe", SPEC.replace("d=16", "d=16 vocab=16"), *PLAN, "--mixers", "my_mixer.py", "--no-baselines")
    assert run(*probe)


def test_a_record_of_an_old_layout_names_a_path(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(TEMPLATE)
    restore([str(tmp_path / "mine.py")], "the search")
    assert table.registered("my-mixer") is not None


def test_two_files_of_one_name_are_refused_and_an_edited_one_is_not(tmp_path: Path) -> None:
    one, other = tmp_path / "one.py", tmp_path / "other.py"
    one.write_text(TEMPLATE)
    other.write_text(TEMPLATE + "# other\n")
    before = plait.load_mixer(one)
    with pytest.raises(UserError, match="is taken by"):
        plait.load_mixer(other)
    one.write_text(TEMPLATE + "# edited\n")
    after = plait.load_mixer(one)
    assert type(after) is not type(before)
    assert type(before).module != type(after).module


FORWARD = "return self.extend(x_BTD, self.init_state(x_BTD.shape[0]))[0]"
LEAKING = (
    FORWARD,
    f"y = {FORWARD[7:]}; return y + y.roll(-1, 1)",
    "my-mixer leaks the future .*plait check my_mixer.py",
)
MISCOUNTED = ('2 * d * d, "output"', '3 * d * d, "output"', "my-mixer does not count its parameters .*declared")
WRONG_SHAPE = (FORWARD, f"{FORWARD}[..., 1:]", r"my-mixer returns \(2, 67, .* these must be equal. See `plait check")
NOT_FINITE = (FORWARD, f"{FORWARD} / 0", "my-mixer returns NaN or infinity for a normal input. See `plait check")
A_TUPLE = (FORWARD, FORWARD.removesuffix("[0]"), "my-mixer returns a tuple from `forward`, not a tensor")
DESIGN = ("design", "--space", "s.txt", "--data", "builtin:stdlib", "--time", "10m", "--mixers", "my_mixer.py")


@pytest.mark.parametrize(("text", "instead", "message"), [LEAKING, MISCOUNTED], ids=["leaking", "miscounted"])
@pytest.mark.parametrize(
    "arguments",
    [
        TRAIN,
        ("compare", "my_mixer.py", "attn", "--data", "builtin:stdlib", "--tokens", "2000", "--seq-len", "16"),
        ("probe", "my_mixer.py", "--tasks", "memorization", "--workers", "1"),
        ("search", "--space", "s.txt", "--objectives", "decoder_params,flops", "--mixers", "my_mixer.py"),
        DESIGN,
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_mixer_whose_results_would_mean_nothing_is_refused_before_any(
    run: Json, arguments: tuple[str, ...], text: str, instead: str, message: str
) -> None:
    """A mixer that sees the next token had the lowest loss of a comparison, with a probability of more than 99 %."""
    assert text in TEMPLATE
    Path("my_mixer.py").write_text(TEMPLATE.replace(text, instead))
    Path("s.txt").write_text(SPACE)
    with pytest.raises(UserError, match=message):
        run(*arguments)
    assert not list(Path("runs").glob("[!c]*"))  # but for the text's tokens, in the cache


@pytest.mark.parametrize(
    "verb", [("search", "--objectives", "decoder_params,flops"), ("design", "--data", "builtin:stdlib")]
)
def test_a_mixer_that_the_space_does_not_choose_is_not_left_out_silently(run: Json, verb: tuple[str, ...]) -> None:
    """A search of a space without it went on as if it had not been given."""
    Path("my_mixer.py").write_text(TEMPLATE)
    with pytest.raises(
        UserError, match=r"--mixers my_mixer.py: small-hybrid does not choose my-mixer, .* --space a file"
    ):
        run(*verb, "--space", "small-hybrid", "--mixers", "my_mixer.py")


def test_a_leaking_mixer_is_refused_by_scaling_runs(run: Json) -> None:
    plan = ("scale", "plan", "--arch", f"mine={SPEC}", "--total", "1e9", "--seq-len", "16", "--no-price")
    run(*plan, "--out", "plan.json", "--mixers", "my_mixer.py")
    Path("my_mixer.py").write_text(TEMPLATE.replace(*LEAKING[:2]))
    with pytest.raises(UserError, match="leaks the future"):
        run("scale", "run", "plan.json", "--mixers", "my_mixer.py")


@pytest.mark.parametrize(
    ("text", "instead", "message"), [WRONG_SHAPE, NOT_FINITE, A_TUPLE], ids=["shape", "not finite", "tuple"]
)
def test_an_output_that_cannot_be_used_is_named_and_is_no_leak(
    run: Json, text: str, instead: str, message: str
) -> None:
    """NaN was said to leak the future, and a tuple ended in a traceback."""
    Path("my_mixer.py").write_text(TEMPLATE.replace(text, instead))
    with pytest.raises(UserError, match=message):
        run(*TRAIN)


@pytest.mark.parametrize(
    "arguments",
    [
        ("lr", "--models", "0", *(f"--spec=d={d} | (my-mixer swiglu)x2" for d in (16, 24, 32))),
        ("placement", "--spec=d=16 | (my-mixer swiglu)x2"),
        ("verdict", "my_mixer.py", "attn", "gla"),
        ("proxies", "--space", "s.txt"),
        ("shapes", "--space", "s.txt", "--steps", "2"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_leaking_mixer_is_refused_by_studies(run: Json, arguments: tuple[str, ...]) -> None:
    """Studies train it like `compare`, and did not check."""
    Path("my_mixer.py").write_text(TEMPLATE.replace(*LEAKING[:2]))
    Path("s.txt").write_text(SPACE)
    with pytest.raises(UserError, match="leaks the future"):
        run("study", *arguments, "--data", "builtin:stdlib", "--mixers", "my_mixer.py")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--constraint", "count(atn) >= 1"), "Did you mean 'attn'"),
        (("--constraint", "count(gla) >= 3"), "no candidate of s satisfies every constraint"),
        (("--tokens-per-second", "5"), "token_time cannot be measured here: .*both"),
    ],
)
def test_what_a_design_cannot_do_is_said_before_the_profile(run: Json, more: tuple[str, ...], message: str) -> None:
    Path("s.txt").write_text(SPACE)
    with pytest.raises(UserError, match=message):
        run(*DESIGN, *more)
    assert not list(Path("runs").glob("profiles/*"))


def test_an_option_may_be_a_plain_field(run: Json) -> None:
    """Not declared by `option(…)`: it has neither words nor values to try, and specs and lists have it all the same."""
    field = 'memory: float = option(16.0, "initial memory in tokens", minimum=1, choices=(4, 16, 64))'
    assert field in TEMPLATE
    Path("plain.py").write_text(TEMPLATE.replace(field, "memory: float = 16.0").replace('"my-mixer"', '"plain-field"'))
    shown = run("show", "d=16 vocab=64 | plain-field[memory=4] swiglu", "--mixers", "plain.py")
    assert shown["spec"] == "d=16 vocab=64 | plain-field[memory=4.0] swiglu"
    first = run("list", "plain-field", "--mixers", "plain.py")[0]
    assert (first["name"], first["doc"], first["choices"]) == ("memory", "", [])
