"""`plait predict SPEC…`: latency and memory on a profiled machine, without running anything."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from plait.cli.options import AsJson, Mixers
from plait.cli.output import console, plain, print_json, table


def command(
    specs: Annotated[
        list[str], typer.Argument(help="Spec texts, presets' names, or files; my_mixer.py beside them.", metavar="SPEC")
    ],
    profile: Annotated[Path, typer.Option(help="A file that `plait profile` wrote.")],
    seq: Annotated[
        int, typer.Option("--seq-len", "--seq", min=1, help="Tokens: new ones in prefill, held ones in decode.")
    ] = 192,
    batch: Annotated[int, typer.Option(min=1, help="Sequences at once.")] = 1,
    mode: Annotated[str, typer.Option(help="prefill: all tokens at once; decode: one token after them.")] = "prefill",
    anywhere: Annotated[bool, typer.Option("--anywhere", help="Take a profile of another machine.")] = False,
    mixers: Mixers = None,
    as_json: AsJson = False,
) -> None:
    """Predict latency and peak memory from a profile, with 95 % intervals."""
    from plait.api.measure import predict
    from plait.device.quantities import in_rows

    found = predict(specs, profile, seq_len=seq, batch=batch, mode=mode, anywhere=anywhere, mixers=mixers or ())
    if as_json:
        print_json(found.as_dict())
        return
    shown = in_rows(found.rows()).values()
    made = table(spec="left", **{name: "right" for of in shown for name in (of.unit, f"{of.unit}_interval")})
    for model in found.models:
        estimates = [model.quantities[of.column] for of in shown]
        cells = [(f"{one.mean:.1f}", "{:.1f} to {:.1f}".format(*one.interval)) for one in estimates]
        made.add_row(plain(model.spec), *(cell for both in cells for cell in both))
    console().print(made)
