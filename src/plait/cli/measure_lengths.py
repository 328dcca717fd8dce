"""`plait measure SPEC --lengths …`: blocks over sequence length, as a table, a document and a figure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plait.cli.output import console, plain, print_json, table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from plait.device.lengths import BlockScaling
    from plait.device.setting import Setting
    from plait.model.architecture import Architecture


def measure_lengths(
    archs: Sequence[Architecture], given: str, setting: Setting, svg: Path | None, *, as_json: bool
) -> None:
    """Measure every distinct block of the architectures; print, and draw where asked."""
    from rich.progress import Progress

    from plait.device.lengths import distinct_blocks, measure_scaling, read_lengths
    from plait.reporting.svg import save

    lengths, blocks, errors = read_lengths(given), distinct_blocks(archs), console(stderr=True)
    with Progress(console=errors, transient=True, disable=as_json or not errors.is_terminal) as bar:
        task = bar.add_task("measuring blocks", total=len(blocks) * len(lengths))
        found = measure_scaling(blocks, lengths, setting, on_progress=lambda block, length: bar.advance(task))
    if as_json:
        shown = {name: value for name, value in setting.as_dict().items() if name != "seq"}
        print_json({"setting": shown, "lengths": list(lengths), "blocks": [one.as_dict() for one in found]})
    else:
        _print(found, lengths, setting)
    if svg is not None:  # last: a place that cannot be written to costs no results
        save(_figure(found, lengths, setting), svg)


def where(setting: Setting) -> str:
    """The machine's part of a setting, in words."""
    return f"{setting.device}, {setting.dtype}, {setting.threads} thread{'s' * (setting.threads > 1)}"


def _subtitle(setting: Setting) -> str:
    tokens = "prefill of N tokens" if setting.mode == "prefill" else "one token after N"
    return f"{tokens}, batch {setting.batch}; {where(setting)}"


def _name(one: BlockScaling, found: Sequence[BlockScaling]) -> str:
    """The layer's text; with the width where not all have the same."""
    widths = {other.block.d for other in found}
    return one.block.text if len(widths) == 1 else f"d={one.block.d} | {one.block.text}"


def _power(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _exponents(one: BlockScaling) -> str:
    counted = {"FLOPs": one.flops.whole, "mixing": one.flops.mixing}
    known = ", ".join(f"{name} {value:.2f}" for name, value in counted.items() if value is not None)
    return f"k = {one.exponent.value:.2f}" + (f" ({known})" if known else "")


def _print(found: Sequence[BlockScaling], lengths: Sequence[int], setting: Setting) -> None:
    from plait.device.lengths import upper_half

    out = console()
    out.print(f"{_subtitle(setting)}; milliseconds of one block (norm, mixer, residual)", style="dim")
    columns = {f"{length:,}": "right" for length in lengths}
    made = table(
        block="left", **columns, exponent="right", interval="right", of_FLOPs="right", of_mixing="right", noisy="left"
    )  # fmt: skip
    for one in found:
        noisy = [f"{n:,}" for n, timing in zip(lengths, one.timings, strict=True) if timing.noisy]
        made.add_row(
            plain(_name(one, found)),
            *(f"{1e3 * timing.seconds:.3f}" for timing in one.timings),
            f"{one.exponent.value:.2f}",
            f"{one.exponent.low:.2f} to {one.exponent.high:.2f}",
            _power(one.flops.whole),
            _power(one.flops.mixing),
            f"[bold yellow]{', '.join(noisy)}[/]" if noisy else "",
        )
    out.print(made)
    fitted = lengths[upper_half(lengths)]
    out.print(f"exponent k of time ~ N^k, fitted from {fitted[0]:,} to {fitted[-1]:,} tokens; beside it those of the "
              "exact FLOPs: of the whole block, and of mixing along the sequence alone", style="dim")  # fmt: skip


def _figure(found: Sequence[BlockScaling], lengths: Sequence[int], setting: Setting) -> str:
    from plait.reporting.studies import BlockLine, length_chart

    lines = [BlockLine(_name(one, found), *one.seconds_low_high(), words=_exponents(one)) for one in found]
    return length_chart(lines, lengths, title="Block latency over sequence length", below=_subtitle(setting))
