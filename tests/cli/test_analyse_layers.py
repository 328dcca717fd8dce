"""`plait analyse layers`: a search's record or a file in, rows, a pattern and a picture out."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from plait.cli.analyse import group
from plait.core.errors import UserError
from plait.records import Record, open_store
from plait.spec import parse

CHOICES = ["xl-attn[heads=4]", "mlp[inner=128]", "none"]
NAMES = {"s": "xl-attn", "f": "mlp", "·": "none"}


def seed_of(number: int, pattern: str) -> dict[str, Any]:
    """As a search stores it."""
    layers = [CHOICES["sf·".index(letter)] for letter in pattern if letter != "·"]
    return {
        "seed": number,
        "layers": [NAMES[letter] for letter in pattern],
        "spec": f"d=64 vocab=32 tie=true | {' '.join(layers)}",
        "loss": 2.5 + number / 8,
        "probabilities": [[0.8 if letter == mine else 0.1 for mine in "sf·"] for letter in pattern],
        "steps": 100,
        "converged": True,
        "settled": 0.8,
    }


def result_of(*patterns: str) -> dict[str, Any]:
    return {"choices": [CHOICES] * len(patterns[0]), "seeds": [seed_of(*pair) for pair in enumerate(patterns)]}


PATTERNS = ("sffsffsff·ff", "sffsffsffff·", "sffsffsfffff")


@pytest.fixture
def layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`layers("found.json")`: its JSON; `text=True` for what a person sees."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PLAIT_STORE", raising=False)
    Path("found.json").write_text(json.dumps(result_of(*PATTERNS)))

    def run(*arguments: str, text: bool = False) -> Any:
        asked = ["layers", *arguments, *([] if text else ["--json"])]
        result = CliRunner().invoke(group, asked, env={"COLUMNS": "200"})
        if result.exception is not None:
            raise result.exception
        return result.stdout if text else json.loads(result.stdout)

    return run


def test_a_file(layers: Any) -> None:
    found = layers("found.json")
    assert [row["layers"] for row in found["seeds"]] == list(PATTERNS)
    assert [(row["attention"], row["p"], row["loss"]) for row in found["seeds"]] == [
        (3, 4, 2.5),
        (3, 4, 2.625),
        (3, 4, 2.75),
    ]
    assert [third["mean"] for third in found["thirds"]] == [2, 1, 0]
    assert found["p"] == 4
    assert found["fitted"] == "rule:par(n=12,p=4)"
    assert found["fits"][0]["agreement"] == 1
    spec = parse(found["spec"])
    assert spec.header.d == 64
    assert [layer.text for layer in spec.layers[:2]] == ["xl-attn[heads=4]", "mlp[inner=128]"]
    assert [layer.name for layer in spec.layers].count("xl-attn") == 3


def test_words(layers: Any) -> None:
    text = layers("found.json", text=True)
    assert "sffsffsff·ff" in text
    assert "s xl-attn, f mlp" in text
    assert "concentrates in the first two thirds: yes" in text
    assert "d=64 vocab=32 tie=true | rule[s=xl-attn[heads=4],f=mlp[inner=128]]:par(n=12,p=4)" in text


def test_a_record_by_its_key_or_the_latest(layers: Any) -> None:
    def put(number: int, method: str, result: dict[str, Any]) -> str:
        record = Record.of("search", {"protocol": 1, "method": method, "number": number}, result, {})
        with open_store() as store:
            store.put(record)
        return record.key

    first = put(0, "gumbel", result_of("sfff"))
    latest = put(1, "gumbel", result_of("ssff"))
    other = put(2, "lts", {"front": []})
    assert layers(first[:12])["seeds"][0]["layers"] == "sfff"
    assert layers()["seeds"][0]["layers"] == "ssff"
    assert layers()["source"] == latest[:10]
    with pytest.raises(UserError, match="contains no found architectures"):
        layers(other)


def test_the_seeds_of_several_searches_count_together(layers: Any) -> None:
    for number, pattern in enumerate(PATTERNS):
        Path(f"{number}.json").write_text(json.dumps(result_of(pattern)))
    together, apart = layers("found.json"), layers("0.json", "1.json", "2.json", "--svg", "m.svg")
    assert apart["source"] == "0.json, 1.json, 2.json"
    assert [row["layers"] for row in apart["seeds"]] == list(PATTERNS)
    assert {k: v for k, v in together.items() if k not in ("source", "seeds")} == {
        k: v for k, v in apart.items() if k not in ("source", "seeds")
    }
    assert Path("m.svg").read_text().count("xl-attn[heads=4]: 0.800") == 9
    with pytest.raises(UserError, match=r"1\.json is given twice"):
        layers("0.json", "1.json", "1.json")
    Path("other.json").write_text(json.dumps(result_of("sffs") | {"choices": [CHOICES[:2]] * 4}))
    with pytest.raises(UserError, match=r"0\.json and other\.json had different choices"):
        layers("0.json", "other.json")


def test_the_picture(layers: Any) -> None:
    said = layers("found.json", "--svg", "m.svg", text=True)
    drawn = Path("m.svg").read_text()
    assert "seed 1, loss 2.6250" in drawn
    assert drawn.count("xl-attn[heads=4]: 0.800") == 9
    assert said.count("m.svg") == 1  # was said twice


def test_a_record_document_and_bare_layers_do(layers: Any) -> None:
    Path("record.json").write_text(json.dumps({"key": "1", "result": result_of(*PATTERNS)}))
    assert layers("record.json")["counts"] == [3, 3, 3]
    Path("bare.json").write_text(json.dumps([{"layers": ["attn", "mlp", "gla", "swiglu"]}]))
    found = layers("bare.json")
    assert found["spec"] == found["fitted"] == "rule:par(n=4,p=2,within=0.8)"  # no specs to take layers from
    assert [row["layers"] for row in found["seeds"]] == ["amgs"]
    assert "– " in layers("bare.json", text=True)
    with pytest.raises(UserError, match="to draw it needs 'choices'"):
        layers("bare.json", "--svg", "m.svg")


def test_a_mixer_of_ones_own_is_known_from_the_record(layers: Any) -> None:
    template = files("plait").joinpath("model/mixer_template.txt").read_text()
    Path("mine.py").write_text(template.replace('= "sequence"', '= "channel"'))
    result = {"seeds": [{"layers": ["attn", "my-mixer", "my-mixer"]}], "mixers": [str(Path("mine.py").resolve())]}
    with open_store() as store:
        store.put(Record.of("search", {"protocol": 1, "method": "gumbel"}, result, {}))
    assert layers()["seeds"][0]["layers"] == "sff"


def test_a_picture_needs_numbers_layer_by_layer(layers: Any) -> None:
    for wrong in (None, 0.5, [0.5], [[None]]):
        result = result_of(*PATTERNS)
        result["seeds"][1]["probabilities"] = wrong
        Path("found.json").write_text(json.dumps(result))
        with pytest.raises(UserError, match="to draw it needs 'choices', and 'probabilities'"):
            layers("found.json", "--svg", "m.svg")


def test_nothing_to_read_off(layers: Any) -> None:
    Path("none.json").write_text(json.dumps(result_of("ff·f")))
    found = layers("none.json")
    assert (found["p"], found["fitted"], found["spec"], found["seeds"][0]["p"]) == (None, None, None, None)
    assert "there is no pattern" in layers("none.json", text=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "invalid JSON in line 1"),
        ("3", "contains no found architectures"),
        ('{"seeds": [{"layers": "sff"}]}', "seeds.0 needs 'layers'"),
        ('{"seeds": [{"layers": ["attn"]}, {"layers": ["attn", "mlp"]}]}', r"\[1, 2\] layers"),
        ('{"seeds": [{"layers": ["attn", "mpl", "mlp"]}]}', "there is no mixer 'mpl'. Did you mean 'mlp'"),
    ],
)
def test_what_is_not_such_a_file_is_refused(layers: Any, content: str, message: str) -> None:
    Path("bad.json").write_text(content)
    with pytest.raises(UserError, match=message):
        layers("bad.json")


def test_a_record_of_another_kind_is_refused(layers: Any) -> None:
    record = Record.of("train", {"protocol": 1}, result_of("sfff"), {})
    with open_store() as store:
        store.put(record)
    wanted = f"^{record.key[:10]} is not a front of `plait search` but a record of kind 'train'.$"
    with pytest.raises(UserError, match=wanted):
        layers(record.key)
    with pytest.raises(UserError, match=wanted):
        layers("found.json", record.key[:12])


def test_what_is_not_there(layers: Any) -> None:
    with pytest.raises(UserError, match=r"gone.json cannot be read"):
        layers("gone.json")
    with pytest.raises(UserError, match="no search by gumbel"):
        layers()
