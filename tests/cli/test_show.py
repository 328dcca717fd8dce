"""`plait show`: the numbers of `plait.model.cost`, as a table and as one JSON document."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from plait.model.architecture import architecture
from plait.model.cost import model_cost
from plait.papers.conventions import fox_flops_per_token, mad_flops
from plait.spec import parse, to_yaml

HYBRID = "d=128 vocab=1000 | (attn[heads=4] swiglu gla[heads=2] moe[experts=4,inner=32])x2"


def shown(plait: Any, *arguments: str) -> dict[str, Any]:
    ran = plait("show", *arguments, "--json")
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    document: dict[str, Any] = json.loads(ran.stdout)
    return document


def test_json_holds_the_cost(plait: Any) -> None:
    document, cost = shown(plait, HYBRID, "--seq", "100", "--memory", "28"), model_cost(HYBRID, seq=100, memory=28)
    assert (document["spec"], document["hash"]) == (cost.arch.text, cost.arch.hash)
    assert (document["d"], document["vocab"], document["seq"], document["memory"]) == (128, 1000, 100, 28)
    params, flops, state = document["params"], document["flops"], document["state"]
    assert (params["total"], params["active"]) == (cost.total_params, cost.active_params)
    assert params["decoder"] + params["embedding"] == params["total"]
    assert params["active"] < params["total"]
    assert flops["forward"] == cost.flops
    assert flops["per_token"] == cost.flops / 100
    assert (state["fixed"], state["conv"], state["kv_cache"]) == (cost.fixed_state, cost.conv_state, cost.kv_cache)
    assert state["bytes_fp32"] == 2 * state["bytes_bf16"] == cost.state_bytes()


def test_json_mixers_add_up(plait: Any) -> None:
    document = shown(plait, HYBRID)
    layers = document["mixers"]
    assert [layer["index"] for layer in layers] == list(range(1, 9))
    assert [layer["mixer"] for layer in layers] == ["attn", "swiglu", "gla", "moe"] * 2
    assert sum(layer["params"] for layer in layers) + 128 == document["params"]["decoder"]  # and the final norm
    assert sum(layer["flops"] for layer in layers) + document["flops"]["output_layer"] == document["flops"]["forward"]
    for name, kind in (("fixed_state", "fixed"), ("conv_state", "conv"), ("kv_cache", "kv_cache")):
        assert sum(layer[name] for layer in layers) == document["state"][kind]


def test_one_blank_line_is_between_two_parts(plait: Any) -> None:
    lines = [line.rstrip() for line in plait("show", HYBRID, "--paths").stdout.splitlines()]
    assert lines.count("") >= 4
    assert all(one or other for one, other in itertools.pairwise(lines))


@pytest.mark.parametrize(
    ("spec", "layers", "mixers"),
    [
        ("fox-llama-360m", 24, 48),
        ("gpt2-124m", 12, 24),
        ("mamba2-360m", 48, 48),
        ("par-base", 6, 32),
        ("d=64 | mlp attn[heads=4] attn[heads=4] swiglu swiglu", 2, 5),
        ("d=64 | mlp mlp mlp", 3, 3),
    ],
)
def test_a_layer_is_a_sequence_mixer_and_what_follows_it(plait: Any, spec: str, layers: int, mixers: int) -> None:
    document = shown(plait, spec)
    assert (document["layers"], len(document["mixers"])) == (layers, mixers)
    assert f", {layers} layers, {mixers} mixers, hash" in plait("show", spec).stdout


def test_a_preset_says_where_the_paper_prints_other_counts(plait: Any) -> None:
    """Tables C.3 and C.4 of MAD, first rows; the text's 8 experts, 2 active, do not give their counts."""
    for name, total, active in (("mad-striped-hyena-moe-102m", 194, 102), ("mad-striped-hyena-experts-102m", 241, 101)):
        printed, cost = shown(plait, name)["printed"], model_cost(name)
        assert printed["millions"] == {"total": total, "active": active}
        assert printed["off"]["total"] == pytest.approx(cost.total_params / total / 1e6 - 1)
        assert printed["off"]["active"] == pytest.approx(cost.active_params / active / 1e6 - 1)
        assert f"{active}M active (here -" in plait("show", name).stdout
    assert "printed" not in shown(plait, "gpt2-124m")


def test_an_adaptive_softmax_is_not_costed_as_a_full_one(plait: Any) -> None:
    flops = shown(plait, "txl-base", "--seq", "64", "--memory", "640")["flops"]
    assert flops["forward"] / 1e9 == pytest.approx(27, rel=0.05)
    assert flops["output_layer_whole_vocabulary"] > 10 * flops["output_layer"]


def test_vocab_replaces_the_specs_own(plait: Any) -> None:
    document = shown(plait, "gpt2-124m", "--vocab", "100")
    assert document["vocab"] == 100
    assert document["params"]["decoder"] == model_cost("gpt2-124m").decoder_params
    assert document["params"]["parts"]["token embedding"] == 100 * 768


def test_conventions_are_shown_where_they_apply(plait: Any) -> None:
    text = "d=64 vocab=100 | (attn[heads=4] swiglu)x2"
    assert shown(plait, text, "--seq", "32")["flops"]["conventions"] == {
        "mad_sequence": mad_flops(text, length=32),
        "fox_per_token": fox_flops_per_token(text, length=32),
    }
    assert shown(plait, HYBRID)["flops"]["conventions"] == {}


@pytest.mark.parametrize("preset", ["gpt2-124m", "par-base", "fox-pro-360m"])
def test_table_names_every_layer_and_total(plait: Any, preset: str) -> None:
    ran, cost = plait("show", preset), model_cost(preset)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    lines = ran.stdout.splitlines()
    assert lines[0] == cost.arch.text
    assert cost.arch.hash in lines[1]
    for options in set(cost.arch.layers):
        row = next(line for line in lines if line.startswith(f"{options.to_layer()} "))
        assert f" {cost.arch.layers.count(options)} " in row
    assert f"{cost.total_params:,}" in ran.stdout
    assert ran.stdout.count("█") >= sum(options.kind == "sequence" for options in cost.arch.layers)


def test_a_file_is_shown_like_its_text(plait: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(to_yaml(parse(HYBRID)))
    assert shown(plait, "mine.yaml") == shown(plait, HYBRID)
    assert shown(plait, "mine.yaml")["hash"] == architecture(HYBRID).hash


def test_paths_of_ops_on_this_machine(plait: Any) -> None:
    given = ("show", "d=64 | gla attn[heads=2] swiglu", "--paths", "--device", "cpu", "--seq", "16", "--json")
    found = {one["mixer"]: one["paths"] for one in json.loads(plait(*given).stdout)["paths"]}
    assert found == {
        "gla": {"gated linear attention": "chunks"},
        "attn[heads=2]": {"attention": "sdpa"},
        "swiglu": {"swiglu": "products"},
    }
    assert "paths" not in json.loads(plait("show", "d=64 | gla", "--json").stdout)
    alone = plait("show", "d=64 | gla", "--device", "cpu")
    assert alone.returncode == 2
    assert "--paths" in alone.stderr


def test_svg_draws_the_architecture(plait: Any, tmp_path: Path) -> None:
    ran = plait("show", "par-base", "--seq", "64", "--memory", "640", "--svg", "pictures/par.svg", "--json")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["spec"] == architecture("par-base").text
    picture = (tmp_path / "pictures" / "par.svg").read_text()
    assert "par-base" in picture
    assert "64 new tokens after 640" in picture
    assert "6 × xl-attn[shared_bias]" in picture
    ran = plait("show", "par-base", "--svg", ".")
    assert ran.returncode == 2
    assert ran.stderr.startswith("plait: cannot write .")


def test_bytes_have_a_unit(plait):
    out = plait("show", "d=8 vocab=16 | linear[heads=2] mlp", "--seq", "4").stdout
    assert "80 B in bf16" in " ".join(out.split())
