"""How a result looks in a notebook: a headline, a picture and a table, the same for every result of plait.

All text is escaped. A picture is an SVG inside an image of its own, so that neither its style nor a name in it can
reach the notebook's page.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

MOST_ROWS = 100
MOST_COLUMNS = 8  # of a single row


def card(rows: Sequence[Mapping[str, Any]], *, headline: str = "", picture: str = "") -> str:
    """HTML of these parts. Of a long table only the first rows are shown, with a line that says how many there are."""
    parts = [f"<p><b>{escape(headline)}</b></p>"] if headline else []
    if picture:
        image = b64encode(picture.encode()).decode()
        style = "width: 100%; max-width: 760px"
        parts.append(
            f'<img style="{style}" alt="{escape(headline or "picture")}" src="data:image/svg+xml;base64,{image}">'
        )
    if rows:
        parts.append(table(rows[:MOST_ROWS]))
    if len(rows) > MOST_ROWS:
        parts.append(f"<p>{MOST_ROWS} of {len(rows):,} rows; to_frame() has all.</p>")
    return "".join(parts)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """An HTML table. Columns without any value are left out; a single row of many columns is shown as two columns, the
    names and the values."""
    names = [
        name
        for name in dict.fromkeys(name for row in rows for name in row)
        if any(row.get(name) is not None for row in rows)
    ]
    if len(rows) == 1 and len(names) > MOST_COLUMNS:
        rows = [{"": name, " ": rows[0][name]} for name in names]
        names = ["", " "]
    head = "".join(f"<th>{escape(str(name))}</th>" for name in names)
    body = "".join(f"<tr>{''.join(_cell(row.get(name)) for name in names)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        text = f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
        return f'<td style="text-align: right">{text}</td>'
    return f'<td style="text-align: left">{escape("" if value is None else str(value))}</td>'
