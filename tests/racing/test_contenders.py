"""Who is compared: names that tell apart, the text's vocabulary, equal sizes, and what is refused."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from plait.core.errors import UserError
from plait.model.architecture import architecture
from plait.racing.contenders import Contender, _require_one_text, read_contenders, unique

TEMPLATE = files("plait").joinpath("model/mixer_template.txt").read_text()


def test_mixers_by_name_are_small_models_of_equal_size() -> None:
    found = read_contenders(["attn", "gla", "mamba2"], 100)
    assert [each.name for each in found] == ["attn", "gla", "mamba2"]
    assert {each.arch.header.vocab for each in found} == {100}
    assert all(abs(each.params / found[0].params - 1) < 0.03 or each.note for each in found)


def test_specs_stay_as_they_are_but_for_the_vocabulary() -> None:
    one, other = read_contenders(["d=16 vocab=77 | attn[heads=2] swiglu", "d=32 | gla[heads=2] swiglu"], 100)
    assert (one.arch.header.d, one.arch.header.vocab) == (16, 100)
    assert other.params > 2 * one.params
    assert (one.name, other.name) == ("attn swiglu", "gla swiglu")


def test_state_can_be_matched() -> None:
    from plait.model.cost import total_state

    one, other = read_contenders(["gla", "hgrn2"], 100, "state")
    assert other.note or abs(total_state(other.arch) / total_state(one.arch) - 1) < 0.03


def test_copies_have_names_of_their_own() -> None:
    assert unique(["a", "a", "a-2", "b", "a"]) == ["a", "a-2", "a-2-2", "b", "a-3"]
    assert [each.name for each in read_contenders(["attn", "attn"], 100)] == ["attn", "attn-2"]


def test_a_mixer_file_is_a_contender(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(TEMPLATE)
    (one,) = read_contenders([str(tmp_path / "mine.py")], 100)
    assert one.name in one.arch.text
    assert one.arch.mixer_sources


def test_a_run_is_a_contender(tmp_path: Path) -> None:
    import plait

    run = plait.train(
        "d=16 | attn[heads=2] swiglu", data="builtin:language", steps=2, batch=2, seq_len=16, runs=tmp_path,
        store=f"sqlite:///{tmp_path}/plait.db",
    )  # fmt: skip
    by_name, latest = read_contenders([run.run, "latest"], 100, runs=tmp_path)
    assert by_name.arch == latest.arch
    assert by_name.name == run.run


@pytest.mark.parametrize(
    ("given", "match", "message"),
    [
        ([], None, "nothing to compare"),
        (["bert-base"], None, "bert-base: comparisons train language models"),
        (["attn"], "parms", "--match parms: must be one of params, state, none. Did you mean 'params'"),
        (["d=16 | atn"], None, "unknown mixer 'atn'"),
    ],
)
def test_what_cannot_be_compared_is_said(given: list[str], match: str | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_contenders(given, 100, match)


def test_a_spec_may_be_longer_than_a_files_name() -> None:
    spec = "d=16 | " + " ".join(f"attn[heads=2] swiglu[inner={32 + i}]" for i in range(12))
    (contender,) = read_contenders([spec], 100)
    assert contender.arch.text.endswith("swiglu[inner=43]")


def test_two_texts_of_one_mixer_are_refused(tmp_path: Path) -> None:
    from plait.model.user_mixers import load_mixer

    found = []
    for text in (TEMPLATE, TEMPLATE + "\n# edited\n"):
        (tmp_path / "mine.py").write_text(text)
        found.append(Contender("mine", architecture(f"d=16 vocab=32 | {load_mixer(tmp_path / 'mine.py').name}")))
    with pytest.raises(UserError, match="two texts of the mixer"):
        _require_one_text(found)


def test_mixers_side_by_side_are_a_small_model() -> None:
    one, other = read_contenders(["gla", "(attn | gla)"], 100)
    assert {options.name for options in other.arch.layers} == {"attn|gla", "swiglu"}
    assert other.arch.header == one.arch.header
