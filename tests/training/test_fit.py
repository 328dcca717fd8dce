"""From job to result: records, resume, interruption, full disks, damaged folders."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from plait.core.errors import UserError
from plait.model.architecture import architecture
from plait.records import open_store
from plait.training import checkpoint
from plait.training.distributed import Processes
from plait.training.fit import Interrupted, Options, _Fit, fit, fit_alone
from plait.training.recipe import Budget, Recipe
from plait.training.run import Run, folder_of, open_run
from plait.training.trainer import Diverged

sys.path.insert(0, str(Path(__file__).parent))
from small_job import small_job

ALONE = Processes(0, 1, torch.device("cpu"))


def run(job, tmp_path, report=None, **options):
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        return fit(job, ALONE, store, Options(root=tmp_path, **options), report=report)


def same(result, other):
    kept = ("run", "spec", "loss", "train_loss", "steps", "tokens", "params")
    return all(getattr(result, key) == getattr(other, key) for key in kept)


def test_result_weights_and_record(tmp_path):
    job = small_job(steps=10)
    result = run(job, tmp_path)
    assert result.entropy == job.corpus.entropy
    assert result.perplexity == pytest.approx(2.718281828**result.loss, rel=1e-6)
    opened = open_run(result.run, tmp_path)
    assert opened.result["loss"] == result.loss
    assert opened.tokenizer().as_dict() == job.corpus.tokenizer.as_dict()
    model = opened.model()
    tokens = torch.from_numpy(job.corpus.tokens("validation")[:513].astype("int64"))
    x, y = tokens[:504].reshape(21, 24), tokens[1:505].reshape(21, 24)
    with torch.no_grad():
        loss = float(model.loss(x[:20], y[:20]))
    assert loss == pytest.approx(result.loss, abs=1e-4)
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        record = store.get(job.key)
    assert [step for step, _ in record.result["curve"]] == list(range(1, 11))
    assert sorted(path.name for path in opened.folder.iterdir() if not path.name.startswith(".")) == [
        "log.jsonl", "result.json", "run.json", "tokenizer", "weights.safetensors",
    ]  # fmt: skip


def test_before_the_first_step_it_tells_what_it_does(tmp_path):
    """Not as progress: that is called after every step."""
    told, steps = [], []
    run(small_job(steps=2), tmp_path, report=lambda now: steps.append(now.step), on_start=told.append)
    assert told == ["building the model", "the first step"]
    assert 0 not in steps
    job, timed = replace(small_job(), budget=Budget(seconds=60)), []
    with pytest.raises(Interrupted):
        run(job, tmp_path, on_start=timed.append, stopping=lambda: True)
    assert timed == ["timing a few steps", *told]


def test_alone_it_tells_its_share_and_gives_the_same(tmp_path):
    shares = []
    with open_store(f"sqlite:///{tmp_path}/alone.db") as store:
        found = fit_alone(small_job(steps=4), store, tmp_path / "alone", on_progress=shares.append)
    work = 4 + 512 / (4 * 24) / 3  # in steps: a forward pass is a third of one
    assert shares[:4] == pytest.approx([step / work for step in (1, 2, 3, 4)])
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert same(found, run(small_job(steps=4), tmp_path))


@pytest.mark.parametrize("kind", ["attn", "xl", "encoder"])
def test_all_points_of_the_validation_curve_are_of_one_text(kind, tmp_path):
    """A model that does not learn has a flat curve, to its last point."""
    found = run(small_job(kind, steps=10, lr=1e-20, validation=2048), tmp_path)
    points = open_run(found.run, tmp_path).losses("validation")
    assert [step for step, _ in points] == [2, 4, 6, 8, 10]
    assert len({loss for _, loss in points}) == 1


def test_a_model_too_large_for_the_memory_leaves_no_run(tmp_path):
    job = small_job(steps=2)
    with pytest.raises(UserError, match="smaller width or fewer layers"):
        run(replace(job, arch=architecture(f"d=100000 vocab={job.corpus.vocab} | (attn mlp)x200")), tmp_path)
    assert not list(tmp_path.glob("train-*"))


@pytest.mark.parametrize(("steps", "message"), [(2.5, "--steps 2.5: write a whole"), ("5", "--steps '5': write")])
def test_steps_that_are_no_whole_number_are_refused(steps, message):
    with pytest.raises(UserError, match=message):
        Budget(steps=steps)


def test_latest_is_the_training_that_was_last_asked_for(tmp_path):
    first, second = (run(small_job(steps=2, seed=seed), tmp_path).run for seed in (0, 1))
    assert open_run("latest", tmp_path).name == second
    assert not run(small_job(steps=2, seed=0), tmp_path).trained_now
    assert open_run("latest", tmp_path).name == first
    with pytest.raises(UserError, match="validation loss is nan"):
        run(small_job("mamba", steps=3, warmup=0, lr=1e30), tmp_path)
    assert open_run("latest", tmp_path).name == first
    begun = small_job(steps=2, seed=7)
    Run(folder_of(begun.key, tmp_path)).create(begun, None)  # begun, and stopped before its first checkpoint
    assert open_run("latest", tmp_path).name == first
    diverged = folder_of(small_job("mamba", steps=3, warmup=0, lr=1e30).key, tmp_path)
    with pytest.raises(UserError, match=r"no weights yet: it diverged: the validation loss is nan after 3 steps"):
        open_run(diverged).model()


def test_the_advice_on_divergence_is_not_the_default():
    assert "clip" not in str(Diverged("It diverged.", Recipe()))
    assert "--set clip=1" in str(Diverged("It diverged.", Recipe(clip=0.0)))


def test_resumed_at_its_last_step_it_knows_its_loss(tmp_path, monkeypatch):
    job = small_job(steps=4)
    with monkeypatch.context() as patch:
        patch.setattr(_Fit, "_finish", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(job, tmp_path, save_steps=4)
    losses = []
    found = run(job, tmp_path, report=lambda now: losses.append(now.loss))
    assert set(losses) == {found.train_loss}


def test_nothing_is_trained_twice(tmp_path):
    first = run(small_job(steps=4), tmp_path)
    again = run(small_job(steps=4), tmp_path)
    assert (first.trained_now, again.trained_now) == (True, False)
    assert same(first, again)


@pytest.mark.parametrize("kind", ["attn", "xl", "encoder"])
def test_interrupted_at_any_step_it_ends_the_same(kind, tmp_path):
    job = small_job(kind, steps=9, dropout=0.1)
    straight = run(job, tmp_path / "straight")
    for at in (1, 4, 8):
        folder = tmp_path / f"stopped-{at}"

        def stop(progress, at=at):
            if progress.step == at:
                os.kill(os.getpid(), signal.SIGINT)

        with pytest.raises(Interrupted):
            run(job, folder, report=stop)
        resumed = run(job, folder)
        assert same(resumed, straight)
        logs = [
            [json.loads(line) for line in (folder_of(job.key, root) / "log.jsonl").read_text().splitlines()]
            for root in (folder, tmp_path / "straight")
        ]
        assert [(row["step"], row.get("loss")) for row in logs[0]] == [
            (row["step"], row.get("loss")) for row in logs[1]
        ]


def test_stopped_in_its_last_validation_it_ends_the_same(tmp_path):
    """Which takes longer than all steps of a short training."""
    job = small_job(steps=3, validation=4096)
    straight, seen = run(job, tmp_path / "straight"), []

    def stop(now):
        if now.validated:
            seen.append(now.validated)
            if len(seen) == 2:
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match="is saved at step 3; the same call resumes") as stopped:
        run(job, tmp_path / "stopped", report=stop)
    assert isinstance(stopped.value, Interrupted)
    assert stopped.value.step == 3
    assert not isinstance(stopped.value, Exception), "a loop that goes on after errors would go on after Ctrl-C"
    assert len(seen) == 2
    assert seen[1] < 1
    steps = set()
    resumed = run(job, tmp_path / "stopped", report=lambda now: steps.add(now.step))
    assert steps == {3}
    assert same(resumed, straight)
    logs = [open_run(job.key, tmp_path / name).folder / "log.jsonl" for name in ("straight", "stopped")]
    rows = [[json.loads(line) for line in log.read_text().splitlines()] for log in logs]
    assert [(row["step"], row.get("validation")) for row in rows[0]] == [
        (row["step"], row.get("validation")) for row in rows[1]
    ]


@pytest.mark.parametrize(("validation", "noted"), [(2**15, True), (96, False)])
def test_a_validation_longer_than_the_training_is_noted(validation, noted, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[fit.__module__], "NOTED_SECONDS", 0.0)
    notes = set()
    run(small_job(steps=5, validation=validation), tmp_path, report=lambda now: notes.add(now.note))
    assert any(note.startswith("validation on 32,768 tokens takes about") for note in notes) == noted


def test_a_runs_files_are_as_readable_as_any_other(tmp_path):
    job = small_job(steps=2)
    run(job, tmp_path)
    (tmp_path / "other").touch()
    modes = {path.name: path.stat().st_mode for path in folder_of(job.key, tmp_path).iterdir() if path.is_file()}
    assert {"run.json", "log.jsonl", "weights.safetensors", "result.json"} <= set(modes)
    assert set(modes.values()) == {(tmp_path / "other").stat().st_mode}


def test_a_full_disk_while_saving_does_not_stop_the_training(tmp_path, monkeypatch):
    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "_write", full)
    notes = set()
    result = run(small_job(steps=4), tmp_path, save_steps=2, report=lambda now: notes.add(now.note))
    assert result.steps == 4
    assert any("No space left" in note for note in notes)


def test_a_full_disk_at_the_end_is_said_and_the_run_can_go_on(tmp_path, monkeypatch):
    from plait.training import run as run_module

    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    job = small_job(steps=4)
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "save_tensors", full)
        with pytest.raises(UserError, match=r"cannot write .*weights.safetensors: No space left"):
            run(job, tmp_path, save_steps=2)
    assert run(job, tmp_path).steps == 4


def test_a_damaged_folder_is_refused_and_kept(tmp_path):
    job = small_job(steps=6)
    with pytest.raises(Interrupted):
        run(job, tmp_path, report=lambda now: os.kill(os.getpid(), signal.SIGINT) if now.step == 3 else None)
    folder = folder_of(job.key, tmp_path)
    (last,) = folder.glob("step-*")
    (shard,) = last.glob("*.safetensors")
    shard.write_bytes(shard.read_bytes()[:-7])
    with pytest.raises(UserError, match=r"damaged.*remove the folder"):
        run(job, tmp_path)
    assert shard.exists()
    (folder / "run.json").write_text("nonsense")
    with pytest.raises(UserError, match=r"run\.json cannot be read"):
        run(job, tmp_path)


def test_a_training_that_diverged_leaves_no_number_that_json_lacks(tmp_path):
    job = small_job("mamba", steps=3, warmup=0, lr=1e30)
    with pytest.raises(UserError, match=r"validation loss is nan after 3 steps \(2 skipped\).*now 1e\+30\)\.$"):
        run(job, tmp_path)
    folder = folder_of(job.key, tmp_path)
    assert not (folder / "result.json").exists()
    rows = [json.loads(line, parse_constant=pytest.fail) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert rows[-1] == {"step": 3, "validation": None}


def test_weights_of_another_architecture_are_refused(tmp_path):
    first, second = run(small_job(steps=1), tmp_path), run(small_job("moe", steps=1), tmp_path)
    source, target = (open_run(result.run, tmp_path).folder for result in (first, second))
    (target / "weights.safetensors").write_bytes((source / "weights.safetensors").read_bytes())
    with pytest.raises(UserError, match="not those of its architecture"):
        open_run(second.run, tmp_path).model()
    (target / "weights.safetensors").write_bytes(b"no safetensors")
    with pytest.raises(UserError, match="cannot be read"):
        open_run(second.run, tmp_path).model()


class Clock:
    """Goes on only by what it is told, and a moment with every look at it."""

    time = staticmethod(time.time)

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        self.now += 1e-5
        return self.now

    def slowing(self, call, seconds):
        """`call`, which takes so many seconds; a share of them where it is given a share."""

        def slow(trainer, share=1.0, **options):
            self.now += seconds * share
            return call(trainer, **options) if share == 1.0 else call(trainer, share, **options)

        return slow


def test_a_time_budget_is_kept_and_resumed_with_the_same_steps(tmp_path, monkeypatch):
    from plait.training import speed
    from plait.training.recipe import Budget, Job
    from plait.training.trainer import Trainer

    clock = Clock()
    for module in (speed, sys.modules[fit.__module__]):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(Trainer, "launch", clock.slowing(Trainer.launch, 0.05))
    monkeypatch.setattr(Trainer, "validation_loss", clock.slowing(Trainer.validation_loss, 0.4))
    job = small_job()
    timed = Job(job.arch, job.corpus, job.recipe, Budget(seconds=4.0), validation_tokens=512)
    result = run(timed, tmp_path)
    assert 3.7 < clock.now < 4.0
    assert result.seconds == pytest.approx(0.05 * result.steps, abs=0.01)
    assert open_run(result.run, tmp_path).about["steps"] == result.steps


@pytest.mark.parametrize("given", ["nothing", "latest"])
def test_unknown_runs_are_explained(given, tmp_path):
    with pytest.raises(UserError, match="is not a run"):
        open_run(given, tmp_path)


def test_one_process_at_a_time(tmp_path):
    job = small_job(steps=4)
    with pytest.raises(Interrupted):
        run(job, tmp_path, report=lambda now: os.kill(os.getpid(), signal.SIGINT))
    with open_run(job.key, tmp_path).locked():
        script = (
            "import sys; sys.path.insert(0, sys.argv[1])\n"
            "from pathlib import Path; from test_fit import run, small_job\n"
            "run(small_job(steps=4), Path(sys.argv[2]))"
        )
        done = subprocess.run(
            [sys.executable, "-c", script, str(Path(__file__).parent), str(tmp_path)], capture_output=True, text=True
        )
    assert "is being trained by another process" in done.stderr


KILLS, STEPS = 50, 1500


@pytest.mark.slow
def test_killed_fifty_times_it_ends_the_same(tmp_path):
    """kill -9 at random moments, all along the run: every resume goes on to the uninterrupted run's final loss."""
    job = small_job(steps=STEPS, dropout=0.1)
    straight = run(job, tmp_path / "straight")
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\nfrom pathlib import Path; from test_fit import run, small_job\n"
        f"run(small_job(steps={STEPS}, dropout=0.1), Path(sys.argv[2]), save_steps=7)"
    )
    chance = random.Random(0)
    folder = folder_of(job.key, tmp_path / "killed")
    for moment in sorted(chance.sample(range(STEPS - 200), KILLS)):
        child = subprocess.Popen([sys.executable, "-c", script, str(Path(__file__).parent), str(tmp_path / "killed")])
        while _reached(folder) < moment:
            assert child.poll() is None
            time.sleep(0.002)
        time.sleep(0.05 * chance.random())
        child.kill()
        assert child.wait() == -signal.SIGKILL
    assert same(run(job, tmp_path / "killed"), straight)


def _reached(folder: Path) -> int:
    return max((int(path.name.removeprefix("step-")) for path in folder.glob("step-*")), default=0)
