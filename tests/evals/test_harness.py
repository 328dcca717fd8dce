"""The adapter to lm-evaluation-harness against sums done by hand, and against the harness's own Hugging Face model."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from plait.core.errors import UserError
from plait.evals.harness import evaluate
from plait.evals.harness_lm import PlaitLM
from plait.model import build

LETTERS = "\nabcdefghijklmnopqrstuvwxyz .?"


class Letters:
    """One token a letter; the last id ends a text."""

    vocab = len(LETTERS) + 1
    end: int | None = len(LETTERS)

    def encode(self, text: str) -> np.ndarray:
        return np.array([LETTERS.index(letter) for letter in text], dtype=np.int64)

    def decode(self, ids: Any) -> str:
        return "".join(LETTERS[int(i)] for i in ids if int(i) < len(LETTERS))


TOKENS = Letters()
SPECS = {
    "attention": f"d=32 vocab={TOKENS.vocab} init=0.5 | attn[heads=2] swiglu",
    "recurrence": f"d=32 vocab={TOKENS.vocab} init=0.5 | gla[heads=2] swiglu mamba",
    "adaptive": f"d=32 vocab={TOKENS.vocab} embed=adaptive cutoffs=8/20 div=2 init=0.5 | attn[heads=2]",
}


@pytest.fixture(params=SPECS)
def model(request: pytest.FixtureRequest) -> Any:
    return build(SPECS[request.param], seed=3)


def request(*arguments: Any) -> Any:
    return SimpleNamespace(args=arguments)


def by_hand(model: Any, context: list[int], continuation: list[int]) -> tuple[float, bool]:
    """One forward pass a token, nothing batched."""
    total, greedy, seen = 0.0, True, list(context)
    for token in continuation:
        with torch.no_grad():
            logp_V = model(torch.tensor([seen]))[0, -1].log_softmax(-1)
        total += float(logp_V[token])
        greedy &= int(logp_V.argmax()) == token
        seen.append(token)
    return total, greedy


def ids(text: str) -> list[int]:
    return TOKENS.encode(text).tolist()


PAIRS = [("the cat", " sat"), ("a", "b"), ("the cat", " ran away"), ("", "zebra"), ("one two ", "three"), ("a", "c")]


def test_loglikelihood_is_the_sum_over_the_continuation(model: Any) -> None:
    lm = PlaitLM(model, TOKENS, batch_tokens=24)  # several batches, several lengths in each
    found = lm.loglikelihood([request(*pair) for pair in PAIRS])
    for (context, continuation), (value, greedy) in zip(PAIRS, found, strict=True):
        moved = context[len(context.rstrip()) :]  # trailing spaces belong to the continuation
        expected = by_hand(model, ids(context.rstrip()) or [TOKENS.end], ids(moved + continuation))
        assert value == pytest.approx(expected[0], abs=1e-4)
        assert greedy == expected[1]


def test_the_greedy_continuation_is_known_as_such(model: Any) -> None:
    with torch.no_grad():
        best = int(model(torch.tensor([ids("the ca")]))[0, -1, : len(LETTERS)].argmax())
        whole = int(model(torch.tensor([ids("the ca")]))[0, -1].argmax())
    (_, greedy), (_, other) = PlaitLM(model, TOKENS).loglikelihood([
        request("the ca", LETTERS[best]), request("the ca", LETTERS[(best + 1) % len(LETTERS)])
    ])  # fmt: skip
    assert greedy == (best == whole)
    assert not other


def test_a_long_context_loses_its_beginning(model: Any) -> None:
    lm = PlaitLM(model, TOKENS, max_length=8)
    ((value, _),) = lm.loglikelihood([request("abcdefghijklm", "xyz")])
    assert value == pytest.approx(by_hand(model, ids("hijklm"), ids("xyz"))[0], abs=1e-4)


def test_rolling_predicts_every_token_once(model: Any) -> None:
    """The example in the harness's own documentation: ten tokens, context four."""
    lm = PlaitLM(model, TOKENS, max_length=4)
    text = ids("abcdefghij")
    windows = [([TOKENS.end], text[:4]), (text[3:4], text[4:8]), (text[5:8], text[8:])]
    assert [token for _, predicted in windows for token in predicted] == text
    expected = sum(by_hand(model, context, predicted)[0] for context, predicted in windows)
    found = lm.loglikelihood_rolling([request("abcdefghij"), request("")])
    assert found == [pytest.approx(expected, abs=1e-4), 0.0]


def test_generation_is_greedy_and_stops(model: Any) -> None:
    lm = PlaitLM(model, TOKENS, batch_tokens=60)
    prompts = ["the cat", "a dog", "zoo", "the end of it", ""]
    free = lm.generate_until([request(text, {"max_gen_toks": 9, "until": []}) for text in prompts])
    for prompt, text in zip(prompts, free, strict=True):
        seen, written = ids(prompt) or [TOKENS.end], []
        for _ in range(9):
            with torch.no_grad():
                token = int(model(torch.tensor([seen]))[0, -1].argmax())
            if token == TOKENS.end:
                break
            written.append(token)
            seen.append(token)
        assert text == TOKENS.decode(written)
    longest = max(free, key=len)
    prompt = prompts[free.index(longest)]
    # Both stop strings are complete with the same token; the one that begins first counts.
    stops = [longest[4], longest[3:5], "never there?"]
    (cut,) = lm.generate_until([request(prompt, {"max_gen_toks": 9, "until": stops})])
    ended = next(longest[:n] for n in range(1, 10) if any(stop in longest[:n] for stop in stops))
    assert cut == ended[: min(ended.find(stop) for stop in stops if stop in ended)]


def test_generation_refuses_what_it_cannot_do() -> None:
    lm = PlaitLM(build(SPECS["attention"]), TOKENS, max_length=16)
    with pytest.raises(UserError, match="do_sample: false"):
        lm.generate_until([request("a", {"do_sample": True, "temperature": 0.7})])
    with pytest.raises(UserError, match="max_gen_toks=16 leaves no room"):
        lm.generate_until([request("a", {"max_gen_toks": 16})])


def test_only_matching_language_models() -> None:
    with pytest.raises(UserError, match="kind=encoder"):
        PlaitLM(build("d=16 vocab=40 kind=encoder | attn[heads=2 causal=false]"), TOKENS)
    with pytest.raises(UserError, match="only vocab=8"):
        PlaitLM(build("d=16 vocab=8 | mlp"), TOKENS)
    with pytest.raises(UserError, match="between 2 and 8"):
        PlaitLM(build("d=16 vocab=40 pos=learned max_len=8 | mlp"), TOKENS, max_length=9)


CHOICES = [
    {"question": "what says meow", "choices": ["a cat", "a very old dog", "it"], "answer": 0},
    {"question": "what barks", "choices": ["cat", "the dog"], "answer": 1},
    {"question": "what flies", "choices": ["some bird of the sea", "stone"], "answer": 0},
    {"question": "what swims", "choices": ["rock", "fish", "a tree on a hill"], "answer": 2},
]
CHOICE_TASK = """
task: toy_choices
dataset_path: json
dataset_kwargs: {data_files: {test: choices.jsonl, train: choices.jsonl}}
test_split: test
fewshot_split: train
output_type: multiple_choice
doc_to_text: "{{question}}?"
doc_to_target: answer
doc_to_choice: choices
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
  - {metric: acc_norm, aggregation: mean, higher_is_better: true}
"""
TEXTS = [{"text": "the cat sat on the mat."}, {"text": "a dog ran."}]
TEXT_TASK = """
task: toy_texts
dataset_path: json
dataset_kwargs: {data_files: {test: texts.jsonl}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
"""
LAST_TASK = """
task: toy_last_word
dataset_path: json
dataset_kwargs: {data_files: {test: last.jsonl}}
test_split: test
output_type: loglikelihood
doc_to_text: "{{start}}"
doc_to_target: " {{end}}"
metric_list:
  - {metric: perplexity, aggregation: perplexity, higher_is_better: false}
  - {metric: acc, aggregation: mean, higher_is_better: true}
"""
LAST = [{"start": "the cat", "end": "sat"}, {"start": "a dog", "end": "ran"}]
WRITE_TASK = """
task: toy_writing
dataset_path: json
dataset_kwargs: {data_files: {test: last.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{{start}}"
doc_to_target: "{{end}}"
generation_kwargs: {until: ["."], max_gen_toks: 6, do_sample: false}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
"""


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    folder = tmp_path / "tasks"
    folder.mkdir()
    for name, items in (("choices", CHOICES), ("texts", TEXTS), ("last", LAST)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    for name, text in (("choices", CHOICE_TASK), ("texts", TEXT_TASK), ("last", LAST_TASK), ("writing", WRITE_TASK)):
        (folder / f"{name}.yaml").write_text(text)
    return folder


def numbers(found: dict[str, Any]) -> dict[tuple[str, str], float]:
    return {(row["task"], row["metric"]): row["value"] for row in found["table"]}


def test_metrics_by_hand(tasks: Path) -> None:
    """F23: acc, acc_norm (log-likelihood a letter of the choice) and the perplexities, item by item."""
    model = build(SPECS["attention"], seed=3)
    found = evaluate(model, TOKENS, [tasks])
    right, right_norm = [], []
    for item in CHOICES:
        values = [by_hand(model, ids(item["question"] + "?"), ids(" " + choice))[0] for choice in item["choices"]]
        per_letter = [value / len(choice) for value, choice in zip(values, item["choices"], strict=True)]
        right.append(int(np.argmax(values)) == item["answer"])
        right_norm.append(int(np.argmax(per_letter)) == item["answer"])
    assert right != right_norm, "the items should tell the two metrics apart"
    texts = [item["text"] for item in TEXTS]
    total = sum(by_hand(model, [TOKENS.end], ids(text))[0] for text in texts)
    words, letters = sum(len(text.split()) for text in texts), sum(map(len, texts))
    lasts = [by_hand(model, ids(item["start"]), ids(" " + item["end"])) for item in LAST]
    wrote = PlaitLM(model, TOKENS).generate_until([
        request(item["start"], {"max_gen_toks": 6, "until": ["."]}) for item in LAST
    ])  # fmt: skip
    expected = {
        ("toy_choices", "acc"): np.mean(right),
        ("toy_choices", "acc_norm"): np.mean(right_norm),
        ("toy_texts", "word_perplexity"): math.exp(-total / words),
        ("toy_texts", "byte_perplexity"): math.exp(-total / letters),
        ("toy_texts", "bits_per_byte"): -total / letters / math.log(2),
        ("toy_last_word", "perplexity"): math.exp(-np.mean([value for value, _ in lasts])),
        ("toy_last_word", "acc"): np.mean([greedy for _, greedy in lasts]),
        ("toy_writing", "exact_match"): np.mean([a == b["end"] for a, b in zip(wrote, LAST, strict=True)]),
    }
    assert numbers(found) == {key: pytest.approx(value, rel=1e-4) for key, value in expected.items()}
    (accuracy,) = (row for row in found["table"] if (row["task"], row["metric"]) == ("toy_choices", "acc"))
    assert accuracy["items"] == 4
    assert accuracy["stderr"] == pytest.approx(np.std(right, ddof=1) / 2)  # √4 items


@pytest.mark.parametrize("text", ["ab" * 400, ""])  # a word of 2,000 nats; no letter to divide by
def test_a_perplexity_that_is_no_number_is_explained(tasks: Path, text: str) -> None:
    (tasks / "texts.jsonl").write_text(json.dumps({"text": text}) + "\n")
    with pytest.raises(UserError, match="cannot run toy_texts"):
        evaluate(build(SPECS["attention"], seed=3), TOKENS, [tasks / "texts.yaml"])


def test_shots_and_limit(tasks: Path) -> None:
    model, path = build(SPECS["attention"], seed=3), tasks / "choices.yaml"
    seen: list[str] = []

    class Spy(Letters):
        def encode(self, text: str) -> np.ndarray:
            seen.append(text)
            return super().encode(text)

    found = evaluate(model, Spy(), [path], shots=2, limit=3)
    assert found["shots"] == {"toy_choices": 2}
    assert {row["items"] for row in found["table"]} == {3}
    assert max(text.count("?") for text in seen) == 3  # two examples and the question
    with pytest.raises(UserError, match="cannot run toy_choices: Sample larger than population"):
        evaluate(model, TOKENS, [path], shots=9)
    single = evaluate(model, TOKENS, [path], limit=1)
    assert {row["stderr"] for row in single["table"]} == {None}
    json.dumps(single, allow_nan=False)


MISTAKES = {
    "no file": ("nowhere.yaml", None, "Tasks have no names here: `plait data tasks` writes"),
    "not a task": ("notes.txt", "hello", "a task is a .yaml file"),
    "not YAML": ("bad.yaml", "task: [", "bad.yaml:2: not YAML"),
    "not a mapping": ("bad.yaml", "- a\n", "Expected YAML dict"),
    "no name": ("bad.yaml", "dataset_path: json\n", "needs 'task: its-name'"),
    "a group": ("bad.yaml", "group: many\ntask: [toy_choices]\n", "is a group of tasks"),
    "from the network": ("bad.yaml", CHOICE_TASK.replace("path: json", "path: cais/mmlu"), "would be downloaded"),
    "no data": ("bad.yaml", CHOICE_TASK.replace("test: choices.jsonl", "test: gone.jsonl"), "its data file gone.jsonl"),
    "broken data": ("bad.yaml", CHOICE_TASK.replace("test: choices", "test: broken"), "broken.jsonl:2: not JSON"),
    "unknown metric": ("bad.yaml", CHOICE_TASK.replace("acc_norm", "acc_nrom"), "Did you mean 'acc_norm'?"),
    "a function": ("bad.yaml", CHOICE_TASK + "process_results: !function nowhere.f\n", "runs its own code"),
    "no such split": (
        "bad.yaml",
        CHOICE_TASK.replace("test_split: test", "test_split: tset"),
        "cannot load toy_choices",
    ),
    "no such field": ("bad.yaml", TEXT_TASK.replace("{{text}}", "{{txet}}"), "'txet' is undefined"),
    "not LongBench": ("hotpot.jsonl", "{}\n", "Did you mean 'hotpotqa'?"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_in_task_files(tasks: Path, mistake: str) -> None:
    name, text, message = MISTAKES[mistake]
    (tasks / "broken.jsonl").write_text('{"question": "a"}\n{"question": \n')
    if text is not None:
        (tasks / name).write_text(text)
    with pytest.raises(UserError) as raised:
        evaluate(build(SPECS["attention"]), TOKENS, [tasks / name])
    assert message in str(raised.value)


def test_two_files_may_not_define_one_task(tasks: Path) -> None:
    (tasks / "again.yaml").write_text(CHOICE_TASK)
    with pytest.raises(UserError, match="both define the task 'toy_choices'"):
        evaluate(build(SPECS["attention"]), TOKENS, [tasks])
    (tasks / "empty").mkdir()
    with pytest.raises(UserError, match="contains no task file"):
        evaluate(build(SPECS["attention"]), TOKENS, [tasks / "empty"])
    with pytest.raises(UserError, match="no task given"):
        evaluate(build(SPECS["attention"]), TOKENS, [])


class Echo(Letters):
    """Reads anything; whatever the model writes, it reads as the given answer."""

    def __init__(self, answer: str) -> None:
        self.answer = answer

    def encode(self, text: str) -> np.ndarray:
        return np.array([max(0, LETTERS.find(letter.lower())) for letter in text], dtype=np.int64)

    def decode(self, ids: Any) -> str:
        return self.answer


def longbench_item(**changes: Any) -> str:
    item = {
        "input": "who wrote it", "context": "long text", "answers": ["jane austen", "austen"], "length": 2,
        "dataset": "hotpotqa", "language": "en", "all_classes": None, "_id": "0",
    }  # fmt: skip
    return json.dumps({**item, **changes}) + "\n"


@pytest.mark.parametrize(
    ("name", "changes", "answer", "metric", "value"),
    [
        # "by jane austen" against "jane austen": precision 2/3, recall 1.
        ("hotpotqa", {}, "By Jane Austen.", "qa_f1_score", 0.8),
        # Longest common subsequence "a b" of "a b c" and "a b": precision 2/3, recall 1.
        ("gov_report", {"answers": ["red fox"]}, "red fox ran", "rouge_score", 0.8),
        ("trec", {"answers": ["Food"], "all_classes": ["Food", "Animal"]}, "Food", "classification_score", 1.0),
        ("passage_count", {"answers": ["3"]}, "3 or 4", "count_score", 0.5),
    ],
)
def test_longbench_files_as_published(
    tmp_path: Path, name: str, changes: dict[str, Any], answer: str, metric: str, value: float
) -> None:
    for package in ("jieba", "fuzzywuzzy", "rouge"):
        pytest.importorskip(package, reason="the harness's LongBench metrics need it")
    (tmp_path / f"{name}.jsonl").write_text(longbench_item(**changes))
    found = evaluate(build(SPECS["attention"], seed=3), Echo(answer), [tmp_path / f"{name}.jsonl"])
    assert numbers(found)[f"longbench_{name}", metric] == pytest.approx(value, abs=1e-5)


@pytest.mark.parametrize("text", ["attn[heads=2] swiglu", "gla[heads=2] swiglu", "mamba swiglu"])
def test_the_exported_model_gives_the_same_numbers(tasks: Path, tmp_path: Path, text: str) -> None:
    """Issue 5: a local task file on the model in this process, and on its Hugging Face folder by the harness's own
    `hf` model, which batches, pads, cuts and stops in its own code."""
    for package in ("transformers", "accelerate"):
        pytest.importorskip(package, reason="the hf model of the harness needs it")
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    import plait.interop.hf_model  # noqa: F401  (registers the model type)
    from plait.data import trained_tokenizers as bpe
    from plait.evals import harness
    from plait.evals.local_tasks import task_configs
    from plait.interop.hf import export_hf

    words = " ".join(" ".join(map(str, item.values())) for item in (*CHOICES, *TEXTS, *LAST))
    tokenizer = bpe.learn_bpe([words] * 3, size=300)
    model = build(f"d=32 vocab={tokenizer.vocab} init=0.2 | {text}", seed=5)
    export_hf(model, tokenizer, tmp_path / "hf")
    theirs = HFLM(pretrained=str(tmp_path / "hf"), device="cpu", dtype="float32", batch_size=2, max_length=40)
    loaded = TaskManager(include_defaults=False).load(task_configs([tasks], tmp_path / "cache"))
    for task in loaded["tasks"].values():
        task.set_config(key="num_fewshot", value=2 if task.config.task == "toy_choices" else 0)
        task.set_fewshot_seed(seed=harness.FEWSHOT_SEED)
    expected = harness.run_harness(lm=theirs, task_dict=loaded, bootstrap_iters=0, log_samples=False)["results"]
    found = evaluate(model, tokenizer, [tasks / "choices.yaml"], shots=2, max_length=40)["results"]
    found |= evaluate(
        model, tokenizer, [tasks / f"{name}.yaml" for name in ("texts", "last", "writing")], shots=0, max_length=40
    )["results"]
    compared = 0
    for task, numbers in expected.items():
        for key, value in numbers.items():
            if "," in key and "_stderr" not in key:
                assert found[task][key] == pytest.approx(value, rel=1e-4, abs=1e-4), (task, key)
                compared += 1
    assert compared == 8

    # The numbers behind them, too: an accuracy agrees all too easily.
    ours = PlaitLM(model, tokenizer, max_length=40)
    pairs = [request(item["question"] + "?", " " + choice) for item in CHOICES for choice in item["choices"]]
    pairs = [SimpleNamespace(args=pair.args, arguments=pair.args) for pair in pairs]
    assert [greedy for _, greedy in ours.loglikelihood(pairs)] == [greedy for _, greedy in theirs.loglikelihood(pairs)]
    np.testing.assert_allclose(
        [value for value, _ in ours.loglikelihood(pairs)],
        [value for value, _ in theirs.loglikelihood(pairs)],
        atol=1e-4,
    )
    writing = [request(item["question"], {"until": ["e"], "max_gen_toks": 12}) for item in CHOICES]
    assert ours.generate_until(writing) == theirs.generate_until(writing)
