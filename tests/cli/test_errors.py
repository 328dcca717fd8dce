"""Bad input: exit code 2, one message on standard error, nothing on standard output, never a traceback."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from click import unstyle
from typer.main import get_command
from typer.testing import CliRunner

import plait as package
from plait.cli.main import app, main

LONG = 300 * "x"  # more than a file's name may have
MISTAKES = {
    "unknown mixer": (("show", "d=64 | atn"), "spec:1:8: unknown mixer 'atn'. Did you mean 'attn'?"),
    "unknown option": (
        ("show", "d=64 | attn[haeds=2]"),
        "spec:1:13: attn has no option 'haeds'. Did you mean 'heads'?",
    ),
    "bad value": (("show", "d=64 | attn[heads=0]"), "the least allowed is 1"),
    "does not divide": (("show", "d=60 | attn"), "d=60 is not a multiple of heads=8"),
    "unbalanced": (("show", "d=64 | (attn"), "spec:1:"),
    "unknown header key": (("show", "dd=64 | attn"), "dd"),
    "nothing": (("show", ""), "spec"),
    "no such preset": (("show", "gpt2-125m"), "gpt2-124m"),
    "no such file": (("show", "nowhere.yaml"), "there is no file 'nowhere.yaml'"),
    "broken file": (("show", "broken.json"), "spec"),
    "binary file": (("show", "binary.yaml"), "not UTF-8"),
    "json asked for": (("show", "d=64 | atn", "--json"), "unknown mixer 'atn'"),
    "huge": (("show", "(attn)x999999999"), "at most"),
    "nothing to list": (("list", "mixer"), "nothing called 'mixer' to list. Did you mean 'mixers'?"),
    "unknown mixer to check": (("check", "atn"), "unknown mixer 'atn'"),
    "two mixers to check": (("check", "attn mlp"), "has 2 layers"),
    "no file to check": (("check", "nowhere.py"), "there is no file nowhere.py"),
    "a file that fails": (("check", "fails.py"), "fails.py does not run: ZeroDivisionError"),
    "a file without mixer": (("check", "empty.py"), "should hold one subclass of Mixer, found: none"),
    "no such fact": (("verify", "Z99"), "Z99"),
    "no such device to train on": (
        ("train", "d=16 | attn[heads=2]", "--data", "builtin:language", "--steps", "1", "--device", "tpu"),
        "models are trained on cpu, mps (Apple's GPU), cuda, or one GPU of several",
    ),
    "no such device to study on": (("study", "placement", "--device", "tpu"), "torch cannot compute on that here"),
    "a page that cannot be written": (
        ("design", "-o", "binary.yaml/page.html"),
        "the report binary.yaml/page.html cannot be written",
    ),
    "a page that is a folder": (("design", "-o", "."), "the report . cannot be written: Is a directory."),
    "a run of a long name": (("eval", LONG), "is not a run"),
    "a start of a long name": (("train", "--from", LONG, "--steps", "1"), "is not a run"),
    "a corpus of a long name": (("train", "d=16 | mlp", "--data", LONG, "--steps", "1"), "no corpus 'xxx"),
    "a space of a long name": (("search", "--space", LONG), "xxx"),
    "a mixer's file of a long name": (("check", f"{LONG}.py"), "there is no file"),
    "a profile of a long name": (("predict", "d=16 | mlp", "--profile", LONG), "cannot be read: File name too long"),
    "lengths of a prompt and its answer": (
        ("measure", "d=16 | mlp", "--lengths", "8,16", "--mode", "both"),
        "--lengths times one block at a time: give --mode prefill or --mode decode, not both.",
    ),
    "lengths with an answer": (
        ("measure", "d=16 | mlp", "--lengths", "8,16", "--answer", "4"),
        "--answer cannot be combined with --lengths",
    ),
    "not an experiment file": (
        ("config", "show", "nowhere.yaml"),
        "cannot read nowhere.yaml: No such file or directory",
    ),
    "nothing to report": (("report",), "runs/plait.db has no records yet"),
    "no profile": (
        ("predict", "attn", "--profile", "nowhere.json"),
        "the profile nowhere.json cannot be read: No such file or directory.",
    ),
    "an experiment that is not there": (("train", "nowhere.yaml"), "there is no file 'nowhere.yaml'"),
    "a rate that is no number": (
        ("compare", "attn", "gla", "--data", "builtin:language", "--lr", "nan"),
        "--lr nan: must be greater than 0",
    ),
    "a rate of nothing": (("compare", "attn", "gla", "--lr", "0"), "--lr 0: must be greater than 0"),
    "budgets that do not grow": (
        ("scale", "plan", "--arch", "x=d=16 | mlp", "--total", "1e9", "--spacing", "0"),
        "--spacing 0: each budget is a multiple of the one before",
    ),
    "sequences of nothing": (
        ("scale", "plan", "--arch", "x=d=16 | mlp", "--budgets", "1e8", "--seq-len", "0"),
        "--seq-len 0: a sequence has 1 token or more",
    ),
    "no depth": (
        ("scale", "plan", "--arch", "x=d=16 | mlp", "--budgets", "1e8", "--depth-power", "nan"),
        "--depth-power nan: a number from 0 on",
    ),
    "tokens that are no number": (
        ("scale", "plan", "--arch", "x=d=16 | mlp", "--budgets", "1e8", "--tokens-per-param", "nan"),
        "--tokens-per-param nan above 0",
    ),
    "a width of many digits": (("show", "d=99999999 | gla"), "expand_k = 99999999 is not a multiple of heads=4"),
    "no such space to study": (("study", "proxies", "--space", "study-gtp2"), "Did you mean 'study-gpt2'?"),
    "nor for proxies": (("study", "proxies", "--device", "tpu"), "torch cannot compute on that here"),
}


@pytest.fixture(autouse=True)
def bad_files(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text('{"d": 64, "layers": [')
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\x80")
    (tmp_path / "fails.py").write_text("1 / 0\n")
    (tmp_path / "empty.py").write_text("")


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_message(plait: Any, name: str) -> None:
    arguments, message = MISTAKES[name]
    ran = plait(*arguments)
    assert ran.returncode == 2, ran.stderr
    assert ran.stdout == ""
    assert ran.stderr.startswith("plait: ")
    assert ran.stderr.count("plait: ") == 1
    assert message in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("shwo", "no such command 'shwo'. Did you mean 'show'? See: plait --help"),
        ("task list", "no such command 'list'. Known: show. See: plait task --help"),
        ("--vrsion", "no such option: --vrsion"),
        ("show", "missing argument"),
        ("show attn --seq 0", "invalid value for '--seq-len' / '--seq'"),
        ("show attn --sqe 1", "no such option: --sqe"),
        ("check attn --d x", "invalid value for '--d': write a whole number, such as 4096."),
        ("show attn --seq 16K", "'--seq': write a whole number, such as 4096."),
        ("show attn --seq 0", "'--seq': must be greater than or equal to 1."),
        ("design my.txt", "unexpected argument 'my.txt': `design` takes options only. Put a value that has spaces in"),
        ("list presets llama", "unexpected argument 'llama': `list` takes kind."),
        (
            "train attn --data builtin:dna",
            "--flops; given: none. For example --time 10m, --tokens 20M or --steps 1000.",
        ),
    ],
)
def test_a_wrong_command_line_is_one_message_as_well(plait: Any, arguments: str, message: str) -> None:
    ran = plait(*arguments.split())
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert ran.stderr.startswith("plait: ")
    assert len(ran.stderr.splitlines()) == 1
    assert message in ran.stderr


@pytest.mark.parametrize("verb", ["train", "probe", "design"])
def test_help_fits_80_columns_with_every_name_whole(verb: str) -> None:
    ran = CliRunner().invoke(app, [verb, "--help"], env={"COLUMNS": "80", "NO_COLOR": "1"})
    shown = unstyle(ran.stdout)  # typer decides about bold text when it is imported, by an earlier test perhaps
    assert max(map(len, shown.splitlines())) <= 80
    assert "<bool>" not in shown
    shown_options = [option for option in get_command(app).commands[verb].params if not option.hidden]
    names = {name for option in shown_options for name in option.opts if name.startswith("--")}
    assert {name for name in names if name not in shown} == set()


def test_the_program_itself_leaves_with_code_2(program: Any) -> None:
    ran = program("show", "d=64 | atn")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "unknown mixer 'atn'" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no /dev/full here")
@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_full_disk_is_one_message(tmp_path: Path, more: tuple[str, ...]) -> None:
    code = "import sys; from plait.__main__ import main; sys.argv[0] = 'plait'; main()"
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-c", code, "show", "d=64 | gla mlp", *more]
        ran = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path, check=False)
    assert ran.returncode == 2
    assert ran.stderr == "plait: cannot write what was asked for: No space left on device.\n"


def test_a_caret_points_at_the_culprit(plait: Any) -> None:
    message, line, caret = plait("show", "d=64 | attn mlp[iner=3]").stderr.splitlines()
    assert message.startswith("plait: spec:1:17:")
    assert line[caret.index("^") :].startswith("iner=3")


def test_help_and_version(plait: Any) -> None:
    asked = plait("--help")
    assert asked.returncode == 0
    for verb in ("show", "list", "check", "new", "verify"):
        assert verb in asked.stdout
        assert plait(verb, "-h").returncode == 0
    assert plait("--version").stdout == f"{package.__version__}\n"


def test_ctrl_c_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def stopped(*given: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("plait.api.show.show", stopped)
    monkeypatch.setattr(sys, "argv", ["plait", "show", "attn"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 130
    assert capsys.readouterr() == ("", "plait: interrupted\n")


OUT = "self.output(gate * s_BTD), {"
BROKEN = {
    "forward": ("self.output(gate * self.nothing), {", r"broken\.py, line \d+, in extend: AttributeError: 'MyMixer'"),
    "backward": (f"Raises.apply({OUT[:-3]}), {{", r"broken\.py, line \d+, in backward: RuntimeError: no way back"),
    "shape": (f"{OUT[:-3]}[..., :1], {{", r"my-mixer returns \(2, 67, 1\) for an input of \(2, 67, 16\)"),
}
RAISES = """

class Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise RuntimeError("no way back")
"""


@pytest.mark.parametrize("where", BROKEN)
def test_a_mistake_in_a_users_mixer_is_one_message(plait: Any, tmp_path: Path, where: str) -> None:
    broken, message = BROKEN[where]
    template = files("plait").joinpath("model/mixer_template.txt").read_text()
    assert OUT in template
    (tmp_path / "broken.py").write_text(template.replace(OUT, broken) + RAISES)
    small = ("--steps", "1", "--batch", "2", "--seq-len", "8", "--data", "builtin:language")
    ran = plait("train", "d=16 | my-mixer", "--mixers", "broken.py", *small)
    assert ran.returncode == 2, ran.stderr
    assert len(ran.stderr.splitlines()) == 1
    assert re.match(f"plait: {message}", ran.stderr), ran.stderr


@pytest.mark.parametrize("verb", ["finetune", "harness"])
def test_a_run_is_looked_for_in_the_folder_given(verb: str, plait) -> None:
    """Other commands that take a run have `--runs`; these two knew only runs/."""
    options = {"finetune": ("--task", "sst2", "--data", "SST-2"), "harness": ("--tasks", "animals.yaml")}
    ran = plait(verb, "latest", *options[verb], "--runs", "elsewhere")
    assert ran.returncode == 2, ran.stderr
    assert "elsewhere" in ran.stderr
