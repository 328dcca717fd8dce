"""What is probed, and how: the settings of the tasks, how models are trained on each, and how the user's arguments
become architectures that can be compared fairly.

`full` is the protocol of the paper (Poli et al. 2024, arXiv:2403.17844, App. B.2 and Table B.1): 66 settings, a grid of
six learning rates and weight decays on each, 200 epochs. `quick` is for a budget of minutes: one small setting per task
(the table `QUICK`), narrow models, as many seeds as the budget allows.

A bare mixer (`gla`, `gla[heads=8]`, `my_mixer.py`) means two blocks of it with SwiGLU at the protocol's width, or four
layers of Mamba, as the paper builds them (App. B.3), matched in state and parameters. A spec or a preset is used as
written, except that vocabulary and kind are the task's. Presets of the paper's probe (`mad21`) are scaled to the
protocol's width if it differs: all are scaled in the same way, so their states stay equal.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType

from plait import tasks
from plait.core.errors import UserError
from plait.core.registry import split_options, split_path
from plait.mixers.options import MixerOptions
from plait.model.architecture import Architecture, architecture, options_of
from plait.model.cost import decoder_params, model_cost, total_state
from plait.model.resize import match
from plait.model.user_mixers import load_mixer
from plait.spec import Header, Layer, Spec, has_header, parse, presets
from plait.tasks import Task

#: Raised by hand when results change meaning; part of every result's key.
VERSION = 2


@dataclass(frozen=True)
class Training:
    """How a fleet is trained on one setting. Its replicas are the grid's points, each with its own initial weights."""

    steps: int
    batch: int
    grid: tuple[tuple[float, float], ...]  # (learning rate, weight decay)
    evaluation: int  # sequences in the validation split and in the test split
    eval_every: int
    solved: float | None  # a replica with this validation accuracy stops; None: all train to the end
    lengths: tuple[int, ...] = ()  # multiples of the task's length at which trained models are also scored
    curriculum: tuple[tuple[float, int], ...] = ()  # (fraction of the steps, sequence length up to there)
    first_ends: bool = False  # the first grid point to solve a setting stops the others
    eval_most: int = 0  # cap for an `eval_every` that grows as a tenth of the steps; 0: constant
    halving: tuple[tuple[float, int], ...] = ()  # (fraction of the steps, how many runs, the best, go on from there)
    patience: int = 0  # a run stops whose validation accuracy has not risen for so many steps (`Plan`); 0: never

    @property
    def evaluations(self) -> tuple[int, ...]:
        """The steps after which replicas are scored on the validation split."""
        steps, step = [], 0
        while step < self.steps:
            tenth = -(-step // (10 * self.eval_every)) * self.eval_every
            step += min(max(self.eval_every, tenth), self.eval_most) if self.eval_most else self.eval_every
            steps.append(min(step, self.steps))
        return tuple(steps)

    @property
    def replica_steps(self) -> int:
        """Optimizer steps of all runs of the grid, at most."""
        total = last = 0
        left = len(self.grid)
        for step in self.evaluations:
            total, last = total + left * (step - last), step
            left = min([left, *(runs for share, runs in self.halving if step >= share * self.steps)])
        return total

    def as_dict(self) -> dict[str, object]:
        """Keys added later are omitted at their defaults, so that older records keep their keys."""
        further: dict[str, object] = {"lengths": list(self.lengths)} if self.lengths else {}
        if self.curriculum:
            further["curriculum"] = [list(stage) for stage in self.curriculum]
        if self.first_ends:
            further["first_ends"] = True
        if self.eval_most:
            further["eval_most"] = self.eval_most
        if self.halving:
            further["halving"] = [list(stage) for stage in self.halving]
        if self.patience:
            further["patience"] = self.patience
        later = ("lengths", "curriculum", "first_ends", "eval_most", "halving", "patience")
        plain = {name: value for name, value in vars(self).items() if name not in later}
        return {**plain, "grid": [list(point) for point in self.grid], **further}


@dataclass(frozen=True)
class Setting:
    """One setting of a task. `given` finds the task again in another process: its name or its file."""

    given: str
    task: Task
    training: Training


@dataclass(frozen=True)
class Protocol:
    """What is run, and how bare mixer names become architectures.

    header     of their architectures
    head_dim   of attention
    inner      width of SwiGLU
    state      numbers of fixed state in all, where there is one
    settings   the most informative task first
    """

    name: str
    header: Header
    head_dim: int
    inner: int
    state: int
    settings: tuple[Setting, ...]

    @property
    def d(self) -> int:
        return self.header.d

    @property
    def task_names(self) -> list[str]:
        return list(dict.fromkeys(setting.task.name for setting in self.settings))

    @property
    def runs(self) -> int:
        """Models trained for one architecture and seed."""
        return sum(len(setting.training.grid) for setting in self.settings)

    @property
    def steps(self) -> int:
        """Optimizer steps of all of them, at most."""
        return sum(setting.training.replica_steps for setting in self.settings)


# Table B.1
EPOCHS = 200
BATCH = 128
EVALUATION = 1280
LEARNING_RATES = (1e-4, 5e-4, 1e-3)
WEIGHT_DECAYS = (0.0, 0.1)
#: Successive halving (Jamieson and Talwalkar 2016, arXiv:1502.07943): from these fractions of the steps on, so many
#: runs of the grid go on. Only the best one counts, and its score hardly changes (`benchmarks/grid_stops.py`).
HALVING = ((0.5, 3), (0.75, 1))


def full(names: Sequence[str] = (), variant: str = "paper", patience: int = 0) -> Protocol:
    """The paper's protocol on these tasks (all six, if none is named). With `patience`, a run also stops
    whose validation accuracy has not risen for so many epochs, as with an option of the authors' code."""
    grid = tuple((lr, decay) for lr in LEARNING_RATES for decay in WEIGHT_DECAYS)
    settings = []
    for name in names or tasks.SUITES["mad"]:
        for task in _varied(tasks.load_task(name), variant).grid():
            an_epoch = -(-task.train_size // BATCH)
            # The authors' code evaluates after every epoch and stops at this accuracy. Recall is solved within ten
            # epochs; later, evaluating so often would cost more than it saves.
            training = Training(
                EPOCHS * an_epoch, BATCH, grid, EVALUATION, an_epoch, solved=0.999, first_ends=True,
                eval_most=10 * an_epoch, halving=HALVING, patience=patience * an_epoch,
            )  # fmt: skip
            settings.append(Setting(name, task, training))
    name = f"full (patience {patience})" if patience else "full"
    return Protocol(name, Header(d=128, vocab=16), 8, 512, 4096, tuple(settings))


@dataclass(frozen=True)
class Quick:
    """One row of the quick protocol."""

    settings: dict[str, object]
    steps: int


#: The tasks of the quick protocol, the most informative first. Why these: docs/howto/probe.md.
QUICK: dict[str, Quick] = {
    "in-context-recall": Quick({"vocab": 16, "length": 48}, steps=600),
    "compression": Quick({"vocab": 8, "length": 8}, steps=600),
    "selective-copying": Quick({"vocab": 8, "length": 32, "to_copy": 4}, steps=400),
    "fuzzy-in-context-recall": Quick({"vocab": 8, "length": 32, "motif": 2}, steps=400),
    "noisy-in-context-recall": Quick({"vocab": 12, "length": 48, "noise_vocab": 4}, steps=600),
    "memorization": Quick({"vocab": 512, "length": 16}, steps=200),
}
#: Scaled embeddings: initialised like the other weights, they would be dominated by the first layer's output, and
#: attention would need thousands of steps to learn that the previous token matters.
QUICK_HEADER = Header(d=32, vocab=16, init=0.15, embed_scale=True)
QUICK_BATCH = 8
QUICK_GRID = ((3e-3, 0.0), (6e-3, 0.0))
QUICK_EVALUATION = 256
QUICK_EVALUATIONS = 4  # of each run
#: Suites other than MAD's, at sizes at which mixers differ after minutes on two cores.
QUICK_SUITES: dict[str, Quick] = {
    "parity": Quick({"length": 32}, steps=1200),
    "word-problem": Quick({"length": 16, "group": "S3"}, steps=2000),
    "modular-arithmetic": Quick({"length": 12}, steps=2000),
    "mqar": Quick({"vocab": 64, "length": 64, "pairs": 8}, steps=1200),
    "palindrome": Quick({"vocab": 8, "length": 24}, steps=1200),
    "phonebook": Quick({"vocab": 64, "length": 32, "digits": 3}, steps=1200),
    "stack": Quick({"vocab": 8, "length": 48, "stacks": 4}, steps=1200),
    "forgetting-mqar": Quick({"vocab": 64, "length": 64, "pairs": 8, "updates": 4}, steps=1200),
    "compositional-mqar": Quick({"vocab": 96, "length": 48, "side": 2}, steps=1200),
    "copy": Quick({"vocab": 8, "length": 24}, steps=1200),
    "ngram-lookup": Quick({"vocab": 10, "length": 24, "n": 3}, steps=1200),
    "markov": Quick({"vocab": 5, "length": 64}, steps=1200),
    "regbench": Quick({"vocab": 8, "length": 64, "nodes": 6, "string": 12}, steps=1200),
    "depo": Quick({"vocab": 128, "length": 32, "hops": 2, "queries": 4}, steps=2000),
    "mano": Quick({"vocab": 5, "length": 8}, steps=2000),
}
QUICK_LENGTHS = (2, 4, 8)
#: A curriculum for tasks in which every prefix of a sequence is itself a valid sequence: an eighth of it first, then a
#: quarter, then half. With whole sequences alone, it depends on the seed whether the rule is found at all.
CURRICULUM = ((0.15, 8), (0.3, 4), (0.5, 2))  # (up to this fraction of the steps, divisor of the length)
OWN_TASK = Quick({}, steps=400)  # a user's task, at its own baseline


def quick(names: Sequence[str] = (), variant: str = "paper", *, longer: bool = False) -> Protocol:
    """The protocol for a budget on these tasks (all six, if none is named). `longer`: a user's own tasks are also
    scored at longer lengths, as far as they support them."""
    settings = []
    for name in names or QUICK:
        task = _varied(tasks.load_task(name), variant)
        row = QUICK.get(task.name) or QUICK_SUITES.get(task.name, OWN_TASK)
        small = task.with_settings({key: str(value) for key, value in row.settings.items()})
        own = longer and row is OWN_TASK
        lengths = QUICK_LENGTHS if task.name in QUICK_SUITES else _possible(small) if own else ()
        every = -(-row.steps // QUICK_EVALUATIONS)
        stages = curriculum(small) if task.name in QUICK_SUITES else ()
        training = Training(row.steps, QUICK_BATCH, QUICK_GRID, QUICK_EVALUATION, every, None, lengths, stages)
        settings.append(Setting(name, small, training))
    return Protocol("quick", QUICK_HEADER, 32, 112, 512, tuple(settings))


def curriculum(task: Task) -> tuple[tuple[float, int], ...]:
    """The curriculum of a task, the same for all mixers; empty if prefixes are not valid sequences."""
    return tuple((share, max(2, task.length // part)) for share, part in CURRICULUM) if task.prefixes else ()


#: Baselines for a candidate on a task suite: attention, which is good at recall; a decay with positive eigenvalues
#: only; the delta rule, also good at recall; and the delta rule with negative eigenvalues, which can track state.
CONTROLS = ("attn", "mamba2", "deltanet", "deltanet[neg_eigval]")


def suite_tasks(suite: str) -> list[str]:
    """The tasks of a suite other than the paper's; none for a set of architectures."""
    others = {name: list(task_names) for name, task_names in tasks.SUITES.items() if name != "mad"}
    return others.get(suite) or (
        [name for task_names in others.values() for name in task_names] if suite == "all" else []
    )


def _possible(task: Task) -> tuple[int, ...]:
    """The lengths that a user's task can have."""
    factors = []
    for factor in QUICK_LENGTHS:
        with suppress(UserError):
            task.longer(factor)
            factors.append(factor)
    return tuple(factors)


def _varied(task: Task, variant: str) -> Task:
    return task.with_settings({"variant": variant})


# ---- architectures

BASELINES = ("attn", "gla", "mamba", "hyena")
PAPER_WIDTH = 128  # of every architecture in the paper's probe
TOLERANCE = 0.05  # how near matched state and parameters must come
#: mixer → the preset whose first two layers are its block in the paper's probe.
PAPER_BLOCKS = {
    "mamba": "mad-mamba",
    **{name: f"mad-{name}-swiglu" for name in ("hyena", "mh-hyena", "hyena-experts", "gla", "attn")},
}
#: Mixers that are a whole block: no channel mixer is added.
WHOLE_BLOCKS = ("mamba",)
#: Options that scale with the width, so that head dimensions and ratios stay those of the paper.
_WITH_WIDTH = ("heads", "head_dim", "inner", "width")
NOTHING: Mapping[str, object] = MappingProxyType({})


@dataclass(frozen=True)
class Candidate:
    """One architecture to probe."""

    name: str
    arch: Architecture
    note: str = ""  # what was, or could not be, matched
    baseline: bool = False
    preset: bool = False

    @property
    def source(self) -> str:
        """The hashes of the users' mixers in it."""
        return self.arch.source_hash

    @property
    def params(self) -> int:
        return decoder_params(self.arch)

    @property
    def state(self) -> int:
        return total_state(self.arch)

    def kv_cache(self, tokens: int) -> int:
        return model_cost(self.arch, seq=tokens).kv_cache


def candidates(
    specs: Sequence[str],
    protocol: Protocol,
    *,
    baselines: bool = True,
    matched: bool = True,
    controls: Sequence[str] = BASELINES,
) -> list[Candidate]:
    """The architectures to probe, baselines last, matched in state and parameters unless `matched` is false."""
    chosen = [parse_candidate(text, protocol) for text in specs]
    if baselines and len(chosen) == 1:
        chosen += [replace(parse_candidate(name, protocol), baseline=True) for name in controls if name != specs[0]]
    chosen = list({candidate.arch.hash + candidate.source: candidate for candidate in reversed(chosen)}.values())[::-1]
    return [_matched(candidate, protocol) for candidate in chosen] if matched else chosen


def parse_candidate(text: str, protocol: Protocol) -> Candidate:
    if split_path(split_options(text)[0]):
        options = load_mixer(text)
        return Candidate(str(options.to_layer()), _around(options.to_layer(), protocol))
    if has_header(text):
        return Candidate(text, architecture(text))
    if presets.lookup(text) is not None:
        arch = architecture(text)
        narrowed = text.lower() in presets.suite("mad21") and arch.header.d != protocol.d
        note = f"the preset at width {protocol.d}" if narrowed else "the preset as written"
        return Candidate(text, _at_width(arch, protocol) if narrowed else arch, note, preset=True)
    layers = parse(text).layers
    if len(layers) > 1:
        return Candidate(text, architecture(text))
    if options_of(layers[0]).kind == "sequence":
        return Candidate(text, _around(layers[0], protocol))
    raise UserError(f"'{text}' mixes channels only, so it sees one token at a time; give a sequence mixer.")


def _around(layer: Layer, protocol: Protocol) -> Architecture:
    """Two blocks around one mixer. A mixer given without options gets those of the paper; the channel mixer is the same
    for all mixers."""
    as_in_paper = not layer.options and layer.name in PAPER_BLOCKS
    block = parse(presets.describe(PAPER_BLOCKS[layer.name if as_in_paper else "attn"]).text).layers[:2]
    if not as_in_paper:
        block = (layer, layer if layer.name in WHOLE_BLOCKS else block[1])
    header = Header(d=PAPER_WIDTH, vocab=16)
    return _at_width(architecture(Spec(header, block * 2)), protocol, keep=dict(layer.options))


def _at_width(arch: Architecture, protocol: Protocol, keep: Mapping[str, object] = NOTHING) -> Architecture:
    """The paper's architecture at the protocol's width; options a user gave are kept as they are."""
    layers = tuple(options.each(lambda mixer: _scaled(mixer, arch.header.d, protocol, keep)) for options in arch.layers)
    for options in set(layers):
        options.check(protocol.d)
    return Architecture(protocol.header, layers)


def _scaled(options: MixerOptions, d: int, protocol: Protocol, keep: Mapping[str, object]) -> MixerOptions:
    known = {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}
    change = {
        name: max(1, round(known[name] * protocol.d / d))
        for name in _WITH_WIDTH
        if name not in keep and type(known.get(name)) is int and known[name] > 0
    }
    if options.name == "attn" and "heads" in change:
        change["heads"] = max(1, protocol.d // protocol.head_dim)
    if options.name == "swiglu" and "inner" in change:
        change["inner"] = protocol.inner
    return dataclasses.replace(options, **change)


def _matched(candidate: Candidate, protocol: Protocol) -> Candidate:
    """Match the state of the paper's recurrent architectures and the parameters of its Transformer; if that is
    impossible, the note says so. Full specs and presets are not changed: their sizes are the user's or the paper's."""
    if candidate.preset:
        return candidate
    if has_header(candidate.name):
        return replace(candidate, note="taken as given")
    notes, arch = [], candidate.arch
    if total_state(arch):
        try:
            arch = match(arch, state=protocol.state, tolerance=TOLERANCE)
        except UserError:
            notes.append(f"state not matched ({total_state(arch):,} against {protocol.state:,})")
    target = decoder_params(_around(parse("attn").layers[0], protocol))
    if _has_inner(arch):  # otherwise only expansion factors could change, which would make it a different mixer
        with suppress(UserError):
            arch = match(arch, params=target, tolerance=TOLERANCE)
    if abs(decoder_params(arch) / target - 1) > TOLERANCE:
        notes.append(f"parameters not matched ({decoder_params(arch):,} against {target:,})")
    return replace(candidate, arch=arch, note="; ".join(notes))


def _has_inner(arch: Architecture) -> bool:
    return any(o.kind == "channel" and o.has("inner") for o in arch.layers)
