"""The sets of `tracking.py`: tasks, their sizes, the mixers that run on them and how these are trained."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Set:
    """A task at a size, what is trained on it and how."""

    task: str
    settings: dict[str, str]
    mixers: tuple[str, ...]
    spec: str  # with {mixer}
    steps: int
    batch: int
    lr: float
    lengths: tuple[int, ...] = (2, 4, 8)
    lrs: tuple[float, ...] = ()
    decays: tuple[float, ...] = (0.0,)
    short_first: bool = True  # short prefixes first, where every prefix of a sequence is one of the task's
    solved: float | None = None  # a replica with this validation accuracy stops; None: all train to the end
    evaluation: int = 128  # sequences of the validation and of every test split


SMALL = "d=32 vocab={vocab} init=0.15 embed_scale=true | {mixer}"
NARROW = "d=64 vocab={vocab} init=0.1 embed_scale=true | {mixer}"
ONE_LAYER = f"{SMALL} swiglu[inner=64]"
WIDE = "d=128 vocab={vocab} init=0.05 embed_scale=true | {mixer} swiglu[inner=256]"
TWO_LAYERS = "d=64 vocab={vocab} init=0.1 embed_scale=true | ({mixer})x2"
RANKS = "decay_rank=8,rate_rank=8,gate_rank=8"
TURNING = "mamba3[state=16,head_dim=8,rotate=1,step_max=1]"
HOLDING = "mamba3[state=16,head_dim=8,rotate=1,turn=held]"
PARITY = (
    "deltanet[head_dim=16,neg_eigval,conv=1]",
    "deltanet[head_dim=16,neg_eigval]",
    "deltanet[head_dim=16,conv=1]",
    "mamba2[state=16,head_dim=16]",
    TURNING,
    HOLDING,
    f"rwkv7[head_dim=16,{RANKS},neg_eigval]",
    "attn[heads=2]",
)
#: Without short convolutions, which look a few elements up instead of composing them.
GROUPS = (
    "deltaproduct[head_dim=16,steps=2,conv=1]",
    "deltanet[head_dim=16,neg_eigval,conv=1]",
    "deltaproduct[head_dim=16,steps=4,conv=1]",
    "rwkv7[head_dim=16,neg_eigval]",
)
#: 4,096 numbers of recurrent state per layer each; linear has the sums of its keys besides.
EQUAL_STATE = (
    "deltanet[head_dim=64]",
    "gated-deltanet[head_dim=64]",
    "kda[heads=1,head_dim=64]",
    "mamba2[state=32,head_dim=64]",
    "gla[heads=1,conv=4]",
    "gla[heads=1]",
    "linear[heads=1,canon=b]",
)
#: What a look at the neighbours is worth to a mixer that has none: the quick probe's recall and copying.
NEAR = ("gla[heads=4]", "gla[heads=4,conv=4]", "gla[heads=4,canon=a]", "gla[heads=4,canon=ab]")
QUICK = "d=32 vocab={vocab} init=0.15 embed_scale=true | ({mixer} swiglu[inner=80])x2"
SETS: dict[str, Set] = {
    "recall": Set("in-context-recall", {"vocab": "16", "length": "48"}, NEAR, QUICK, 800, 16, 6e-3, lengths=()),
    "noisy-recall": Set("noisy-in-context-recall", {"vocab": "12", "length": "48", "noise_vocab": "4"}, NEAR, QUICK,
                        800, 16, 6e-3, lengths=()),
    "copying": Set("selective-copying", {"vocab": "8", "length": "32", "to_copy": "4"}, NEAR, QUICK, 800, 16, 6e-3,
                   lengths=()),
    "parity": Set("parity", {"length": "32"}, PARITY, ONE_LAYER, 800, 32, 1e-2),
    "s3": Set("word-problem", {"length": "16", "group": "S3"}, GROUPS, ONE_LAYER, 1200, 64, 5e-3),
    "s3-small": Set("word-problem", {"length": "16", "group": "S3"}, GROUPS[:2], WIDE, 700, 128, 2e-3),
    "s3-narrow": Set("word-problem", {"length": "16", "group": "S3"}, GROUPS[:2], NARROW, 600, 64, 3e-3),
    "s3-wide": Set("word-problem", {"length": "32", "group": "S3"}, GROUPS, WIDE, 4000, 256, 2e-3),
    "a5": Set("word-problem", {"length": "32", "group": "A5"}, GROUPS, WIDE, 4000, 256, 2e-3),
    "s5": Set("word-problem", {"length": "32", "group": "S5"}, GROUPS, WIDE, 4000, 256, 2e-3),
    "palindrome": Set("palindrome", {"length": "24", "vocab": "8"}, (*EQUAL_STATE, "attn[heads=2]"), TWO_LAYERS,
                      800, 32, 5e-3, lengths=(2,)),
    "mqar-small": Set("mqar", {"vocab": "64", "length": "64", "pairs": "8"}, (*EQUAL_STATE, "attn[heads=2]"),
                      TWO_LAYERS, 800, 32, 5e-3, lengths=(2,)),
    "mqar": Set("mqar", {"vocab": "256", "length": "128", "pairs": "32"}, EQUAL_STATE, TWO_LAYERS, 3000, 64, 3e-3,
                lengths=(), lrs=(1e-3, 3e-3, 1e-2)),
}  # fmt: skip

#: Task → its quick settings and whether some small model learns it: the mixers beside which one would expect it.
LOOKING = ("attn[heads=2,canon=ab]", "attn[heads=2]", "deltanet[head_dim=16]")
DEEP = "d=64 vocab={vocab} init=0.1 embed_scale=true | ({mixer} swiglu[inner=128])x4"
LEARN: dict[str, tuple[dict[str, str], tuple[str, ...], str, int, int]] = {
    "mqar": ({"vocab": "64", "length": "64", "pairs": "8"}, LOOKING, DEEP, 3000, 64),
    "forgetting-mqar": ({"vocab": "64", "length": "64", "pairs": "8", "updates": "4"}, LOOKING, DEEP, 3000, 64),
    "compositional-mqar": ({"vocab": "96", "length": "48", "side": "2"}, LOOKING, DEEP, 3000, 64),
    "palindrome": ({"vocab": "8", "length": "24"}, LOOKING, DEEP, 3000, 64),
    "copy": ({"vocab": "8", "length": "24"}, LOOKING, DEEP, 3000, 64),
    "ngram-lookup": ({"vocab": "10", "length": "24", "n": "3"}, LOOKING, DEEP, 3000, 64),
    "stack": ({"vocab": "8", "length": "48", "stacks": "4"}, LOOKING, DEEP, 3000, 64),
    "phonebook": ({"vocab": "64", "length": "32", "digits": "3"}, LOOKING, DEEP, 3000, 64),
    "markov": ({"vocab": "5", "length": "64"}, LOOKING, DEEP, 3000, 64),
    "regbench": (
        {"vocab": "8", "length": "64", "nodes": "6", "string": "12", "train_size": "40000"},
        LOOKING,
        DEEP,
        3000,
        64,
    ),
    "depo": (
        {"vocab": "128", "length": "32", "hops": "2", "queries": "4", "train_size": "40000"},
        LOOKING,
        DEEP,
        6000,
        64,
    ),
    "mano": ({"vocab": "5", "length": "8", "train_size": "40000"}, LOOKING, DEEP, 6000, 64),
    "modular-arithmetic": ({"length": "12"}, ("deltanet[head_dim=16,neg_eigval]", *LOOKING[:1]), DEEP, 6000, 64),
}
SETS |= {
    f"learn-{task}": Set(task, settings, mixers, spec, steps, batch, 3e-3, lrs=(1e-3, 3e-3))
    for task, (settings, mixers, spec, steps, batch) in LEARN.items()
}
#: The group tasks, from many more sequences: the same few again would be learnt by heart.
SETS |= {
    f"learn-{group}": Set("word-problem", {"length": "16", "group": group, "train_size": "100000"}, GROUPS[::2], WIDE,
                          4000, 256, 2e-3, lrs=(1e-3, 3e-3))
    for group in ("A5", "S5")
}  # fmt: skip

#: Groups from the smallest to the largest. With an MLP behind the mixer one layer can look the product of two tokens up
#: instead of composing it, which is learnt first and leads nowhere; without one the state has to hold the product.
PLAIN = "d=128 vocab={vocab} init=0.05 embed_scale=true | {mixer}"
DEPTH_2 = "d=128 vocab={vocab} init=0.05 embed_scale=true | ({mixer} swiglu[inner=256])x2"
TWO_TURNS, FOUR_TURNS = GROUPS[0], GROUPS[2]
SETS |= {
    f"{group}-{shape}{'' if short_first else '-whole'}": Set(
        "word-problem", {"length": "16", "group": group, "train_size": "100000"}, mixers, spec, 12_000, 512, 2e-3,
        lrs=(1e-3, 3e-3, 8e-3), short_first=short_first)
    for group, mixers in (
        ("S3", (TWO_TURNS,)), ("A4", (TWO_TURNS,)), ("S4", (TWO_TURNS, FOUR_TURNS)), ("A5", (TWO_TURNS, FOUR_TURNS)),
        ("S5", (FOUR_TURNS, TWO_TURNS)))
    for shape, spec in (("plain", PLAIN), ("mlp", WIDE), ("two", DEPTH_2))
    for short_first in (True, False)
}  # fmt: skip
#: Long sequences, of which the product of the first two elements is a small part; short ones, which a few layers of
#: attention can look up pair by pair.
SETS |= {
    f"{group}-long-{shape}": Set(
        "word-problem", {"length": "64", "group": group, "train_size": "100000"}, mixers, spec, 8000, 512, 2e-3,
        lengths=(2, 4), lrs=(1e-3, 3e-3), short_first=False)
    for group, mixers in (("A5", (TWO_TURNS,)), ("S5", (FOUR_TURNS,)))
    for shape, spec in (("plain", PLAIN), ("mlp", WIDE))
}  # fmt: skip
SETS |= {
    f"{group}-short": Set(
        "word-problem", {"length": length, "group": group, "train_size": "100000"}, ("attn[heads=4]",),
        "d=128 vocab={vocab} init=0.05 embed_scale=true | ({mixer} swiglu[inner=512])x4", 8000, 512, 1e-3,
        lengths=(2,), lrs=(5e-4, 1e-3, 2e-3), short_first=False, solved=0.995)
    for group, length in (("A5", "6"), ("S5", "4"))
}  # fmt: skip
SETS |= {
    # Weight decay bounds the logits, so that the loss goes on pulling an angle that is almost right.
    "parity-angle": Set("parity", {"length": "32", "train_size": "100000"}, (TURNING,), ONE_LAYER, 10_000, 64, 5e-3,
                        lrs=(2e-3, 5e-3, 1e-2), decays=(0.0, 0.1, 1.0)),
    # Without an MLP, which could read a parity off two turns that are both wrong.
    "parity-plain": Set("parity", {"length": "32", "train_size": "100000"}, (TURNING, HOLDING), SMALL, 4000, 64, 5e-3,
                        lrs=(4e-3, 1e-2)),
    "parity-turn": Set("parity", {"length": "64", "train_size": "40000"}, (HOLDING, TURNING), SMALL, 1100, 32, 5e-3),
    "parity-64": Set("parity", {"length": "64", "train_size": "50000"}, (HOLDING, TURNING), ONE_LAYER, 4000, 64, 1e-2),
    "parity-long": Set("parity", {"length": "128", "train_size": "50000"}, (TURNING, HOLDING), ONE_LAYER, 6000, 32,
                       5e-3, lengths=(2, 4), lrs=(2e-3, 5e-3, 1e-2)),
}  # fmt: skip
#: 1,024 numbers of state per layer each (linear has the sums of its keys besides) for 32 pairs, and a convolution of
#: width 4 before the keys and values of every mixer: what is compared is how the state is written and read.
TIGHT_STATE = (
    "deltanet[head_dim=32]",
    "mamba2[expand=1,state=32,head_dim=32]",
    "gla[heads=1,conv=4]",
    "linear[heads=1,canon=b]",
    "gated-deltanet[head_dim=32]",
    "retnet[heads=1,expand_v=1,canon=a]",
    "kda[heads=1,head_dim=32]",
    "deltaproduct[head_dim=32,steps=2]",
)
TIGHT = "d=32 vocab={vocab} init=0.15 embed_scale=true | ({mixer})x2"
RATES = (1e-3, 3.2e-3, 1e-2, 3.2e-2)
SETS["mqar-tight"] = Set("mqar", {"vocab": "256", "length": "128", "pairs": "32", "train_size": "50000"}, TIGHT_STATE,
                         TIGHT, 2000, 64, 3e-3, lengths=(), lrs=RATES)  # fmt: skip
#: Tasks that no control had solved: as in the quick probe (`plait.probing.protocol.QUICK_SUITES`), and expressions
#: of two operators modulo 11. Many different sequences, and layers of attention: each result that another calculation
#: needs takes one more.
LAYERS = "d=128 vocab={vocab} init=0.05 embed_scale=true | ({mixer} swiglu[inner=256])x"
PLAIN_ATTENTION, NEAR_ATTENTION = "attn[heads=4]", "attn[heads=4,canon=ab]"
SETS |= {
    f"solve-{name}": Set(task, settings, (mixer,), f"{LAYERS}{layers}", 20_000, batch, lr, lengths=(2,),
                         lrs=(5e-4, 1e-3, 2e-3), solved=0.995, evaluation=512)
    for name, task, settings, mixer, layers, batch, lr in (
        ("arithmetic-5", "modular-arithmetic",
         {"vocab": "5", "length": "12", "train_size": "100000"}, PLAIN_ATTENTION, 4, 512, 1e-3),
        ("brackets-5", "modular-arithmetic",
         {"vocab": "5", "length": "14", "brackets": "1", "train_size": "100000"}, PLAIN_ATTENTION, 6, 512, 1e-3),
        ("brackets-11", "modular-arithmetic",
         {"vocab": "11", "length": "10", "brackets": "1", "train_size": "50000"}, PLAIN_ATTENTION, 4, 512, 1e-3),
        ("mano-5", "mano", {"vocab": "5", "length": "8", "train_size": "100000"}, PLAIN_ATTENTION, 8, 512, 1e-3),
        ("mano-11", "mano", {"vocab": "11", "length": "6", "train_size": "50000"}, PLAIN_ATTENTION, 4, 512, 1e-3),
        ("depo", "depo", {"vocab": "128", "length": "32", "hops": "2", "queries": "4", "train_size": "100000"},
         NEAR_ATTENTION, 4, 256, 2e-3),
        ("regbench", "regbench",
         {"vocab": "8", "length": "64", "nodes": "6", "string": "12", "train_size": "400000"},
         NEAR_ATTENTION, 4, 128, 2e-3),
        ("regbench-whole", "regbench", {"train_size": "150000"}, NEAR_ATTENTION, 4, 64, 1e-3),
    )
}  # fmt: skip
