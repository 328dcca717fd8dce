"""PAR Transformer's search (Mandava et al. 2020, arXiv:2009.04534): blocks, supernet, two stages, convergence."""

from __future__ import annotations

from typing import Any

from plait.model.architecture import architecture
from plait.papers.verify import FactTable

facts = FactTable()


@facts.fact("P01", "search blocks: pre-norm residual attention, feed-forward, identity (eqs 1-4)")
def blocks() -> tuple[str, str, bool]:
    import torch

    from plait.model import build

    torch.manual_seed(0)
    model: Any = build("d=32 vocab=11 norm=layer final_norm=false | xl-attn[heads=4] mlp identity")
    x = torch.randn(2, 7, 32)
    gaps = []
    for block in model.backbone.blocks:
        by_hand = x + block.mixer(block.norm(x)) if block.mixer.options.name != "identity" else x
        gaps.append(float((block(x) - by_hand).abs().max().detach()))
    return "F(X) = mixer(LN(X)) + X; identity: X", f"largest gap {max(gaps):.1g}", max(gaps) == 0


def _supernet(layers: int = 3, kinds: int = 3) -> Any:
    from plait.supernet.network import Supernet

    header = "d=16 vocab=11 norm=layer final_norm=false"
    options = [*architecture(f"{header} | xl-attn[heads=2] mlp[inner=32]").layers, None]
    return Supernet(architecture(f"{header} | identity").header, [options[:kinds]] * layers)


@facts.fact("P02", "supernet as convex mix (eqs 5, 6): Σ m = 1; a one-hot m equals the plain network bit for bit")
def convex_mix() -> tuple[str, str, bool]:
    import itertools

    import torch

    from plait.supernet.choices import mixture, noise

    net, tokens = _supernet(), torch.arange(14).reshape(2, 7) % 11
    sums = mixture(net.logits_LK, noise(0, 0, (3, 3)), 1.0, "soft").sum(dim=1).detach()
    paths = [path for path in itertools.product(range(3), repeat=3) if set(path) != {2}]
    equal = 0
    for path in paths:
        net.mix(torch.nn.functional.one_hot(torch.tensor(path), 3).float())
        equal += torch.equal(net.model(tokens), net.extract(path)(tokens))
    one = bool(torch.allclose(sums, torch.ones(3)))
    return (
        "Σ m = 1; 26 of 26 paths equal",
        f"Σ m = 1: {one}; {equal} of {len(paths)} equal",
        one and equal == len(paths),
    )


@facts.fact("P03", "Gumbel-softmax sampling of m; temperature → 0 gives the argmax")
def cooling() -> tuple[str, str, bool]:
    import torch

    from plait.supernet.choices import mixture, noise

    logits = torch.randn(32, 3, generator=torch.Generator().manual_seed(0))
    drawn = noise(0, 0, (32, 3))
    chosen = torch.nn.functional.one_hot((logits + drawn).argmax(dim=1), 3)
    gaps = [float((mixture(logits, drawn, t, "soft") - chosen).abs().max()) for t in (1.0, 0.1, 1e-3)]
    return "gap to the argmax → 0", " → ".join(f"{gap:.2g}" for gap in gaps), gaps[-1] < 1e-6 < gaps[0]


@facts.fact("P04", "two-stage search loop (eq 7) and its preset")
def search_preset() -> tuple[str, str, bool]:
    from plait.papers.recipes import recipe
    from plait.supernet.settings import PAR, Turns

    weights = recipe("par-search").recipe
    total = Turns.of(PAR, epoch=5000).total
    found = (weights.batch, PAR.lr, PAR.weight_decay, weights.lr, weights.weight_decay, round(PAR.warmup * PAR.steps),
             PAR.share, PAR.steps)  # fmt: skip
    expected = (128, 1e-2, 5e-4, 1e-2, 1e-4, 10_000, 0.2, 40_000)
    return str(expected), f"{found}; {total}", found == expected and total["architecture"] == 6000


@facts.fact("P05", "convergence: the architecture unchanged during 75 % of the architecture stage")
def convergence() -> tuple[str, str, bool]:
    import torch

    from plait.supernet.settings import ARCHITECTURE, WEIGHTS, Settings
    from plait.supernet.training import SupernetTraining
    from plait.training.batches import Batch
    from plait.training.recipe import Recipe

    tokens = torch.arange(14).reshape(2, 7) % 11
    batch = Batch(tokens, tokens)
    settings = Settings(steps=80, warmup=0.5, cycle=2, share=0.5, lr=1e-9, start_temperature=1.0, end_temperature=1.0)
    sources = {WEIGHTS: lambda n: batch, ARCHITECTURE: lambda n: batch}
    net = _supernet()
    with torch.no_grad():
        net.scores_LK[:, 1] = 5.0  # settled from the start
    made = SupernetTraining(net, sources, Recipe(lr=1e-3), settings)
    while not made.finished:
        made.advance()
    stage = made.turns.before(made.step)[ARCHITECTURE] / made.turns.total[ARCHITECTURE]
    return "stops after 75 % of the stage", f"after {100 * stage:.0f} %", made.converged and abs(stage - 0.75) < 0.05


@facts.fact("P06", "3^32 = 1.85e15 points; supernet cost linear in the number of block kinds")
def space_size() -> tuple[str, str, bool]:
    from plait.space.table import load_space
    from plait.supernet.layer_choices import layer_choices

    places = layer_choices(load_space("par"))
    points = 1
    for choices in places:
        points *= len(choices)
    sizes = [sum(p.numel() for p in _supernet(kinds=k).model.backbone.blocks.parameters()) for k in (1, 2, 3)]
    alone = sum(p.numel() for p in _supernet(kinds=2).mixtures[0].blocks["1"].parameters())
    linear = sizes[1] - sizes[0] == 3 * alone and sizes[2] == sizes[1]
    return (
        "3^32 = 1.85e15; every kind adds its own",
        f"{points:.3g}; adds its own: {linear}",
        points == 3**32 and linear,
    )
