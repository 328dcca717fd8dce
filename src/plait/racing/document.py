"""Comparisons and races as plain JSON: what `--json` prints, pages and pictures are drawn from, and others rely on."""

from __future__ import annotations

import math
from typing import Any

from plait.analysis.foresight import Foresight
from plait.racing.comparison import Comparison


def document(comparison: Comparison) -> dict[str, Any]:
    """As `plait compare --json` prints it."""
    compared, foresight = comparison.compared, comparison.foresight
    judged = {each.name: each for each in compared.architectures}
    rows = []
    for row in comparison.rows:
        each, c = judged[row.contender.name], row.contender
        rows.append(
            {
                "name": c.name,
                "spec": c.arch.text,
                "loss": _plain(each.loss),
                "interval": None if each.interval is None else list(each.interval),
                "seeds": each.seeds,
                "diverged": each.diverged,
                "tokens": row.tokens,
                "lr": row.lr,
                "curve": [[tokens, _plain(loss)] for tokens, loss in row.curve],
                "p_best": each.p_best,
                "params": c.params,
                "flops_per_token": c.flops_per_token(comparison.course.recipe.seq_len),
                "rates": {f"{rate:g}": _plain(loss) for rate, loss in sorted(row.rates.items())},
                "seconds": sum(float(r.result["seconds"]) for at in row.records for r in at),
                "note": c.note,
            }
        )
    pairs = [
        {
            "a": pair.a,
            "b": pair.b,
            "difference": _plain(pair.difference),
            "interval": None if pair.interval is None else list(pair.interval),
            "p": pair.p,
            "verdict": {"a": pair.a, "b": pair.b}.get(pair.verdict, pair.verdict),
        }
        for pair in compared.pairs
    ]
    return {
        "data": comparison.course.data,
        "architectures": rows,
        "paired": pairs,
        "noise": compared.noise,
        "verdict": compared.verdict,
        "foresight": []
        if foresight is None
        else [{"tokens": r.tokens, "best": r.best, "p_best": r.p_best} for r in foresight.rows],
        "foresight_text": "" if foresight is None else foresight.text,
        "cost": {
            "seconds": comparison.seconds,
            "trained_seconds": comparison.trained_seconds,
            "tokens": sum(int(at[-1].result["tokens"]) * len(at) for row in comparison.rows for at in row.records[-1:]),
        },
        "equal": comparison.terms.equal,
        "seq_len": comparison.course.recipe.seq_len,
        "batch": comparison.course.recipe.batch,
    }


def foresight_rows(foresight: Foresight | None) -> list[dict[str, Any]]:
    if foresight is None:
        return []
    return [{"tokens": row.tokens, "best": row.best, "p_best": row.p_best} for row in foresight.rows]


def _plain(value: float | None) -> float | None:
    """JSON has no infinities."""
    return None if value is None or not math.isfinite(value) else value
