"""The recommendation of a design: which model to take and why, in sentences computed only from the document's numbers.

The rule: of the models measured within every limit, take the one with the lowest expected regret (loss above the best)
at the stated training budget, according to the race on the user's text. The probe reports skills and does not influence
the choice.
"""

from __future__ import annotations

from collections.abc import Sequence

from plait.analysis.foresight import count
from plait.core.units import percent, probability, short
from plait.designing.document import DesignDocument, Row
from plait.device.quantities import Quantity, quantity
from plait.probing.verdict import SummaryRow

RULE = (
    "Of the models measured within every limit, the one whose loss at the stated training budget is expected to be "
    "least above the best one's, by a race on the text: all start, each learning curve is carried on to the budget "
    "with its uncertainty, and training goes on where it tells most."
)
ALIKE = 0.02  # relative difference below which sizes and times count as equal
TIGHT = 0.9  # a limit is binding if the pick may use more than this fraction of it
NEARLY_AS_LONG = 0.1  # relative difference in tokens below which a training is compared with its forecast
CUT = 0.5  # fraction of the probe's steps below which its scores are called provisional


def advice(document: DesignDocument) -> str:
    """The advice as one paragraph."""
    return " ".join(advice_points(document))


def advice_points(document: DesignDocument) -> list[str]:
    """Sentences: what to take, why, what it beats, other budgets, skills, what would change the choice, training, what
    was cut for lack of time."""
    said = [
        _what(document),
        _why(document),
        _beaten(document),
        _plain(document),
        _other_budgets(document),
        _can_do(document),
        _change(document),
        _trained(document),
        _cut(document),
    ]
    return [sentence for sentence in said if sentence]


def _what(d: DesignDocument) -> str:
    pick = d["pick"]
    said: list[str] = []
    for metric, entry, limit in limited(d):
        allowed = "" if said else " allowed"
        noisy = " (the machine was busy: measured with noise)" if entry.get("noisy") else ""
        said.append(f"{entry['measured']:.3g} {metric.unit} of the {limit:g}{allowed}{noisy}")
    doubt = ""
    if set(d["not_distinguishable"]) >= set(_raced(d)) and len(_raced(d)) > 1:
        doubt = ", though this race cannot tell it from any of the others"
    return (
        f"Take the {pick['pattern']} model{doubt}: {short(pick[d['size']])} parameters in its layers, measured at "
        f"{listed(said)}."
    )


def limited(d: DesignDocument) -> list[tuple[Quantity, Row, float]]:
    """Every limited quantity with the pick's measurement and the limit, both in the quantity's unit."""
    pick, limits = d["pick"], []
    for metric, limit in ((quantity(name), limit) for name, limit in d["config"]["limits"].items()):
        exact = {} if metric.column in pick else {"measured": metric.scale * pick[metric.name], "interval": None}
        limits.append((metric, pick.get(metric.column, exact), metric.scale * limit))
    return limits


def _why(d: DesignDocument) -> str:
    mine, number = _raced(d)[d["pick"]["pattern"]], len(d["race"]["architectures"])
    if number == 1:
        return "No other model met the limits."
    at = f"{count(d['budget']['spoken_for'])} tokens of {d['config']['data']}"
    loss = f"{mine['loss']:.3f} nats per token{_range(mine['interval'])}"
    others = [name for name in d["not_distinguishable"] if name != d["pick"]["pattern"]]
    sure = f"the best of {number} with probability {probability(mine['p_best'])}"
    if seen := _tokens_of_others(d):
        at += f" (in the same {d['budget']['stated']} the others see {count(min(seen))} to {count(max(seen))})"
    told = f"; not distinguishable from {listed(others)}" if others else ""
    beyond = ""
    if d["budget"]["spoken_for"] < 0.99 * d["budget"]["tokens"]:
        beyond = f" The budget, {count(d['budget']['tokens'])} tokens, is beyond the range of this race's forecasts."
    for few in d["race"].get("notes", []):
        beyond += f" {few[0].upper()}{few[1:]}."
    return f"In the race it is forecast to reach {loss} after {at}, {sure}{told}.{beyond}"


def _beaten(d: DesignDocument) -> str:
    pairs = [pair for pair in d["race"]["paired"] if pair["verdict"] == pair["a"] and pair["difference"] is not None]
    if not pairs:
        return "It is not significantly better than any other." if d["race"]["paired"] else ""
    ahead = sorted(pairs, key=lambda pair: -pair["difference"])
    parts = [f"{p['b']} by {-p['difference']:.3f}{_range([-p['interval'][1], -p['interval'][0]])}" for p in ahead]
    return f"It beats {listed(parts)}."


def _plain(d: DesignDocument) -> str:
    if d["plain"] is None:
        return ""
    if d["plain"] == d["pick"]["pattern"]:
        return "That is a plain Transformer: under these limits no hybrid was found that is clearly better."
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
    gap = "it did not diverge" if pair["difference"] is None else f"{pair['difference']:+.3f} nats"
    clear = "" if pair["verdict"] == pair["a"] else " (not distinguishable)"
    return (
        f"Against the largest plain Transformer within the same limits ({d['plain']}, {short(plain[d['size']])}) "
        f"it has {larger} and takes {time}, with {gap}{_range(pair['interval'], '+.3f')}{clear}."
    )


def _tokens_of_others(d: DesignDocument) -> list[float]:
    """Tokens of the other candidates at the same budget, if they differ from the pick's (budgets of time or FLOPs)."""
    tokens = {row["name"]: row.get("tokens", 0.0) for row in d["race"]["architectures"]}
    mine = tokens.pop(d["pick"]["pattern"])
    return list(tokens.values()) if any(abs(other - mine) > 0.01 * mine for other in tokens.values()) else []


def _other_budgets(d: DesignDocument) -> str:
    text = d["foresight_text"]
    when = "With equal tokens for all" if _tokens_of_others(d) else "At other budgets"
    return f"{when}: {text}." if text and len({row["best"] for row in d["foresight"]}) > 1 else ""


def _can_do(d: DesignDocument) -> str:
    """What the probe shows: skills, not losses."""
    if why := d["probe"].get("left_out"):  # absent from designs of earlier versions
        return f"It was not probed: {why}."
    rows, pick = {row["name"]: row for row in d["probe"]["architectures"]}, d["pick"]["pattern"]
    mine = rows[pick]["mean"]
    said = f"In the probe, which measures skills and does not predict the loss, it scores {_score(mine)}"
    if len(rows) > 1:
        said += f", rank {mine['rank']} of {len(rows)}"
    for task in d["probe"]["tasks"]:
        best = max(rows.values(), key=lambda row: row["tasks"][task]["accuracy"])
        if task in best["better_than_pick_on"]:
            scores = f"{best['tasks'][task]['accuracy']:.2f} against {rows[pick]['tasks'][task]['accuracy']:.2f}"
            said += f"; if {task} is what matters, look at {best['name']} ({scores})"
    cut = d["probe"]["scale"]
    return said + (f"; provisional, cut to {percent(cut)} of its steps." if cut < CUT else ".")


def _change(d: DesignDocument) -> str:
    """Ties that more time might resolve, and the binding limits."""
    reasons = []
    ties = [name for name in d["not_distinguishable"] if name != d["pick"]["pattern"]]
    if ties:
        reasons.append(f"a longer --time, because the race left {len(ties)} of the others undecided")
    reasons.append(_binding(d))
    return f"What would change the choice: {'; '.join(reasons)}."


def _binding(d: DesignDocument) -> str:
    shares = listed(
        [f"{percent(entry['measured'] / limit)} of the {metric.name}" for metric, entry, limit in limited(d)]
    )
    # A search keeps the upper end of its prediction interval below a limit, so compare that end with the limit.
    reach = {
        metric.name: max(entry["measured"], *(entry["interval"] or ())) / limit for metric, entry, limit in limited(d)
    }
    tight = [name for name, share in reach.items() if share >= TIGHT]
    if tight:
        spread = ""
        if any(_measured_share(d, name) < TIGHT for name in tight):
            most = listed([percent(min(reach[name], 1.0)) for name in tight])
            spread = f", and up to {most} of the {listed(tight)} by its prediction, which a search holds to the limit"
        return f"a looser limit on {listed(tight)}, because it uses {shares} allowed{spread}"
    space = d["config"]["space"]
    return f"hardly a looser limit, because it uses only {shares} allowed: the space {space} has no larger models"


def _measured_share(d: DesignDocument, name: str) -> float:
    """The pick's measurement as a fraction of the limit."""
    return next(float(entry["measured"] / limit) for metric, entry, limit in limited(d) if metric.name == name)


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
        f"Trained for {result['seconds']:.0f} s on {short(result['tokens'])} tokens of {result['data']} it reaches "
        f"{text}{entropy} on held-out text{_as_forecast(d)}."
    )


def _cut(d: DesignDocument) -> str:
    """What was cut because the machine was busy; absent from designs of earlier versions."""
    cut = d.get("cut")
    if not cut:
        return ""
    return (
        f"The time was too short for everything on this machine, at its load: {'; '.join(cut)}; give a longer --time."
    )


def _as_forecast(d: DesignDocument) -> str:
    """Whether the training matched the race's forecast; empty if it was of another number of tokens."""
    forecast = _raced(d)[d["pick"]["pattern"]]
    if not forecast.get("interval") or abs(d["train"]["tokens"] / d["budget"]["spoken_for"] - 1) > NEARLY_AS_LONG:
        return ""
    low, high = forecast["interval"]
    if low <= d["train"]["loss"] <= high:
        return ", within the forecast's interval"
    side = "above" if d["train"]["loss"] > high else "below"
    return f", {side} the forecast's interval ({low:.3f} to {high:.3f}): the other forecasts may be as far off"


def _raced(d: DesignDocument) -> Row:
    return {row["name"]: row for row in d["race"]["architectures"]}


def _score(summary: SummaryRow) -> str:
    return f"{summary['accuracy']:.2f}{_range(summary['interval'], '.2f')}"


def _range(interval: Sequence[float] | None, how: str = ".3f") -> str:
    """The interval in brackets; empty if there is none."""
    return f" ({interval[0]:{how}} to {interval[1]:{how}})" if interval else ""


def listed(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + (" and " if len(names) > 1 else "") + names[-1]
