"""Contenders: the architectures to compare, with one vocabulary, distinct names and, if requested, matched sizes.

A bare mixer name (or the file of a user's mixer) means a small model: blocks of the mixer and a SwiGLU, or, if the
mixer includes channel mixing, layers of the mixer alone with the same number of parameters.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from plait.core.errors import UserError
from plait.core.registry import require_one_of, split_path
from plait.mixers.table import names
from plait.model.architecture import Architecture, architecture
from plait.model.cost import decoder_params, model_cost, total_state
from plait.model.resize import match
from plait.model.user_mixers import load_mixer
from plait.spec import has_header, parse
from plait.training.run import RUNS, open_run

WIDTHS, BLOCKS = (64, 128, 256), 2  # of models given as mixers; the smallest width that suits all of them is used
TOLERANCE = 0.02
MATCHES = ("params", "state", "none")


@dataclass(frozen=True)
class Contender:
    name: str
    arch: Architecture
    note: str = ""

    @property
    def params(self) -> int:
        return decoder_params(self.arch)

    def flops_per_token(self, seq_len: int) -> float:
        """Training FLOPs per token: the forward pass, and twice that for the backward pass."""
        return 3 * model_cost(self.arch, seq=seq_len).flops / seq_len


def read_contenders(
    sources: Sequence[str | Architecture], vocab: int, matched: str | None = None, runs: Path = RUNS
) -> list[Contender]:
    """Read specs, presets, spec files, runs, and mixers by name or file. `matched` ("params", "state" or "none"): what
    all are resized to have in common with the first; by default parameters if all are given as mixers, else nothing."""
    if not sources:
        raise UserError(
            "nothing to compare: give architectures, such as attn gla 'd=128 | (gla swiglu attn swiglu)x2'."
        )
    if matched is not None:
        require_one_of(matched, MATCHES, f"--match {matched}")
    mixers = [source for source in sources if isinstance(source, str) and _is_mixer(source)]
    width = _width(mixers)
    contenders = [Contender(*_read(source, vocab, runs, width)) for source in sources]
    if matched is None:
        matched = "params" if len(mixers) == len(sources) else "none"
    _require_one_text(contenders)
    if matched != "none":
        contenders = [contenders[0], *(_equal(contenders[0], other, matched) for other in contenders[1:])]
    named = unique([contender.name for contender in contenders])
    return [replace(contender, name=name) for contender, name in zip(contenders, named, strict=True)]


def _require_one_text(contenders: Sequence[Contender]) -> None:
    """Refuse two different mixers of one name: specs name mixers, so workers could not tell them apart."""
    texts: dict[str, str] = {}
    for source_of in (contender.arch.mixer_sources for contender in contenders):
        for name, source in source_of.items():
            if texts.setdefault(name, source.hash) != source.hash:
                raise UserError(f"two texts of the mixer {name} are compared: give one of them another name.")


def _is_mixer(text: str) -> bool:
    if text.startswith("(") and not has_header(text):
        layers = parse(text).layers
        return len(layers) == 1 and bool(layers[0].branches)
    return split_path(text) is not None or ("|" not in text and " " not in text and text.split("[")[0] in names())


def _width(mixers: Sequence[str]) -> int:
    """The smallest width at which all of these mixers can be built."""
    for width in WIDTHS[:-1]:
        with suppress(UserError):
            for text in mixers:
                architecture(_around(text, width, vocab=2)[1])
            return width
    return WIDTHS[-1]


def _around(text: str, width: int, vocab: int) -> tuple[str, str]:
    """The name and the spec of a small model made of a mixer."""
    options = load_mixer(text)
    layer = options.name if split_path(text) else text
    body = f"({layer} swiglu)x{BLOCKS}" if options.kind == "sequence" else f"(attn {layer})x{BLOCKS}"
    return layer, f"d={width} vocab={vocab} | {body}"


def _read(source: str | Architecture, vocab: int, runs: Path, width: int) -> tuple[str, Architecture]:
    if isinstance(source, Architecture):
        return short_name(source), with_vocab(source, vocab)
    if _is_mixer(source):
        name, spec = _around(source, width, vocab)
        return name, architecture(spec)
    # `os.path`, here and elsewhere: `pathlib` raises on a spec that is longer than a file name may be.
    if source == "latest" or any(os.path.exists(folder / "run.json") for folder in (runs / source, Path(source))):
        run = open_run(source, runs)
        return run.name, with_vocab(run.arch, vocab, run.name)
    arch = architecture(source)
    return (source if len(source) <= 24 and " " not in source else short_name(arch)), with_vocab(arch, vocab, source)


def with_vocab(arch: Architecture, vocab: int, name: str = "") -> Architecture:
    """The architecture with the text's vocabulary, because losses on different tokens cannot be compared."""
    if arch.header.kind != "lm":
        raise UserError(
            f"{name or arch.text}: comparisons train language models (kind=lm), not kind={arch.header.kind}."
        )
    return arch if arch.header.vocab == vocab else arch.with_vocabulary(vocab)


def _equal(first: Contender, other: Contender, matched: str) -> Contender:
    target = first.params if matched == "params" else total_state(first.arch)
    arch = other.arch
    with suppress(UserError):
        arch = match(arch, params=target, tolerance=TOLERANCE) if matched == "params" else match(arch, state=target)
    reached = decoder_params(arch) if matched == "params" else total_state(arch)
    off = abs(reached / target - 1) if target else 0.0
    note = f"{matched} not matched ({reached:,} against {target:,})" if off > TOLERANCE else ""
    return Contender(other.name, arch, note)


def short_name(arch: Architecture) -> str:
    """The layers of an architecture in order, without their options."""
    body = arch.text.split("|", 1)[1].strip()
    while "[" in body:
        before, after = body.split("[", 1)
        body = before + after.split("]", 1)[1]
    return body


def unique(names: Iterable[str]) -> list[str]:
    """Make names distinct: a second `name` becomes `name-2`."""
    distinct: list[str] = []
    for name in names:
        copies = (f"{name}-{number}" for number in itertools.count(2))
        distinct.append(next(candidate for candidate in itertools.chain([name], copies) if candidate not in distinct))
    return distinct
