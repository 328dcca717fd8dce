"""Thousands of damaged, truncated, mistyped or hostile files: does plait report each in one message?

python benchmarks/faults.py [-o FILE.md] [--files 3000] [--flips 400] [KIND …]

A valid file of every kind that plait reads is created, then changed, one fault at a time (a bit, a byte, a cut, a value
of another type, a number of 400 digits, nesting 100,000 deep …), and handed to a command that reads it. A try passes if
the command ends with a result or with one message; it fails on a traceback, a signal, after a minute, or with more than
2 GB. Flipped bits of stores and checkpoints fail if what is read back is neither refused nor what was written. Tries
run in forked processes with a memory limit, several in each.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "searching"))

import torch
import typer

import plait
from plait.cli import main as program
from plait.core.errors import UserError
from plait.device.quantities import Setting
from plait.records import Record, open_store
from plait.space.table import load_space
from plait.spec import parse
from plait.spec.serial import to_json, to_yaml
from plait.training import checkpoint
from plait.training.checkpoint import Piece
from plait.training.distributed import Processes

SECONDS = 60
TOGETHER = 16  # tries in one process
MEMORY = 2 * 10**9  # resident bytes that a try may add
ADDRESS_SPACE = 24 * 2**30  # so that a bomb hurts itself alone

SPACE = """
layers: 2..4
d: 32..64 step 32
header: vocab=256 tie=true
mixers: [attn[heads=2|4], gla[heads=2]]
channel: [swiglu[inner=64..128 step 64], none]
constraints:
  - inner >= int(1.5 * d)
  - decoder_params <= 20M
seq: 32
"""
SPEC = "d=32 vocab=256 | (attn[heads=2] swiglu[inner=64])x2"
TASK = """
task: animals
dataset_path: json
dataset_kwargs: {data_files: {test: animals.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}?"
doc_to_target: answer
doc_to_choice: choices
metric_list:
  - {metric: acc}
"""
VALUES = (
    "null", "true", "-1", "0", "1e400", "NaN", "9" * 400, "99999999999", "1e308", '"x"', "[]", "{}", "[[[]]]",
    "-0.5", '""', '"\\u001b[31m"', '"../../../etc/passwd"', "[" * 100_000, '{"a":' * 100_000,
)  # fmt: skip


#: Of the tries: those whose commands take seconds get fewer.
SHARES = {"glue": 0.2, "squad": 0.2, "harness": 0.3, "settings": 2, "space": 1.5, "table": 2, "spec": 2}


def import_everything() -> None:
    for found in pkgutil.walk_packages(plait.__path__, "plait."):
        if "triton" not in found.name and "facts" not in found.name and not found.name.endswith("__main__"):
            with contextlib.suppress(ImportError, UserError):
                importlib.import_module(found.name)


# ---- whole files


@dataclass
class Kind:
    """Files of one kind, and the command lines that read them ({} is the file, {folder} its folder)."""

    files: list[Path]
    commands: list[list[str]]
    tries: int = 0
    survived: int = 0
    refused: int = 0
    lost: list[str] = field(default_factory=list)

    def note(self, found: str, what: str) -> None:
        self.tries += 1
        if found in ("", "refused"):
            self.survived += 1
            self.refused += found == "refused"
        else:
            self.lost.append(f"{what}: {found}")


def whole_files(home: Path) -> dict[str, Kind]:
    from made_up import profile_of

    text = home / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 200)
    run = Path(plait.train(SPEC.replace(" vocab=256", ""), data=str(text), tokenizer="bytes", steps=2, batch=2,
                           seq_len=16, runs=home / "runs").folder)  # fmt: skip
    plait.export(run, "hf", output=home / "hf")
    gpt2 = _gpt2(home)
    space = home / "space.txt"
    space.write_text(SPACE)
    profile = home / "profile.json"
    profile_of(load_space(str(space)), Setting(seq=32)).save(profile)
    rows = [{"name": f"m{n}", "loss": 3 - n / 10, "ms": 1 + n * 0.5, "params": 10**6 * (n + 1)} for n in range(12)]
    table = {ending: home / f"table.{ending}" for ending in ("csv", "json", "jsonl")}
    table["csv"].write_text("name,loss,ms,params\n" + "".join(",".join(map(str, row.values())) + "\n" for row in rows))
    table["json"].write_text(json.dumps(rows))
    table["jsonl"].write_text("".join(json.dumps(row) + "\n" for row in rows))
    (home / "spec.json").write_text(to_json(parse(SPEC)))
    (home / "spec.yaml").write_text(to_yaml(parse(SPEC)))
    (home / "tasks").mkdir()
    (home / "tasks" / "animals.yaml").write_text(TASK)
    animals = [{"question": "what barks", "choices": ["a dog", "a cat"], "answer": n % 2} for n in range(4)]
    (home / "tasks" / "animals.jsonl").write_text("".join(json.dumps(item) + "\n" for item in animals))
    _glue(home / "SST-2")
    _squad(home / "SQuAD")
    search = ["search", "--space", "{}", "--objectives", "decoder_params,min:flops", "--iterations", "1"]
    quick = ["--population", "8", "--no-validate", "--front", "0", "--json"]
    return {
        "run": Kind(
            [run / "run.json", run / "result.json", run / "log.jsonl", *sorted((run / "tokenizer").iterdir())],
            [["runs", "curves", "{run}"], ["generate", "{run}", "a", "--tokens", "2"],
             ["eval", "{run}", "--on", "perplexity", "--length", "16", "--json"],
             ["export", "{run}", "--to", "hf", "-o", "out"],
             ["train", "--from", "{run}", "--steps", "1", "--batch", "1", "--seq-len", "8"]],
        ),
        "weights": Kind([run / "weights.safetensors"], [["generate", "{run}", "a", "--tokens", "2"]]),
        "huggingface": Kind(
            [gpt2 / "config.json", gpt2 / "model.safetensors", gpt2 / "model.safetensors.index.json",
             *sorted(gpt2.glob("token*.json"))],
            [["import", "{folder}", "-o", "imported"]],
        ),
        "profile": Kind(
            [profile],
            [["profile", "show", "{}"], ["predict", SPEC, "--profile", "{}", "--seq-len", "32"],
             ["predict", SPEC, "--profile", "{}", "--seq-len", "32", "--anywhere", "--json"],
             ["profile", "compare", "{}", str(profile)],
             ["search", "--space", str(space), "--profile", "{}", "--anywhere", "--iterations", "1", *quick]],
        ),
        "table": Kind(
            list(table.values()),
            [["analyse", "front", "{}", "--minimise", "loss,ms"],
             ["analyse", "ranks", "{}", "--proxy", "params", "--truth", "loss"],
             ["analyse", "hypervolume", "{}", "--minimise", "loss,ms"],
             ["analyse", "front", "{}", "--minimise", "loss,ms", "--where", "params>3000000"]],
        ),
        "space": Kind([space], [[*search, *quick]]),
        "spec": Kind([home / "spec.json", home / "spec.yaml"], [["show", "{}"], ["show", "{}", "--json"]]),
        "harness": Kind(
            [home / "tasks" / "animals.yaml", home / "tasks" / "animals.jsonl"],
            [["harness", str(run), "--tasks", "{folder}/animals.yaml", "--json"]],
        ),
        "glue": Kind(
            sorted((home / "SST-2").iterdir()),
            [["finetune", str(run), "--task", "sst2", "--data", "{folder}", "--epochs", "1", "--batch", "8"]],
        ),
        "squad": Kind(
            sorted((home / "SQuAD").iterdir()),
            [["finetune", str(run), "--task", "squad", "--data", "{folder}", "--epochs", "1", "--batch", "8",
              "--max-len", "64"]],
        ),
        "settings": Kind([], []),
    }  # fmt: skip


def _gpt2(home: Path) -> Path:
    """Two shards and an index, as large models of others are published."""
    from transformers import GPT2Config, GPT2LMHeadModel

    folder = home / "gpt2"
    sizes = {"n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=300, bos_token_id=0, eos_token_id=0, **sizes))
    model.save_pretrained(folder)
    from safetensors.torch import load_file

    names = dict.fromkeys(load_file(folder / "model.safetensors"), "model.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    for file in (home / "hf").glob("token*.json"):
        shutil.copy(file, folder / file.name)
    return folder


def _glue(folder: Path) -> None:
    folder.mkdir()
    rows = [f"a {word} film, number {n}\t{label}" for n in range(8) for word, label in (("good", 1), ("bad", 0))]
    for split in ("train", "dev"):
        (folder / f"{split}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    (folder / "test.tsv").write_text("index\tsentence\n0\ta bad film\n")


def _squad(folder: Path) -> None:
    folder.mkdir()
    context = "The tower was built in 1889 by a company of engineers."
    asked = [{"id": f"q{n}", "question": "When was it built?", "answers": [{"text": "1889", "answer_start": 23}]}
             for n in range(4)]  # fmt: skip
    document = {"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": asked}]}]}
    for split in ("train", "dev"):
        (folder / f"{split}-v1.1.json").write_text(json.dumps(document))


# ---- faults


def changed(data: bytes, draw: random.Random) -> bytes:
    """One fault."""
    at = draw.randrange(max(1, len(data)))
    kind = draw.randrange(9)
    if kind == 0:
        return data[:at]
    if kind == 1:
        flipped = bytearray(data or b"\0")
        flipped[at % len(flipped)] ^= 1 << draw.randrange(8)
        return bytes(flipped)
    if kind == 2:
        return data[:at] + draw.randbytes(draw.randrange(1, 9)) + data[at:]
    if kind == 3:
        end = min(len(data), at + draw.randrange(1, 40))
        return data[:at] + data[end:]
    if kind == 4:
        end = min(len(data), at + draw.randrange(1, 200))
        return data[:end] + data[at:end] + data[end:]
    if kind == 5:
        return draw.choice(
            (b"", b"\n", b"null", b"[]", b"{}", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000, b"a: " * 9999)
        )
    return _value_changed(data, draw)


def _value_changed(data: bytes, draw: random.Random) -> bytes:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return data[: len(data) // 2]
    try:
        document = json.loads(text)
    except ValueError:
        places = [n for n in range(len(text)) if text[n].isdigit() or text[n] in ",:|[]\t"]
        if not places:
            return b""
        at = draw.choice(places)
        end = at
        while end < len(text) and text[end].isdigit():
            end += 1
        return (text[:at] + draw.choice(VALUES) + text[max(end, at + 1) :]).encode()
    mark = "\0mark\0"
    spots = list(_spots(document))
    if not spots:
        return b"{"
    holder, name = draw.choice(spots)
    if draw.random() < 0.3:
        del holder[name]
        return json.dumps(document).encode()
    holder[name] = mark
    return json.dumps(document).replace(json.dumps(mark), draw.choice(VALUES)).encode()


def _spots(document: Any) -> Iterator[tuple[Any, Any]]:
    if not isinstance(document, dict | list):
        return
    for name, value in list(document.items() if isinstance(document, dict) else enumerate(document)):
        yield document, name
        yield from _spots(value)


# ---- a try


def attempt(works: list[Callable[[], None]]) -> list[str]:
    """Run one after the other in forked processes, another wherever one is lost: "" where it came to an end, "refused"
    with a message, else what went wrong."""
    found: list[str] = []
    while len(found) < len(works):
        found += _in_a_process(works[len(found) :])
    return found


def _in_a_process(works: list[Callable[[], None]]) -> list[str]:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
        with open(os.devnull, "w") as nowhere, os.fdopen(writing, "w") as answers:
            sys.stdout = sys.stderr = nowhere
            for work in works:
                signal.alarm(SECONDS)
                answer = _outcome(work)
                print(json.dumps(answer), file=answers, flush=True)
                if answer not in ("", "refused"):
                    break
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as opened:
        found = [json.loads(line) for line in opened if line.endswith("\n")]
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        found.append(f"ended by {signal.Signals(os.WTERMSIG(status)).name}")
    return found


def _outcome(work: Callable[[], None]) -> str:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    try:
        work()
    except UserError:
        return "refused"
    except SystemExit as left:
        if left.code not in (0, 1, 2, None):
            return f"exit {left.code}"
        if left.code in (1, 2):
            return "refused"
    except BaseException:
        return traceback.format_exc()[-3000:]
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    return f"{used / 1e9:.1f} GB" if used > MEMORY else ""


def run_command(arguments: list[str], folder: Path) -> None:
    os.chdir(folder)
    sys.argv = ["plait", *arguments]
    program.main()


def try_files(name: str, kind: Kind, tries: int, home: Path, draw: random.Random) -> None:
    for first in range(0, tries, TOGETHER):
        numbers = range(first, min(tries, first + TOGETHER))
        scratches = [home / f"scratch-{number}" for number in numbers]
        made = [_prepared(name, kind, home, scratch, draw) for scratch in scratches]
        works = [lambda a=arguments, s=s: run_command(a, s) for (_, arguments), s in zip(made, scratches, strict=True)]
        for number, scratch, (what, _), found in zip(numbers, scratches, made, attempt(works), strict=True):
            kind.note(found, f"{what} (try {number})")
            if found not in ("", "refused"):
                keep = home.parent / f"{home.name}-lost" / f"{name}-{number}"
                shutil.copytree(scratch, keep, symlinks=True, dirs_exist_ok=True)
            shutil.rmtree(scratch, ignore_errors=True)


def require_whole_ones_accepted(kinds: dict[str, Kind], home: Path) -> None:
    """Every command on a file that nothing is wrong with: or all would be refused for another reason."""
    for name, kind in kinds.items():
        for number, _ in enumerate(kind.commands):
            scratch = home / f"whole-{name}-{number}"
            _, arguments = _prepared(name, kind, home, scratch, None, number)
            (found,) = attempt([lambda a=arguments, s=scratch: run_command(a, s)])
            if found:
                print(f"a whole {name} is {found}: plait {' '.join(arguments)}", flush=True)
            shutil.rmtree(scratch)


def _prepared(
    name: str, kind: Kind, home: Path, scratch: Path, draw: random.Random | None, command: int = 0
) -> tuple[str, list[str]]:
    """A changed file beside its neighbours, as it is found (a run's folder, a model's), and a command that reads it."""
    scratch.mkdir()
    if name == "settings" and draw is not None:
        return _settings(draw)
    source = draw.choice(kind.files) if draw else kind.files[0]
    root = source.parent.parent if source.parent.name == "tokenizer" else source.parent
    top = scratch / root.name
    if root == home:
        top.mkdir()
        shutil.copy(source, top / source.name)
    else:
        shutil.copytree(root, top)
    target = top / source.relative_to(root)
    if draw is not None:
        target.write_bytes(changed(source.read_bytes(), draw))
    names = {"{}": str(target), "{folder}": str(target.parent), "{run}": str(top)}
    chosen = draw.choice(kind.commands) if draw else kind.commands[command]
    return f"{source.name}: {' '.join(chosen[:2])}", [_filled(part, names) for part in chosen]


def _filled(part: str, names: dict[str, str]) -> str:
    for name, value in names.items():
        part = part.replace(name, value)
    return part


def _settings(draw: random.Random) -> tuple[str, list[str]]:
    """Of a task, given by --set; and of a training, a recipe's."""
    from plait.tasks import load, names

    values = ("-1", "0", "1", "2", "7", "300", "x", "", "nan", "inf", "1e400", "9" * 400, "99999999999", "true", "0.5")
    task = draw.choice(list(names()))
    keys = list(load(task)().settings())
    given = [f"{draw.choice(keys)}={draw.choice(values)}" for _ in range(draw.randrange(1, 3))]
    arguments = ["task", "show", task, *(part for one in given for part in ("--set", one))]
    return f"{task} {given}", arguments


# ---- flipped bits


def flip(path: Path, bit: int) -> None:
    with path.open("r+b") as opened:
        opened.seek(bit // 8)
        byte = opened.read(1)[0]
        opened.seek(bit // 8)
        opened.write(bytes([byte ^ 1 << bit % 8]))


def try_flips(name: str, flips: int, home: Path, draw: random.Random) -> Kind:
    """Of what is written once: changed by a bit, is it refused, or read back as it was?"""
    kind = Kind([], [])
    make, read = FLIPPED[name]
    original, copy = home / f"flips-{name}", home / f"copy-{name}"
    shutil.rmtree(original, ignore_errors=True)
    original.mkdir()
    make(original)
    files = sorted(path for path in original.rglob("*") if path.is_file() and not path.name.endswith(("-wal", "-shm")))
    sizes = [path.stat().st_size for path in files]
    for first in range(0, flips, TOGETHER):
        works, names = [], []
        for number in range(first, min(flips, first + TOGETHER)):
            changed_copy = copy / str(number)
            shutil.copytree(original, changed_copy)
            (chosen,) = draw.choices(files, sizes)
            bit = draw.randrange(8 * chosen.stat().st_size)
            flip(changed_copy / chosen.relative_to(original), bit)
            works.append(lambda folder=changed_copy: read(folder))
            names.append(f"{name} {chosen.name} bit {bit} (try {number})")
        for what, found in zip(names, attempt(works), strict=True):
            kind.note(found, what)
        shutil.rmtree(copy)
    return kind


def _records() -> list[Record]:
    about = {"started": "2026-01-02T03:04:05+00:00", "seconds": 1.5}
    return [
        Record.of("probe" if n % 2 else "train", {"protocol": 1, "seed": n, "task": {"name": "recall"}},
                  {"loss": 3 - n / 7, "curve": [n / 3 + k / 11 for k in range(60)]}, about)
        for n in range(30)
    ]  # fmt: skip


def _make_store(folder: Path) -> None:
    with open_store(f"sqlite:///{folder}/plait.db") as store:
        for record in _records():
            store.put(record)


def _read_store(folder: Path) -> None:
    truth = _records()
    with open_store(f"sqlite:///{folder}/plait.db") as store:
        assert store.find() == truth[::-1]
        assert store.find("probe") == [record for record in truth[::-1] if record.kind == "probe"]
        assert store.find(where={"seed": 3}) == [truth[3]]
        assert [store.get(record.key) for record in truth] == truth


def _state() -> dict[str, Any]:
    return {
        "step": 28,
        "curve": [1.5, 2.5],
        "tensors": {"a": torch.arange(400.0).reshape(20, 20), "b": torch.tensor(7)},
    }


def _same_state(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    plain = [{k: v for k, v in state.items() if k != "tensors"} for state in (found, wanted)]
    tensors, expected = found["tensors"], wanted["tensors"]
    return plain[0] == plain[1] and tensors.keys() == expected.keys() and all(
        torch.equal(value, expected[name]) for name, value in tensors.items()
    )  # fmt: skip


def _make_fleet(folder: Path) -> None:
    checkpoint.save_state(folder / "c.safetensors", {**_state(), "step": 14})
    checkpoint.save_state(folder / "c.safetensors", _state())


def _read_fleet(folder: Path) -> None:
    found = checkpoint.load_state(folder / "c.safetensors")
    assert found is not None, "both are damaged"
    assert _same_state(found, {**_state(), "step": found["step"]})
    assert found["step"] in (14, 28)


ALONE = Processes(0, 1, torch.device("cpu"))
PLAIN = {"fit": {"curve": [[1, 2.5], [2, 2.25]], "pending": []}, "trainer": {"updates": 28}}


def _make_shards(folder: Path) -> None:
    for step in (14, 28):
        checkpoint.save_checkpoint(folder, step, {"params/w": Piece.whole(torch.arange(400.0))}, PLAIN, ALONE)


def _read_shards(folder: Path) -> None:
    found = checkpoint.newest_checkpoint(folder)
    assert found is not None
    assert found.step in (14, 28)
    assert found.plain == PLAIN
    assert torch.equal(found.rows("params/w"), torch.arange(400.0))


FLIPPED = {
    "store": (_make_store, _read_store),
    "fleet-checkpoint": (_make_fleet, _read_fleet),
    "training-checkpoint": (_make_shards, _read_shards),
}


# ---- the table


def report(kinds: dict[str, Kind], seconds: float) -> str:
    lines = ["| what | tries | survived | of these refused | lost |", "|---|---:|---:|---:|---:|"]
    for name, kind in kinds.items():
        lines.append(f"| {name} | {kind.tries} | {kind.survived} | {kind.refused} | {len(kind.lost)} |")
    rows = [(kind.tries, kind.survived, kind.refused, len(kind.lost)) for kind in kinds.values()]
    total = [sum(column) for column in zip(*rows, strict=True)]
    lines += [f"| all | {' | '.join(map(str, total))} |", "", f"{seconds:.0f} seconds."]
    return "\n".join(lines)


def main_program() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--files", type=int, default=3000)
    parser.add_argument("--flips", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="plait-faults-"))
    os.chdir(home)
    started, done = time.time(), {}
    draw = random.Random(given.seed)
    kinds = whole_files(home)
    import_everything()  # once, not in every try
    program.app = typer.main.get_command(program.app)  # type: ignore[assignment]
    gc.freeze()
    require_whole_ones_accepted({name: kinds[name] for name in kinds if not given.kinds or name in given.kinds}, home)
    chosen = [name for name in kinds if not given.kinds or name in given.kinds]
    for name in chosen:
        kind = done[f"{name} files"] = kinds[name]
        share = SHARES.get(name, 1) / sum(SHARES.get(each, 1) for each in kinds)
        try_files(name, kind, round(given.files * share), home, draw)
        print(f"{name}: {kind.tries} tries, {len(kind.lost)} lost, {time.time() - started:.0f} s", flush=True)
    for name in FLIPPED:
        if not given.kinds or name in given.kinds:
            done[f"{name} bits"] = try_flips(name, given.flips, home, draw)
            print(f"{name}: {len(done[f'{name} bits'].lost)} of {given.flips} lost", flush=True)
    text = report(done, time.time() - started)
    print(text)
    for kind in done.values():
        for lost in kind.lost:
            print(f"\nLOST {lost}")
    if given.output:
        given.output.write_text(text + "\n")
    shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main_program()
