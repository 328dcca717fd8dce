"""Drawings made of SVG elements, scales from values to pixels, and bitmaps for matrices with many cells.

Elements are written by the standard library's XML writer, so files are well-formed whatever a label contains. No
plotting library is needed.
"""

from __future__ import annotations

import base64
import math
import re
import struct
import zlib
from collections.abc import Sequence
from xml.etree import ElementTree

import numpy as np

from plait.core.units import PREFIXES

INK, PALE, GRID = "#24292f", "#6b7280", "#e5e7eb"
#: Distinguishable with any colour vision (Okabe and Ito 2008), strongest first.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
#: Sequential colour map: one hue, darker for larger values.
RAMP = ((247, 251, 255), (198, 219, 239), (107, 174, 214), (33, 113, 181), (8, 48, 107))
#: Diverging colour map: two hues that are distinguishable with any colour vision.
DIVERGING = ((179, 88, 6), (253, 208, 162), (247, 247, 247), (158, 202, 225), (8, 81, 156))
Ramp = Sequence[tuple[int, int, int]]
#: Corners of marks, in units of a circle's radius, of about its area: distinguishable without colours.
SHAPES: dict[str, Sequence[tuple[float, float]]] = {
    "square": ((-0.88, -0.88), (0.88, -0.88), (0.88, 0.88), (-0.88, 0.88)),
    "triangle": ((0, -1.25), (1.15, 0.8), (-1.15, 0.8)),
    "diamond": ((0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)),
    "wedge": ((0, 1.25), (1.15, -0.8), (-1.15, -0.8)),
}
MOST_POWERS = 9  # ticks of an axis in powers of two
CHARACTER = 6.6  # width of a character of 12-pixel text, on average
#: Characters that XML does not allow, even escaped (XML 1.0, section 2.2).
FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Drawing:
    """Shapes in the order in which they are drawn. Coordinates are pixels from the top left. Colours are any CSS
    colours: a page with light and dark themes passes variables, and no `background`."""

    def __init__(self, width: float, height: float, title: str, background: str = "#ffffff") -> None:
        self.width, self.height = width, height
        self._root = ElementTree.Element(
            "svg",
            {
                "xmlns": "http://www.w3.org/2000/svg",
                "width": _text(width),
                "height": _text(height),
                "viewBox": f"0 0 {_text(width)} {_text(height)}",
                "role": "img",
                "font-family": "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif",
            },
        )
        ElementTree.SubElement(self._root, "title").text = title
        if background:
            self.rect(0, 0, width, height, background)

    def text(
        self, x: float, y: float, words: str, *, size: float = 12, anchor: str = "start", colour: str = INK,
        bold: bool = False, turned: bool = False,
    ) -> None:  # fmt: skip
        attributes = {"x": x, "y": y, "font-size": size, "text-anchor": anchor, "fill": colour}
        if bold:
            attributes["font-weight"] = "600"
        if turned:
            attributes["transform"] = f"rotate(-90 {_text(x)} {_text(y)})"
        self._add("text", attributes).text = words

    def line(
        self, x1: float, y1: float, x2: float, y2: float, colour: str = INK, *, dashed: bool = False, width: float = 1
    ) -> None:
        attributes = {"x1": x1, "y1": y1, "x2": x2, "y2": y2, "stroke": colour, "stroke-width": width}
        self._add("line", attributes | ({"stroke-dasharray": "5 4"} if dashed else {}))

    def path(self, points: Sequence[tuple[float, float]], colour: str, *, width: float = 2) -> None:
        joined = " ".join(f"{x:.2f},{y:.2f}" for x, y in points)
        self._add("polyline", {"points": joined, "fill": "none", "stroke": colour, "stroke-width": width,
                               "stroke-linejoin": "round"})  # fmt: skip

    def mark(
        self, shape: str, x: float, y: float, radius: float, fill: str, *, stroke: str = "none", hint: str = ""
    ) -> None:
        """A circle, or one of `SHAPES`; with a hint it has a tooltip and keyboard focus."""
        place: dict[str, object] = {"cx": x, "cy": y, "r": radius}
        if shape != "circle":
            corners = " ".join(f"{x + radius * dx:.2f},{y + radius * dy:.2f}" for dx, dy in SHAPES[shape])
            place = {"points": corners}
        element = self._add("circle" if shape == "circle" else "polygon", place | {"fill": fill, "stroke": stroke})
        if hint:
            element.attrib |= {"class": "hover", "tabindex": "0", "stroke-width": "1.5"}
            ElementTree.SubElement(element, "title").text = hint

    def rect(
        self, x: float, y: float, width: float, height: float, fill: str, *, stroke: str = "none", hint: str = "",
        radius: float = 0, key: str = "",
    ) -> None:  # fmt: skip
        place = {"x": x, "y": y, "width": width, "height": height} | ({"rx": radius} if radius else {})
        element = self._add("rect", {**place, "fill": fill, "stroke": stroke, **({"data-key": key} if key else {})})
        if hint:
            ElementTree.SubElement(element, "title").text = hint

    def bitmap(self, x: float, y: float, width: float, height: float, pixels_RC3: np.ndarray) -> None:
        data = base64.b64encode(png(pixels_RC3)).decode("ascii")
        place = {"x": x, "y": y, "width": width, "height": height, "preserveAspectRatio": "none"}
        self._add("image", {**place, "image-rendering": "pixelated", "href": f"data:image/png;base64,{data}"})

    def place(self, picture: ElementTree.Element, x: float, y: float, width: float, height: float) -> None:
        """Another drawing, made with `inline`, as part of this one."""
        picture.attrib |= {"x": _text(x), "y": _text(y), "width": _text(width), "height": _text(height)}
        self._root.append(picture)

    def inline(self, css_class: str, *, hidden: bool = False) -> ElementTree.Element:
        """The drawing as an element of a page, scaled to its container; `hidden` from screen readers."""
        kept = {name: self._root.attrib[name] for name in ("viewBox", "role")}
        self._root.attrib = {**kept, "class": css_class, **({"aria-hidden": "true"} if hidden else {})}
        return self._root

    def __str__(self) -> str:
        return FORBIDDEN.sub("\ufffd", ElementTree.tostring(self._root, encoding="unicode")) + "\n"

    def _add(self, tag: str, attributes: dict[str, float | str] | dict[str, object]) -> ElementTree.Element:
        return ElementTree.SubElement(self._root, tag, {name: _text(value) for name, value in attributes.items()})


class Scale:
    """A linear or logarithmic map from values to pixels, with round ticks."""

    def __init__(self, low: float, high: float, first: float, last: float, *, log: bool = False) -> None:
        if high <= low:  # a single value is centred
            beside = max(0.5, abs(low) / 2)  # relative to the value, since adding 0.5 to a large number has no effect
            low, high = (low / 2, high * 2) if log else (low - beside, high + beside)
        self.low, self.high, self.first, self.last, self.log = low, high, first, last, log

    def __call__(self, value: float) -> float:
        low, high, at = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return self.first + (at - low) / (high - low) * (self.last - self.first)

    def ticks(self) -> list[float]:
        return _powers_of_two(self.low, self.high) if self.log else round_numbers(self.low, self.high)


def round_numbers(low: float, high: float, about: int = 6) -> list[float]:
    """Ticks within [low, high] whose distance is 1, 2 or 5 times a power of ten."""
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 12) for k in range(first, math.floor(high / step + 1e-9) + 1)]


def _powers_of_two(low: float, high: float) -> list[float]:
    powers = [2.0**k for k in range(math.ceil(math.log2(low) - 1e-9), math.floor(math.log2(high) + 1e-9) + 1)]
    return powers[:: max(1, math.ceil(len(powers) / MOST_POWERS))]


def decades(low: float, high: float) -> list[float]:
    """Round numbers for a logarithmic axis: powers of ten, with 2 and 5 times them where there are few."""
    steps = (1, 2, 5) if high / low < 10**2.5 else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [value for power in powers for step in steps if low <= (value := step * 10.0**power) <= high]


def label(value: float, least: float = 10_000) -> str:
    """A number for an axis: 0.25, 512, 16k, 1.5M; beyond 1e15 as 1e18. Below `least` it has no prefix."""
    if abs(value) < least:
        return f"{value:g}"
    if abs(value) >= 1e15:
        return f"{value:g}".replace("e+", "e")
    size, prefix = next((size, prefix) for size, prefix in PREFIXES if abs(value) >= size)
    return f"{value / size:g}{prefix}"


def labels(values: Sequence[float]) -> list[str]:
    """Tick labels of one axis, all written alike: 1k, 2k … 20k, but 1000, 2000 … where no number is longer; as powers
    of ten where one is 1e15 or more."""
    largest = max((abs(value) for value in values), default=0.0)
    if largest >= 1e15:
        return [f"{value:.0e}".replace("e+", "e") if value else "0" for value in values]
    return [label(value, 1_000 if largest >= 10_000 else 10_000) for value in values]


def cut(text: str, most: int) -> str:
    """The text, truncated to so many characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def shade(value: float, ramp: Ramp = RAMP) -> str:
    """The colour of a value in [0, 1]; pale grey for NaN."""
    if not math.isfinite(value):
        return "#d1d5db"
    red, green, blue = shades(np.array([value]), ramp)[0]
    return f"#{red:02x}{green:02x}{blue:02x}"


def shades(values: np.ndarray, ramp: Ramp = RAMP) -> np.ndarray:
    """The colours of values in [0, 1], with one more axis of red, green and blue bytes."""
    at = np.clip(np.nan_to_num(values), 0.0, 1.0) * (len(ramp) - 1)
    anchors = np.arange(len(ramp))
    channels = [np.interp(at, anchors, [colour[c] for colour in ramp]) for c in range(3)]
    colours: np.ndarray = np.stack(channels, axis=-1).round().astype(np.uint8)
    return colours


def png(pixels_RC3: np.ndarray) -> bytes:
    """A minimal PNG file: eight-bit RGB, each row unfiltered (PNG specification, 2nd edition)."""
    rows, columns, _ = pixels_RC3.shape
    raw = b"".join(b"\0" + row.tobytes() for row in np.ascontiguousarray(pixels_RC3))
    header = struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b""))
    body = b"".join(struct.pack(">I", len(d)) + kind + d + struct.pack(">I", zlib.crc32(kind + d)) for kind, d in parts)
    return b"\x89PNG\r\n\x1a\n" + body


def _text(value: object) -> str:
    """An attribute's text; numbers have two decimals."""
    if isinstance(value, (int, float)):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return str(value)
