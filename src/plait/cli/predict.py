"""`plait predict SPEC…`: latency and memory on a profiled machine, without running anything."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plait.cli.options import AsJson, Mixers
from plait.cli.output import console, plain, print_json, table

if TYPE_CHECKING:
    from plait.device.predictor import Prediction


def command(
    specs: Annotated[
        list[str], typer.Argument(help="Spec texts, presets' names, or files; my_mixer.py beside them.", metavar="SPEC")
    ],
    profile: Annotated[Path, typer.Option(help="A file that `plait profile` wrote.")],
    seq: Annotated[int, typer.Option(min=1, help="Tokens: new ones in prefill, held ones in decode.")] = 192,
    batch: Annotated[int, typer.Option(min=1, help="Sequences at once.")] = 1,
    mode: Annotated[str, typer.Option(help="prefill: all tokens at once; decode: one token after them.")] = "prefill",
    anywhere: Annotated[bool, typer.Option("--anywhere", help="Take a profile of another machine.")] = False,
    mixers: Mixers = None,
    as_json: AsJson = False,
) -> None:
    """Predict latency and peak memory from a profile, with 95 % intervals."""
    from plait.device.predictor import Predictor
    from plait.device.profile import Profile
    from plait.device.quantities import quantity
    from plait.device.setting import Setting
    from plait.model.user_mixers import read_architectures

    archs = read_architectures(specs)
    read = Profile.load(profile, anywhere=anywhere)
    predictor = Predictor(read, Setting(mode=mode, seq=seq, batch=batch))
    found = {quantity(name): each for name, each in predictor.predict(archs).items()}
    rows: list[dict[str, Any]] = [
        {"spec": arch.text, **{of.column: _entry(each, at, of.scale) for of, each in found.items()}}
        for at, arch in enumerate(archs)
    ]
    if as_json:
        print_json({"setting": predictor.setting.as_dict(), "profile": read.describe(), "models": rows})
        return
    made = table(spec="left", **{name: "right" for of in found for name in (of.unit, f"{of.unit}_interval")})
    for row in rows:
        made.add_row(plain(str(row["spec"])), *(cell for of in found for cell in _cells(row[of.column])))
    console().print(made)


def _entry(prediction: Prediction, at: int, scale: float) -> dict[str, Any]:
    mean, low, high = (scale * float(column[at]) for column in (prediction.mean, prediction.low, prediction.high))
    return {"mean": mean, "interval": [low, high]}


def _cells(entry: dict[str, Any]) -> tuple[str, str]:
    low, high = entry["interval"]
    return f"{entry['mean']:.1f}", f"{low:.1f} to {high:.1f}"
