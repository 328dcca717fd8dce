"""JSON, YAML and files: the same specs, the same limits, errors with a path."""

from __future__ import annotations

import json
import pickle
import time
from pathlib import Path

import pytest

from plait.spec import SpecError, from_json, from_yaml, load, parse, to_json, to_yaml
from plait.spec.serial import from_dict, to_dict

TEXT = "d=256 tie=true embed=adaptive cutoffs=10/20 | (attn[heads=8,rope] mlp[sizes=1/2,p=1e-05])x12 head[x=true]"


def test_dict_form() -> None:
    assert to_dict(parse("d=8 | (attn[heads=2] mlp)x3 a[w=1/2]")) == {
        "d": 8,
        "vocab": 50257,
        "layers": [
            {"repeat": 3, "layers": [{"mixer": "attn", "heads": 2}, {"mixer": "mlp"}]},
            {"mixer": "a", "w": [1, 2]},
        ],
    }


def test_yaml_means_what_the_language_says() -> None:
    text = "d: 8\neps: 1e-5\nlayers:\n- {mixer: attn, act: no, on: True, w: 1/2, q: 'null'}\n"
    assert from_yaml(text) == parse("d=8 eps=1e-5 | attn[act=no,on,w=1/2,q=null]")


def test_load(tmp_path: Path) -> None:
    spec = parse(TEXT)
    for name, content in {
        "a.json": to_json(spec),
        "a.yaml": to_yaml(spec),
        "a.YML": to_yaml(spec),
        "a.txt": TEXT,
        "a b.plait": "\ufeff" + TEXT,
    }.items():
        path = tmp_path / name
        path.write_text(content, encoding="utf-8")
        assert load(path) == load(str(path)) == spec
    assert load(TEXT) == load("\n " + to_json(spec)) == spec
    assert load(TEXT).source == TEXT


@pytest.mark.parametrize("given", ["mine.py", "here/mine.py:Mine"])
def test_load_tells_a_mixers_file(given: str) -> None:
    with pytest.raises(SpecError, match="is a Python file, but a spec is needed here"):
        load(given)


def test_load_refuses(tmp_path: Path) -> None:
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "folder.txt").mkdir()
    (tmp_path / "spec.toml").write_text("attn")
    for given, message in [
        (str(tmp_path / "none.json"), "there is no file"),
        (tmp_path / "none.json", "cannot read 'none.json'"),
        (tmp_path / "bytes.txt", "not UTF-8"),
        (tmp_path / "folder.txt", "is a folder: give a spec"),
        (tmp_path / "spec.toml", "ends in .json"),
    ]:
        with pytest.raises(SpecError, match=message):
            load(given)


LAYER = {"mixer": "a"}


@pytest.mark.parametrize(
    ("data", "path", "message"),
    [
        ([], None, "expected a mapping"),
        ({}, None, "'layers' is missing"),
        ({"layers": []}, "layers", "at least one layer"),
        ({"layers": "attn"}, "layers", "expected a list"),
        ({"layers": [LAYER], "vocba": 3}, "vocba", "Did you mean 'vocab'"),
        ({"layers": [LAYER], "d": "8"}, "d", "not a name"),
        ({"layers": [LAYER], "d": True}, "d", "a whole number"),
        ({"layers": [LAYER], "pos": "learned"}, "pos", "needs max_len"),
        ({"layers": [LAYER, "attn"]}, "layers[1]", "'mixer'"),
        ({"layers": [LAYER, {"heads": 8}]}, "layers[1]", "the keys are 'heads'"),
        ({"layers": [{"mixer": 8}]}, "layers[0].mixer", "name of a mixer"),
        ({"layers": [{"mixer": "rule"}]}, "layers[0]", "begins a dialect"),
        ({"layers": [{"mixer": "megatron"}]}, "layers[0]", "begins a dialect"),
        ({"layers": [LAYER, {"mixer": "a", "heads": None}]}, "layers[1].heads", "not NoneType"),
        ({"layers": [{"mixer": "a", "heads": [1.5]}]}, "layers[0].heads", "whole numbers only"),
        ({"layers": [{"mixer": "a", "heads": 10**13}]}, "layers[0].heads", "must be within"),
        ({"layers": [{"mixer": "a", "x": 1, "X": 2}]}, "layers[0]", "given twice"),
        ({"layers": [{"repeat": 0, "layers": [LAYER]}]}, "layers[0].repeat", "at least 1"),
        ({"layers": [{"repeat": True, "layers": [LAYER]}]}, "layers[0].repeat", "whole number"),
        ({"layers": [{"repeat": 2, "layers": [LAYER], "d": 3}]}, "layers[0]", "just 'repeat' and 'layers'"),
        ({"layers": [{"repeat": 2, "layers": [LAYER, 3]}]}, "layers[0].layers[1]", "'mixer'"),
        ({"layers": [{"repeat": 10**9, "layers": [LAYER]}]}, "layers", "1,000,000,000 layers"),
        ({"layers": [{3: 4}]}, "layers[0]", "not text"),
    ],
)
def test_errors_give_the_path(data: object, path: str | None, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        from_dict(data)
    assert message in caught.value.message
    assert caught.value.path == path
    assert str(caught.value).startswith(f"spec: {path}: " if path else "spec: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"layers": [}', "not JSON"),
        ('{"d": 8, "d": 9, "layers": [{"mixer": "a"}]}', "'d' is given twice"),
        ('{"d": NaN}', "finite"),
        ('{"d": ' + "9" * 5000 + "}", "more than 30 digits"),
        ('{"layers":' * 100_000, "nested|not JSON"),
        ("[" * 100_000, "nested|not JSON"),
        (" " * 4_000_001, "at most 4,000,000"),
    ],
)
def test_json_text_refused(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        from_json(text)


LAUGHS = "k0: &a0 [1, 1]\n" + "".join(f"k{i + 1}: &a{i + 1} [*a{i}, *a{i}]\n" for i in range(20))


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("d: 8\nd: 9\n", 2, "'d' is given twice"),
        ("d: 8\nlayers: [", 2, "not YAML"),
        ("d: 8\nlayers: [{mixer: a, k: ~}]", 2, "not a value"),
        ("d: !!int 8\n", 1, "tag"),
        ("d: !!python/object/apply:os.system [ls]\n", 1, "tag"),
        ("? [a]\n: 3\n", 1, "expected a key"),
        ("d: 8\n---\nd: 9\n", 2, "second document"),
        ("layers: " + "[" * 1000, 1, "nested"),
        (LAUGHS, 2, "aliases"),
        ("d: " + "9" * 100_000, 1, "more than 30 digits"),
    ],
)
def test_yaml_text_refused(text: str, line: int, message: str) -> None:
    start = time.process_time()
    with pytest.raises(SpecError, match=message) as caught:
        from_yaml(text)
    assert caught.value.line == line
    assert time.process_time() - start < 1


def test_shared_objects_cannot_multiply() -> None:
    data: object = {"mixer": "a"}
    for _ in range(40):
        data = {"repeat": 1, "layers": [data, data]}
    with pytest.raises(SpecError, match="more than 10,000 layers"):
        from_dict({"layers": [data]})


def test_deep_data_is_refused() -> None:
    data: object = {"mixer": "a"}
    for _ in range(500):
        data = {"repeat": 1, "layers": [data]}
    with pytest.raises(SpecError, match="nested more than 50"):
        from_dict({"layers": [data]})


def test_the_longest_spec_survives_json() -> None:
    spec = parse(" ".join(f"l{i * i % 9973}[k]" for i in range(10_000)))
    assert from_json(json.dumps(json.loads(to_json(spec)))) == spec


def test_errors_and_specs_can_be_pickled() -> None:
    with pytest.raises(SpecError) as caught:
        parse("attn )")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert pickle.loads(pickle.dumps(parse(TEXT))) == parse(TEXT)
