"""`plait.analyse` from Python, and the same from the command line."""

from __future__ import annotations

import json

import pytest

import plait

TABLE = """name,params,valid_ppl,latency_ms,memory_mb,d_model,n_layer
a,1000,60,10,100,64,4
b,2000,50,20,150,128,4
c,3000,40,30,200,128,8
d,3010,39,60,201,256,2
"""
#: The verb, its arguments from Python, and the same on the command line.
ASKED = [
    ("front", {"minimise": ["valid_ppl", "latency_ms"]}, "--minimise valid_ppl,latency_ms"),
    ("hypervolume", {"minimise": "valid_ppl,latency_ms", "reference": (70, 70)},
     "--minimise valid_ppl,latency_ms --reference 70,70"),
    ("dominated", {"minimise": "latency_ms,params"}, "--minimise latency_ms,params"),
    ("front_distance", {"proxy": "params", "cost": "latency_ms", "quality": "valid_ppl"},
     "--proxy params --cost latency_ms --quality valid_ppl"),
    ("matched_pairs", {"equal": ["params"], "far": "latency_ms"}, "--equal params --far latency_ms"),
    ("savings", {"baseline": "t.csv", "cost": ["latency_ms"], "quality": "valid_ppl"},
     "--baseline t.csv --cost latency_ms --quality valid_ppl"),
    ("ranks", {"proxy": "params", "truth": "valid_ppl", "top": (50, 100)},
     "--proxy params --truth valid_ppl --top 50,100"),
    ("heatmap", {"proxies": ["params"], "truths": ["valid_ppl"]}, "--proxies params --truths valid_ppl"),
    ("aspect", {"metrics": ["latency_ms"], "size": "params"}, "--metrics latency_ms --size params"),
]  # fmt: skip


@pytest.mark.parametrize(("verb", "arguments", "options"), ASKED, ids=[one[0] for one in ASKED])
def test_an_analysis_is_what_the_command_prints(plait_json, tmp_path, verb, arguments, options):
    (tmp_path / "t.csv").write_text(TABLE)
    found = getattr(plait.analyse, verb)("t.csv", **arguments)
    assert plait_json("analyse", verb.replace("_", "-"), "t.csv", *options.split()) == json.loads(
        json.dumps(found.as_dict())
    )
    assert found.rows()


def test_mistakes_are_told_in_one_message(plait_json, tmp_path):
    (tmp_path / "t.csv").write_text(TABLE)
    with pytest.raises(plait.UserError, match="name the objectives"):
        plait.analyse.front("t.csv")
    with pytest.raises(plait.UserError, match="there is no search by gumbel"):
        plait.analyse.layers()
