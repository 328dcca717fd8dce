"""Where architectures found by differentiable search place attention: `plait.analyse.layers`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.api.analyse_table import Analysis
from plait.api.front import LATEST, restored_search
from plait.core.errors import UserError
from plait.core.files import read_json, write_text
from plait.core.registry import require_known
from plait.records import Store
from plait.records.store import opened_store

if TYPE_CHECKING:
    from plait.analysis.placement import Placement


def layers(
    keys: Sequence[str] | None = None,
    *,
    svg: str | Path | None = None,
    store: str | Store | None = None,
) -> Analysis:
    """Analyse where attention is placed in architectures found by search, and fit a placement pattern."""
    from plait.analysis.placement import judge_placement

    called, result, seeds = _together([_search_result(key, store) for key in keys or [LATEST]])
    channel = _channel_mixers(seeds, called)
    placement = judge_placement([seed["layers"] for seed in seeds], channel)
    rows = [
        {
            "seed": seed.get("seed", number),
            "layers": pattern,
            "loss": seed.get("loss"),
            "attention": count,
            "p": placement.layers / count if count else None,
        }
        for number, (seed, pattern, count) in enumerate(zip(seeds, placement.patterns, placement.counts, strict=True))
    ]
    spec = _spec(placement.fitted.chosen.spec, seeds, channel) if placement.fitted else None
    if svg is not None:
        _draw(Path(svg), result, seeds, placement, called)
    fits = [{name: value for name, value in fit.as_dict().items() if name != "pattern"} for fit in placement.fits]
    document = {"source": called, "seeds": rows, **placement.as_dict(), "spec": spec}
    tables = {"seeds": rows, "thirds": document["thirds"], "fits": fits}
    # The statement contains the pattern only; the whole spec is shown if it differs.
    ready = spec if placement.fitted and spec != placement.fitted.chosen.spec else ""
    legend = _legend(placement) + ("; loss in nats per token" if any(row["loss"] is not None for row in rows) else "")
    notes = [legend, placement.statement, ready or ""]
    return Analysis(document, tables, tuple(notes))


def _search_result(key: str, store: str | Store | None) -> tuple[str, Mapping[str, Any]]:
    """The name of a search, and its result."""
    if key.endswith(".json"):
        return key, _read(Path(key))
    with opened_store(store) as opened:
        record = restored_search(opened, key, method="gumbel")  # loads its mixers, which know whether they mix channels
    return record.key[:10], record.result


def _together(searches: Sequence[tuple[str, Mapping[str, Any]]]) -> tuple[str, Mapping[str, Any], list[dict[str, Any]]]:
    """Several searches merged: their names, the result of the first, and the seeds of all."""
    twice = [called for called, times in Counter(called for called, _ in searches).items() if times > 1]
    if twice:
        raise UserError(f"{twice[0]} is given twice; its seeds would be counted twice.")
    seeds = [seed for called, result in searches for seed in _seeds(result, called)]
    (first, result), *others = searches
    for other, other_result in others:
        if other_result.get("choices") != result.get("choices"):
            raise UserError(f"the layers of {first} and {other} had different choices; analyse them separately.")
    return ", ".join(called for called, _ in searches), result, seeds


def _read(path: Path) -> Mapping[str, Any]:
    document = read_json(path, constants=True)
    # The file contains the result of a record, or the whole record.
    result = document.get("result", document) if isinstance(document, dict) else {"seeds": document}
    return result if isinstance(result, dict) else {}


def _seeds(result: Mapping[str, Any], called: str) -> list[dict[str, Any]]:
    seeds = result.get("seeds")
    if not isinstance(seeds, list) or not seeds:
        raise UserError(f"{called} contains no found architectures ('seeds'); run `plait search --method gumbel`.")
    for number, seed in enumerate(seeds):
        names = seed.get("layers") if isinstance(seed, dict) else None
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise UserError(f"{called}: seeds.{number} needs 'layers', the list of its layers' names.")
    return seeds


def _channel_mixers(seeds: Sequence[Mapping[str, Any]], called: str) -> set[str]:
    """Names of channel mixers. Unknown layers are an error, since they would count as attention."""
    from plait.analysis.placement import NOTHING
    from plait.mixers import table as arch

    known = [*arch.names(), *NOTHING]
    for name in {name for seed in seeds for name in seed["layers"]}:
        require_known(name, known, f"{called}: there is no mixer")
    return {name for name in arch.names() if arch.load(name).kind == "channel"}


def _spec(fitted: str, seeds: Sequence[Mapping[str, Any]], channel: Collection[str]) -> str:
    """The pattern with the layers and header of the architectures, as a spec for `plait train`."""
    from plait.analysis.placement import NOTHING
    from plait.spec import parse

    texts = [seed.get("spec") for seed in seeds]
    specs = [parse(text) for text in texts if text and isinstance(text, str)]
    if not specs:
        return fitted
    usual: dict[str, Counter[str]] = {"s": Counter(), "f": Counter()}
    for layer in (layer for spec in specs for layer in spec.layers if layer.name not in NOTHING):
        usual["f" if layer.name in channel else "s"][layer.text] += 1
    if any(len({text.partition("[")[0] for text in seen}) > 1 for seen in usual.values()):
        return fitted  # a pattern of s and f cannot place several mixers of one kind
    defined = ",".join(f"{letter}={seen.most_common(1)[0][0]}" for letter, seen in usual.items() if seen)
    return f"{specs[0].header.text} | rule[{defined}]:{fitted.removeprefix('rule:')}"


def _draw(
    path: Path, result: Mapping[str, Any], seeds: Sequence[Mapping[str, Any]], placement: Placement, called: str
) -> None:
    from plait.reporting.studies import LayerChoices, mixture_chart

    choices: Any = result.get("choices")
    if not _lists_of(str, choices) or not all(_lists_of((int, float), seed.get("probabilities")) for seed in seeds):
        raise UserError(f"{called}: to draw it needs 'choices', and 'probabilities' in every seed: a list per layer.")
    panels = [
        LayerChoices(_title(seed, number), seed["probabilities"], pattern)
        for number, (seed, pattern) in enumerate(zip(seeds, placement.patterns, strict=True))
    ]
    write_text(path, mixture_chart(choices, panels, title=f"What each layer is, by {called}"))


def _lists_of(kind: type | tuple[type, ...], value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(row, list) and all(isinstance(entry, kind) for entry in row) for row in value
    )


def _title(seed: Mapping[str, Any], number: int) -> str:
    loss = seed.get("loss")
    return f"seed {seed.get('seed', number)}" + (f", loss {loss:.4f}" if isinstance(loss, float | int) else "")


def _legend(placement: Placement) -> str:
    """The meaning of the letters that occur."""
    used = set("".join(placement.patterns))
    known: dict[str, str] = {}
    for name, letter in placement.letters.items():
        if letter in used:
            known.setdefault(letter, name)
    return ", ".join(f"{letter} {name}" for letter, name in known.items())
