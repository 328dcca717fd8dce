"""Published data sets become local task files. The files here are synthetic: two items each, with the columns, labels
and folders that the data sets have on the Hugging Face hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import ipc, parquet
from typer.testing import CliRunner

from plait.analysis.accuracy import SHORT_CONTEXT
from plait.cli.data import group
from plait.core.errors import UserError
from plait.data.tokenizers import Bytes
from plait.evals.harness import evaluate
from plait.evals.local_tasks import task_configs
from plait.evals.published import BY_NAME, prepare
from plait.model import build

CHOICES = {"text": ["a cat", "a dog", "a cow", "a hen"], "label": ["A", "B", "C", "D"]}
SYNTHETIC: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "wikitext": ("wikitext_document_level/wikitext-2-raw-v1/test-00000-of-00001.parquet", [{"page": " = A page = \n"}]),
    "lambada_openai": ("lambada_openai/default/test.parquet", [{"text": "the dog saw the other dog"}]),
    "piqa": ("piqa/plain_text/validation-00000-of-00001.parquet",
             [{"goal": "open it", "sol1": "push", "sol2": "eat", "label": 0}]),
    "hellaswag": ("hellaswag/data/validation-00000-of-00001.parquet",
                  [{"ind": 1, "activity_label": "Baking", "ctx_a": "A man bakes.", "ctx_b": "he",
                    "endings": ["eats [title] it", "flies", "sinks", "sings"], "label": "0"}]),
    "winogrande": ("winogrande/winogrande_xl/validation-00000-of-00001.parquet",
                   [{"sentence": "Ann met Bea, so _ waved.", "option1": "Ann", "option2": "Bea", "answer": "2"}]),
    "arc_easy": ("ai2_arc/ARC-Easy/test-00000-of-00001.parquet",
                 [{"id": "1", "question": "What barks?", "choices": CHOICES, "answerKey": "B"}]),
    "arc_challenge": ("ai2_arc/ARC-Challenge/test-00000-of-00001.parquet",
                      [{"id": "2", "question": "What moos?", "choices": CHOICES, "answerKey": "C"}]),
    "copa": ("super_glue/copa/validation-00000-of-00001.parquet",
             [{"premise": "It rained.", "choice1": "I got wet.", "choice2": "I flew.", "question": "effect", "idx": 0,
               "label": 0}]),
    "openbookqa": ("openbookqa/main/test-00000-of-00001.parquet",
                   [{"id": "3", "question_stem": "A hen is", "choices": CHOICES, "answerKey": "D"}]),
    "sciq": ("allenai--sciq/data/test-00000-of-00001.parquet",
             [{"question": "What falls?", "distractor3": "up", "distractor1": "light", "distractor2": "air",
               "correct_answer": "rain", "support": "Rain falls."}]),
    "boolq": ("super_glue/boolq/validation-00000-of-00001.parquet",
              [{"question": "is it", "passage": "It is.", "idx": 0, "label": 1}]),
}  # fmt: skip


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """Every data set with the split that is scored, and another split beside it that must not be taken."""
    for path, rows in SYNTHETIC.values():
        file = tmp_path / "hub" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pyarrow.Table.from_pylist([*rows, *rows]), file)
        parquet.write_table(pyarrow.Table.from_pylist(rows * 9), file.with_name("train-00000-of-00001.parquet"))
    return tmp_path / "hub"


def test_every_task_is_written_by_one_command(published: Path, tmp_path: Path) -> None:
    asked = ["tasks", "--from", str(published), "--out", str(tmp_path / "out"), "--json"]
    ran = CliRunner().invoke(group, asked)
    assert ran.exception is None, ran.output
    document = json.loads(ran.stdout)
    assert {row["task"]: row["items"] for row in document["tasks"]} == dict.fromkeys(SYNTHETIC, 2)
    assert document["missing"] == []
    assert ran.stderr.splitlines() == [f"wrote {row['file']}" for row in document["tasks"]]
    shown = CliRunner().invoke(group, asked[:-1])
    assert shown.stdout.splitlines()[-len(SYNTHETIC) :] == ran.stderr.splitlines()
    assert SHORT_CONTEXT.keys() | {"wikitext"} == BY_NAME.keys()


def test_the_harness_runs_the_folder_and_all_ten_have_their_metric(published: Path, tmp_path: Path) -> None:
    prepare(published, tmp_path / "out")
    model = build("d=32 vocab=256 | attn[heads=2] swiglu")
    found = evaluate(model, Bytes(), [tmp_path / "out"], max_length=256)
    numbers = {(row["task"], row["metric"]) for row in found["table"]}
    assert set(SHORT_CONTEXT.items()) <= numbers
    assert {("wikitext", "word_perplexity"), ("lambada_openai", "perplexity")} <= numbers


def test_prompts_are_the_harness_s_own(published: Path, tmp_path: Path) -> None:
    prepare(published, tmp_path / "out")
    configs = {config["task"]: config for config in task_configs([tmp_path / "out"], tmp_path)}
    doc = json.loads((tmp_path / "out" / "copa.jsonl").read_text().splitlines()[0])
    assert configs["copa"]["doc_to_text"](doc) == "It rained therefore"
    assert configs["copa"]["doc_to_choice"](doc) == [" i got wet.", " i flew."]
    wino = json.loads((tmp_path / "out" / "winogrande.jsonl").read_text().splitlines()[0])
    assert configs["winogrande"]["doc_to_choice"](wino) == ["Ann met Bea, so Ann", "Ann met Bea, so Bea"]
    assert configs["arc_challenge"]["doc_to_text"] == "Question: {{question}}\nAnswer:"


def test_other_formats_and_names(tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    (hub / "boolq").mkdir(parents=True)
    row = {"question": "is it", "answer": False, "passage": "It is."}  # BoolQ's own data set
    (hub / "boolq" / "validation.jsonl").write_text(json.dumps(row) + "\n")
    (hub / "sciq").mkdir()
    table = pyarrow.Table.from_pylist(SYNTHETIC["sciq"][1])
    with ipc.new_stream(str(hub / "sciq" / "sciq-test.arrow"), table.schema) as stream:
        stream.write_table(table)
    done, missing = prepare(hub, tmp_path / "out")
    assert [one.task for one in done] == ["sciq", "boolq"]
    assert len(missing) == 9
    assert json.loads((tmp_path / "out" / "boolq.jsonl").read_text())["label"] == 0


def test_what_is_not_as_published_is_named(tmp_path: Path) -> None:
    (tmp_path / "piqa").mkdir()
    (tmp_path / "piqa" / "validation.jsonl").write_text('{"goal": "g", "sol1": "a"}\n')
    with pytest.raises(UserError, match="piqa needs sol2, label; its columns are goal, sol1"):
        prepare(tmp_path, tmp_path / "out")
    (tmp_path / "piqa" / "validation.jsonl").write_text('{"goal": \n')
    with pytest.raises(UserError, match=r"validation\.jsonl:1: not JSON"):
        prepare(tmp_path, tmp_path / "out")
    with pytest.raises(UserError, match="there is no folder"):
        prepare(tmp_path / "nowhere", tmp_path / "out")
