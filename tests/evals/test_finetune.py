"""Fine-tuning tiny models on toy files: what can be learned is learned, from the files to the submission."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch

import plait
from plait.api import downstream
from plait.cli.main import main
from plait.core.errors import UserError
from plait.core.progress import OnProgress, Stopped
from plait.data.tokenizers import Words as WordTokenizer
from plait.evals import finetune as finetuning
from plait.evals import finetune_loop
from plait.evals.finetune import Finetuned, encode_texts
from plait.evals.finetune_loop import Plan, Row, TunedModel, in_order
from plait.model import build
from plait.training.run import Run

FILLER = ["the", "one", "of", "some", "film", "day", "king", "red", "slow", "house", "in", "from", "over", "by", "sea"]
WORDS = ["?", *FILLER, "good", "bad", "what", "when", "1914", "1939", "1969", "may", "june", "july"]


class Words:
    """One token a word; the last id is the end of a text, the one before it whatever is not known."""

    vocab = len(WORDS) + 2
    end = len(WORDS) + 1

    def as_dict(self) -> dict[str, Any]:
        return {"kind": "test"}

    def encode(self, text: str) -> np.ndarray:
        found = re.findall(r"\w+|\S", text)
        return np.array([WORDS.index(w) if w in WORDS else len(WORDS) for w in found], dtype=np.int64)


TOKENS = Words()
ENCODER = (
    f"d=32 vocab={TOKENS.vocab} kind=encoder pos=learned max_len=64 segments=2 | attn[heads=2 causal=false] swiglu"
)
MODELS = {
    "encoder": ENCODER,
    "attention": f"d=32 vocab={TOKENS.vocab} | attn[heads=2] swiglu",
    "recurrence": f"d=32 vocab={TOKENS.vocab} | gla[heads=2] swiglu",
}
QUICK = Plan(epochs=8, lr=4e-3, batch=16, max_len=32)


def finetune(model: Any, tokenizer: Any, kind: str, folder: Path, plan: Plan = QUICK, seeds: int = 1) -> Finetuned:
    with TemporaryDirectory() as kept:  # so that nothing is known from an earlier call
        return finetuning.finetune(
            model, tokenizer, kind, folder, plan, seeds=seeds, progress=lambda *_: None, keep=Path(kept)
        )


def sentence(random: np.random.Generator, *needed: str) -> str:
    words = [*random.choice(FILLER, size=random.integers(3, 9)), *needed]
    return " ".join(random.permutation(words))


def write(folder: Path, columns: str, rows: Any, test_rows: Any = ()) -> Path:
    folder.mkdir()
    lines = ["\t".join(map(str, row)) for row in rows]
    for split, some in (("train", lines[40:]), ("dev", lines[:40])):
        (folder / f"{split}.tsv").write_text("\n".join([columns, *some]) + "\n")
    if test_rows:
        (folder / "test.tsv").write_text("\n".join(["index\tsentence", *test_rows]) + "\n")
    return folder


@pytest.fixture
def feelings(tmp_path: Path) -> Path:
    """SST-2: good or bad, somewhere in the sentence."""
    random = np.random.default_rng(0)
    labels = random.integers(2, size=200).tolist()
    rows = [(sentence(random, ("bad", "good")[label]), label) for label in labels]
    tests = [f"{i}\t{sentence(random, word)}" for i, word in enumerate(("good", "bad", "bad", "good"))]
    return write(tmp_path / "sst2", "sentence\tlabel", rows, tests)


@pytest.mark.parametrize("name", MODELS)
def test_a_learnable_task_is_learned(feelings: Path, name: str) -> None:
    found = finetune(build(MODELS[name], seed=1), TOKENS, "SST-2", feelings, QUICK)
    assert found["metrics"]["accuracy"] > 0.9
    assert len(found["dev"]["dev"]) == 40
    assert found["files"] == {"SST-2.tsv": "index\tprediction\n0\t1\n1\t0\n2\t0\n3\t1\n"}


def test_a_pair_is_read_as_a_pair(tmp_path: Path) -> None:
    """RTE: what counts is the second text's word; the first holds the same words at random."""
    random = np.random.default_rng(1)
    rows = []
    for index, label in enumerate(random.integers(2, size=240)):
        texts = sentence(random, random.choice(["good", "bad"])), sentence(random, ("good", "bad")[label])
        rows.append((index, *texts, ("entailment", "not_entailment")[label]))
    folder = write(tmp_path / "rte", "index\tsentence1\tsentence2\tlabel", rows)
    plan = Plan(epochs=14, lr=5e-3, batch=16, max_len=48)
    assert finetune(build(ENCODER, seed=1), TOKENS, "rte", folder, plan)["metrics"]["accuracy"] > 0.9


@pytest.fixture
def counts(tmp_path: Path) -> Path:
    """STS-B: how often "good" occurs, between 0 and 5."""
    random = np.random.default_rng(2)
    head = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore"
    rows = []
    for index, count in enumerate(random.integers(0, 6, size=240)):
        texts = sentence(random), sentence(random, *["good"] * count)
        rows.append((index, "g", "f", 2012, index, "n", "n", *texts, float(count)))
    return write(tmp_path / "stsb", head, rows)


def test_scores_are_learned_on_their_own_scale(counts: Path) -> None:
    plan = Plan(epochs=10, lr=4e-3, batch=16, max_len=48)
    found = finetune(build(MODELS["encoder"], seed=1), TOKENS, "stsb", counts, plan)
    assert min(found["metrics"].values()) > 0.9
    assert set(found["metrics"]) == {"pearson", "spearman"}
    truth = [float(line.split("\t")[-1]) for line in (counts / "dev.tsv").read_text().splitlines()[1:]]
    assert np.abs(np.array(found["dev"]["dev"]) - truth).mean() < 0.8  # the scale, which correlations do not see


def squad_file(path: Path, seed: int, count: int) -> list[str]:
    """The answer to every question is a year and the month after it, in contexts longer than a row."""
    random = np.random.default_rng(seed)
    paragraphs, answers = [], []
    for index in range(count):
        answer = f"{random.choice(['1914', '1939', '1969'])} {random.choice(['may', 'june', 'july'])}"
        words = [*random.choice(FILLER, size=random.integers(8, 40))]
        words.insert(int(random.integers(len(words))), answer)
        context = " ".join(words) + "."
        qa = {
            "id": f"{seed}-{index}", "question": "when ?",
            "answers": [{"text": answer, "answer_start": context.index(answer)}],
        }  # fmt: skip
        paragraphs.append({"context": context, "qas": [qa]})
        answers.append(answer)
    path.write_text(json.dumps({"version": "1.1", "data": [{"title": "years", "paragraphs": paragraphs}]}))
    return answers


@pytest.mark.parametrize("name", MODELS)
def test_spans_are_found(tmp_path: Path, name: str) -> None:
    squad_file(tmp_path / "train-v1.1.json", 0, 80)
    answers = squad_file(tmp_path / "dev-v1.1.json", 1, 30)
    found = finetune(build(MODELS[name], seed=1), TOKENS, "squad", tmp_path, Plan(8, 4e-3, 16, max_len=24))
    assert found["metrics"]["exact_match"] > 90
    assert found["metrics"]["f1"] > 90
    submitted = json.loads(found["files"]["predictions.json"])
    assert list(submitted) == [f"1-{index}" for index in range(30)]
    assert np.mean([submitted[f"1-{i}"] == answer for i, answer in enumerate(answers)]) > 0.9
    ranked = json.loads(found["files"]["nbest.json"])
    assert all(spans[0]["text"] == submitted[id] for id, spans in ranked.items())


def test_seeds_repeat_exactly_and_differ(counts: Path) -> None:
    model = build(MODELS["attention"], seed=1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    plan = Plan(epochs=1, lr=1e-3, batch=16, max_len=32)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    one = finetune(model, TOKENS, "stsb", counts, plan, seeds=2)
    assert torch.equal(torch.rand(3), expected), "the caller's random numbers were used"
    assert one == finetune(model, TOKENS, "stsb", counts, plan, seeds=2)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items()), "the model was changed"
    first, second = one["seeds"]
    assert (first["seed"], second["seed"]) == (0, 1)
    assert first["pearson"] != second["pearson"]
    scores = [row["pearson"] + row["spearman"] for row in one["seeds"]]
    assert one["best_seed"] == int(np.argmax(scores))
    assert one["metrics"]["pearson"] == pytest.approx((first["pearson"] + second["pearson"]) / 2)
    assert one["spread"]["pearson"] == pytest.approx(abs(first["pearson"] - second["pearson"]) / np.sqrt(2))


def test_the_median_of_seeds_is_told(counts: Path) -> None:
    """PAR's Table 3 reports medians of five runs."""
    plan = Plan(epochs=1, lr=1e-3, batch=16, max_len=32)
    found = finetune(build(MODELS["attention"], seed=1), TOKENS, "stsb", counts, plan, seeds=3)
    scores = sorted(row["pearson"] for row in found["seeds"])
    assert found["median"]["pearson"] == scores[1] != found["metrics"]["pearson"]


@pytest.mark.parametrize("name", MODELS)
def test_a_row_is_scored_alike_in_any_company(name: str) -> None:
    """Padding is never seen: alone, or beside longer rows."""
    tuned = TunedModel(build(MODELS[name], seed=1, dtype=torch.float64), 3, Plan(max_len=32)).double().eval()
    texts = [("good film",), ("the king of the red house", "bad"), ("one day in may , over the sea by the cat",)]
    rows = [encode_texts(text, TOKENS, 32) for text in texts]
    together = in_order(rows, 3, tuned.classify)
    for row, scores_C in zip(rows, together, strict=True):
        torch.testing.assert_close(in_order([row], 1, tuned.classify)[0], scores_C)
    tagged = in_order(rows, 3, tuned.tag)
    for row, scores_TC in zip(rows, tagged, strict=True):
        torch.testing.assert_close(in_order([row], 1, tuned.tag)[0], scores_TC[: len(row)])
        assert torch.isneginf(scores_TC[len(row) :]).all()


def test_an_encoder_is_told_which_text_a_token_is_of() -> None:
    tuned = TunedModel(build(ENCODER, seed=1), 3, Plan(max_len=32)).eval()
    pair = encode_texts(("good film", "bad film"), TOKENS, 32)
    assert pair.segments == [0, 0, 0, 0, 1, 1, 1]
    as_one = Row(pair.tokens, [0] * len(pair))
    assert not torch.allclose(tuned.classify([pair]), tuned.classify([as_one]))


def test_long_texts_lose_the_longer_ones_end() -> None:
    end, filler = TOKENS.end, TOKENS.encode("sea")[0]
    assert encode_texts(("good sea sea sea sea", "bad"), TOKENS, 8) == Row(
        [end, *TOKENS.encode("good"), filler, filler, filler, end, *TOKENS.encode("bad"), end], [0] * 6 + [1] * 2
    )


def test_mistakes(feelings: Path) -> None:
    model = build(MODELS["attention"])
    with pytest.raises(UserError, match=r"no task 'ss2'\. Did you mean 'sst2'\?"):
        finetune(model, TOKENS, "ss2", feelings)
    with pytest.raises(UserError, match="the tokenizer has 28 tokens, the model only vocab=8"):
        finetune(build("d=16 vocab=8 | mlp"), TOKENS, "sst2", feelings)
    with pytest.raises(UserError, match="seeds=0"):
        finetune(model, TOKENS, "sst2", feelings, seeds=0)
    with pytest.raises(UserError, match="max_len=65: the model has max_len=64 learned positions"):
        finetune(build(ENCODER), TOKENS, "sst2", feelings, Plan(max_len=65))
    with pytest.raises(UserError, match=r"the norm of its gradient nan at step \d of 10; lower lr"):
        finetune(model, TOKENS, "sst2", feelings, Plan(lr=1e30, epochs=2))
    with pytest.raises(UserError, match="kind=autoencoder"):
        finetune(build(f"d=16 vocab={TOKENS.vocab} kind=autoencoder | mlp"), TOKENS, "sst2", feelings)
    for wrong in ({"epochs": 0}, {"batch": 0}, {"max_len": 2}, {"lr": 0.0}, {"lr": float("nan")}):
        with pytest.raises(UserError, match=next(iter(wrong))):
            Plan(**wrong)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A finished run."""
    run = Run(tmp_path / "train-abc")
    run.folder.mkdir()
    run.write_about({"key": "0" * 64, "config": {"spec": ENCODER, "recipe": {"length": 64}}, "tokenizer": ""})
    run.save_weights(dict(build(ENCODER, seed=1).named_parameters()))
    WordTokenizer(WORDS).save(run.folder / "tokenizer")
    return run


def test_a_run_is_tuned_and_its_predictions_are_written(run: Run, feelings: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    found = plait.finetune(
        run.folder, "sst2", feelings, epochs=1, lr=1e-3, batch=64, out=tmp_path / "out",
        on_progress=lambda *step: seen.append(step),
    )  # fmt: skip
    assert found.run == "train-abc"
    assert found.plan["max_len"] == 64  # the model has no more positions
    assert seen == [("sst2, seed 0", step, 3) for step in (1, 2, 3)]
    assert {Path(path).name: Path(path).read_text() for path in found.written} == found.files
    assert json.loads(json.dumps(found.as_dict())) == found.as_dict()
    assert found.rows() == [{"seed": 0, **found.metrics}]


HOW = {"epochs": 2, "lr": 4e-3, "batch": 32, "seeds": 3}  # 14 steps per seed


def tuned_with(run: Run, data: Path, stop: tuple[str, int] | None = None, by: int = signal.SIGINT, **how: Any) -> Any:
    """The result, and the steps computed for it; after the step `stop` this process gets the signal `by`."""
    steps: list[tuple[str, int]] = []

    def note(what: str, done: float, total: float | None) -> None:
        steps.append((what, int(done)))
        if steps[-1] == stop:
            os.kill(os.getpid(), by)

    return plait.finetune(run.folder, "stsb", data, on_progress=note, **HOW, **how), steps


def same_result(run: Run, data: Path, copy: Path) -> Any:
    """The result of all seeds without an interruption, in a copy of the run."""
    shutil.copytree(run.folder, copy / run.name)
    found, steps = tuned_with(Run(copy / run.name), data)
    assert steps == [(f"stsb, seed {seed}", step + 1) for seed in range(3) for step in range(14)]
    return found


def test_interrupted_at_any_step_it_ends_the_same(run: Run, counts: Path, tmp_path: Path) -> None:
    straight = same_result(run, counts, tmp_path / "straight")
    for at in (3, 4, 7, 14):  # in the first epoch, after it, after the last step
        with pytest.raises(Stopped, match=f"seed 1 is saved at step {at} of 14"):
            tuned_with(run, counts, ("stsb, seed 1", at))
    resumed, steps = tuned_with(run, counts)
    assert steps == [("stsb, seed 2", step + 1) for step in range(14)]
    assert resumed == straight
    assert tuned_with(run, counts) == (straight, [])
    assert not list(run.folder.glob("finetune/*/step-*"))


def test_killed_while_it_tunes_it_resumes_to_the_same(
    run: Run, counts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = same_result(run, counts, tmp_path / "straight")
    monkeypatch.setattr(finetune_loop, "SAVE_SECONDS", -1.0)  # after every step
    child = get_context("fork").Process(target=tuned_with, args=(run, counts, ("stsb, seed 1", 4), signal.SIGKILL))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    resumed, steps = tuned_with(run, counts)
    assert steps[0] == ("stsb, seed 1", 4)  # three are in the checkpoint
    assert len(steps) == 11 + 14
    assert resumed == straight


def test_other_data_or_settings_are_tuned_anew(run: Run, counts: Path) -> None:
    found, _ = tuned_with(run, counts)
    _, steps = tuned_with(run, counts, max_len=16)
    assert len(steps) == 42
    dev = counts / "dev.tsv"
    dev.write_text("\n".join(dev.read_text().splitlines()[:21]) + "\n")
    fewer, steps = tuned_with(run, counts)
    assert len(steps) == 42
    assert (len(found.dev["dev"]), len(fewer.dev["dev"])) == (40, 20)


def test_a_damaged_result_is_named_and_kept(run: Run, counts: Path) -> None:
    tuned_with(run, counts)
    result = sorted(run.folder.glob("finetune/*/result.json"))[0]
    damaged = result.read_text().replace('"pearson": ', '"pearson": 1')
    result.write_text(damaged)
    with pytest.raises(UserError, match=rf"{result} is damaged"):
        tuned_with(run, counts)
    assert result.read_text() == damaged
    shutil.move(run.folder / "finetune", run.folder / "elsewhere")
    (run.folder / "finetune").symlink_to(run.folder / "elsewhere")
    with pytest.raises(UserError, match="finetune is a link to another folder"):
        tuned_with(run, counts)


def test_ctrl_c_says_how_to_resume(
    run: Run, counts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finetune = downstream.finetune

    def interrupted(*given: Any, on_progress: OnProgress, **options: Any) -> Any:
        return finetune(*given, on_progress=lambda *_: os.kill(os.getpid(), signal.SIGINT), **options)

    monkeypatch.setattr(downstream, "finetune", interrupted)
    monkeypatch.setattr(sys, "argv", ["plait", "finetune", str(run.folder), "--task", "stsb", "--data", str(counts)])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 130
    assert capsys.readouterr().err.endswith(
        "interrupted; seed 0 is saved at step 1 of 21. The same command resumes from there.\n"
    )
