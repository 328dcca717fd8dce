"""Read, cost and build an architecture (`plait.architecture`, `plait.cost`, `plait.build`), and show it mixer by mixer
(`plait.show`)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.core.errors import UserError
from plait.core.files import write_text
from plait.core.result import Result
from plait.model.architecture import Architecture, load_mixers
from plait.model.architecture import architecture as read
from plait.model.cost import ModelCost, model_cost

if TYPE_CHECKING:
    from plait.model.language_model import Model
    from plait.model.mixer_runs import MixerPaths


def architecture(spec: str | Architecture, *, mixers: Sequence[str | Path] = ()) -> Architecture:
    """Read and check an architecture: its header, its mixers with their options, its canonical text and hash.

    spec    a line of text, a preset's name, a .plait, .yaml or .json file, or an architecture, which is returned as is
    mixers  files with mixers of your own that the spec names

    >>> arch = plait.architecture("d=64 vocab=99 | (gla swiglu)x2")
    >>> arch.text, arch.num_layers, arch.header.d
    ('d=64 vocab=99 | (gla swiglu)x2', 2, 64)
    """
    load_mixers(mixers)
    return spec if isinstance(spec, Architecture) else read(spec)


def cost(
    spec: str | Architecture, *, seq_len: int = 1024, memory: int = 0, mixers: Sequence[str | Path] = ()
) -> ModelCost:
    """Count parameters, FLOPs and state exactly, without building the model and without torch.

    spec     as for `plait.architecture`
    seq_len  new tokens that FLOPs and KV cache are for
    memory   tokens of context before them
    mixers   files with mixers of your own that the spec names

    >>> cost = plait.cost("d=64 vocab=99 | (attn[heads=4] swiglu)x2", seq_len=128)
    >>> cost.total_params, cost.kv_cache
    (113344, 32768)
    """
    return model_cost(architecture(spec, mixers=mixers), seq=seq_len, memory=memory)


def build(spec: str | Architecture, *, seed: int = 0, mixers: Sequence[str | Path] = ()) -> Model:
    """Build the model: a torch module with seeded initial weights.

    spec    as for `plait.architecture`
    seed    of the initial weights
    mixers  files with mixers of your own that the spec names

    >>> import torch
    >>> model = plait.build("d=64 vocab=99 | (gla swiglu)x2", seed=0)
    >>> model(torch.zeros(1, 8, dtype=torch.long)).shape  # logits: batch, time, vocabulary
    torch.Size([1, 8, 99])
    """
    from plait.model.language_model import build as construct

    return construct(architecture(spec, mixers=mixers), seed=seed)


@dataclass(frozen=True)
class MixerRow:
    index: int  # from 1
    mixer: str
    kind: str  # sequence or channel
    spec: str
    params: int  # with its norm
    active_params: int
    flops: int
    fixed_state: int  # numbers per sequence
    conv_state: int
    kv_cache: int


@dataclass(frozen=True)
class Params:
    decoder: int
    embedding: int
    total: int
    active: int  # used per token
    without_input_embedding: int
    shared: int  # parameters shared by several layers, counted once
    parts: dict[str, int]


@dataclass(frozen=True)
class Flops:
    forward: int
    per_token: float
    generation: int  # FLOPs per generated token, including logits of the whole vocabulary
    output_layer: int
    output_layer_whole_vocabulary: int
    conventions: dict[str, float]  # counts by the papers' formulas, if they cover its mixers


@dataclass(frozen=True)
class State:
    fixed: int  # numbers per sequence
    conv: int
    kv_cache: int
    bytes_fp32: int
    bytes_bf16: int


@dataclass(frozen=True)
class Printed:
    """Parameter counts printed in a preset's paper, if they differ."""

    source: str
    millions: dict[str, float]
    off: dict[str, float]  # relative difference
    why: str


@dataclass(frozen=True)
class ShowResult(Result):
    ROWS = "mixers"
    spec: str
    hash: str
    kind: str
    d: int
    vocab: int
    seq: int
    memory: int
    params: Params
    flops: Flops
    state: State
    layers: int
    mixers: tuple[MixerRow, ...]
    printed: Printed | None = None
    paths: tuple[MixerPaths, ...] | None = None
    cost: ModelCost | None = field(default=None, repr=False)

    def as_dict(self) -> dict[str, Any]:
        optional = ("printed", "paths")
        return {name: value for name, value in super().as_dict().items() if value is not None or name not in optional}

    def headline(self) -> str:
        return self.spec

    def figure(self) -> str:
        return self.cost.figure() if self.cost is not None else ""


def show(
    spec: str | Architecture,
    *,
    seq_len: int = 1024,
    memory: int = 0,
    vocab: int | None = None,
    svg: str | Path | None = None,
    paths: str | bool = False,
    mixers: Sequence[str | Path] = (),
) -> ShowResult:
    """An architecture and what it costs, without building it.

    seq_len  new tokens that the cost is for
    memory   tokens of context before them
    vocab    instead of the spec's own
    svg      also draw the architecture to this file
    paths    build and run each distinct mixer once on this device (True: a GPU if available) to see which
             implementation its ops use there
    mixers   files with mixers of your own that the spec names

    >>> shown = plait.show("d=64 vocab=99 | (gla swiglu)x2")
    >>> shown.layers, [row.mixer for row in shown.mixers]
    (2, ['gla', 'swiglu', 'gla', 'swiglu'])
    """
    arch = architecture(spec, mixers=mixers)
    if vocab is not None:
        arch = Architecture(replace(arch.header, vocab=vocab), arch.layers)
    cost = model_cost(arch, seq=seq_len, memory=memory)
    if svg is not None:
        from plait.reporting.diagram import diagram

        write_text(svg, diagram(cost, title=str(spec)))
    return ShowResult(
        spec=arch.text,
        hash=arch.hash,
        kind=arch.header.kind,
        d=arch.header.d,
        vocab=arch.header.vocab,
        seq=cost.seq,
        memory=cost.memory,
        params=Params(
            decoder=cost.decoder_params,
            embedding=cost.embedding_params,
            total=cost.total_params,
            active=cost.active_params,
            without_input_embedding=cost.params_without_input_embedding,
            shared=sum(cost.shared.values()),
            parts={name: number for name, number in (cost.parts | cost.shared).items() if number},
        ),
        flops=Flops(
            forward=cost.flops,
            per_token=cost.flops / cost.seq,
            generation=cost.generation_flops,
            output_layer=cost.output_flops,
            output_layer_whole_vocabulary=cost.full_output_flops,
            conventions=_conventions(cost),
        ),
        state=State(cost.fixed_state, cost.conv_state, cost.kv_cache, cost.state_bytes(4), cost.state_bytes(2)),
        layers=arch.num_layers,
        mixers=_mixer_rows(cost),
        printed=_printed(str(spec), cost) if isinstance(spec, str) else None,
        paths=_paths(arch, None if paths is True else paths, seq_len) if paths else None,
        cost=cost,
    )


def _paths(arch: Architecture, device: str | None, seq_len: int) -> tuple[MixerPaths, ...]:
    from plait.device.workload import bench_device
    from plait.model.mixer_runs import mixer_paths

    return tuple(mixer_paths(arch, bench_device(device), seq_len))


def _mixer_rows(cost: ModelCost) -> tuple[MixerRow, ...]:
    return tuple(
        MixerRow(
            index=index,
            mixer=options.name,
            kind=options.kind,
            spec=str(options.to_layer()),
            params=int(layer.total_params + norm),
            active_params=int(layer.active_params + norm),
            flops=int(layer.total_flops),
            fixed_state=int(layer.fixed_state),
            conv_state=int(layer.conv_state),
            kv_cache=int(layer.kv_cache),
        )
        for index, (options, layer, norm) in enumerate(
            zip(cost.arch.layers, cost.layers, cost.norms, strict=True), start=1
        )
    )


def _printed(spec: str, cost: ModelCost) -> Printed | None:
    """For a preset whose paper prints other parameter counts: the counts, the differences, and the reason."""
    from plait.spec.presets import describe, lookup

    # Text with layers is not the name of a preset, so the papers' tables need not be loaded.
    preset = describe(spec) if "|" not in spec and lookup(spec) is not None else None
    if preset is None or not preset.printed:
        return None
    ours = {"total": cost.total_params, "active": cost.active_params}
    off = {name: ours[name] / (1e6 * millions) - 1 for name, millions in preset.printed.items()}
    return Printed(preset.source, dict(preset.printed), off, preset.erratum)


def _conventions(cost: ModelCost) -> dict[str, float]:
    from plait.papers.conventions import fox_flops_per_token, mad_flops

    conventions = {}
    with suppress(UserError):
        conventions["mad_sequence"] = mad_flops(cost.arch, length=cost.seq)
    with suppress(UserError):
        conventions["fox_per_token"] = fox_flops_per_token(cost.arch, length=cost.seq + cost.memory)
    return conventions
