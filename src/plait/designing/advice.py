"""The advice of a design: which model to take and why, as a headline and short points with a label each, computed from
the document's numbers alone.

The rule: of the models measured within every limit, take the one with the lowest expected regret (loss above the best)
at the stated training budget, according to the race on the user's text. The probe reports skills and does not influence
the choice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from plait.analysis.forecast import SO_FEW_STEPS, count
from plait.core.units import listed, percent, probability, short
from plait.designing.document import DesignDocument, Row
from plait.device.quantities import Quantity, quantity
from plait.probing.verdict import SummaryRow

RULE = (
    "Of the models measured within every limit, the one whose loss at the training budget is expected to be closest to "
    "the best one's, by a race on the text: all candidates start, each learning curve is extrapolated to the budget "
    "with its uncertainty, and training continues where it is most informative."
)
ALIKE = 0.02  # relative difference below which sizes and times count as equal
TIGHT = 0.9  # a limit is binding if the pick may use more than this fraction of it
NEARLY_AS_LONG = 0.1  # relative difference in tokens below which a training is compared with its forecast
CUT = 0.5  # fraction of the probe's steps below which its scores are called provisional


def advice_points(document: DesignDocument) -> list[str]:
    """The headline, then points, each with its label: `Limits: latency 19 of 20 ms …`."""
    said = {label: say(document) for label, say in POINTS.items()}
    return [_headline(document), *(f"{label}: {text}." for label, text in said.items() if text)]


def labelled(point: str) -> tuple[str, str]:
    """A point's label, empty for designs of earlier versions, and its text."""
    label, _, text = point.partition(": ")
    return (label, text) if label in POINTS else ("", point)


def rivals(d: DesignDocument) -> list[str]:
    """The candidates that the race cannot distinguish from the pick."""
    return [name for name in d["not_distinguishable"] if name != d["pick"]["pattern"]]


def _headline(d: DesignDocument) -> str:
    pick, raced, ties = d["pick"]["pattern"], _raced(d), rivals(d)
    if len(raced) == 1:
        return f"Take {pick}: no other model met the limits."
    sure = f"P(best) {probability(raced[pick]['p_best'])}"
    if len(ties) == len(raced) - 1:
        others = "any of the others" if len(ties) > 1 else ties[0]
        return f"Take {pick} ({sure}), though this race cannot distinguish it from {others}."
    if ties:
        return f"Take {pick}: {sure} of {len(raced)} candidates; {listed(ties)} cannot be ruled out."
    return f"Take {pick}: {sure} of {len(raced)} candidates, better than every other."


def _why(d: DesignDocument) -> str:
    mine = _raced(d)[d["pick"]["pattern"]]
    if mine["loss"] is None:
        return "its training in the race diverged, as did all others"
    at = f"{count(d['budget']['spoken_for'])} tokens of {d['config']['data']}"
    if seen := _tokens_of_others(d):
        at += f" (in the same {d['budget']['stated']} the others see {count(min(seen))} to {count(max(seen))})"
    if not mine["interval"]:
        return f"the lowest forecast, about {mine['loss']:.2f} nats per token after {at}, which may be far off"
    return f"forecast to reach {mine['loss']:.3f} nats per token{_range(mine['interval'])} after {at}"


def _rejected(d: DesignDocument) -> str:
    pairs = [pair for pair in d["race"]["paired"] if pair["verdict"] == pair["a"]]
    return _above(pairs) if pairs else ""  # the headline already says that none is worse


def _undecided(d: DesignDocument) -> str:
    """The others, and why those stay whose interval alone would rule them out."""
    pairs = [pair for pair in d["race"]["paired"] if pair["verdict"] != pair["a"]]
    if not any(pair["interval"] and pair["interval"][1] < 0 for pair in pairs):
        return _above(pairs) if pairs else ""
    if SO_FEW_STEPS in d["race"]["verdict"]:  # of designs of earlier versions; today these have no intervals
        return f"{_above(pairs)}; such intervals are too narrow, so nothing is ruled out by them"
    why = "not every interval above zero rules out, as several would be together or by less than the noise"
    return f"{_above(pairs)}; {why}"


def _above(pairs: Sequence[Row]) -> str:
    """By how much the losses of others are above the pick's, the closest first."""
    finite = [pair for pair in pairs if pair["difference"] is not None]
    said = [
        f"{pair['b']} {-pair['difference']:+.3f} nats{_range(_negated(pair['interval']))}"
        for pair in sorted(finite, key=lambda pair: -pair["difference"])
    ]
    return listed([*said, *(f"{pair['b']} (diverged)" for pair in pairs if pair["difference"] is None)])


def _caution(d: DesignDocument) -> str:
    reasons = []
    if d["budget"]["spoken_for"] < 0.99 * d["budget"]["tokens"]:
        reasons.append(
            f"the budget, {count(d['budget']['tokens'])} tokens, is beyond the range of this race's forecasts"
        )
    return "; ".join([*reasons, *d["race"].get("notes", [])])


def _screening(d: DesignDocument) -> str:
    why = d["race"].get("screening_left_out")  # absent from designs of earlier versions
    if why is None:
        return ""
    return f"none: {why}" if why else "every candidate first took all steps with a part of their tokens"


def limited(d: DesignDocument) -> list[tuple[Quantity, Row, float]]:
    """Every limited quantity with the pick's measurement and the limit, both in the quantity's unit."""
    pick, limits = d["pick"], []
    for metric, limit in ((quantity(name), limit) for name, limit in d["config"]["limits"].items()):
        exact = {} if metric.column in pick else {"measured": metric.scale * pick[metric.name], "interval": None}
        limits.append((metric, pick.get(metric.column, exact), metric.scale * limit))
    return limits


def _limits(d: DesignDocument) -> str:
    """What was measured of what is allowed, and whether a looser limit would change the choice."""
    said, tight = [], {}
    for metric, entry, limit in limited(d):
        share = entry["measured"] / limit
        doubts = ", with noise: the machine was busy" if entry.get("noisy") else ""
        doubts += ", close: measured again it may be above" if metric.name in d["pick"].get("close", ()) else ""
        said.append(f"{metric.name} {entry['measured']:.3g} of {limit:g} {metric.unit} ({percent(share)}{doubts})")
        # A search keeps the upper end of its prediction interval below a limit, so compare that end with the limit.
        reach = max(entry["measured"], *(entry["interval"] or ())) / limit
        if reach >= TIGHT:
            predicted = f" (predicted up to {percent(min(reach, 1.0))})" if share < TIGHT else ""
            tight[metric.name] = f"{metric.name}{predicted}"
    if not tight:
        return f"{', '.join(said)}; looser ones hardly help: {d['config']['space']} has no larger models"
    return f"{', '.join(said)}; a looser limit on {listed(list(tight.values()))} would allow larger models"


def _cost(d: DesignDocument) -> str:
    pick = d["pick"]
    size = f"{short(pick[d['size']])} parameters in its layers, {short(pick['total_params'])} in total"
    return f"{size}; {short(pick['state'], 'B')} of state per sequence"


def _plain(d: DesignDocument) -> str:
    if d["plain"] is None:
        return ""
    if d["plain"] == d["pick"]["pattern"]:
        return "the pick is a plain Transformer; no hybrid was found that is clearly better under these limits"
    rows = {row["pattern"]: row for row in d["candidates"]}
    plain, pick = rows[d["plain"]], d["pick"]
    ratio = pick[d["size"]] / plain[d["size"]]
    if abs(ratio - 1) < ALIKE:
        larger = "as many parameters"
    else:
        larger = f"{percent(abs(ratio - 1))} {'more' if ratio > 1 else 'fewer'} parameters"
    faster = pick["latency_ms"]["measured"] / plain["latency_ms"]["measured"] - 1
    time = "the same time" if abs(faster) < ALIKE else f"{percent(abs(faster))} {'more' if faster > 0 else 'less'} time"
    pair = next(pair for pair in d["race"]["paired"] if pair["b"] == d["plain"])
    gap = f"{d['plain']} diverged" if pair["difference"] is None else f"{pair['difference']:+.3f} nats"
    clear = "" if pair["verdict"] == pair["a"] else ", not distinguishable"
    return (
        f"against the largest plain one within the limits ({d['plain']}, {short(plain[d['size']])}) the pick has "
        f"{larger} and takes {time}; {gap}{_range(pair['interval'], '+.3f')}{clear}"
    )


def _tokens_of_others(d: DesignDocument) -> list[float]:
    """Tokens of the other candidates at the same budget, if they differ from the pick's (budgets of time or FLOPs)."""
    tokens = {row["name"]: row.get("tokens", 0.0) for row in d["race"]["architectures"]}
    mine = tokens.pop(d["pick"]["pattern"])
    return list(tokens.values()) if any(abs(other - mine) > 0.01 * mine for other in tokens.values()) else []


def forecast_at(d: DesignDocument) -> str:
    """The budget of the forecasts: one number of tokens, or each candidate's own."""
    mine = d["budget"]["spoken_for"]
    if not (others := _tokens_of_others(d)):
        return f"{count(mine)} tokens"
    ends = (count(end([mine, *others])) for end in (min, max))
    return f"the tokens it sees in {d['budget']['stated']} ({' to '.join(ends)})"


def other_budgets(d: DesignDocument) -> str:
    """Which candidate is best at which number of tokens."""
    equal = "with equal tokens for all, " if _tokens_of_others(d) else ""
    return f"{equal}{text}" if (text := d["foresight_text"]) else ""


def _other_budgets(d: DesignDocument) -> str:
    return other_budgets(d) if len({row["best"] for row in d["foresight"]}) > 1 else ""


def _skills(d: DesignDocument) -> str:
    """What the probe shows: abilities, not losses."""
    if why := d["probe"].get("left_out"):  # absent from designs of earlier versions
        return f"not probed: {why}"
    rows, pick = {row["name"]: row for row in d["probe"]["architectures"]}, d["pick"]["pattern"]
    mine = rows[pick]["mean"]
    rank = f", rank {mine['rank']} of {len(rows)}" if len(rows) > 1 else ""
    said = f"probe accuracy {_score(mine)}{rank} (it does not predict the loss)"
    for task in d["probe"]["tasks"]:
        best = max(rows.values(), key=lambda row: row["tasks"][task]["accuracy"])
        if task in best["better_than_pick_on"]:
            scores = f"{best['tasks'][task]['accuracy']:.2f} against {rows[pick]['tasks'][task]['accuracy']:.2f}"
            said += f"; if {task} is what matters, look at {best['name']} ({scores})"
    cut = d["probe"]["scale"]
    return said + (f"; provisional, cut to {percent(cut)} of its steps" if cut < CUT else "")


def _trained(d: DesignDocument) -> str:
    result = d["train"]
    bits = result.get("bits_per_character")
    text = f"{result['loss']:.3g} nats per token" + (f", {bits:.3g} bits per character" if bits else "")
    entropy = (
        f", {percent(result['above_entropy'], sign=True)} against the text's true entropy"
        if "entropy" in result
        else ""
    )
    return (
        f"{text}{entropy} on validation text after {short(result['tokens'])} tokens of {result['data']} in "
        f"{result['seconds']:.0f} s{_as_forecast(d)}"
    )


def _cut(d: DesignDocument) -> str:
    """What was cut because the machine was busy; absent from designs of earlier versions."""
    cut = d.get("cut")
    return f"{'; '.join(cut)}; this machine, at its load, needs a longer --time" if cut else ""


def as_long_as_forecast(d: DesignDocument) -> bool:
    """Whether the pick was trained on about as many tokens as its loss was forecast at."""
    return bool(abs(d["train"]["tokens"] / d["budget"]["spoken_for"] - 1) <= NEARLY_AS_LONG)


def _as_forecast(d: DesignDocument) -> str:
    """Whether the training matched the race's forecast; empty if it was of another number of tokens, and for designs of
    earlier versions, which did not score the model on the race's text."""
    forecast, loss = _raced(d)[d["pick"]["pattern"]], d["train"].get("race_loss")
    if loss is None or not forecast.get("interval") or not as_long_as_forecast(d):
        return ""
    low, high = forecast["interval"]
    on = f"; {loss:.3f} on the race's held-out text"
    if low <= loss <= high:
        return f"{on}, within the forecast's interval"
    side = "above" if loss > high else "below"
    return f"{on}, {side} the forecast's interval ({low:.3f} to {high:.3f}): the other forecasts may be as far off"


#: Label → what it says of a design; nothing where that is empty.
POINTS: dict[str, Callable[[DesignDocument], str]] = {
    "Why": _why,
    "Caution": _caution,
    "Limits": _limits,
    "Cost": _cost,
    "Rejected": _rejected,
    "Undecided": _undecided,
    "Screening": _screening,
    "Transformer": _plain,
    "Other budgets": _other_budgets,
    "Skills": _skills,
    "Trained": _trained,
    "Cut short": _cut,
}


def _raced(d: DesignDocument) -> Row:
    return {row["name"]: row for row in d["race"]["architectures"]}


def _score(summary: SummaryRow) -> str:
    return f"{summary['accuracy']:.2f}{_range(summary['interval'], '.2f')}"


def _negated(interval: Sequence[float] | None) -> list[float] | None:
    return [-end for end in reversed(interval)] if interval else None


def _range(interval: Sequence[float] | None, how: str = ".3f") -> str:
    """The interval in brackets; empty if there is none."""
    return f" ({interval[0]:{how}} to {interval[1]:{how}})" if interval else ""
