"""Questions about long texts: solvers written from their description find every answer, a copier those that can be
copied, and nobody else any; lengths, intervals and the effective length."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.evals.conftest import Letters, language_model
from tests.evals.test_command import documents, make_run, plait_eval
from tests.evals.test_command import folder as folder

from plait.core.errors import UserError
from plait.data import open_corpus
from plait.data.tokenizers import Characters
from plait.evals.evaluation import Subject
from plait.evals.long_context import LengthScore, curve_of, effective, matched
from plait.evals.phonebook import PhonebookEvaluation, phonebook
from plait.evals.questions import Script, TooShort, written
from plait.evals.ruler import NOISE, QUESTIONS, RulerEvaluation
from plait.tasks.task import stream

ENDS = (
    r"What is the secret of \S+\? The secret of \S+ is",
    r"What are .*\? The .* are(?:, in this order,)?",
    r"Which variables .*\? The 5 variables with the value \d+ are",
    r"(?:Dots mean nothing\. )?Which \d+ words occur .*\? They are",
    r"\w+ \w+:",
)


def solved(text: str, question: str) -> str:
    """The answer, from what the question says in words."""
    if asked := re.fullmatch(r"What (?:is|are)(?: all)? the secrets? of (.+)\? The .*", question):
        secrets = re.findall(r"The secret of (\S+) is (\S+)\.", text)
        return ", ".join(value for key, value in secrets if key in re.split(", | and ", asked[1]))
    if asked := re.match(r"Which variables have the value (\d+)\?", question):
        holds = {asked[1]}
        for name, value in re.findall(r"VAR (\w+) = (?:VAR )?(\w+)\.", text):
            holds |= {name} if value in holds else set()
        return ", ".join(sorted(holds - {asked[1]}))
    if "words occur most often in the list" in question:
        counts = Counter(re.findall(r"\d+\. ([\w-]+)", text))
        return ", ".join(word for word, _ in counts.most_common(10))
    if "words occur most often in the text" in question:
        counts = Counter(word for word in text.split() if re.fullmatch("[a-z]{6}", word))
        return ", ".join(word for word, _ in counts.most_common(3))
    found = re.search(re.escape(question) + r" (\d{10})", text)
    return found[1] if found else "not read yet"


def any_secret(text: str, question: str) -> str:
    """Some value of the text, whatever is asked."""
    values = re.findall(r"is (\d{7})\.", text)
    return values[len(text) % len(values)]


class Reader:
    """The state is what was read, row by row; `goes_on` says what comes next."""

    def __init__(self, tokenizer, goes_on) -> None:
        self.tokenizer, self.goes_on = tokenizer, goes_on

    def init_state(self, batch):
        return [np.empty(0, np.int64)] * batch

    def extend(self, tokens_BT, state):
        read = [np.concatenate([old, new]) for old, new in zip(state, tokens_BT.numpy(), strict=True)]
        logits_BTV = torch.zeros(*tokens_BT.shape, self.tokenizer.vocab)
        for row, tokens in enumerate(read):
            logits_BTV[row, -1, self.goes_on(tokens)] = 1.0
        return logits_BTV, read


def oracle(tokenizer, answer):
    """Answers by `answer` once the question has been read to its end."""

    def goes_on(tokens):
        text, _, last = tokenizer.decode(tokens).rpartition("\n")
        for end in ENDS:
            if asked := re.match(f"({end})(.*)", last):
                whole = f" {answer(text, asked[1])} and that is all" + " ." * 300
                return int(tokenizer.encode(whole[len(asked[2]) :])[0])
        return 0

    return Reader(tokenizer, goes_on)


def copier(tokenizer):
    """Writes what followed the last place whose end is most like the end of what was read: an induction head."""

    def goes_on(tokens):
        best, found = 0, 0
        for at in np.flatnonzero(tokens[:-1] == tokens[-1])[::-1]:
            same = 0
            while same <= at and tokens[at - same] == tokens[-1 - same]:
                same += 1
            if same > best:
                best, found = same, int(tokens[at + 1])
        return found

    return Reader(tokenizer, goes_on)


def script(tokenizer=None):
    tokenizer = tokenizer or Letters()
    return Script(tokenizer, tokenizer.encode(NOISE))


def test_progress_counts_tokens_batch_by_batch(monkeypatch):
    """Equal shares of all lengths, told at the end of each, said "about 5 s left" at a fifth of the time."""
    told = []
    monkeypatch.setattr("plait.evals.long_context.rows_at_once", lambda length: 2)
    reader = oracle(Letters(), solved)
    curve_of("vt", QUESTIONS["vt"], reader, script(), [64, 512], samples=3, progress=lambda *now: told.append(now))
    whole = 3 * (64 + 512)
    assert told == [(3 * 64, whole), (3 * 64 + 2 * 512, whole), (whole, whole)]


def test_the_number_of_questions_is_said_in_advance():
    assert RulerEvaluation(tasks="vt,cwe", samples=10, times="1,4").amount == "40 questions"
    assert PhonebookEvaluation().amount == "200 questions"


@pytest.mark.parametrize("task", [*QUESTIONS, "phonebook"])
def test_who_reads_the_question_finds_every_answer(task):
    asks, lengths = {**QUESTIONS, "phonebook": phonebook}[task], [2048, 4096]
    found = curve_of(task, asks, oracle(Letters(), solved), script(), lengths, samples=3)
    assert [point.length for point in found.points] == lengths
    assert [point.score for point in found.points] == [1.0, 1.0]
    assert found.effective_length == 4096
    assert all(point.chance <= 0.5 and point.interval[1] == 1 for point in found.points)
    mute = curve_of(task, asks, oracle(Letters(), lambda *_: ""), script(), lengths[:1], samples=3)
    assert mute.points[0].score == 0
    assert mute.effective_length == 0


@pytest.mark.parametrize(
    ("task", "score"),
    [("niah_single", 1.0), ("niah_single_uuid", 1.0), ("niah_multikey", 1.0), ("niah_multikey_needles", 1.0),
     ("phonebook", 1.0), ("niah_multiquery", 0.5)],
)  # fmt: skip
def test_copying_is_enough_for_one_value_of_one_key(task, score):
    asks = {**QUESTIONS, "phonebook": phonebook}[task]
    (point,) = curve_of(task, asks, copier(Letters()), script(), [1536], samples=3).points
    assert point.score == 1.0 if score == 1.0 else point.score < score


def test_chance_is_what_a_guess_among_the_values_has():
    (point,) = curve_of(
        "niah_multikey", QUESTIONS["niah_multikey"], oracle(Letters(), any_secret), script(), [900], samples=60
    ).points
    assert point.chance == 0.25
    low, high = point.interval
    assert low < 0.25 < high


@pytest.mark.parametrize("task", [*QUESTIONS, "phonebook"])
@pytest.mark.parametrize("length", [1900, 3001])
def test_prompts_have_the_length_asked_for(task, length):
    asks = {**QUESTIONS, "phonebook": phonebook}[task]
    drawn = [asks(script(), stream(task, i), length) for i in range(3)]
    assert len({len(question.prompt) for question in drawn}) == 1
    for question in drawn:
        assert len(question.prompt) + len(" ".join(question.answers)) <= length
        text = Letters().decode(question.prompt)
        held = text.lower().count(question.answers[0].lower())
        assert held >= 1
    assert len({question.prompt.tobytes() for question in drawn}) == 3


@pytest.mark.parametrize("task", [*QUESTIONS, "phonebook"])
def test_too_short_a_text_says_what_is_needed(task):
    asks = {**QUESTIONS, "phonebook": phonebook}[task]
    with pytest.raises(TooShort) as short:
        asks(script(), stream(task, 0), 60)
    enough = 11 * short.value.least // 10  # another draw may have longer words
    assert len(asks(script(), stream(task, 1), enough).prompt) < enough


def test_words_by_zipfs_law():
    """Counts n / (ζ(2) r²): dots 0.61 n, then 0.15 n, 0.068 n, 0.038 n, and no others as often."""
    question = QUESTIONS["fwe"](script(), stream("zipf"), 6000)
    text = Letters().decode(question.prompt).rpartition("\n")[0]
    counts = Counter(word for word in text.split() if word == "..." or re.fullmatch("[a-z]{6}", word))
    (dots, most), *rest = counts.most_common(5)
    assert dots == "..."
    assert [word for word, _ in rest[:3]] == list(question.answers)
    assert [round(count / most, 2) for _, count in rest[:3]] == pytest.approx([1 / 4, 1 / 9, 1 / 16], abs=0.02)
    assert rest[2][1] > rest[3][1]


def test_a_pair_of_words_holds_no_answer():
    question = QUESTIONS["cwe"](script(), stream("pairs"), 30_000)
    words = re.findall(r"\d+\. ([\w-]+)", Letters().decode(question.prompt))
    counts = Counter(words)
    assert {counts[answer] for answer in question.answers} == {30}
    assert {count for word, count in counts.items() if word not in question.answers} == {3}
    assert any("-" in word for word in counts)
    assert not any(answer in word.split("-") for word in counts if "-" in word for answer in question.answers)


def test_the_effective_length_ends_where_a_score_first_falls_short():
    def points(*scores):
        return [LengthScore(100 * 2**i, s, (s - 0.05, s + 0.05), 0.0, ()) for i, s in enumerate(scores)]

    assert effective(points(1.0, 0.9, 0.5, 1.0), 0.856) == 200
    assert effective(points(1.0, 0.9, 0.5, 1.0), 0.856, certain=True) == 100
    assert effective(points(0.8, 0.9), 0.856) == 0
    assert effective([], 0.856) == 0


def test_matching_counts_answers_in_any_order_and_case():
    assert matched("they are KIWI, plum", ("plum", "kiwi", "pear", "fig")) == 0.5
    assert PhonebookEvaluation().judged(" 6123456789\nAda", ("6123456789",)) == 1
    assert PhonebookEvaluation().judged(" 61234567890", ("6123456789",)) == 0
    assert PhonebookEvaluation().judged(" is 6123456789", ("6123456789",)) == 0


def test_a_bpe_writes_the_same_questions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PLAIT_CACHE", raising=False)
    Path("text.txt").write_text((NOISE + "\n0123456789 abc VAR The secret of is = ? : ; , - .\n") * 50)
    tokenizer = open_corpus("text.txt", "bpe:size=300").tokenizer
    for task in ("niah_multiquery", "vt", "phonebook"):
        asks = {**QUESTIONS, "phonebook": phonebook}[task]
        (point,) = curve_of(task, asks, oracle(tokenizer, solved), script(tokenizer), [1024], samples=2).points
        assert point.score == 1.0


class Upper(Letters):
    def encode(self, text):
        return super().encode(text.upper())


def test_a_tokenizer_that_changes_the_text_is_refused():
    with pytest.raises(UserError, match="cannot write the questions"):
        QUESTIONS["niah_single"](script(Upper()), stream("x"), 900)


def test_a_tokenizer_without_the_questions_letters_is_refused_with_what_they_need():
    with pytest.raises(UserError, match=r"cannot write the questions: the character 'T'.*such as bytes or a BPE"):
        written(Characters("abc", unknown=False), NOISE)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tasks": "niah_singel"}, "Did you mean 'niah_single'"),
        ({"times": "1,two"}, "whole numbers separated by commas"),
        ({"times": "0,1"}, "whole numbers separated by commas"),
        ({"samples": 1}, "at least 2"),
        ({"threshold": 1.5}, "at most 1"),
        ({"haystack": "hay"}, "noise or text"),
        ({"haystack": "text"}, "--data"),
        ({"length": 20}, "needs at least"),
    ],
)
def test_settings_that_cannot_be(settings, message):
    model = language_model("d=16 vocab=128 | attn[heads=2]")
    subject = Subject(model, np.empty(0, np.int64), 256, Letters())
    evaluation = RulerEvaluation().with_settings({"times": "1", "samples": "2", **settings})
    with pytest.raises(UserError, match=message):
        evaluation.resolved(subject).measure(subject)


def test_learned_positions_end_the_curve():
    model = language_model("d=16 vocab=128 pos=learned max_len=600 | attn[heads=2,pos=none]")
    subject = Subject(model, np.empty(0, np.int64), 300, Letters())
    evaluation = PhonebookEvaluation(samples=2).resolved(subject)
    found = evaluation.measure(subject)
    assert (found["lengths"], found["left_out"]) == ([300, 600], [1200, 2400])


@pytest.mark.parametrize("evaluation", [RulerEvaluation(tasks="niah_single,vt", samples=2), PhonebookEvaluation()])
def test_results_are_plain_and_enough_to_draw(evaluation):
    model = language_model("d=16 vocab=128 | attn[heads=2]")
    subject = Subject(model, np.empty(0, np.int64), 400, Letters())
    evaluation = evaluation.with_settings({"samples": "2", "times": "1,2"}).resolved(subject)
    result = evaluation.measure(subject)
    assert json.loads(json.dumps(result)) == result
    columns, rows = evaluation.table({"one": result, "two": result})
    assert len(rows) == 2 * (3 if evaluation.name == "ruler" else 1)
    assert all(len(row) == len(columns) for row in rows)
    drawn = evaluation.figures({"one": result, "two": result})
    assert set(drawn) == {f"{evaluation.name}-one", f"{evaluation.name}-two"}
    assert all(picture.startswith("<svg") for picture in drawn.values())


def test_from_the_command_line(folder):
    run = make_run()
    given = ["latest", "--on", "ruler,phonebook", "--length", "420", "--set", "times=1,2", "--set", "samples=2"]
    said = plait_eval(*given, "--set", "tasks=niah_single,cwe")
    assert "niah_single" in said
    assert "needs" in said  # no list of words fits
    for name in ("ruler", "phonebook"):
        assert (run.folder / "evals" / f"{name}.svg").read_text().startswith("<svg")
    (ruler, book) = documents(*given, "--set", "tasks=niah_single,cwe")
    assert ruler["stored"]
    assert [point["length"] for point in ruler["result"]["tasks"]["niah_single"]["points"]] == [420, 840]
    assert book["result"]["mean"]["effective_length"] == 0
    assert book["data"]["name"] == ""


def test_a_hugging_face_folder_is_evaluated(folder):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=300, **sizes, max_position_embeddings=256)
    transformers.LlamaForCausalLM(config).save_pretrained("theirs")
    Path("text.txt").write_text((NOISE + "0123456789 : ; abc\n") * 50)
    open_corpus("text.txt", "bpe:size=300").tokenizer.save(Path("theirs"))
    found = documents("theirs", "--on", "phonebook", "--set", "times=2", "--set", "samples=2")
    assert [point["length"] for point in found[0]["result"]["tasks"]["phonebook"]["points"]] == [512]
    assert json.dumps(found)
