"""Mechanistic Architecture Design (Poli et al. 2024, arXiv:2403.17844): what it probes, and how."""

from __future__ import annotations

from typing import Any

from plait.model.architecture import architecture
from plait.model.cost import model_cost
from plait.papers.verify import FactTable, tally
from plait.spec import presets

facts = FactTable()


@facts.fact("M06", "sweep and selection: 66 settings × 6 = 396 runs, 5,384,400 steps an architecture; the best counts")
def sweep() -> tuple[str, str, bool]:
    from plait.probing.protocol import full
    from plait.probing.trial import best

    protocol = full()
    # (validation accuracy, loss) of a grid's members; None has diverged.
    chosen = [best(grid) for grid in ([(0.5, 0.1), (0.9, 0.3), (0.9, 0.2)], [None, (0.1, 2.0)], [None, None])]
    ours = f"{protocol.runs:,} runs, {protocol.steps:,} steps, chosen {chosen}"
    return (
        "396 runs, 5,384,400 steps, chosen [2, 1, None]",
        ours,
        ours.startswith("396 runs, 5,384,400 steps") and (chosen == [2, 1, None]),
    )


@facts.fact("M07", "training preset (Table B.1): AdamW 0.9/0.98, batch 128, 200 epochs, 1,280 samples, 3 × 2 grid")
def training_preset() -> tuple[str, str, bool]:
    from plait.probing.candidates import BASELINES, candidates
    from plait.probing.protocol import full
    from plait.training.ensemble import Plan

    protocol = full()
    training = protocol.settings[0].training
    plan = Plan(steps=training.steps, batch=training.batch)
    epochs = training.steps * training.batch / protocol.settings[0].task.train_size
    lrs, decays = (sorted(set(values)) for values in zip(*training.grid, strict=True))
    depth = {len(one.arch.layers) for one in candidates(BASELINES, protocol)}
    ours = (
        f"betas {plan.optimizer.betas}, batch {training.batch}, {epochs:g} epochs, lr {lrs}, decay {decays}, "
        f"{training.evaluation} samples, {depth} layers"
    )
    wanted = (
        "betas (0.9, 0.98), batch 128, 200 epochs, lr [0.0001, 0.0005, 0.001], decay [0.0, 0.1], "
        "1280 samples, {4} layers"
    )
    return wanted, ours, ours == wanted


# App. B.3: what every probed layer is, by the name of its mixer.
LAYERS: dict[str, dict[str, Any]] = {
    "attn": {"heads": 16, "window": 0, "qk_norm": "none"},
    "hyena": {"order": 2, "short": 3, "state": 16},
    "mh-hyena": {"heads": 16, "order": 2, "short": 3, "state": 2},
    "hyena-experts": {"experts": 8, "active": 2, "width": 16, "short": 3, "state": 16},
    "gla": {"heads": 8},
    "mamba": {"state": 4, "expand": 2, "conv": 4, "conv_bias": False},
    "swiglu": {"inner": 512},
    "moe": {"experts": 8, "active": 2, "inner": 16},
}


def _described() -> set[tuple[str, ...]]:
    """The 21 as the paper describes them: each block twice, Mamba four times, each before attention."""
    mixers, channels = ("hyena", "mh-hyena", "hyena-experts", "gla"), ("swiglu", "moe")
    twice = {(mixer, channel) * 2 for mixer in (*mixers, "attn") for channel in channels}
    striped = {(mixer, channel, "attn", channel) for mixer in mixers for channel in channels}
    return twice | striped | {("mamba",) * 4} | {("mamba", "mamba", "attn", channel) for channel in channels}


@facts.fact("M09", "21 probe architectures: 2 blocks = 4 layers of width 128, layer by layer as App. B.3 has them")
def probe_set() -> tuple[str, str, bool]:
    archs = [architecture(name) for name in presets.suite("mad21")]
    found = {tuple(layer.name for layer in arch.layers) for arch in archs}
    exact = sum(
        arch.header.d == 128
        and all(getattr(layer, key) == value for layer in arch.layers for key, value in LAYERS[layer.name].items())
        for arch in archs
    )
    right = len(found & _described())
    ours = f"{right} of the 21 described, {exact} of {len(archs)} with the paper's layers"
    return "21 of the 21 described, 21 of 21 with the paper's layers", ours, right == exact == len(archs) == 21


@facts.fact("M10", "probe architectures without attention hold 4,096 numbers of fixed state")
def iso_state() -> tuple[str, str, bool]:
    costs = {name: model_cost(name, seq=128) for name in presets.suite("mad21")}
    fixed = {name: cost.fixed_state for name, cost in costs.items() if cost.kv_cache == 0}
    odd = {name: state for name, state in fixed.items() if state != 4096}
    return (
        "4096 each",
        f"{tally(len(fixed) - len(odd), len(fixed))}{f'; {odd}' if odd else ''}",
        not odd and len(fixed) == 9,
    )


@facts.fact("M11", "the parallel form is the recurrent form, every mixer of the paper")
def parallel_is_recurrent() -> tuple[str, str, bool]:
    return stepwise("hyena", "mh-hyena", "hyena-experts", "gla", "mamba", "attn", "linear")


@facts.fact("M12", "channel mixers: SwiGLU 512 and MoE 8 × 16, 2 active, at width 128")
def channel_mixers() -> tuple[str, str, bool]:
    glu, moe = (
        architecture(f"d=128 vocab=16 | {text}").layers[0].cost(128, 1)
        for text in ("swiglu[inner=512]", "moe[inner=16]")
    )
    ours = (glu.total_params, moe.total_params, moe.active_params)
    expected = (3 * 128 * 512, 8 * 3 * 128 * 16 + 128 * 8, 2 * 3 * 128 * 16 + 128 * 8)
    return " / ".join(f"{n:,}" for n in expected), " / ".join(f"{n:,}" for n in ours), ours == expected


@facts.fact("M13", "outer-product heads hold M² states, mSISO channels × M; key-value caches 2·d a token")
def state_expansion() -> tuple[str, str, bool]:
    cases = {
        "gla[heads=8]": 8 * 16**2,
        "linear[heads=8,normalize=false]": 8 * 16**2,
        "mh-hyena[heads=16,state=2]": 16 * 8**2 * 2,
        "hyena[state=16]": 128 * 16,
        "mamba[state=4]": 256 * 4,
    }
    ours = {text: _layer(text).cost(128, 1).fixed_state for text in cases}
    cache = _layer("attn[heads=16]").cost(128, 100).kv_cache
    listed = ", ".join(f"{text.partition('[')[0]} {n}" for text, n in ours.items())
    good = ours == cases and cache == 2 * 128 * 100
    return "2048, 2048, 2048, 2048, 1024; 256 a token", f"{listed}; attn {cache / 100:.0f} a token", good


@facts.fact("M14", "routing: softmax over the top-K scores equals the dense sum with masked weights")
def routing() -> tuple[str, str, bool]:
    import torch

    from plait.model.block import make_mixer
    from plait.model.construct import seed_mixer
    from plait.model.user_mixers import load_mixer

    def made(text: str) -> Any:
        mixer = make_mixer(load_mixer(text), 32)
        seed_mixer(mixer, seed=0, std=0.2)
        return mixer.double()

    x = torch.randn(2, 33, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    # Inside vmap every expert of `moe` computes every token and the routing weights mask the result.
    moe = made("moe[experts=6,active=2,inner=16]")
    gaps = [float((moe(x) - torch.func.vmap(moe)(x[None])[0]).abs().max().detach())]

    # For Hyena experts: the same layer, told to take all experts with weights that are zero but for the chosen.
    hyena = made("hyena-experts[experts=4,active=2,width=8]")
    sparse, route = hyena(x), hyena.route

    def masked(x_BTD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weight, chosen = route(x_BTD)
        dense = x_BTD.new_zeros(*x_BTD.shape[:-1], 4).scatter(-1, chosen, weight)
        return dense, torch.arange(4).expand(dense.shape)

    hyena.route = masked
    gaps.append(float((sparse - hyena(x)).abs().max().detach()))
    return "equal", f"largest gaps {', '.join(f'{gap:.1g}' for gap in gaps)}", max(gaps) < 1e-12


def _layer(text: str) -> Any:
    return architecture(f"d=128 vocab=16 | {text}").layers[0]


def stepwise(*names: str) -> tuple[str, str, bool]:
    """Whole sequences against one token at a time, for each mixer."""
    import torch

    from plait.model.block import make_mixer
    from plait.model.construct import seed_mixer
    from plait.model.user_mixers import load_mixer

    worst = 0.0
    x = torch.randn(2, 40, 128, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for name in names:
        mixer = make_mixer(load_mixer(name), 128)
        seed_mixer(mixer, seed=0)
        mixer = mixer.double()
        state, stepped = mixer.init_state(2), []
        for x_BD in x.unbind(1):
            y_BD, state = mixer.step(x_BD, state)
            stepped.append(y_BD)
        worst = max(worst, float((torch.stack(stepped, dim=1) - mixer(x)).abs().max().detach()))
    return "equal", f"{len(names)} mixers, largest gap {worst:.1g}", worst < 1e-9
