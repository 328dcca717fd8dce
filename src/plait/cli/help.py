"""Help pages that fit a terminal of 80 columns, and command-line errors as plain one-line messages."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from plait.core.errors import did_you_mean

NAMES = 30  # width of an option's names with its type; longer ones take two lines
FLAG = "<bool>"  # typer's name for the type of an option without a value


class OptionsTable(Table):
    """typer gives names, short names, their opposites and types a column each: at 80 columns it truncates names
    and leaves few characters for the explanation. Here they share one column."""

    def add_row(self, *cells: Any, **others: Any) -> None:
        if len(cells) > 3:
            if not self.columns:
                self.add_column(max_width=NAMES, overflow="fold")
                self.add_column(ratio=1)
            *names, explanation = cells
            shown = [name if isinstance(name, Text) else Text(str(name)) for name in names]
            cells = Text(" ").join(name for name in shown if name.plain and name.plain != FLAG), explanation
        super().add_row(*cells, **others)


def fit_help() -> None:
    """Patch typer so that help has two columns."""
    from typer import rich_utils

    vars(rich_utils)["Table"] = OptionsTable


def message_of(wrong: Any) -> str:
    """The error that typer would print in a box, as one line that says where to look."""
    text: str = wrong.format_message().replace("\n", " ").rstrip(". ")
    text = text[:1].lower() + text[1:] + ("" if text.endswith("?") else ".")
    if wrong.ctx is None:
        return text
    if text.startswith("no such command") and "?" not in text:
        known = wrong.ctx.command.list_commands(wrong.ctx)  # including verbs of packages, which typer does not suggest
        text += did_you_mean(text.split("'")[1], known) or f" Known: {', '.join(known)}."
    return f"{text} See: {wrong.ctx.command_path} --help"
