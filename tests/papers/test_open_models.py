"""Open models by name: parameters against those their authors publish."""

from __future__ import annotations

import pytest

from plait.model.architecture import architecture
from plait.model.cost import model_cost
from plait.papers.open_models import PUBLISHED, catalog
from plait.spec import presets


def test_every_model_has_a_published_count() -> None:
    assert list(catalog()) == list(PUBLISHED)


#: What a name rounds, and what the spec cannot have: their presets' lines say so.
OTHERWISE = ("kimi-linear", "olmo-hybrid-7b", "hymba-1.5b")


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name not in OTHERWISE])
def test_total_parameters_are_within_one_percent(name: str) -> None:
    assert model_cost(name).total_params / 1e6 == pytest.approx(PUBLISHED[name][0], rel=0.01)


#: Those whose checkpoints are counted to the last parameter, where the spec leaves nothing out.
EXACT = {
    "smollm2-135m": 134_515_008,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.1-8b": 8_030_261_248,
    "mistral-7b": 7_241_732_096,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen3-0.6b": 596_049_920,
    "mamba-130m": 129_135_360,
    "zamba2-1.2b": 1_215_064_704,
    "zamba2-2.7b": 2_662_214_560,
    "zamba2-7b": 7_356_749_648,
}


@pytest.mark.parametrize("name", EXACT)
def test_exact_counts(name: str) -> None:
    assert model_cost(name).total_params == EXACT[name]


def _mamba2_by_hand(d: int, inner: int, heads: int, groups: int, state: int = 128) -> int:
    """Input map, convolution of width 4 with bias, A, D and step bias, gated norm, output map."""
    convolved = inner + 2 * groups * state
    return d * (inner + convolved + heads) + 5 * convolved + 3 * heads + inner + inner * d


def _mla_by_hand(d: int, heads: int) -> int:
    """Queries through a rank of 1,536, keys and values through one of 512; both are normed."""
    queries = d * 1536 + 1536 + 1536 * heads * 192
    return queries + d * (512 + 64) + 512 + 512 * heads * 256 + heads * 128 * d


def _by_hand() -> dict[str, int]:
    """Every matrix, bias and norm of the published configurations; a norm before each layer and one at the end."""
    found = {}
    d = 4096
    layers = 24 * _mamba2_by_hand(d, 8192, 128, 8) + 4 * d * (2 * 32 + 2 * 8) * 128 + 24 * 2 * d * 21_504
    found["nemotron-h-8b"] = 2 * 131_072 * d + layers + (52 + 1) * d
    d = 5120
    layers = 28 * _mamba2_by_hand(d, 10_240, 128, 8) + 6 * d * (2 * 40 + 2 * 8) * 128 + 28 * 2 * d * 20_480
    found["nemotron-nano-2-12b"] = 2 * 131_072 * d + layers + (62 + 1) * d
    d, keys, values = 3840, 30 * 96, 30 * 192
    gdn = d * (2 * keys + 2 * values) + 2 * d * 30 + 4 * (2 * keys + values) + 2 * 30 + 192 + values * d
    layers = 24 * gdn + 8 * (4 * d * d + 2 * d) + 32 * 3 * d * 11_008
    found["olmo-hybrid-7b"] = 2 * 100_352 * d + layers + (64 + 1) * d
    d = 7168
    experts = 257 * 3 * d * 2048 + 256 * d + 256  # the router and its bias
    layers = 61 * _mla_by_hand(d, 128) + 3 * 3 * d * 18_432 + 58 * experts
    found["deepseek-v3"] = 2 * 129_280 * d + layers + (122 + 1) * d
    found["mamba2-1.3b"] = 50_288 * 2048 + 48 * _mamba2_by_hand(2048, 4096, 64, 1) + (48 + 1) * 2048
    return found


def test_counts_by_hand() -> None:
    by_hand = _by_hand()
    assert {name: model_cost(name).total_params for name in by_hand} == by_hand


#: What config.json of these checkpoints says of the architecture.
CONFIGS = {
    "llama-3.2-1b": {
        "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "hidden_act": "silu", "attention_bias": False,
        "mlp_bias": False, "max_position_embeddings": 131072, "rope_theta": 500000.0, "pretraining_tp": 1,
        "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                         "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    },
    "qwen2.5-1.5b": {
        "model_type": "qwen2", "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
        "num_attention_heads": 12, "num_key_value_heads": 2, "vocab_size": 151936, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True, "hidden_act": "silu", "max_position_embeddings": 131072,
        "max_window_layers": 28, "rope_theta": 1000000.0, "sliding_window": 131072, "use_sliding_window": False,
    },
    "qwen3-0.6b": {
        "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "hidden_act": "silu", "attention_bias": False,
        "max_position_embeddings": 40960, "max_window_layers": 28, "rope_scaling": None, "rope_theta": 1000000,
        "sliding_window": None, "use_sliding_window": False,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_a_checkpoints_config_is_the_preset(name: str) -> None:
    from plait.interop.import_hf import spec_text
    from plait.interop.native import _explicit

    assert _explicit(architecture(spec_text(CONFIGS[name]))) == _explicit(architecture(name))


def test_names_that_round_down() -> None:
    """Kimi Linear's checkpoint has 49.1 billion, Olmo-Hybrid's 7.4."""
    assert 49.0e9 < model_cost("kimi-linear").total_params < 49.2e9
    assert 7.35e9 < model_cost("olmo-hybrid-7b").total_params < 7.45e9


def test_hymbas_own_output_maps_and_keys_are_what_it_has_more() -> None:
    """Both kinds of its heads share one output map, its values are twice as wide, and 15 of 32 layers take another's
    keys and values; ours have an output map for attention, too, and all their keys and values."""
    d, layers, kv = 1600, 32, 2 * 320
    more = layers * d * d + 15 * d * (kv + 320) - layers * d * 320
    assert (model_cost("hymba-1.5b").total_params - more) / 1e6 == pytest.approx(PUBLISHED["hymba-1.5b"][0], rel=0.01)


@pytest.mark.parametrize(("name", "embeddings"), [("gpt-oss-20b", 1), ("gpt-oss-120b", 1), ("minimax-01", 0)])
def test_active_parameters_as_their_authors_count_embeddings(name: str, embeddings: int) -> None:
    """Of the two embeddings gpt-oss counts the output's, MiniMax neither."""
    cost = model_cost(name)
    one = cost.total_params - cost.params_without_input_embedding
    assert (cost.active_params - (2 - embeddings) * one) / 1e6 == pytest.approx(PUBLISHED[name][1], rel=0.01)


@pytest.mark.parametrize(("name", "low", "high"), [("deepseek-v3", 36.5, 37.6), ("qwen3-next", 3.0, 3.9)])
def test_active_parameters_that_are_published_rounded(name: str, low: float, high: float) -> None:
    assert low <= model_cost(name).active_params / 1e9 <= high


def test_patterns_are_the_published_ones() -> None:
    kinds = [layer.name for layer in presets_layers("kimi-linear") if layer.name in ("kda", "mla")]
    assert [i + 1 for i, name in enumerate(kinds) if name == "mla"] == [4, 8, 12, 16, 20, 24, 27]
    letters = {"mamba2": "M", "mlp": "-", "attn": "*"}
    pattern = "".join(letters[layer.name] for layer in presets_layers("nemotron-h-8b"))
    assert pattern == "M-M-M-M*-" + "M-M-M-M-M*-" * 3 + "M-M-M-M-M-"
    pattern = "".join(letters[layer.name] for layer in presets_layers("nemotron-nano-2-12b"))
    assert pattern == "M-M-M-M*-" * 6 + "M-M-M-M-"
    whole = [layer.branches[0].window == 0 for layer in presets_layers("hymba-1.5b") if layer.name == "attn|mamba"]
    assert [i for i, seen in enumerate(whole) if seen] == [0, 15, 31]
    calls = [layer.share if layer.name == "zamba2" else "" for layer in presets_layers("zamba2-7b")]
    assert [i for i, name in enumerate(calls) if name] == [6, 11, 17, 23, 29, 35, 41, 47, 53, 59, 65, 71, 77]
    assert "".join(calls) == "ababababababa"
    windows = [layer.window for layer in presets_layers("gemma-3-1b") if layer.name == "attn"]
    assert [i for i, window in enumerate(windows) if not window] == [5, 11, 17, 23]


def presets_layers(name: str):
    from plait.model.architecture import architecture

    return architecture(presets.lookup(name)).layers
