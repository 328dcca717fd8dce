"""A diagram of an architecture: its blocks from input to output, repeats folded, with each one's share of parameters
and FLOPs. A self-contained SVG document with numbers as tooltips.

After Figure 5 of the PAR Transformer (Mandava et al. 2020, arXiv:2009.04534), for any spec.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from plait.core.units import percent, short
from plait.model.cost import ModelCost
from plait.reporting.svg import CHARACTER, COLOURS, GRID, INK, PALE, Drawing, cut
from plait.spec.nodes import Repeat, compress

#: In order of first occurrence of mixers; none is white or the grey of embedding and head.
MIXER_COLOURS = (*COLOURS[:6], "#7353ba", "#8c564b", "#5b6770", "#bcbd22")
GREY = "#9ca3af"
LEFT, BOX, GAP, BAR, ROOM = 34.0, 300.0, 26.0, 150.0, 118.0
NARROW_LEFT, NARROW_BOX = 8.0, 258.0  # fits a phone without scaling
ROW, BETWEEN, PAD, MARGIN = 34.0, 14.0, 12.0, 26.0
INDENT, OUTDENT = 26.0, 5.0  # of the frame around a repeated group, left and right
TITLE, FOOT = 62.0, 28.0
TINT = 0.86  # fraction of white in the fill of a box
CARD = 3.0  # offset of each card in a stack
OUTPUT_PARTS = ("final norm", "output transform", "output")


@dataclass(frozen=True)
class Box:
    """A block, repeated `count` times in a row; `copies` in total, including repeated groups."""

    text: str
    mixer: str
    count: int
    copies: int
    params: int
    flops: int


@dataclass(frozen=True)
class Group:
    """A sequence of boxes and groups, repeated `count` times."""

    items: tuple[Box | Group, ...]
    count: int


def diagram(cost: ModelCost, title: str = "", *, narrow: bool = False) -> str:
    """Draw a model, with costs at the cost's sequence length; the default title is the spec. `narrow`: without title
    and bars, with the shares inside the boxes."""
    before, groups, after = (embedding_boxes(cost), fold(cost), output_boxes(cost))
    depth = _depth(groups)
    left, box = (NARROW_LEFT, NARROW_BOX) if narrow else (LEFT, BOX)
    x = left + INDENT * depth
    bars = x + box + OUTDENT * depth + (0 if narrow else GAP)
    width = bars + (PAD + left if narrow else 2 * (BAR + ROOM))
    legend = _legend_rows(cost, width - 2 * left)
    head = 18.0 if narrow else TITLE
    top = head + 22 * len(legend) + 22
    height = top + _height(before) + _height(groups) + _height(after) + 2 * MARGIN + (PAD if narrow else FOOT)
    drawing = Drawing(width, height, cost.arch.text)
    page = _Page(drawing, cost, x, box, bars, [*before, *leaves(groups), *after], narrow)
    if not narrow:
        page.head(title or cost.arch.text)
        drawing.text(LEFT, height - 12, f"hash {cost.arch.hash}", size=10, colour=PALE)
    page.legend(legend, left, head, top - 10)
    y = top
    for items in (before, groups, after):
        if y > top:
            page.arrow(y - MARGIN, y)
        y = page.draw(items, y, depth) + MARGIN
    return str(drawing)


def fold(cost: ModelCost) -> tuple[Box | Group, ...]:
    """The blocks, grouped as in the canonical text. A run of equal blocks is one box."""
    texts = [str(options.to_layer()) for options in cost.arch.layers]
    known = {
        text: Box(text, options.name, 1, 1, int(layer.total_params + norm), int(layer.total_flops))
        for text, options, layer, norm in zip(texts, cost.arch.layers, cost.layers, cost.norms, strict=True)
    }
    return _folded(compress(texts), known, 1)


def leaves(items: Sequence[Box | Group]) -> Iterator[Box]:
    for item in items:
        if isinstance(item, Box):
            yield item
        else:
            yield from leaves(item.items)


def mixer_colours(cost: ModelCost) -> dict[str, str]:
    """Mixer → colour; embedding, norms and output have the empty name."""
    names = dict.fromkeys(options.name for options in cost.arch.layers)
    return {"": GREY, **{name: MIXER_COLOURS[i % len(MIXER_COLOURS)] for i, name in enumerate(names)}}


def _folded(nodes: Sequence[str | Repeat[str]], known: dict[str, Box], times: int) -> tuple[Box | Group, ...]:
    boxes: list[Box | Group] = []
    for node in nodes:
        if isinstance(node, str):
            boxes.append(_counted(known[node], 1, times))
        elif len(node.items) == 1 and isinstance(node.items[0], str):
            boxes.append(_counted(known[node.items[0]], node.count, times))
        else:
            boxes.append(Group(_folded(node.items, known, times * node.count), node.count))
    return tuple(boxes)


def _counted(box: Box, count: int, times: int) -> Box:
    return Box(box.text, box.mixer, count, count * times, box.params, box.flops)


def embedding_boxes(cost: ModelCost) -> tuple[Box, ...]:
    """The boxes before the blocks: the embedding, and parameters that blocks share."""
    params = sum(number for part, number in cost.parts.items() if part not in OUTPUT_PARTS)
    first = Box("embedding", "", 1, 1, params, cost.input_flops)
    if not cost.shared:
        return (first,)
    return first, Box(f"shared: {', '.join(cost.shared)}", "", 1, 1, sum(cost.shared.values()), 0)


def output_boxes(cost: ModelCost) -> tuple[Box, ...]:
    params = sum(number for part, number in cost.parts.items() if part in OUTPUT_PARTS)
    return (Box("output", "", 1, 1, params, cost.output_flops),)


def _depth(items: Sequence[Box | Group]) -> int:
    return max((1 + _depth(item.items) for item in items if isinstance(item, Group)), default=0)


def _height(items: Sequence[Box | Group]) -> float:
    inner = [ROW if isinstance(item, Box) else _height(item.items) + 2 * PAD for item in items]
    return sum(inner) + BETWEEN * (len(inner) - 1)


def _legend_rows(cost: ModelCost, width: float) -> list[list[tuple[float, str, str]]]:
    """(offset, mixer, label) of every mixer, in rows that fit the width."""
    rows: list[list[tuple[float, str, str]]] = [[]]
    at = 0.0
    for name in dict.fromkeys(options.name for options in cost.arch.layers):
        of = [options for options in cost.arch.layers if options.name == name]
        words = f"{name}: {len(of)} of {len(cost.arch.layers)} blocks, {of[0].kind}"
        needed = 44 + CHARACTER * len(words)
        if rows[-1] and at + needed > width:
            rows.append([])
            at = 0.0
        rows[-1].append((at, name, words))
        at += needed
    return rows


class _Page:
    """Draws boxes and frames from top to bottom, each box with its bars at the right."""

    def __init__(
        self, drawing: Drawing, cost: ModelCost, x: float, box: float, bars: float, boxes: Sequence[Box], narrow: bool
    ) -> None:
        self.drawing, self.cost, self.x, self.box, self.bars, self.narrow = drawing, cost, x, box, bars, narrow
        self.colours = mixer_colours(cost)
        #: For each kind of bar: name, total, and the largest value, which has a full bar.
        self.totals = (
            ("parameters", cost.total_params, max(box.params * box.copies for box in boxes)),
            ("FLOPs", cost.flops, max(box.flops * box.copies for box in boxes)),
        )

    def head(self, title: str) -> None:
        cost, header = self.cost, self.cost.arch.header
        self.drawing.text(LEFT, 28, cut(title, int((self.drawing.width - 2 * LEFT) / 9.4)), size=15, bold=True)
        sums = f"{short(cost.total_params)} parameters, {short(cost.flops, 'FLOP')} forward for {cost.seq:,} new tokens"
        after = f" after {cost.memory:,}" if cost.memory else ""
        words = f"{header.kind}, d = {header.d}, {len(cost.arch.layers)} blocks; {sums}{after}"
        self.drawing.text(LEFT, 47, words, colour=PALE)

    def legend(self, rows: list[list[tuple[float, str, str]]], left: float, top: float, y: float) -> None:
        for number, row in enumerate(rows):
            for offset, name, text in row:
                self.drawing.rect(left + offset, top + 2 + 22 * number, 12, 12, self.colours[name], radius=3)
                self.drawing.text(left + offset + 18, top + 12 + 22 * number, text)
        if self.narrow:
            words = "fraction of parameters · of FLOPs"
            self.drawing.text(self.x + self.box, y, words, size=11, colour=PALE, anchor="end")
            return
        for number, (name, _, _) in enumerate(self.totals):
            self.drawing.text(self._bar(number), y, f"share of {name}", size=11, colour=PALE)

    def arrow(self, top: float, bottom: float) -> None:
        middle = self.x + self.box / 2
        self.drawing.line(middle, top + 5, middle, bottom - 8, PALE)
        self.drawing.mark("wedge", middle, bottom - 8, 3.5, PALE)

    def draw(self, items: Sequence[Box | Group], y: float, room: int) -> float:
        """Draw items from y downwards and return the y of their end; `room` is how many nested frames still fit around
        them."""
        for number, item in enumerate(items):
            if number:
                y += BETWEEN
            y = self._box(item, y) if isinstance(item, Box) else self._group(item, y, room)
        return y

    def _group(self, group: Group, y: float, room: int) -> float:
        height, left = _height([group]), self.x - INDENT * room
        right = self.x + self.box + PAD + OUTDENT * (room - 1)
        self.drawing.rect(left, y, right - left, height, "none", stroke=PALE, radius=10)
        self.drawing.text(left + INDENT / 2, y + height / 2 + 4, f"×{group.count}", anchor="middle", bold=True)
        self.draw(group.items, y + PAD, room - 1)
        return y + height

    def _box(self, box: Box, y: float) -> float:
        colour = self.colours[box.mixer]
        for card in range(min(box.count - 1, 2), 0, -1):
            place = self.x + CARD * card, y + CARD * card
            self.drawing.rect(*place, self.box, ROW, tint(colour), stroke=colour, radius=7)
        self.drawing.rect(self.x, y, self.box, ROW, tint(colour), stroke=colour, radius=7, hint=_hint(box))
        self.drawing.rect(self.x, y + 7, 4, ROW - 14, colour, radius=2)
        # A parallel layer, `(attn[heads=8] | mamba2)`, is shown as written.
        name, _, options = (box.text, "", "") if box.text.startswith("(") else box.text.partition("[")
        times = f"×{box.count}" if box.count > 1 else ""
        beside = f" {times}" if times and self.narrow else ""
        self.drawing.text(self.x + 14, y + (15 if options else 21), name + beside, bold=True, size=12.5)
        if options:
            listed = cut(options.removesuffix("]").replace(",", ", "), 24 if self.narrow else 42)
            self.drawing.text(self.x + 14, y + 28, listed, size=11 if self.narrow else 10.5, colour=PALE)
        numbers = (box.params * box.copies, box.flops * box.copies)
        if self.narrow:
            shares = [_percent(value / total) for value, (_, total, _) in zip(numbers, self.totals, strict=True)]
            self.drawing.text(self.x + self.box - 8, y + 21, " · ".join(shares), size=11, anchor="end")
            return y + ROW
        if times:
            self.drawing.text(self.x + self.box - 12, y + 21, times, anchor="end", bold=True)
        for number, value in enumerate(numbers):
            self._share(number, value, y, colour)
        return y + ROW

    def _share(self, number: int, value: int, y: float, colour: str) -> None:
        name, total, most = self.totals[number]
        x, share = self._bar(number), value / total
        self.drawing.rect(x, y + 11, BAR, 12, GRID, radius=3)
        if value:
            hint = f"{value:,} {name}, {100 * share:.3g} %"
            self.drawing.rect(x, y + 11, max(1.5, BAR * value / most), 12, colour, radius=3, hint=hint)
        words = f"{_percent(share)} ({short(value)})" if value else "–"
        self.drawing.text(x + BAR + 8, y + 21, words, size=11, colour=INK if value else PALE)

    def _bar(self, number: int) -> float:
        return self.bars + number * (BAR + ROOM)


def _hint(box: Box) -> str:
    numbers = f"{box.params:,} parameters, {short(box.flops, 'FLOP')}"
    return f"{box.copies} × {box.text}\neach {numbers}" if box.mixer else f"{box.text}\n{numbers}"


def _percent(share: float) -> str:
    return "<0.1 %" if share < 0.0005 else percent(share, 1)


def tint(colour: str) -> str:
    """A pale tint of the colour, on which text can be read."""
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(255 * TINT + part * (1 - TINT)):02x}" for part in parts)
