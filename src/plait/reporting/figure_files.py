"""Figures and numbers of records as files: SVG, CSV, and PNG where CairoSVG or a browser is installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.etree import ElementTree

from plait.core.errors import UserError
from plait.core.files import atomic_write, write_text, writing
from plait.records.export import write_rows
from plait.records.record import Record
from plait.reporting.views import Context, view_of

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PATIENCE = 60.0  # timeout per image in seconds
SCALE = 2  # image pixels per CSS pixel
NEEDED = "PNG needs `pip install cairosvg` or Chromium (`apt install chromium`); SVG needs neither."


def write_figures(
    records: Sequence[Record], context: Context, *, svg: str | Path | None, png: str | Path | None
) -> list[Path]:
    """Write every figure of every record into the given folders; returns the paths."""
    written: list[Path] = []
    if svg is None and png is None:
        return written
    for record in records:
        for name, draw in view_of(record, context).figures.items():
            drawn, file = draw(), f"{file_name(record)}-{name}"
            if svg is not None:
                written.append(Path(svg) / f"{file}.svg")
                write_text(written[-1], drawn)
            if png is not None:
                written.append(Path(png) / f"{file}.png")
                _save_png(drawn, written[-1])
    return written


def write_tables(records: Sequence[Record], context: Context, folder: str | Path | None) -> list[Path]:
    """Write the numbers of every record as CSV; returns the paths."""
    written: list[Path] = []
    for record in records if folder is not None else ():
        rows = view_of(record, context).rows
        if rows:
            written.append(Path(str(folder)) / f"{file_name(record)}.csv")
            write_rows([dict(row) for row in rows], written[-1])
    return written


def file_name(record: Record) -> str:
    """The kind, with anything but letters, digits and hyphens replaced, and the key: user-defined names are never
    part of a path."""
    return f"{re.sub(r'[^A-Za-z0-9-]+', '-', record.kind)[:40]}-{record.key[:10]}"


def require_png() -> None:
    """Raise a `UserError` now if PNG files cannot be drawn here."""
    _drawer()


def _drawer() -> Callable[[str, Path], None]:
    try:
        import cairosvg  # noqa: F401
    except (ImportError, OSError):  # its library may be missing
        browser = next((program for name in BROWSERS if (program := shutil.which(name))), None)
        if browser is None:
            raise UserError(NEEDED) from None
        return lambda drawn, path: _by_browser(browser, drawn, path)
    return _by_cairo


def _save_png(drawn: str, path: Path) -> None:
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as draft:
            _drawer()(drawn, draft)


def _by_cairo(drawn: str, path: Path) -> None:
    import cairosvg

    cairosvg.svg2png(bytestring=drawn.encode(), write_to=str(path), scale=SCALE)


def _by_browser(browser: str, drawn: str, path: Path) -> None:
    """With a headless browser in a temporary profile; the drawing loads nothing from outside."""
    root = ElementTree.fromstring(drawn)
    width, height = (int(float(root.get(side, "800"))) + 1 for side in ("width", "height"))
    with tempfile.TemporaryDirectory() as folder:
        page, picture = Path(folder) / "figure.html", Path(folder) / "figure.png"
        style = "<style>html,body{margin:0;background:#fff;overflow:hidden}svg{display:block}</style>"
        page.write_text(f"<!DOCTYPE html><meta charset=utf-8>{style}{drawn}", encoding="utf-8")
        root_only = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium refuses to start as root with it
        asked = [
            browser, "--headless", *root_only, "--disable-gpu", "--hide-scrollbars",
            f"--user-data-dir={folder}/profile", f"--window-size={width},{height}",
            f"--force-device-scale-factor={SCALE}", f"--screenshot={picture}", page.as_uri(),
        ]  # fmt: skip
        try:
            ran = subprocess.run(asked, capture_output=True, timeout=PATIENCE, check=False)
        except subprocess.TimeoutExpired:
            raise UserError(f"{browser} did not draw the figure within {PATIENCE:.0f} seconds. {NEEDED}") from None
        if ran.returncode or not picture.exists():
            raise UserError(f"{browser} could not draw the figure. {NEEDED}")
        shutil.copyfile(picture, path)
