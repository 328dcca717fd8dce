"""GLUE's files and metrics, by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from plait.core.errors import UserError
from plait.evals.glue import TASKS, accuracy, f1, matthews, pearson, ranks, read_glue, read_tsv, spearman

#: First line of each published file (train and dev; test where it differs), and one row to go with it.
PUBLISHED = {
    "sst2": ("sentence\tlabel", "a fine film\t1", "index\tsentence", "0\ta dull film"),
    "mrpc": (
        "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", '1\t70\t71\tHe said "no\tHe refused',
        "index\t#1 ID\t#2 ID\t#1 String\t#2 String", "0\t1\t2\tone\ttwo",
    ),
    "stsb": (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
        "0\tmain\tMSR\t2012\t1\tnone\tnone\ta plane\tan air plane\t4.75",
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2",
        "0\tmain\tMSR\t2012\t1\tnone\tnone\ta girl\ta boy",
    ),
    "qqp": (
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "1\t2\t3\twhy ?\twhat for ?\t1",
        "id\tquestion1\tquestion2", "0\twho ?\twhen ?",
    ),
    "mnli": (
        "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\t"
        "sentence2_parse\tsentence1\tsentence2\tlabel1\tgold_label",
        "0\t1\t1n\tfiction\t( a )\t( b )\t(R a)\t(R b)\tit rains\tit pours\tneutral\tneutral",
        "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\t"
        "sentence2_parse\tsentence1\tsentence2",
        "0\t1\t1n\tfiction\t( a )\t( b )\t(R a)\t(R b)\tit rains\tit pours",
    ),
    "qnli": (
        "index\tquestion\tsentence\tlabel", "0\twhen ?\tin may\tentailment", "index\tquestion\tsentence", "0\tq\ts"
    ),
    "rte": (
        "index\tsentence1\tsentence2\tlabel", "0\ta\tb\tnot_entailment", "index\tsentence1\tsentence2", "0\tq\ts"
    ),
    "wnli": ("index\tsentence1\tsentence2\tlabel", "0\ta\tb\t1", "index\tsentence1\tsentence2", "0\tq\ts"),
}  # fmt: skip
READ = {
    "sst2": (("a fine film",), 1, "SST-2.tsv", "1"),
    "mrpc": (('He said "no', "He refused"), 1, "MRPC.tsv", "1"),
    "stsb": (("a plane", "an air plane"), 4.75, "STS-B.tsv", "1.000"),
    "qqp": (("why ?", "what for ?"), 1, "QQP.tsv", "1"),
    "mnli": (("it rains", "it pours"), 1, "MNLI-m.tsv", "neutral"),
    "qnli": (("when ?", "in may"), 0, "QNLI.tsv", "not_entailment"),
    "rte": (("a", "b"), 1, "RTE.tsv", "not_entailment"),
    "wnli": (("a", "b"), 1, "WNLI.tsv", "1"),
}


def write(folder: Path, name: str) -> None:
    head, row, test_head, test_row = PUBLISHED[name]
    (folder / "train.tsv").write_text(f"\ufeff{head}\r\n{row}\r\n{row}\r\n")
    for part in TASKS[name].parts:
        suffix = f"_{part}" if part else ""
        (folder / f"dev{suffix}.tsv").write_text(f"{head}\n{row}\n")
        (folder / f"test{suffix}.tsv").write_text(f"{test_head}\n{test_row}\n")


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_layouts(tmp_path: Path, name: str) -> None:
    write(tmp_path, name)
    task = TASKS[name]
    data = read_glue(task, tmp_path)
    texts, label, file, shown = READ[name]
    assert data.train.texts == [texts, texts]
    assert data.train.labels_N is not None
    assert data.train.labels_N.tolist() == [label, label]
    assert set(data.dev) == set(data.test) == set(task.parts)
    assert all(examples.labels_N is None and len(examples) == 1 for examples in data.test.values())
    submission = dict(task.submission(part, np.array([1.0])) for part in task.parts)
    assert submission[file] == f"index\tprediction\n0\t{shown}\n"
    assert len(submission) == (2 if name == "mnli" else 1)


def test_cola_has_names_in_its_test_file_only(tmp_path: Path) -> None:
    for split in ("train", "dev"):
        (tmp_path / f"{split}.tsv").write_text("gj04\t1\t\tThey left.\ngj04\t0\t*\tLeft they\u2028the.\n")
    (tmp_path / "test.tsv").write_text("index\tsentence\n0\tBill ran.\n")
    data = read_glue(TASKS["cola"], tmp_path)
    assert data.train.texts == [("They left.",), ("Left they\u2028the.",)]  # not a line break in a TSV
    assert data.train.labels_N is not None
    assert data.train.labels_N.tolist() == [1, 0]
    assert data.test[""].texts == [("Bill ran.",)]
    assert set(TASKS) == {*PUBLISHED, "cola"}  # nine tasks


def test_torn_rows_of_qqp_are_skipped_and_counted(tmp_path: Path) -> None:
    head, row, *_ = PUBLISHED["qqp"]
    path = tmp_path / "train.tsv"
    path.write_text("\n".join([head, *[row] * 150, "7\t8\t9\ttorn", "in two\t0", row]) + "\n")
    found = read_tsv(TASKS["qqp"], path, labelled=True)
    assert (len(found), found.skipped) == (151, 2)
    path.write_text("\n".join([head, row, "a", "b", "c"]))
    with pytest.raises(UserError, match="1 whole rows and 3 broken ones"):
        read_tsv(TASKS["qqp"], path, labelled=True)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("sst2", "sentence\tlabel\na film\n", "train.tsv:2: 1 columns, where 2 were expected"),
        ("sst2", "sentence\tlabel\nfine\t1\nodd\t2\n", "train.tsv:3: the label '2' is not one of 0, 1"),
        ("sst2", "sentense\tlabel\nfine\t1\n", "train.tsv:1: no column 'sentence'. Did you mean 'sentense'?"),
        ("sst2", "", "train.tsv:1: no column 'sentence'"),
        ("sst2", "sentence\tlabel\n", "0 whole rows"),
        ("rte", PUBLISHED["rte"][0] + "\n0\ta\tb\tyes\n", "the label 'yes' is not one of entailment, not_entailment"),
        ("stsb", PUBLISHED["stsb"][0] + "\n0\tm\tM\t12\t1\tn\tn\ta\tb\thigh\n", "train.tsv:2: the score 'high'"),
        ("stsb", PUBLISHED["stsb"][0] + "\n0\tm\tM\t12\t1\tn\tn\ta\tb\tnan\n", "train.tsv:2: the score 'nan'"),
        ("cola", "gj04\t1\tA sentence.\n", "train.tsv:1: 3 columns, where 4"),
    ],
)
def test_malformed_files(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / "train.tsv").write_text(text)
    with pytest.raises(UserError) as raised:
        read_glue(TASKS[name], tmp_path)
    assert message in str(raised.value)


def test_missing_and_binary_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no folder"):
        read_glue(TASKS["rte"], tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"there is no file .*train\.tsv"):
        read_glue(TASKS["rte"], tmp_path)
    (tmp_path / "train.tsv").write_bytes(b"index\nok\n\xff\xfe")
    with pytest.raises(UserError, match=r"train\.tsv:3: not UTF-8"):
        read_glue(TASKS["rte"], tmp_path)


def test_metrics_by_hand() -> None:
    predicted, truth = np.array([1, 1, 1, 0, 0, 1]), np.array([1, 0, 1, 0, 1, 1])
    # hits 3, false alarms 1, misses 1, rightly refused 1
    assert accuracy(predicted, truth) == pytest.approx(4 / 6)
    assert f1(predicted, truth) == pytest.approx(2 * 3 / (2 * 3 + 1 + 1))
    assert matthews(predicted, truth) == pytest.approx((3 * 1 - 1 * 1) / math.sqrt(4 * 4 * 2 * 2))
    assert matthews(np.ones(6), truth) == 0.0
    assert f1(np.zeros(6), truth) == 0.0
    x, y = np.array([1.0, 2, 3, 4]), np.array([1.0, 3, 2, 10])
    # deviations -1.5 -0.5 0.5 1.5 and -3 -1 -2 6: sum of products 13, squares 5 and 50
    assert pearson(x, y) == pytest.approx(13 / math.sqrt(5 * 50))
    # ranks 1 2 3 4 and 1 3 2 4: 1 - 6·(0 + 1 + 1 + 0)/(4·15)
    assert spearman(x, y) == pytest.approx(1 - 12 / 60)
    assert ranks(np.array([5.0, 1, 5, 9])).tolist() == [2.5, 1, 2.5, 4]
