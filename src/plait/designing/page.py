"""The document of a design as a page: what was chosen, on which front, by which skills, and how it was made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from xml.etree.ElementTree import Element

from plait.core.units import short
from plait.designing.advice import limited, listed
from plait.device.quantities import EXACT, Quantity, in_rows
from plait.reporting import charts, page_charts
from plait.reporting.page import Child, card, code, folded, grid, legend, note, page, section, table, tag, tiles

MILLION = 1e6
STAGES = {
    "profile": "profile of this machine",
    "search": "search",
    "measure": "measuring models of the front",
    "probe": "probe",
    "race": "race on the text",
    "train": "training the pick",
}


def report_page(document: dict[str, Any]) -> str:
    machine = document["machine"]
    title = f"A model for {listed([f'{limit:g} {each.unit}' for each, _, limit in limited(document)])}"
    setting = document["config"]["setting"]
    lead = (
        f"Designed by measurement on {machine['cpu'] or machine['system']} ({machine['cores']} cores), "
        f"{machine['started'][:10]}. Latency and memory: {setting['mode']} of {setting['seq']} tokens, "
        f"batch {setting['batch']}, {setting['threads']} thread{'s' * (setting['threads'] > 1)}, {setting['dtype']}."
    )
    return page(
        title,
        tag("header", tag("h1", title), tag("p", lead, class_="lead")),
        _advice(document),
        _figures(document),
        _front(document),
        _race(document),
        _probe(document),
        _training(document),
        _making(document),
    )


def _advice(d: dict[str, Any]) -> Element:
    made = card(tag("code", d["pick"]["spec"], class_="spec"), tag("p", d["advice"]))
    made.set("class", "card advice")
    return made


def _figures(d: dict[str, Any]) -> Element:
    pick, trained = d["pick"], d["train"]
    raced = next(row for row in d["race"]["architectures"] if row["name"] == pick["pattern"])
    forecast = "{:.3f} to {:.3f} forecast".format(*raced["interval"]) if raced["interval"] else "diverged in the race"
    bits = trained.get("bits_per_character")
    spelled = f"{bits:.3g} bits per character" if bits else f"perplexity {trained['perplexity']:.3g}"
    return tiles(
        [
            *(
                (each.name, f"{entry['measured']:.3g} {each.unit}", f"{_basis(each)}, {limit:g} allowed")
                for each, entry, limit in limited(d)
            ),
            ("parameters in its layers", short(pick[d["size"]]), f"{short(pick['total_params'])} in all"),
            ("probability of being the best", f"{raced['p_best']:.0%}", f"of {len(d['race']['architectures'])} raced"),
            (
                "held-out loss",
                f"{trained['loss']:.3g} nats",
                f"{forecast}; {spelled}",
            ),
        ]
    )


# ---- the front


def _front(d: dict[str, Any]) -> Element:
    names, limits = _order(d), {each.name: limit for each, _, limit in limited(d)}
    drawn = [
        card(
            page_charts.scatter(
                _marks(d, each.column),
                title=f"Parameters of the layers against {each.name}",
                x_label=f"{each.name}, {each.unit}",
                y_label="million parameters in the layers",
                limit=limits.get(name),
                limit_label=f"limit {limits[name]:g} {each.unit}" if name in limits else "",
            ),
            title=f"Size against {each.name}",
        )
        for name, each in in_rows(d["predicted_front"]).items()
    ]
    entries = [(page_charts.swatch(number), name) for name, number in names.items()]
    entries += [
        (page_charts.swatch(None), "measured, not raced"),
        (page_charts.swatch(None, hollow=True), "predicted only"),
    ]
    found = d["search"]
    return section(
        "What this machine can run",
        note(
            f"{found['evaluated']:,} candidates of {found['space']} were compared; {found['on_front']:,} of them no "
            "other beats in size, latency, memory and growing state at once. Filled marks were measured, hollow ones "
            "are predicted; the line through a mark is the 95 % interval of what had been predicted for it. Point at "
            "a mark to read it. The pick is ringed."
        ),
        grid(*drawn),
        legend(entries),
        _candidates(d),
        folded("Models measured from all over the front", _measured(d)),
    )


def _marks(d: dict[str, Any], column: str) -> list[page_charts.Mark]:
    """Those probed, those measured from all over the front, those predicted only; each spec once."""
    names, size = _order(d), d["size"]
    marks: dict[str, page_charts.Mark] = {}
    for row in d["predicted_front"]:
        marks[row["spec"]] = page_charts.Mark(
            row[column]["predicted"], row[size] / MILLION, hint=_hint(row, size), measured=False
        )
    for row in [*d["search"]["front"], *d["candidates"]]:
        entry, pattern = row[column], row.get("pattern")
        if entry["measured"] is None:  # it did not fit into memory, say
            continue
        marks[row["spec"]] = page_charts.Mark(
            entry["measured"],
            row[size] / MILLION,
            series=names.get(pattern) if pattern else None,
            hint=_hint(row, size),
            chosen=row["spec"] == d["pick"]["spec"],
            span=tuple(entry["interval"]) if pattern and entry["interval"] else None,
        )
    return list(marks.values())


def _hint(row: dict[str, Any], size: str) -> str:
    lines = [row["pattern"]] if "pattern" in row else []
    lines += [row["spec"], f"{row[size]:,} parameters in its layers"]
    for each in in_rows([row]).values():
        entry, unit = row[each.column], each.unit
        if entry["interval"] is None:
            continue
        low, high = entry["interval"]
        predicted = f"predicted {entry['predicted']:.3g} ({low:.3g} to {high:.3g}) {unit}"
        measured = "" if entry["measured"] is None else f"measured {entry['measured']:.3g} {unit}, "
        lines.append(measured + predicted)
    return "\n".join(lines)


def _candidates(d: dict[str, Any]) -> Element:
    scores = {row["name"]: row for row in d["probe"]["architectures"]}
    rows: list[list[Child]] = []
    pick = None
    order = _order(d)
    for number, row in enumerate(sorted(d["candidates"], key=lambda one: order[one["pattern"]])):
        pick = number if row["pattern"] == d["pick"]["pattern"] else pick
        rows.append(
            [
                code(row["spec"], row["pattern"]),
                short(row[d["size"]]),
                *_numbers(d, row),
                f"{row['state'] / 1e6:.3g}",
                _score(scores[row["pattern"]]["mean"]),
            ]
        )
    columns = ("model", ">params", *_columns(d), ">state MB", ">probe")
    told = note("Milliseconds with ≈ were measured while the machine was busy; state is what one sequence holds.")
    return card(table(columns, rows, chosen=pick), told, title="The models that were raced, the best first")


def _measured(d: dict[str, Any]) -> Element:
    rows: list[list[Child]] = [
        [
            code(row["spec"]),
            short(row[d["size"]]),
            *_numbers(d, row),
            {True: "within", False: "; ".join(row["exceeded"]), None: ""}[row["within"]],
        ]
        for row in [*d["search"]["front"], *d["search"]["over_limit"]]
    ]
    return table(("model", ">params", *_columns(d), "limits"), rows)


def _columns(d: dict[str, Any]) -> list[str]:
    return [column for each in in_rows(d["candidates"]).values() for column in (f">{each.unit}", ">predicted")]


def _numbers(d: dict[str, Any], row: dict[str, Any]) -> list[str]:
    cells = []
    for each in in_rows(d["candidates"]).values():
        entry = row.get(each.column, {})
        noisy = "≈ " if entry.get("noisy") else ""
        values = ((noisy, entry.get("measured")), ("", entry.get("predicted")))
        cells += ["–" if value is None else f"{mark}{value:.3g}" for mark, value in values]
    return cells


def _basis(each: Quantity) -> str:
    return "counted" if each.predicted == EXACT else "measured"


# ---- the race


def _race(d: dict[str, Any]) -> Element:
    found, names = d["race"], _order(d)
    lines = [
        page_charts.Line(row["name"], _points(row["curve"]), series=names[row["name"]], dots=True)
        for row in found["architectures"]
    ]
    drawn = page_charts.curves(
        lines,
        title="Held-out loss of every candidate if its training ended there",
        x_label="tokens",
        y_label="nats per token",
        log=True,
        unit="tokens",
    )
    chances = [
        page_charts.Line(
            name, [(row["tokens"], row["p_best"][name]) for row in d["foresight"]], series=number, dots=True
        )
        for name, number in names.items()
        if d["foresight"]
    ]
    best = page_charts.curves(
        chances,
        title="Probability of being the best at a training budget",
        x_label="tokens of the training budget",
        y_label="P(best)",
        log=True,
        unit="tokens",
    )
    rows: list[list[Child]] = []
    chosen = None
    for number, row in enumerate(found["architectures"]):
        chosen = number if row["name"] == d["pick"]["pattern"] else chosen
        ends = "{:.3f} to {:.3f}".format(*row["interval"]) if row["interval"] else ""
        rows.append(
            [
                code(row["spec"], row["name"]),
                short(row["trained_tokens"]),
                "diverged" if row["loss"] is None else f"{row['loss']:.3f}",
                ends,
                f"{row['p_best']:.0%}",
                f"{row['lr']:g}",
            ]
        )
    columns = ("candidate", ">trained tokens", ">nats forecast", ">90 % interval", ">P(best)", ">rate")
    words = (
        f"All candidates train on the same batches of {d['config']['data']}; each curve is carried on to "
        f"{short(d['budget']['spoken_for'])} tokens with its uncertainty, those that are best with negligible "
        f"probability stop, and training goes on where it tells most. It took {found['cost']['share']:.0%} of what "
        f"training all of them to the end would. Noise between seeds: {found['noise'] or 0:.3f} nats."
    )
    entries = [(page_charts.swatch(number), name) for name, number in names.items()]
    told = [note(f"{d['foresight_text']}.")] if d["foresight_text"] else []
    return section(
        "Which one wins on this text",
        note(words),
        grid(card(drawn, title="Learning curves"), *([card(best, title="At which budget")] if d["foresight"] else [])),
        legend(entries),
        *told,
        card(table(columns, rows, chosen=chosen), title=found["verdict"]),
    )


def _points(curve: Sequence[Sequence[float | None]]) -> list[tuple[float, float]]:
    return [(tokens, loss) for tokens, loss in curve if tokens is not None and loss is not None]


# ---- the probe


def _probe(d: dict[str, Any]) -> Element:
    found, names = d["probe"], _order(d)

    def panel(title: str, task: str | None) -> Element:
        rows = []
        for row in found["architectures"]:
            score = row["tasks"][task] if task else row["mean"]
            rows.append(
                charts.Bar(
                    row["name"],
                    score["accuracy"],
                    tuple(score["interval"]) if score["interval"] else None,
                    names[row["name"]],
                    hint=f"{row['name']}\n{title}: {_score(score)}\n{row['spec']}",
                    chosen=row["name"] == d["pick"]["pattern"],
                )
            )
        return card(charts.bars(rows, title=f"{title}: accuracy of every pattern"), title=title)

    few, many = min(found["seeds"].values()), max(found["seeds"].values())
    seeds = str(few) if few == many else f"{few} to {many}"
    words = (
        f"Each pattern at the probe's size, with the same number of parameters per layer, trained on "
        f"{len(found['tasks'])} "
        f"synthetic tasks with {seeds} seed{'s' * (many > 1)} each: {found['runs']} trainings, {found['steps']:,} "
        "steps."
    )
    words += " Whiskers are 95 % intervals of test accuracy." if many > 1 else " One seed: no intervals, no verdict."
    if found["scale"] < 1:
        words += f" To fit the time they were cut to {found['scale']:.0%} of their steps: a longer --time tells more."
    notes = [note(f"{row['name']}: {row['note']}.") for row in found["architectures"] if row["note"]]
    panels = [panel("mean", None), *(panel(task, task) for task in found["tasks"])]
    words += " This says what a pattern can do, not what its loss will be: it decided nothing."
    return section("What they can do", note(words), grid(*panels), *notes, _differences(d))


def _differences(d: dict[str, Any]) -> Element:
    words = {1: "the pick is better", 0: "not distinguishable", -1: "the pick is worse"}
    rows: list[list[Child]] = [
        [
            code(row["spec"], row["name"]),
            f"{row['pick_ahead_by']['value']:+.3f}",
            _ends(row["pick_ahead_by"]["interval"]),
            words[row["pick_ahead_by"]["sign"]],
        ]
        for row in d["probe"]["architectures"]
        if row["name"] != d["pick"]["pattern"]
    ]
    columns = ("against, as probed", ">pick ahead by", ">95 % interval", "verdict")
    return folded("Paired differences of the mean, and the architectures as probed", table(columns, rows))


# ---- training and making


def _training(d: dict[str, Any]) -> Element:
    trained = d["train"]
    lines = [
        page_charts.Line("training", [(x, y) for x, y in trained["curve"]], series=5),
        page_charts.Line("held out", [(x, y) for x, y in trained["held_out_curve"]], series=1, dots=True),
    ]
    entropy = trained.get("entropy")
    drawn = page_charts.curves(
        lines,
        title="Loss of the pick while it trains",
        x_label=f"steps of {trained['tokens'] // trained['steps']:,} tokens",
        y_label="nats per token",
        floor=entropy,
        floor_label=f"true entropy {entropy:.3f}" if entropy is not None else "",
    )
    mfu = trained.get("mfu", trained.get("flop_utilisation"))
    words = (
        f"{trained['steps']:,} steps, {short(trained['tokens'])} tokens of {trained['data']} in "
        f"{trained['seconds']:.0f} s: {trained['tokens_per_second']:,.0f} tokens per second"
        f"{'' if mfu is None else f', {mfu:.0%} MFU'}."
    )
    entries = [
        (page_charts.swatch(5), "training, mean since the last point"),
        (page_charts.swatch(1), "held-out text; of all of it at the end"),
    ]
    return section("How it trains", note(words), card(drawn, legend(entries)))


def _making(d: dict[str, Any]) -> Element:
    machine, config, profile = d["machine"], d["config"], d["profile"]
    points = profile["points"]
    facts = [
        ("rule", d["rule"]),
        ("space", f"{config['space']}, searched by {d['search']['method']}, seed {config['seed']}"),
        (
            "profile",
            f"{points['layer']} layers, {points['outside']} embeddings and outputs, {points['model']} whole models; "
            f"{points['noisy']} noisy; hash {profile['hash']}, made {profile['made'][:16].replace('T', ' ')}",
        ),
        ("training", f"run {d['train']['run']}, seed {d['train']['seed']}, data {config['data']}"),
        (
            "versions",
            f"plait {machine['plait']} (code {machine['code']}), Python {machine['python']}, torch {machine['torch']}",
        ),
        ("machine", f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}"),
        ("when", f"{machine['started'][:16].replace('T', ' ')} UTC, {machine['seconds']:.0f} s"),
    ]
    stages = [[STAGES[name], f"{seconds:.1f} s"] for name, seconds in d["stages"].items()]
    return section(
        "How it was made",
        grid(
            card(table(("what", "how"), [[what, how] for what, how in facts])),
            card(
                table(("stage", ">this time"), stages),
                note("What an earlier call had stored was not computed again, and took no time here."),
            ),
        ),
        card(tag("pre", "\n".join(d["commands"])), title="The same again, whole and in parts"),
    )


def _order(d: dict[str, Any]) -> dict[str, int]:
    """A colour for every pattern, the best in the race first."""
    return {row["name"]: number for number, row in enumerate(d["race"]["architectures"])}


def _ends(interval: Sequence[float] | None) -> str:
    return "{:+.3f} to {:+.3f}".format(*interval) if interval else ""


def _score(found: dict[str, Any]) -> str:
    ends = " ({:.2f}–{:.2f})".format(*found["interval"]) if found["interval"] else ""
    return f"{found['accuracy']:.2f}{ends}"
