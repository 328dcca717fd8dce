"""`plait measure SPEC…`: how long a model takes on this machine, and how much memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plait.cli.measure_lengths import measure_lengths, where
from plait.cli.options import AsJson, Mixers, StoreUrl, needed_options
from plait.cli.output import console, plain, print_json, table
from plait.device.quantities import on_device

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plait.device.quantities import Quantity
    from plait.device.setting import Setting
    from plait.records import Record, Store


@needed_options()
def command(
    specs: Annotated[
        list[str], typer.Argument(help="Spec texts, presets' names, or files; my_mixer.py beside them.", metavar="SPEC")
    ],
    seq: Annotated[int, typer.Option(min=1, help="Tokens: new ones in prefill, held ones in decode.")] = 192,
    batch: Annotated[int, typer.Option(min=1, help="Sequences at once.")] = 1,
    mode: Annotated[str, typer.Option(help="prefill: all tokens at once; decode: one token after them.")] = "prefill",
    device: Annotated[str, typer.Option(help="cpu, cuda, …")] = "cpu",
    dtype: Annotated[str, typer.Option(help="float32, float64; on a GPU bfloat16 and float16, too.")] = "float32",
    threads: Annotated[int, typer.Option(min=1, help="Of the processor.")] = 1,
    lengths: Annotated[
        str | None, typer.Option(help="Instead: single blocks over these lengths, as 128,256,512.")
    ] = None,
    svg: Annotated[Path | None, typer.Option(help="With --lengths: draw them into this file.")] = None,
    *,
    needed: tuple[str, ...],
    archai: Annotated[bool, typer.Option("--archai", help="Also as LiteTransformerSearch's code counts.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Measure even what is in the store.")] = False,
    mixers: Mixers = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Measure latency, peak memory and, where it can be read, energy of models on this machine."""
    from plait.core.errors import UserError
    from plait.device.quantities import require_measurable
    from plait.device.setting import Setting
    from plait.model.user_mixers import read_architectures
    from plait.records import open_store

    setting = Setting(mode=mode, seq=seq, batch=batch, device=device, dtype=dtype, threads=threads)
    archs = read_architectures(specs)  # all of them are checked before the first is measured
    if lengths is not None:
        _check_lengths_alone(archai=archai, again=again, store=store)
        measure_lengths(archs, lengths, setting, svg, as_json=as_json)
        return
    require_measurable(needed, setting)
    if svg is not None:
        raise UserError("--svg draws latency over lengths: give --lengths, too, as 128,256,512.")
    with open_store(store) as records:
        found = list(_measured([arch.text for arch in archs], setting, archai, again, records, quiet=as_json))
    if as_json:
        print_json({"setting": setting.as_dict(), "models": [_document(record) for record in found]})
    else:
        _print(found, setting, archai)


def _check_lengths_alone(*, archai: bool, again: bool, store: str | None) -> None:
    from plait.core.errors import UserError

    for name, given in {"--archai": archai, "--again": again, "--store": store is not None}.items():
        if given:
            raise UserError(f"{name} does not go with --lengths, which measures blocks each time and stores nothing.")


def _measured(
    specs: list[str], setting: Setting, archai: bool, again: bool, store: Store, *, quiet: bool
) -> Iterator[Record]:
    from rich.progress import track

    from plait.device.measurements import Measurements, noisy

    out = console(stderr=True)
    with Measurements(store, setting, archai=archai) as known:
        for spec in track(specs, "measuring", console=out, transient=True, disable=quiet or not out.is_terminal):
            stored = known.find(spec)
            yield known.measure(spec, again=again or noisy(stored))


def _document(record: Record) -> dict[str, Any]:
    return {"spec": record.config["spec"], "key": record.key, **record.result}


def _print(found: list[Record], setting: Setting, archai: bool) -> None:
    out = console()
    tokens = f"{setting.seq} tokens" if setting.mode == "prefill" else f"one token after {setting.seq}"
    out.print(f"{setting.mode} of {tokens}, batch {setting.batch}; {where(setting)}", style="dim")
    rows = [{name: cell for each in on_device().values() for name, cell in _cells(each, record)} for record in found]
    extra = {"archai_ms": "right", "archai_MB": "right"} if archai else {}
    made = table(spec="left", **dict.fromkeys(rows[0], "right"), **extra, noise="left")
    for record, row in zip(found, rows, strict=True):
        counted = record.result.get("archai")
        made.add_row(
            plain(record.config["spec"]),
            *row.values(),
            *((f"{1e3 * counted['seconds']:.2f}", f"{counted['memory'] / 1e6:.1f}") if counted else ()),
            noise(record.result["latency"]),
        )
    out.print(made)


def _cells(each: Quantity, record: Record) -> Iterator[tuple[str, str]]:
    """The columns of one quantity, if it was measured: its value, how far that reaches, its parts."""
    found = record.result.get(each.name)
    if found is None:
        return

    def text(entry: str) -> str:
        return f"{each.scale * found[entry]:.{each.decimals}f}"

    yield each.unit, text(each.value)
    if "low" in found:
        yield f"{each.unit}_interval", f"{text('low')} to {text('high')}"
    yield from ((f"{part}_{each.unit}", text(part)) for part in each.parts)


def noise(latency: dict[str, Any]) -> str:
    """How far a latency can be trusted, in a few words."""
    words = f"{100 * latency['calm']:.0f} % calm, spread {100 * latency['spread']:.1f} %"
    return f"[bold yellow]noisy[/]: {words}, load {latency['load']:.1f}" if latency["noisy"] else words
