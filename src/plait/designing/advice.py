"""Which model to take, by a rule that is stated and applied, not felt.

1. It was measured within every limit.
2. In the probe, no other pattern is better beyond doubt: its paired difference from the best mean accuracy may be
chance,
   all pairs considered (Holm's correction). One seed leaves no doubt out.
3. Of those it has the most parameters at work in its layers, which predict the loss of models of one kind best
   (LiteTransformerSearch, arXiv:2203.02094); of those within 2 % of the most, it is the fastest.

The advice: one paragraph computed from the numbers. Nothing is said that the document does not hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plait.core.units import short
from plait.device.quantities import Quantity, quantity
from plait.probing.verdict import Comparison

RULE = (
    "Of the models measured within every limit, those whose pattern no other beats beyond doubt in the probe; of "
    "these the "
    "one with the most parameters in its layers; of those within 2 % of the most, the fastest."
)
ALIKE = 0.02  # sizes nearer than this count as equal


@dataclass(frozen=True)
class Choice:
    """Names of patterns. `equals`: those that the probe cannot tell from the best, the pick among them."""

    pick: str
    best: str
    equals: tuple[str, ...]


def choose(rows: Mapping[str, Mapping[str, Any]], comparison: Comparison, size: str) -> Choice:
    best = min(comparison.names, key=comparison.rank)
    ahead = comparison.signs(best, chosen=True).overall
    equals = tuple(name for name in comparison.names if name == best or ahead[name] <= 0)
    most = max(rows[name][size] for name in equals)
    large = [name for name in equals if rows[name][size] >= (1 - ALIKE) * most]
    pick = min(large, key=lambda name: (rows[name]["latency_ms"]["measured"], -rows[name][size]))
    return Choice(pick, best, equals)


TIGHT = 0.9  # of a limit: who may reach so far is held back by it
CUT = 0.5  # of the probe's steps: with fewer, its ranking is provisional


def advice(document: dict[str, Any]) -> str:
    """What to take, why, what it beats, what cannot be told, what would change the choice, how it trains."""
    said = [
        _what(document),
        _why(document),
        _beaten(document),
        _plain(document),
        _change(document),
        _trained(document),
    ]
    return " ".join(sentence for sentence in said if sentence)


def _what(d: dict[str, Any]) -> str:
    pick = d["pick"]
    said: list[str] = []
    for each, entry, limit in limited(d):
        allowed = "" if said else " allowed"
        noisy = " (the machine was busy: measured with noise)" if entry.get("noisy") else ""
        said.append(f"{entry['measured']:.3g} {each.unit} of the {limit:g}{allowed}{noisy}")
    return (
        f"Take the {pick['pattern']} model: {short(pick[d['size']])} parameters in its layers, measured at "
        f"{listed(said)}."
    )


def limited(d: dict[str, Any]) -> list[tuple[Quantity, dict[str, Any], float]]:
    """Every quantity with a limit, what the pick takes of it, and the limit, both in its unit."""
    pick, found = d["pick"], []
    for each, limit in ((quantity(name), limit) for name, limit in d["config"]["limits"].items()):
        exact = {} if each.column in pick else {"measured": each.scale * pick[each.name], "interval": None}
        found.append((each, pick.get(each.column, exact), each.scale * limit))
    return found


def _why(d: dict[str, Any]) -> str:
    rows, pick = _probed(d), d["pick"]["pattern"]
    number, score = len(rows), _score(rows[pick]["mean"])
    if number == 1:
        return f"Its pattern scores {score} in the probe, and no other held the limits."
    others = [name for name in d["not_distinguishable"] if name != pick]
    if not others:
        return f"In the probe its pattern scores {score}, better beyond doubt than the other {number - 1}."
    if pick == d["best_probed"]:
        reason = f"the best of {number}, though {listed(others)} cannot be told from it"
    else:
        best = d["best_probed"]
        nor = [name for name in others if name != best]
        reason = f"which cannot be told from the best, {best} at {_score(rows[best]['mean'])}"
        reason += f", nor from {listed(nor)}" if nor else ""
    return f"In the probe its pattern scores {score}, {reason}; of these it is {_decided(d, others)}."


def _decided(d: dict[str, Any], others: Sequence[str]) -> str:
    sizes = {row["pattern"]: row[d["size"]] for row in d["candidates"]}
    near = [name for name in others if sizes[name] > (1 - ALIKE) * sizes[d["pick"]["pattern"]]]
    return f"as large as {listed(near)} and faster" if near else "the largest"


def _beaten(d: dict[str, Any]) -> str:
    ahead = {name: row["pick_ahead_by"] for name, row in _probed(d).items() if name != d["pick"]["pattern"]}
    worse = sorted((name for name in ahead if ahead[name]["sign"] > 0), key=lambda name: ahead[name]["value"])
    if not worse:
        return "It beats none of the others beyond doubt." if ahead else ""
    parts = [f"{name} by {ahead[name]['value']:.2f}{_range(ahead[name]['interval'])}" for name in worse]
    return f"It beats {listed(parts)}."


def _plain(d: dict[str, Any]) -> str:
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
        larger = f"{abs(ratio - 1):.0%} {'more' if ratio > 1 else 'fewer'} parameters"
    faster = pick["latency_ms"]["measured"] / plain["latency_ms"]["measured"] - 1
    time = "the same time" if abs(faster) < ALIKE else f"{abs(faster):.0%} {'more' if faster > 0 else 'less'} time"
    ahead = _probed(d)[d["plain"]]["pick_ahead_by"]
    gap = f"{ahead['value']:+.2f}{_range(ahead['interval'], '+.2f')}"
    told = {1: f"{gap} in the probe", 0: f"no clear difference in the probe, {gap}", -1: f"{gap} in the probe"}
    return (
        f"Against the largest plain Transformer within the same limits ({d['plain']}, {short(plain[d['size']])}) "
        f"it has {larger} and takes {time}, with {told[ahead['sign']]}."
    )


def _change(d: dict[str, Any]) -> str:
    """Tasks on which another is better, ties that more time may break, and which limit binds."""
    reasons = []
    rows, pick = _probed(d), d["pick"]["pattern"]
    for task in d["probe"]["tasks"]:
        best = max(rows.values(), key=lambda row: row["tasks"][task]["accuracy"])
        mine, theirs = rows[pick]["tasks"][task], best["tasks"][task]
        if task in best["better_than_pick_on"]:
            scores = f"{theirs['accuracy']:.2f} against {mine['accuracy']:.2f}"
            reasons.append(f"if {task} is what matters, take {best['name']} ({scores})")
    ties = [name for name in d["not_distinguishable"] if name != pick]
    more_time = []
    if ties:
        few = max(d["probe"]["seeds"].values())
        seeds = "one seed per task" if few == 1 else f"at most {few} seeds per task"
        more_time.append(f"{seeds} left {len(ties)} of the others undecided")
    if d["probe"]["scale"] < CUT:
        more_time.append(f"the probe's ranking is provisional, cut to {d['probe']['scale']:.0%} of its steps")
    if more_time:
        reasons.append(f"a longer --time, for {', and '.join(more_time)}")
    reasons.append(_binding(d))
    return f"What would change the choice: {'; '.join(reasons)}."


def _binding(d: dict[str, Any]) -> str:
    shares = listed([f"{entry['measured'] / limit:.0%} of the {each.name}" for each, entry, limit in limited(d)])
    # A search keeps the upper end of what it predicts below a limit, so that is what held it back.
    reach = {each.name: max(entry["measured"], *(entry["interval"] or ())) / limit for each, entry, limit in limited(d)}
    tight = [name for name, share in reach.items() if share >= TIGHT]
    if tight:
        return f"a looser limit of {listed(tight)}, for it uses {shares} allowed"
    space = d["config"]["space"]
    return f"hardly a looser limit, for it uses only {shares} allowed: the space {space} ends before them"


def _trained(d: dict[str, Any]) -> str:
    result = d["train"]
    bits = result.get("bits_per_character")
    text = f"{result['loss']:.3g} nats per token" + (f", {bits:.3g} bits per character" if bits else "")
    entropy = f", {result['above_entropy']:+.0%} against the text's true entropy" if "entropy" in result else ""
    falling = _still_falling([loss for _, loss in result["curve"]])
    return (
        f"Trained for {result['seconds']:.0f} s on {short(result['tokens'])} tokens of {result['data']} it reaches "
        f"{text}{entropy} on held-out text{falling}."
    )


def _still_falling(losses: Sequence[float]) -> str:
    """The last fifth of the training against the one before; evaluations on the way are of less text than the last."""
    fifth = len(losses) // 5
    if not fifth:
        return ""
    drop = (sum(losses[-2 * fifth : -fifth]) - sum(losses[-fifth:])) / fifth
    return f", with the training loss still falling (by {drop:.2f} in the last fifth)" if drop > 0.01 else ""


def _probed(d: dict[str, Any]) -> dict[str, Any]:
    return {row["name"]: row for row in d["probe"]["architectures"]}


def _score(found: dict[str, Any]) -> str:
    return f"{found['accuracy']:.2f}{_range(found['interval'])}"


def _range(interval: Sequence[float] | None, how: str = ".2f") -> str:
    """In brackets; nothing where one seed leaves no interval."""
    return f" ({interval[0]:{how}} to {interval[1]:{how}})" if interval else ""


def listed(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + (" and " if len(names) > 1 else "") + names[-1]
