"""The published spaces hold what was published."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from plait.core.errors import UserError
from plait.mixers.table import names as mixers
from plait.model.cost import model_cost
from plait.papers.lts.presets import rows
from plait.space.table import load_space
from plait.spec.presets import lookup

TRAINED = Path(__file__).resolve().parents[3] / "shared" / "data" / "lts_trained_random.json"


def test_sizes_as_published() -> None:
    assert load_space("lts-xl").genes == 35
    assert load_space("lts-xl").size == pytest.approx(36.5, abs=0.05)
    assert load_space("lts-opt").count == 152_064
    assert load_space("par").count == sum(2**n for n in range(1, 33))


@pytest.mark.parametrize(
    ("backbone", "outside"),
    [("gpt2", []), ("xl", []), ("opt", ["lts-opt-M17"])],  # whose width of 1480 is off the paper's own grid
)
def test_lts_found_its_models_in_its_space(backbone: str, outside: list[str]) -> None:
    s = load_space(f"lts-{backbone}")
    found, missing = [], []
    for row in rows():
        if row.backbone == backbone and not row.earlier:
            text = lookup(row.name)
            assert text is not None
            try:
                found.append(s.from_spec(text))
            except UserError:
                missing.append(row.name)
    assert missing == outside
    assert len(found) >= 20
    assert s.valid(np.stack(found)).all()


def test_the_proxy_study_drew_from_its_space() -> None:
    if not TRAINED.exists():
        pytest.skip("the trained models' table is not here")
    s = load_space("lts-proxy")
    models = json.loads(TRAINED.read_text())["random_TransXL_wt103"]
    head = "vocab=267735 tie=true embed=adaptive cutoffs=19997/39997/199997 norm=layer eps=1e-5 final_norm=false"
    genes = []
    for m in models:
        pairs = zip(m["n_head"], m["d_inner"], strict=True)
        layers = " ".join(f"xl-attn[heads={heads}] mlp[inner={inner},act=relu]" for heads, inner in pairs)
        genes.append(s.from_spec(f"d={m['d_model']} {head} d_embed={m['d_embed']} div={m['div_val']} | {layers}"))
    assert len(genes) == 200
    assert s.columns(np.stack(genes))["decoder_params"].tolist() == [m["decoder_params"] for m in models]


def test_par_found_its_pattern_in_its_space() -> None:
    s = load_space("par")
    genes = np.stack([s.from_spec(lookup(name) or "") for name in ("txl-base", "sandwich-base", "par-base")])
    columns = s.columns(genes)
    assert columns["total_params"].tolist() == [191_950_298, 191_950_298, 199_840_218]  # Table A2
    outside = model_cost(lookup("par-base") or "", seq=64, memory=640)
    blocks = columns["flops"] - outside.input_flops - outside.output_flops
    assert (blocks / 1e9).round(2).tolist() == [25.30, 25.30, 14.86]


def test_hybrid_has_every_kind_of_mixer() -> None:
    s = load_space("hybrid")
    options = [option for slot in s.slots for option in slot.options if option]
    known = {part.name for option in options for part in option.parts}
    assert any(len(option.parts) > 1 for option in options)  # two of them side by side
    left_out = set(mixers()) - known - {"parallel"}
    # Segment memory, a router inside a mixer, nothing; and those that read or share what another layer has.
    assert left_out == {"xl-attn", "hyena-experts", "identity", "cross-attn", "gmu", "zamba2"}
    genes = s.sample(np.random.default_rng(0), 2000)
    assert s.valid(genes).all()
    texts = " ".join(s.spec(row) for row in genes[:300])
    assert [name for name in (*known, " | mamba2") if name not in texts] == []


def test_names_are_found_or_suggested() -> None:
    with pytest.raises(UserError, match="Did you mean 'lts-gpt2'"):
        load_space("lts-gpt")
