"""PAR Transformer (Mandava et al. 2020, arXiv:2009.04534): its search (blocks, supernet, two stages, convergence), its
patterns, sizes and FLOPs.
"""

from __future__ import annotations

from math import nan
from typing import Any

from plait.core.units import percent
from plait.model.architecture import architecture
from plait.model.cost import model_cost
from plait.papers.conventions import par_block_flops
from plait.papers.verify import FactTable, first_layer, tally
from plait.spec import parse, presets

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


def _supernet(kinds: int = 3) -> Any:
    from plait.supernet.network import Supernet

    header = "d=16 vocab=11 norm=layer final_norm=false"
    options = [*architecture(f"{header} | xl-attn[heads=2] mlp[inner=32]").layers, None]
    return Supernet(architecture(f"{header} | identity").header, [options[:kinds]] * 3)


@facts.fact("P02", "supernet as convex mix (eqs 5, 6): Σ m = 1; a one-hot m equals the plain network bit for bit")
def convex_mix() -> tuple[str, str, bool]:
    import itertools

    import torch

    from plait.supernet.mixture import mixture, noise

    net, tokens = _supernet(), torch.arange(14).reshape(2, 7) % 11
    sums = mixture(net.logits_LK, noise(0, 0, (3, 3)), 1.0, "soft").sum(dim=1).detach()
    paths = [path for path in itertools.product(range(3), repeat=3) if set(path) != {2}]
    equal = 0
    for path in paths:
        net.mix(torch.nn.functional.one_hot(torch.tensor(path), 3).float())
        equal += torch.equal(net.model(tokens), net.extract(path)(tokens))
    sums_to_one = bool(torch.allclose(sums, torch.ones(3)))
    return (
        "Σ m = 1; 26 of 26 paths equal",
        f"Σ m = 1: {sums_to_one}; {equal} of {len(paths)} equal",
        sums_to_one and equal == len(paths),
    )


@facts.fact("P03", "Gumbel-softmax sampling of m; temperature → 0 gives the argmax")
def cooling() -> tuple[str, str, bool]:
    import torch

    from plait.supernet.mixture import mixture, noise

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
    actual = (weights.batch, PAR.lr, PAR.weight_decay, weights.lr, weights.weight_decay, round(PAR.warmup * PAR.steps),
              PAR.share, PAR.steps)  # fmt: skip
    expected = (128, 1e-2, 5e-4, 1e-2, 1e-4, 10_000, 0.2, 40_000)
    return str(expected), f"{actual}; {total}", actual == expected and total["architecture"] == 6000


@facts.fact("P05", "convergence: the architecture unchanged during 75 % of the architecture stage")
def convergence() -> tuple[str, str, bool]:
    import torch

    from plait.supernet.settings import ARCHITECTURE, WEIGHTS, Settings
    from plait.supernet.training import SupernetTraining
    from plait.training.recipe import Recipe
    from plait.training.trainer import Batch

    tokens = torch.arange(14).reshape(2, 7) % 11
    batch = Batch(tokens, tokens)
    settings = Settings(steps=80, warmup=0.5, cycle=2, share=0.5, lr=1e-9, start_temperature=1.0, end_temperature=1.0)
    sources = {WEIGHTS: lambda n: batch, ARCHITECTURE: lambda n: batch}
    net = _supernet()
    with torch.no_grad():
        net.scores_LK[:, 1] = 5.0  # settled from the start
    training = SupernetTraining(net, sources, Recipe(lr=1e-3), settings)
    while not training.finished:
        training.advance()
    stage = training.turns.before(training.step)[ARCHITECTURE] / training.turns.total[ARCHITECTURE]
    return "stops after 75 % of the stage", f"after {percent(stage)}", training.converged and abs(stage - 0.75) < 0.05


@facts.fact("P06", "3^32 = 1.85e15 points; supernet cost linear in the number of block kinds")
def space_size() -> tuple[str, str, bool]:
    from plait.space.table import load_space
    from plait.supernet.settings import layer_choices

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


# Tables 1, 2 and 3: pattern, blocks, attention blocks.
PATTERNS = (
    ("(sf)x16", 32, 16),
    ("(s)x6 (sf)x10 (f)x6", 32, 16),
    ("(sfff)x6 (f)x8", 32, 6),
    ("(sf)x18", 36, 18),
    ("(s)x6 (sf)x12 (f)x6", 36, 18),
    ("(sfff)x7 (f)x8", 36, 7),
    ("(sf)x12", 24, 12),
    ("(s)x5 (sf)x7 (f)x5", 24, 12),
    ("(sff)x5 (f)x9", 24, 5),
    ("(s)x3 (sf)x9 (f)x3", 24, 12),
    ("(sf)x6", 12, 6),
)


def _letters(text: str) -> str:
    return "".join("s" if layer.name == "xl-attn" else "f" for layer in parse(text).layers)


@facts.fact("P11", "PAR rule, p = 5: 32 and 24 layers")
def rule() -> tuple[str, str, bool]:
    pairs = [("rule:par(n=32,p=5)", "par:(sfff)x6 (f)x8"), ("rule:par(n=24,p=5)", "par:(sff)x5 (f)x9")]
    good = sum(_letters(rule) == _letters(published) for rule, published in pairs)
    return "(sfff)x6 (f)x8 and (sff)x5 (f)x9", tally(good, 2), good == 2


@facts.fact("E05", "PAR Large (sfff)x7 (f)x8 breaks the paper's own first rule", erratum=True)
def rule_broken() -> tuple[str, str, bool]:
    letters = _letters("par:(sfff)x7 (f)x8")
    last = max(i for i, letter in enumerate(letters, start=1) if letter == "s")
    return "attention only in the first 24 of 36 layers", f"attention at layer {last}", last == 25


# The presets of Tables 1 to 3, in the order of `PATTERNS` (24B is on enwik8 and text8; BERT has its own attention).
PATTERNED = ("txl-base", "sandwich-base", "par-base", "txl-large", "sandwich-large", "par-large", "txl-24b-enwik8",
             "sandwich-24b-enwik8", "par-24b-enwik8", "sandwich-24b-text8", "distilbert")  # fmt: skip


@facts.fact("P12", "the 11 published patterns and their presets expand to their blocks and attention blocks")
def patterns() -> tuple[str, str, bool]:
    good = same = 0
    for (text, blocks, attention), name in zip(PATTERNS, PATTERNED, strict=True):
        letters = _letters(f"par:{text}")
        good += len(letters) == blocks and letters.count("s") == attention
        same += "".join("f" if layer.name == "mlp" else "s" for layer in architecture(name).layers) == letters
    ours = f"{tally(good, len(PATTERNS))}, {same} presets"
    return "11 of 11 rows, 11 presets", ours, good == same == 11


@facts.fact("P13", "sandwich rule (s)xk (sf)x(n−k) (f)xk for k,n = 6,16; 6,18; 5,12; 3,12")
def sandwich() -> tuple[str, str, bool]:
    published = {(6, 16): 1, (6, 18): 4, (5, 12): 7, (3, 12): 9}
    good = sum(
        _letters(f"rule:sandwich(k={k},n={n})") == _letters(f"par:{PATTERNS[row][0]}")
        for (k, n), row in published.items()
    )
    return tally(4, 4), tally(good, 4), good == 4


@facts.fact(
    "P14", "63 % fewer attention blocks (base), and what that leaves of the blocks' FLOPs, of the published pairs"
)
def ratios() -> tuple[str, str, bool]:
    """Latency ratios 0.65, 0.71, 0.67 were measured on an A100; what a CPU can say exactly is how much is computed."""
    fewer, left, by_hand = [], [], []
    for par, base in (("par-base", "txl-base"), ("par-large", "txl-large"), ("par-24b-enwik8", "txl-24b-enwik8"),
                      ("par-bert-base", "bert-base")):  # fmt: skip
        counts = []
        for name in (par, base):
            mixers = [layer.name for layer in architecture(name).layers]
            attention = sum(mixer in ("xl-attn", "attn") for mixer in mixers)
            counts.append((attention, len(mixers) - attention))
        fewer.append(percent(1 - counts[0][0] / counts[1][0], 1))
        if par != "par-bert-base":
            left.append(f"{par_block_flops(par) / par_block_flops(base):.3f}")
            costs = _block_multiply_adds(1024 if "large" in par else 512)
            small, whole = (sum(n * cost for n, cost in zip(kinds, costs, strict=True)) for kinds in counts)
            by_hand.append(f"{small / whole:.3f}")
    published = f"fewer 62.5 %, 61.1 %, 58.3 %, 58.3 %; FLOPs left {', '.join(by_hand)}"
    ours = f"fewer {', '.join(fewer)}; FLOPs left {', '.join(left)}"
    return published, ours, ours == published


def _block_multiply_adds(d: int) -> tuple[int, int]:
    """Of an attention block (queries, keys and values, distances, output; content and position scores, values) and of a
    feed-forward block 4d wide, written out."""
    new, seen = 64, 64 + 640
    attention = new * d * d + 2 * seen * d * d + seen * d * d + new * d * d + 3 * new * seen * d
    return attention, 2 * new * d * 4 * d


@facts.fact("P16", "Table A2 parameters: Transformer-XL, Sandwich, PAR base")
def parameters() -> tuple[str, str, bool]:
    ours = [model_cost(name).total_params for name in ("txl-base", "sandwich-base", "par-base")]
    expected = [191_950_298, 191_950_298, 199_840_218]
    return " / ".join(f"{n:,}" for n in expected), " / ".join(f"{n:,}" for n in ours), ours == expected


@facts.fact("P17", "Table A2 GFLOP, 64 new tokens after 640: 27 / 27 / 17 with the adaptive softmax")
def gflops() -> tuple[str, str, bool]:
    names, printed = ("txl-base", "sandwich-base", "par-base"), (27, 27, 17)
    blocks = [par_block_flops(name) / 1e9 for name in names]
    costs = [model_cost(name, seq=64, memory=640) for name in names]
    whole = [cost.flops / 1e9 for cost in costs]
    off = max(abs(got / want - 1) for got, want in zip(whole, printed, strict=True))
    attention, feed_forward = (float(layer.total_flops) / 2e9 for layer in costs[0].layers[:2])
    ours = (
        f"{', '.join(f'{g:.1f}' for g in whole)}, at most {percent(off, 1)} off; "
        f"blocks {', '.join(f'{b:.2f}' for b in blocks)}; "
        f"attention {attention:.3f}, feed-forward {feed_forward:.3f} G multiply-adds"
    )
    # The paper prints whole GFLOP and no shares of words: 5 %, which a softmax over the whole vocabulary exceeds.
    good = off <= 0.05 and [f"{b:.2f}" for b in blocks] == ["25.30", "25.30", "14.86"]
    good = good and f"{attention:.3f}" == "0.656" and f"{feed_forward:.3f}" == "0.134"
    return "27, 27, 17 within 5 %; blocks 25.30, 25.30, 14.86; 0.656 and 0.134", ours, good


@facts.fact(
    "P18", "Table A1, Large and 24B: sizes, segments and memory of training, target / memory / clamp of evaluation"
)
def sizes() -> tuple[str, str, bool]:
    from plait.papers.recipes import recipe

    expected = {  # width, heads, head width, inner, blocks; target, memory and batch of training; evaluation
        "txl-base": ((512, 8, 64, 2048, 32), "par-base", (192, 192, 256, 40_000), "64/640/400"),
        "txl-large": ((1024, 16, 64, 4096, 36), "par-large", (384, 384, 128), "128/1600/1000"),
        "txl-24b-enwik8": ((512, 8, 64, 2048, 24), "par-24b", (512, 512), "128/2052/820"),
        "par-24b-text8": ((512, 8, 64, 2048, 24), "par-24b", (512, 512), "128/2052/820"),
    }
    actual = {}
    for name, (_, named, printed, _) in expected.items():
        arch, paper = architecture(name), recipe(named)
        attention, feed_forward, d = first_layer(arch, "xl-attn"), first_layer(arch, "mlp"), arch.header.d
        shape = (d, attention.heads, attention.head_width(d), feed_forward.inner_width(d), len(arch.layers))
        # Of 24B the paper has no batch, of Large no number of steps.
        training = (paper.recipe.seq_len, paper.recipe.memory, paper.recipe.batch, paper.steps)[: len(printed)]
        evaluation = presets.describe(name).what.rpartition(" ")[2]
        actual[name] = (shape, named, training, evaluation)
    published, ours = (
        "; ".join(f"{name} {row[2]} {row[3]}" for name, row in rows.items()) for rows in (expected, actual)
    )
    return published, ours, actual == expected


@facts.fact("P19", "segments with memory give the full context's output inside the window")
def segments() -> tuple[str, str, bool]:
    import torch

    from plait.model import build

    model: Any = build("d=32 vocab=11 norm=layer | (xl-attn[heads=4,clamp=9,window=12] mlp)x2").double()
    tokens = torch.randint(11, (2, 23), generator=torch.Generator().manual_seed(0))
    whole, state, parts = model(tokens), model.init_state(2), []
    for segment in tokens.split(5, dim=1):
        part, state = model.extend(segment, state)
        parts.append(part)
    gap = float((torch.cat(parts, dim=1) - whole).abs().max().detach())
    return "equal", f"largest gap {gap:.1g}", gap < 1e-10


@facts.fact("P23", "attention grows with the square of the length, feed-forward linearly (exponents of exact FLOPs)")
def growth() -> tuple[str, str, bool]:
    from plait.device.lengths import flop_growth

    arch, lengths, longest = architecture("txl-base"), [128 << i for i in range(5)], [1 << i for i in range(18, 23)]
    attention, feed_forward = arch.layers[:2]
    near, far, linear = (
        flop_growth(arch.header.d, options, some)
        for options, some in ((attention, lengths), (attention, longest), (feed_forward, lengths))
    )
    scores, block, block_far, mlp = (value or nan for value in (near.mixing, near.whole, far.whole, linear.whole))
    ours = (
        f"attention scores N^{scores:.2f}, feed-forward N^{mlp:.2f}; attention's block N^{block:.2f} "
        f"to {lengths[-1]:,} tokens, N^{block_far:.2f} to {longest[-1]:,}"
    )
    good = abs(scores - 2) < 1e-9 and abs(mlp - 1) < 1e-9 and linear.mixing is None
    return "O(N²) and O(N)", ours, good and 1 < block < 1.99 < block_far < 2


@facts.fact("P24", "architecture diagram and latency figure are drawn from the spec (Figures 1, 5)")
def pictures() -> tuple[str, str, bool]:
    expected = [{"xl-attn": 16, "mlp": 16}, {"xl-attn": 16, "mlp": 16}, {"xl-attn": 6, "mlp": 26}]
    drawn = [_drawn_blocks(name) for name in ("txl-base", "sandwich-base", "par-base")]
    lines = _drawn_lines("d=16 vocab=9 | (xl-attn[heads=2] (mlp)x3)x2 (mlp)x2", (8, 16, 32))
    blocks = ", ".join(f"{counts.get('xl-attn', 0)} + {counts.get('mlp', 0)}" for counts in drawn)
    ours = f"blocks drawn {blocks}; lines of {' and '.join(map(str, lines))} points"
    good = drawn == expected and lines == [3, 3]
    return "blocks 16 + 16, 16 + 16, 6 + 26; a line for each kind of block, a point for each length", ours, good


def _drawn_blocks(name: str) -> dict[str, int]:
    """From the picture itself: how many blocks of each mixer it shows; nothing unless each has a colour of its own."""
    from xml.etree import ElementTree

    from plait.reporting.diagram import diagram

    drawn: dict[str, int] = {}
    colours: dict[str, set[str]] = {}
    for box in ElementTree.fromstring(diagram(model_cost(name))).iterfind(".//{*}rect[{*}title]"):
        copies, times, layer = box.findtext("{*}title", "").partition("\n")[0].partition(" × ")
        if times:
            mixer = layer.partition("[")[0]
            drawn[mixer] = drawn.get(mixer, 0) + int(copies)
            colours.setdefault(mixer, set()).add(box.attrib["stroke"])
    each_its_own = len(set.union(*colours.values())) == len(drawn) == sum(map(len, colours.values()))
    return drawn if each_its_own else {}


def _drawn_lines(spec: str, lengths: tuple[int, ...]) -> list[int]:
    """Points of each line in the figure of this spec's blocks, measured here and now."""
    from xml.etree import ElementTree

    from plait.device.lengths import distinct_blocks, measure_scaling
    from plait.device.quantities import Setting
    from plait.reporting.studies import BlockLine, length_chart

    measured = measure_scaling(distinct_blocks([architecture(spec)]), lengths, Setting(), seconds=0.01)
    lines = [BlockLine(scaling.block.text, *scaling.seconds_low_high()) for scaling in measured]
    figure = ElementTree.fromstring(length_chart(lines, lengths, title=spec))
    return [len(line.attrib["points"].split()) for line in figure.iterfind(".//{*}polyline")]
