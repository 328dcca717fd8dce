"""What a name stands for, and what is fair to compare."""

from __future__ import annotations

from pathlib import Path

import pytest

from plait.core.errors import UserError
from plait.model.architecture import architecture
from plait.probing.protocol import BASELINES, TOLERANCE, candidates, full, quick
from plait.spec import presets

LEAKY = Path(__file__).parent / "leaky_mixer.py"


def test_bare_names_are_the_papers_architectures_under_its_protocol():
    for mixer, preset in (("attn", "mad-attn-swiglu"), ("gla", "mad-gla-swiglu"), ("mamba", "mad-mamba")):
        (one,) = candidates([mixer], full(), baselines=False, matched=False)
        assert one.arch.hash == architecture(preset).hash, mixer


@pytest.mark.parametrize("protocol", [full(), quick()], ids=lambda p: p.name)
def test_baselines_have_one_state_and_say_where_parameters_differ(protocol):
    found = candidates(list(BASELINES), protocol)
    assert {one.state for one in found} == {0, protocol.state}
    assert {one.arch.header.d for one in found} == {protocol.d}
    (attention,) = [one for one in found if one.name == "attn"]
    for one in found:
        matched = abs(one.params / attention.params - 1) <= TOLERANCE
        assert matched == ("parameters not matched" not in one.note), one


def test_a_single_candidate_gets_baselines():
    names = [one.name for one in candidates(["deltanet"], quick())]
    assert names == ["deltanet", *BASELINES]
    assert [one.name for one in candidates(["gla"], quick())] == ["gla", "attn", "mamba", "hyena"]
    assert len(candidates(["deltanet", "gla"], quick())) == 2
    assert len(candidates(["deltanet"], quick(), baselines=False)) == 1


def test_options_that_were_given_stay():
    (one,) = candidates(["gla[heads=1]"], quick(), baselines=False, matched=False)
    assert one.arch.layers[0].heads == 1
    assert len(one.arch.layers) == 4


def test_a_spec_is_taken_as_it_is():
    text = "d=24 vocab=99 | attn[heads=3] mlp hyena mlp"
    (one,) = candidates([text], quick(), baselines=False)
    assert one.arch.text == text
    assert one.note == "taken as given"


def test_presets_of_the_probe_are_scaled_to_the_protocol():
    (small,) = candidates(["mad-striped-mh-hyena-moe"], quick(), baselines=False, matched=False)
    assert small.arch.header.d == quick().d
    (same,) = candidates(["mad-striped-mh-hyena-moe"], full(), baselines=False, matched=False)
    assert same.arch.hash == architecture("mad-striped-mh-hyena-moe").hash


def test_all_21_have_a_place_in_both_protocols():
    for protocol in (full(), quick()):
        found = candidates(presets.suite("mad21"), protocol)
        assert len({one.arch.hash for one in found}) == 21


@pytest.mark.parametrize(
    ("given", "message"),
    [("gal", "Did you mean 'gla'"), ("swiglu", "mixes channels only"), ("no_such.py", "no file")],
)
def test_mistakes(given, message):
    with pytest.raises(UserError, match=message):
        candidates([given], quick())


def test_a_users_mixer_is_known_by_its_text(tmp_path):
    found = []
    for name in ("leaky", "leakier"):  # a process knows one mixer under a name
        path = tmp_path / f"{name}.py"
        path.write_text(LEAKY.read_text().replace('"leaky"', f'"{name}"'))
        found += candidates([str(path)], quick(), baselines=False, matched=False)
    assert [one.name for one in found] == ["leaky", "leakier"]
    assert found[0].source != found[1].source
    assert len(found[0].arch.layers) == 4


def test_the_papers_21_are_probed_as_published():
    """App. B.3: only architectures without attention are normalised to a fixed state of 4,096."""
    suite = presets.suite("mad21")
    found = candidates(suite, full(), baselines=False)
    assert [one.name for one in found] == list(suite)
    for one in found:
        assert one.arch.hash == architecture(one.name).hash, one.name
    assert {one.state for one in found if "attn" not in one.name and "striped" not in one.name} == {4096}


def test_narrower_the_21_keep_their_mixers_and_equal_states():
    found = candidates(presets.suite("mad21"), quick(), baselines=False)
    for one in found:
        assert [o.name for o in one.arch.layers] == [o.name for o in architecture(one.name).layers]
    whole = {one.state for one in found if "attn" not in one.name and "striped" not in one.name}
    assert len(whole) == 1
    assert {one.state for one in found if "striped" in one.name} == {whole.pop() // 2}


def test_any_preset_is_taken_as_written():
    (one,) = candidates(["mad-gla-swiglu"], full(), baselines=False)
    assert one.arch.hash == architecture("mad-gla-swiglu").hash
    assert one.note == "the preset as written"


def test_mixers_side_by_side_are_one_candidate():
    (one,) = candidates(["(attn | mamba2)"], quick(), baselines=False)
    assert [options.name for options in one.arch.layers] == ["attn|mamba2", "swiglu"] * 2
    assert one.arch.header.d == quick().d
    assert "state not matched" in one.note
