"""`plait measure SPEC…`: how long a model takes on this machine, and how much memory."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plait.cli.output import console, print_json, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plait.arch import Architecture
    from plait.measure.memory import MemoryMeter
    from plait.measure.setting import Setting
    from plait.records import Record, Store

PROTOCOL = 1  # raised when the same setting comes to mean another measurement


def command(
    specs: Annotated[list[str], typer.Argument(help="Spec texts, presets' names, or files.", metavar="SPEC")],
    seq: Annotated[int, typer.Option(min=1, help="Tokens: new ones in prefill, held ones in decode.")] = 192,
    batch: Annotated[int, typer.Option(min=1, help="Sequences at once.")] = 1,
    mode: Annotated[str, typer.Option(help="prefill: all tokens at once; decode: one token after them.")] = "prefill",
    device: Annotated[str, typer.Option(help="cpu, cuda, …")] = "cpu",
    dtype: Annotated[str, typer.Option(help="float32, float64; on a GPU bfloat16 and float16, too.")] = "float32",
    threads: Annotated[int, typer.Option(min=1, help="Of the processor.")] = 1,
    archai: Annotated[bool, typer.Option("--archai", help="Also as LiteTransformerSearch's code counts.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Measure even what is in the store.")] = False,
    store: Annotated[str | None, typer.Option(help="URL; else $PLAIT_STORE, else sqlite:///runs/plait.db.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Measure latency and peak memory of models on this machine."""
    from plait.arch import architecture
    from plait.measure.setting import Setting
    from plait.records import open_store

    setting = Setting(mode=mode, seq=seq, batch=batch, device=device, dtype=dtype, threads=threads)
    archs = [architecture(spec) for spec in specs]
    with open_store(store) as records:
        found = list(_measured(archs, setting, archai, again, records, quiet=as_json))
    if as_json:
        print_json({"setting": setting.as_dict(), "models": [_document(record) for record in found]})
    else:
        _print(found, setting, archai)


def _measured(
    archs: list[Architecture], setting: Setting, archai: bool, again: bool, store: Store, *, quiet: bool
) -> Iterator[Record]:
    from contextlib import ExitStack

    from rich.progress import track

    from plait.measure.memory import MemoryMeter
    from plait.records import record_key

    out = console(stderr=True)
    with ExitStack() as stack:
        meter: MemoryMeter | None = None
        for arch in track(archs, "measuring", console=out, transient=True, disable=quiet or not out.is_terminal):
            config = _config(arch, setting, archai)
            stored = store.get(record_key("measure", config))
            if stored is not None and not again and not stored.result["latency"]["noisy"]:
                yield stored
                continue
            # Started only now: most of its time goes into importing torch.
            meter = meter or stack.enter_context(MemoryMeter())
            record = _measure(arch, setting, config, meter)
            if stored is not None:
                store.delete([stored.key])
            store.put(record)
            yield record


def _config(arch: Architecture, setting: Setting, archai: bool) -> dict[str, Any]:
    from plait.measure.profile import Profile

    if not setting.on_cpu:
        import_module("torch")  # a GPU is known, and written down, only once torch is there
    # Unlike a loss or a probe's score, this result belongs to the machine.
    machine = Profile.here(setting).device
    return {"protocol": PROTOCOL, "spec": arch.text, **setting.as_dict(), "archai": archai, "machine": machine}


def _measure(arch: Architecture, setting: Setting, config: dict[str, Any], meter: MemoryMeter) -> Record:
    import time

    from plait.measure.archai import measure_archai
    from plait.measure.latency import measure_latency
    from plait.records import Record, about

    started = time.time()
    result: dict[str, Any] = {
        "latency": measure_latency(arch, setting).as_dict(),
        "memory": meter.measure(arch, setting).as_dict(),
    }
    if config["archai"]:
        result["archai"] = measure_archai(arch, setting).as_dict()
    return Record.of("measure", config, result, about(started, time.time() - started))


def _document(record: Record) -> dict[str, Any]:
    return {"spec": record.config["spec"], "key": record.key, **record.result}


def _print(found: list[Record], setting: Setting, archai: bool) -> None:
    out = console()
    where = f"{setting.device}, {setting.dtype}, {setting.threads} thread{'s' * (setting.threads > 1)}"
    tokens = f"{setting.seq} tokens" if setting.mode == "prefill" else f"one token after {setting.seq}"
    out.print(f"{setting.mode} of {tokens}, batch {setting.batch}; {where}", style="dim")
    extra = {"archai_ms": "right", "archai_MB": "right"} if archai else {}
    made = table(
        spec="left", ms="right", interval="right", MB="right", weights="right", state="right", activations="right",
        **extra, noise="left",
    )  # fmt: skip
    for record in found:
        latency, memory = record.result["latency"], record.result["memory"]
        counted = record.result.get("archai")
        made.add_row(
            record.config["spec"].replace("[", r"\["),
            f"{1e3 * latency['seconds']:.2f}",
            f"{1e3 * latency['low']:.2f} to {1e3 * latency['high']:.2f}",
            *(f"{memory[part] / 1e6:.1f}" for part in ("peak", "weights", "state", "activations")),
            *((f"{1e3 * counted['seconds']:.2f}", f"{counted['memory'] / 1e6:.1f}") if counted else ()),
            noise(latency),
        )
    out.print(made)


def noise(latency: dict[str, Any]) -> str:
    """How far a latency can be trusted, in a few words."""
    words = f"{100 * latency['calm']:.0f} % calm, spread {100 * latency['spread']:.1f} %"
    return f"[bold yellow]noisy[/]: {words}, load {latency['load']:.1f}" if latency["noisy"] else words
