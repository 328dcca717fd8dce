"""The page of `verdict.py`: the results of the backtest as tables, and their limitations."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from backtest import NEAR

from plait.analysis.forecast import count

OTHERS = 4  # methods other than the default are evaluated on every fourth set


def page(found: Mapping[str, Any]) -> str:
    def percent(x: float, digits: int = 1) -> str:
        return f"{100 * x:.{digits}f}"

    lines = [
        "# Is the verdict right? Races replayed on complete learning curves",
        "",
        f"`python benchmarks/verdict.py`, {found['date']}, table {found['table']}: "
        + ", ".join(f"{text} ({n} architectures)" for text, n in found["texts"].items())
        + f", {found['sets']} sets of {found['size']} candidates per text (draw {found['draw']}; every "
        f"{OTHERS}th for ways other than library and {found['default'][0]}), at most {percent(found['limit'], 0)} % of "
        "the cost of training all to the end (branches of "
        f"{percent(found['decay'], 0)} % of each budget counted), one seed each; {found['seconds']:.0f} s.",
        "",
        f"Regret: the pick's loss above the best one's. Near: regret at most {NEAR} of the noise between seeds.",
        *reached(found),
    ]
    titles = TITLES
    head = ["extrapolation", "policy", "Spearman", "median regret, %", "mean regret, %", "near, %", "best picked, %"]
    for key, title in titles.items():
        if not found.get(key):
            continue
        rows = []
        for row in found[key]:
            s = row["summary"]
            rows.append(
                [row["way"], row["policy"], f"{s['spearman']:.2f}", percent(s["regret"], 2),
                 percent(s["mean_regret"], 2), percent(s["near"], 0), percent(s["right"], 0),
                 percent(s["cost"]), percent(s["held"], 0), f"{s['rounds']:.1f}"]
            )  # fmt: skip
        lines += section(f"Races, {title}", [*head, "cost, %", "90 % intervals hold, %", "rounds"], rows)
    rows = [
        [s["signal"], f"{s['spearman']:.2f}", percent(s["regret"], 2), percent(s["mean_regret"], 2),
         percent(s["near"], 0), percent(s["cost"])]
        for s in found["signals"]
    ]  # fmt: skip
    lines += section("Signals without a race", ["signal", *head[2:6], "cost, %"], rows)
    way, policy = found["default"]
    rows = []
    for row in found["limits"]:
        s = row["summary"]
        rows.append(
            [percent(row["limit"], 0), percent(s["cost"]), f"{s['spearman']:.2f}", percent(s["regret"], 2),
             percent(s["near"], 0), percent(s["held"], 0)]
        )  # fmt: skip
    head = ["limit, %", "cost, %", "Spearman", "median regret, %", "near, %", "intervals hold, %"]
    lines += section(f"{way}, {policy}: more or less cost", head, rows)
    for key, title in titles.items():
        if key in found["reliability"]:
            rows = [
                [f"{r['low']:g}–{r['high']:g}", f"{r['forecasts']:.0f}", percent(r["said"]), percent(r["was"]),
                 percent(r["error"])]
                for r in found["reliability"][key]
            ]  # fmt: skip
            head = [
                "P(best)",
                "forecasts",
                "mean said, %",
                "was best, %",
                "± (one standard error, winners drawn again)",
            ]
            lines += section(f"P(best) of {way}, {policy}, {title}: is it what it says?", head, rows)
    for key, title in titles.items():
        if key in found["reach"]:
            rows = [
                [f"{r['ratio']:g}", percent(r["cost"]), f"{r['spearman']:.2f}", percent(r["near"], 0),
                 percent(r["error"]), percent(r["width"]), percent(r["held"], 0)]
                for r in found["reach"][key]
            ]  # fmt: skip
            head = ["end / last observed", "cost, %", "Spearman", "near, %", "median error, %",
                    "90 % intervals: width, %", "hold, %"]  # fmt: skip
            lines += section(f"The same knowledge, all trained to a part of the end ({way}), {title}", head, rows)
    rows = [
        [text, count(r["tokens"]), percent(r["noise"], 2), percent(r["common"], 0), percent(r["spread"], 2)]
        for text, each in found["seeds"].items()
        for r in each
    ]
    head = ["text", "tokens", "between seeds, %", "common to all, % of its variance", "between architectures, %"]
    lines += section("Noise, relative", head, rows)
    lines += ["", "## Constants, fitted on everything", "", "```", json.dumps(found["calibration"], indent=1), "```"]
    return "\n".join(lines) + "\n"


TITLES = {
    "by_architecture": "nothing known of the architectures asked about",
    "by_text": "nothing known of the text",
    "by_both": "nothing known of the text, nor of the architectures",
}
BELIEF = """
Limitations. In every fold, the constants, covariances, width calibration and library were fitted without the test
architectures or texts, and the sets were drawn with a seed that was not used for tuning. But the form of the model
(traits, kernel, prior widths, the score of a screening, the variation of mean curves between texts) and the policy were
chosen after looking at this same table, on sets drawn with other seeds. There are three texts, one model size (0.8 M
parameters), and overlapping sets of 8: only 12 to 14 architectures ever win, so the standard error of a proportion is
about 5 percentage points however many sets are drawn. The truth is the mean of four seeds (on docs two for four of the
architectures); a race observes one of them. The noise is the root mean square, over architectures, of the standard
deviation between seeds; one architecture (fox), whose loss drops late with some seeds, makes it large.

If the text is unknown, so is the shape of its mean curve: forecasts from a library of two texts overestimate or
underestimate all losses of the third by 3 to 10 %. The variance of mean curves between texts was estimated from these
three; 90 % intervals cover less on docs than on the other two. If the text is known, the library's mean curve of that
text is used. Differences between candidates and P(best) are more certain than losses.

Screening: before the race, every candidate is trained for all of the steps with a sixteenth of the batch, on text of
which every second piece is copied. Its score (the loss of bytes that repeat the context, on a robust scale for each
text) is one more variable of the library. Its cost (6.2 %) is included in the cost here, and after it all candidates
train to only one rung. The race observes one seed of each screening, the library has the mean of two or three. All
races use the table's learning rates: a search of rates, which races of this length cannot afford at a tenth of the
cost, is not counted.

Where the selection falls short: the best few candidates lie within 1 or 2 % of each other, and screenings rank
attention with shifted keys and values (attn-shift) too high, since it copies well and early. A second seed of the
screenings changes nothing, and what the race trains after the screening changes little.
""".strip().split("\n")


def reached(found: Mapping[str, Any]) -> list[str]:
    """The default's results, next to the targets and to upper bounds: all candidates trained to the end with one seed,
    and to a quarter and a half with the same prior knowledge."""
    folds = {"by_architecture": "architectures unknown", "by_text": "text unknown", "by_both": "both unknown"}
    folds = {key: title for key, title in folds.items() if found.get(key)}
    runs = [
        next(r["summary"] for r in found[key] if [r["way"], r["policy"]] == list(found["default"])) for key in folds
    ]
    wanted: list[tuple[str, str, str, float, int, Callable[[float], bool]]] = [
        ("cost, % of training all to the end", "≤ 10", "cost", 100, 1, lambda x: x <= 0.1),
        ("median regret, % of the loss", "≤ 1", "regret", 100, 2, lambda x: x <= 0.01),
        ("sets with regret ≤ 0.3 of the noise, %", "≥ 80", "near", 100, 1, lambda x: x >= 0.8),
        ("Spearman with the final ranking", "≥ 0.85", "spearman", 1, 2, lambda x: x >= 0.85),
        ("90 % intervals hold the truth, %", "85–95", "held", 100, 0, lambda x: 0.85 <= x <= 0.95),
    ]
    rows = []
    for title, asked, key, factor, digits, holds in wanted:
        cells = [(f"{factor * run[key]:.{digits}f}", holds(run[key])) for run in runs]
        rows.append([title, asked, *(cell if fine else f"**{cell}**" for cell, fine in cells)])
    lines = section(f"What is reached, by {', '.join(found['default'])}", ["", "asked for", *folds.values()], rows)
    last = next(row for row in reversed(found["signals"]) if row["signal"].startswith("loss after"))
    rows = [["to the end, nothing else known", "100.0", f"{last['spearman']:.2f}", f"{100 * last['near']:.0f}"]]
    if again := found.get("between_seeds"):
        title = "to the end, judged by another seed"
        rows.append([title, "100.0", f"{again['spearman']:.2f}", f"{100 * again['near']:.0f}"])
    for key, title in folds.items():
        for row in found["reach"][key][:2]:
            rows.append(
                [f"to 1/{row['ratio']:g}, {title}", f"{100 * row['cost']:.1f}", f"{row['spearman']:.2f}",
                 f"{100 * row['near']:.0f}"]
            )  # fmt: skip
    head = ["everybody trained, one seed", "cost, %", "Spearman", "near, %"]
    could = section("What could be: the same knowledge, and more training than is allowed", head, rows)
    return [*lines, "", *BELIEF, *could]


def section(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    align = ["---:" if any(c.isdigit() for c in cell) else "---" for cell in (rows[0] if rows else head)]
    table = [head, align, *rows]
    return ["", f"## {title}", "", *("| " + " | ".join(row) + " |" for row in table)]


def kept_out(path: Path, found: Mapping[str, Any]) -> None:
    path.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    path.write_text(page(found), encoding="utf-8")
