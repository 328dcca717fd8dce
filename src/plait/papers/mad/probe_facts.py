"""Mechanistic Architecture Design (Poli et al. 2024, arXiv:2403.17844): its synthetic tasks (App. B.1, B.2), what it
probes with them, and how.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from plait import tasks
from plait.core.units import percent
from plait.model.architecture import architecture
from plait.model.cost import model_cost
from plait.papers.verify import FactTable, tally
from plait.spec import presets
from plait.tasks.data import draw
from plait.tasks.memorization import Memorization
from plait.tasks.task import stream

facts = FactTable()

# App. B.1's examples, by the name of the task: its setting, what is read, and what is asked for at each token
# ("." nothing). Recall asks a key for the value after it. [b] is written b, [i] i, [c] C; pads are written _.
EXAMPLES: dict[str, tuple[dict[str, Any], dict[str, str], str, str]] = {
    "in-context-recall": ({"vocab": 6, "length": 10}, {"key": "adf", "value": "beg"}, "abdefgabfg", "......b.g."),
    "fuzzy-in-context-recall": (
        {"vocab": 6, "length": 16}, {"key": "adf", "value": "beg", "pad": "_"}, "___adbdafegdafeg", ".............eg.",
    ),
    "noisy-in-context-recall": (
        {"vocab": 6, "length": 12, "noise": 1 / 6, "noise_vocab": 2}, {"key": "adf", "value": "beg", "noise": "hi"},
        "abhdefgiabfg", "........b.g.",
    ),
    "selective-copying": (
        {"vocab": 3, "length": 9, "to_copy": 3}, {"token": "act", "blank": "b", "insert": "i"},
        "acbtbiibi", ".....ac.t",
    ),
    "compression": ({"vocab": 7, "length": 8}, {"token": "abceghi", "compress": "C"}, "aecbhgiC", "aecbhgi."),
    "memorization": (
        {"vocab": 6, "length": 8}, {"key": "ace", "value": "bdf", "insert": "i"}, "aicieiai", ".b.d.f.b",
    ),
}  # fmt: skip


def example_holds(name: str) -> bool:
    """Whether the example is a sequence of the task with these targets, and would not be with one less."""
    setting, letters, read, asked = EXAMPLES[name]
    task = tasks.load(name)(**setting)
    if isinstance(task, Memorization):  # under the seed that draws the example's facts: a:b, c:d, e:f
        task = next(t for t in map(task.seeded, range(1000)) if t.values_K.tolist() == list(t.ids("value")))
    ids = {letter: first for kind, row in letters.items() for first, letter in enumerate(row, task.ids(kind).start)}
    inputs, targets = [ids[letter] for letter in read], [ids.get(letter, tasks.IGNORE) for letter in asked]
    at = next(at for at, target in enumerate(targets) if target != tasks.IGNORE)
    wrong = [*targets[:at], tasks.IGNORE, *targets[at + 1 :]]
    return task.valid(inputs, targets) and not task.valid(inputs, wrong)


@facts.fact("M01", "App. B.1's examples are sequences of the six tasks (B.1.4 prints one [i] too few)")
def task_examples() -> tuple[str, str, bool]:
    good = sum(example_holds(name) for name in EXAMPLES)
    drawn = 0
    for name in tasks.SUITES["mad"]:
        task = tasks.baseline(name).seeded(0)
        sample = task.generate(stream("M01", name), 50, training=False)
        drawn += sum(task.valid(*item) for item in zip(sample.inputs_NT, sample.targets_NT, strict=True))
    ours = f"{good} of 6 examples, {drawn} of 300 drawn sequences"
    return "6 of 6 examples, 300 of 300 drawn sequences", ours, (good, drawn) == (6, 300)


@facts.fact(
    "M02", "recall baselines: V 16, half keys; 12,800 × 128; motifs to 3, keys of 3 asked; 20 % of 16 noise tokens"
)
def recall_baselines() -> tuple[str, str, bool]:
    recall, fuzzy, noisy = (tasks.baseline(f"{kind}in-context-recall") for kind in ("", "fuzzy-", "noisy-"))
    halves = {"key": 8, "value": 8}
    layouts = [recall.layout == halves, fuzzy.layout == {**halves, "pad": 1}, noisy.layout == {**halves, "noise": 16}]
    shapes = [tasks.make_data(task, 0).train.inputs_NT.shape == (12_800, 128) for task in (recall, fuzzy, noisy)]
    sample = noisy.generate(stream("M02"), 1000, training=False).inputs_NT
    share = float((sample >= noisy.ids("noise").start).mean())
    motif = fuzzy.settings()["motif"]
    ours = f"{sum(layouts)} of 3 vocabularies, {sum(shapes)} of 3 shapes, motifs to {motif}, noise {percent(share, 1)}"
    good = all(layouts + shapes) and motif == 3 and abs(share - 0.2) < 0.01
    return "3 of 3 vocabularies, 3 of 3 shapes, motifs to 3, noise 20 %", ours, good


@facts.fact("M03", "copying: 16 of 16 tokens in 256; compression: 32 into [c]; memorization: 256 tokens, 256 × 32")
def other_baselines() -> tuple[str, str, bool]:
    wanted = {
        "selective-copying": ("lm", (12_800, 256), {"token": 16, "blank": 1, "insert": 1}, 16),
        "compression": ("autoencoder", (12_800, 32), {"token": 16, "compress": 1}, 31),
        "memorization": ("lm", (256, 32), {"key": 128, "value": 128, "insert": 1}, 16),
    }
    good = 0
    for name, expected in wanted.items():
        data = tasks.make_data(tasks.baseline(name), 0)
        asked = data.test.scored / len(data.test)
        good += (data.task.model_kind, data.train.inputs_NT.shape, data.task.layout, asked) == expected
    return tally(3, 3), tally(good, 3), good == 3


@facts.fact("M04", "difficulty, one variable at a time: 11 + 11 + 14 + 13 + 11 + 6 = 66 settings")
def difficulty() -> tuple[str, str, bool]:
    grids = {name: tasks.baseline(name).grid() for name in tasks.SUITES["mad"]}
    base = {name: tasks.baseline(name).settings().items() for name in grids}
    single = all(
        len(s.settings().items() - base[name]) == (i > 0) for name, g in grids.items() for i, s in enumerate(g)
    )
    counts = [len(grid) for grid in grids.values()]
    ours = f"{' + '.join(map(str, counts))} = {sum(counts)}"
    return "11 + 11 + 14 + 13 + 11 + 6 = 66", ours, counts == [11, 11, 14, 13, 11, 6] and single


@facts.fact("M05", "memorization: a fact occurs 32, 16, 8, 4, 2, 1 times in training on average")
def exposure() -> tuple[str, str, bool]:
    rates = [setting.exposure for setting in Memorization().grid()]
    counted = []
    for setting in Memorization().grid():
        keys = draw(setting, 0, "train", setting.train_size).inputs_NT[:, 0::2]
        counted.append(np.bincount(keys.ravel(), minlength=setting.layout["key"]).mean())
    ours = ", ".join(f"{rate:g}" for rate in rates)
    return "32, 16, 8, 4, 2, 1", ours, rates == counted == [32, 16, 8, 4, 2, 1]


@facts.fact("M06", "sweep and selection: 66 settings × 6 = 396 runs, 5,384,400 steps per architecture; the best counts")
def sweep() -> tuple[str, str, bool]:
    from plait.probing.protocol import full
    from plait.probing.trial import best

    protocol = full()
    # (validation accuracy, loss) of a grid's replicas; None has diverged.
    chosen = [best(grid) for grid in ([(0.5, 0.1), (0.9, 0.3), (0.9, 0.2)], [None, (0.1, 2.0)], [None, None])]
    steps = sum(len(setting.training.grid) * setting.training.steps for setting in protocol.settings)  # if none stops
    ours = f"{protocol.runs:,} runs, {steps:,} steps, chosen {chosen}"
    return (
        "396 runs, 5,384,400 steps, chosen [2, 1, None]",
        ours,
        ours.startswith("396 runs, 5,384,400 steps") and (chosen == [2, 1, None]),
    )


@facts.fact("M07", "training preset (Table B.1): AdamW 0.9/0.98, batch 128, 200 epochs, 1,280 samples, 3 × 2 grid")
def training_preset() -> tuple[str, str, bool]:
    from plait.probing.protocol import BASELINES, candidates, full
    from plait.training.ensemble_plan import Plan

    protocol = full()
    training = protocol.settings[0].training
    plan = Plan(steps=training.steps, batch=training.batch)
    epochs = training.steps * training.batch / protocol.settings[0].task.train_size
    lrs, decays = (sorted(set(values)) for values in zip(*training.grid, strict=True))
    depth = {len(candidate.arch.layers) for candidate in candidates(BASELINES, protocol)}
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
LAYERS: dict[str, dict[str, object]] = {
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
    patterns = {tuple(layer.name for layer in arch.layers) for arch in archs}
    exact = sum(
        arch.header.d == 128
        and all(getattr(layer, key) == value for layer in arch.layers for key, value in LAYERS[layer.name].items())
        for arch in archs
    )
    right = len(patterns & _described())
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


@facts.fact("M13", "outer-product heads hold M² states, mSISO channels × M; key-value caches 2·d per token")
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
    return "2048, 2048, 2048, 2048, 1024; 256 per token", f"{listed}; attn {cache / 100:.0f} per token", good


@facts.fact("M14", "routing: softmax over the top-K scores equals the dense sum with masked weights")
def routing() -> tuple[str, str, bool]:
    import torch

    from plait.mixers.mixer import make_mixer
    from plait.model.language_model import seed_mixer
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

    from plait.mixers.mixer import make_mixer
    from plait.model.language_model import seed_mixer
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
