"""Spaces whose layers read of earlier ones or share their weights: only architectures that can be built are drawn.

The reference is `architecture`, which reads and checks the text of one candidate at a time.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from plait.algorithms.evolution import everything
from plait.cli.main import main
from plait.core.errors import UserError
from plait.model.architecture import architecture
from plait.model.cost import model_cost
from plait.space.declaration import Declaration
from plait.space.space import LINKED, SOMETHING, Genes, Space
from plait.spec import Spec

SAMBAY = ["mamba[state=4]", "attn[heads=2|4]", "attn[heads=4,window=8]", "cross-attn[heads=2|4]", "gmu[expand=1|2]"]
ALBERT = ["attn[heads=2|4,share=a]", "attn[heads=2,share=b]", "mlp[inner=32,share=a]"]
ZAMBA = ["mamba2[head_dim=16,state=8]", "zamba2[head_dim=16,state=8,heads=4,inner=24,lora=2|4,share=a|b]"]
SPACES: dict[str, dict[str, object]] = {
    "sambay": {"slots": [SAMBAY]},
    "behind": {"slots": [SAMBAY, ["swiglu[inner=32]", "gmu[norm]", "none"]], "layers": "1..2"},
    "albert": {"slots": [[*ALBERT, "none"]], "layers": "3"},
    "zamba": {"slots": [ZAMBA]},
    "alike": {"slots": [["attn[heads=2|4]", "gla[heads=2]"], ["cross-attn[heads=2|4]", "mlp"]], "alike": True},
    "widths": {"slots": [["attn[heads=2|4]", "cross-attn[heads=4,head_dim=16]"]], "d": "32|64"},
    "names": {"slots": [["gla[heads=2,share=a|b|c]", "mlp[inner=32]"]], "layers": "1..3"},
    "slots": {
        "slots": [
            ["attn[heads=2,share=b]", "attn[heads=2|4,share=a|c]", "gla[heads=2]"],
            ["attn[heads=2,share=a]", "mlp[inner=32,share=a|b]"],
        ],
        "layers": "1..2",
    },
    "lending": {"slots": [["attn[heads=2|4,share=a|b]", "cross-attn[heads=2|4]"]]},
    "biases": {"slots": [["xl-attn[heads=2|4,shared_bias]", "mlp[inner=32]"]]},
}


def space(name: str, **changes: object) -> Space:
    given = {"name": name, "layers": "1..3", "d": "32", "header": "vocab=13", "seq": 16, **SPACES[name], **changes}
    return Space(Declaration(**given))  # type: ignore[arg-type]


def _somethings(s: Space, genes: Genes) -> Genes:
    """Without those whose every layer is nothing."""
    return genes[s.passed(genes, {}).get(SOMETHING, np.ones(len(genes), dtype=np.bool_))]


def is_architecture(text: str) -> bool:
    try:
        architecture(text)
    except UserError:
        return False
    return True


@pytest.mark.parametrize("name", SPACES)
def test_whatever_is_drawn_or_changed_can_be_built(name: str) -> None:
    s, rng = space(name, layers="1..8"), np.random.default_rng(3)
    sampled = s.sample(rng, 80)
    mutants, crossed = s.mutate(rng, sampled, 0.3), s.crossover(rng, sampled, sampled[::-1])
    # A mutant of another width, or a layer from a parent of another, need not fit: that is for `repair`.
    drawn = [sampled, s.repair(rng, mutants), s.repair(rng, crossed)]
    for genes in [*drawn, *([mutants, crossed] if name != "widths" else [])]:
        assert (s.canonical(genes) == genes).all()
        for row in _somethings(s, genes):
            assert is_architecture(s.spec(row)), s.spec(row)


def test_all_mixers_of_a_space_are_drawn_behind_what_they_read() -> None:
    s = space("sambay", layers="6")
    texts = [s.spec(row) for row in s.sample(np.random.default_rng(0), 300)]
    for layer in ("cross-attn[heads=2]", "cross-attn[heads=4]", "gmu", "attn[heads=2]", "mamba[state=4]"):
        assert sum(layer in text for text in texts) > 20, layer
    # The memory of mamba is twice the model's width: a gmu of its own width reads nothing here.
    assert not any("gmu[expand=1]" in text for text in texts)


@pytest.mark.parametrize("name", SPACES)
def test_candidates_are_counted_and_enumerated_as_the_language_allows(name: str) -> None:
    s = space(name)
    layers = [slot.layers for slot in s.slots]
    wanted = set()
    for header in s.headers.all:
        for depth in range(1, s.depths[-1] + 1) if name == "albert" else s.depths:
            own = 1 if s.alike else depth
            for choice in itertools.product(*layers * own):
                chosen = [layer for layer in choice * (depth // own) if layer is not None]
                # In a space of one slot nothing stands in a layer's place only at the end: a shallower candidate.
                if chosen and (len(s.slots) > 1 or len(chosen) == depth):
                    wanted.add(Spec(header, tuple(chosen)).text)
    buildable = {text for text in wanted if is_architecture(text)}
    genes = _somethings(s, everything(s))
    # Names of `share` do not matter to an architecture: texts that differ in them alone are one network, and one row.
    networks = {architecture(text).text for text in buildable}
    assert {s.spec(row) for row in genes} == networks
    assert len(genes) == len(networks) == s.count
    assert 0 < len(networks) < len(wanted)  # some cannot be built, or are written in several ways
    for row in genes[:: max(1, len(genes) // 40)]:
        assert s.spec(s.from_spec(s.spec(row))) == s.spec(row)


@pytest.mark.parametrize("name", SPACES)
def test_columns_are_the_cost_of_the_model(name: str) -> None:
    s = space(name, layers="1..6")
    genes = s.sample(np.random.default_rng(5), 60)
    genes = genes[s.valid(genes)]
    columns = s.columns(genes)
    for i, row in enumerate(genes):
        cost = model_cost(s.spec(row), seq=16)
        assert (columns["decoder_params"][i], columns["total_params"][i]) == (cost.decoder_params, cost.total_params)
        assert (columns["flops"][i], columns["state"][i]) == (cost.flops, cost.state_bytes())


def test_a_stack_that_asks_in_vain_is_refused_and_says_so() -> None:
    s = space("sambay", layers="2")
    fine, other = s.from_spec("d=32 vocab=13 | attn[heads=2] cross-attn[heads=2]"), s.slots[0].options
    wrong = fine.copy()
    wrong[-1] = next(k for k, option in enumerate(other) if str(option.to_layer()) == "cross-attn[heads=4]")
    assert s.passed(np.stack([fine, wrong]), {})[LINKED].tolist() == [True, False]


def test_rows_that_differ_in_share_names_alone_are_one_row() -> None:
    s = space("names")
    own = {option.share: k for k, option in enumerate(s.slots[0].options) if option.name == "gla"}
    mlp = next(k for k, option in enumerate(s.slots[0].options) if option.name == "mlp")
    stacks = np.array([[[own[a]], [mlp], [own[b]]] for a, b in ("ab", "ba", "ca", "bc", "aa", "cc")])
    found = s.of_layers(stacks)
    assert (found[:4] == found[0]).all()
    assert (found[4:] == found[4]).all()
    assert s.spec(found[0]) != s.spec(found[4])


def test_many_names_are_found_again() -> None:
    """One name for each of ten layers: trying all combinations would take hours."""
    names = "abcdefghij"
    s = space("names", slots=[["attn[heads=2,share=" + "|".join(names) + "]"]], layers="10")
    text = "d=32 vocab=13 | " + " ".join(f"attn[heads=2,share={name}]" for name in names)
    assert s.spec(s.from_spec(text)).count("attn") == 10


def test_too_many_ways_to_share_are_bounded_from_above(monkeypatch: pytest.MonkeyPatch) -> None:
    named = [f"attn[heads=2|4|8,share={name}]" for name in "abcdef"]
    # Any heads first; then the same layer again, or any heads under another name.
    assert space("albert", slots=[named], layers="2").count == 3 * (1 + 3)
    monkeypatch.setattr("plait.space.links.MAX_STATES", 5)
    s = space("albert", slots=[named], layers="2")
    assert len(everything(s)) == 3 * (1 + 3) < s.count == 18**2


@pytest.mark.parametrize(
    ("slots", "message"),
    [
        ([["gla", "cross-attn"]], "cross-attn cannot follow any layer of the space: it reads the keys"),
        ([["mamba[state=4]", "gmu[expand=1]"]], "gmu cannot follow any layer of the space: gmu: expand=1"),
        ([["cross-attn[heads=2]"], ["attn[heads=2]"]], "every choice of the first layer reads from an earlier layer"),
        ([["attn[heads=2]", "moe[share=a]"]], "no option 'share'"),
    ],
)
def test_spaces_without_any_such_architecture_are_refused(slots: list[list[str]], message: str) -> None:
    with pytest.raises(UserError, match=message):
        space("sambay", slots=slots)


@pytest.mark.parametrize("method", ["lts", "nsga2", "nsga3", "random"])
def test_searched_from_a_file(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.space").write_text(
        "layers: 4..10\nd: 32|64\nheader: vocab=256\n"
        "mixers: [mamba[state=4], attn[heads=2|4], cross-attn[heads=2|4], gmu, gla[heads=2,share=a]]\n"
        "channel: [swiglu[inner=64|128], mlp[inner=64,share=b]]\n"
        "constraints:\n  - count(cross-attn) >= 1\n  - count(gmu) >= 1\n  - state <= 400KB\n"
    )
    monkeypatch.chdir(tmp_path)
    given = ["search", "--space", "mine.space", "--objectives", "decoder_params,min:flops,min:kv_cache", "--json"]
    monkeypatch.setattr("sys.argv", ["plait", *given, "--method", method, "--iterations", "3", "--population", "30"])
    with pytest.raises(SystemExit) as left:
        main()
    assert not left.value.code
    front = json.loads(capsys.readouterr().out)["front"]
    assert front
    for row in front:
        cost = model_cost(row["spec"], seq=1024)
        assert "cross-attn" in row["spec"]
        assert "gmu" in row["spec"]
        assert (row["flops"], row["decoder_params"]) == (cost.flops, cost.decoder_params)
        assert cost.state_bytes() <= 400e3


def test_a_layer_that_asks_in_vain_stays_the_same_mixer_where_it_can() -> None:
    s, rng = space("sambay", layers="2"), np.random.default_rng(5)
    places = {s.spec(row).partition(" | ")[2]: row for row in everything(s)}
    lender, readers = "attn[heads=2]", {"cross-attn[heads=2]", "cross-attn[heads=4]"}
    fitting = {reader for reader in readers if f"{lender} {reader}" in places}
    assert len(fitting) == 1
    (fits,) = fitting
    (wrong,) = readers - fitting
    other = next(text for text in places if text.endswith(wrong))  # behind a lender that it fits
    row = places[f"{lender} {fits}"].copy()
    row[-1] = places[other][-1]
    repaired = s.repair(rng, np.repeat(row[None], 50, axis=0))
    assert {s.spec(each).partition(" | ")[2] for each in repaired} == {f"{lender} {fits}"}
