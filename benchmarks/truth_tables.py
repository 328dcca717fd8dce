"""Truth tables, files of complete trainings (`benchmarks/results/*truth*.json`): read as curve tables, and made into
the library that comes with plait (`model/reference_curves.json`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from plait.analysis.curve_library import library
from plait.analysis.curve_screening import Screenings
from plait.analysis.curve_table import CurveTable
from plait.core.errors import UserError
from plait.core.files import loads
from plait.model.architecture import architecture
from plait.model.reference_curves import traits


def read_tables(path: Path) -> list[CurveTable]:
    """One table per text. Architectures that lack a budget, or have one seed if others have several, are left out and
    listed in `provenance`. If one has fewer seeds than most, its seeds are repeated, which keeps its mean."""
    try:
        document = loads(path.read_text(encoding="utf-8"), constants=True)
        runs, rows = document["runs"], {row["name"]: row for row in document["architectures"]}
    except (OSError, ValueError, KeyError, TypeError) as wrong:
        raise UserError(f"{path} is not a truth table: {wrong}.") from None
    tables = []
    for text in document["texts"]:
        curves: dict[str, dict[int, dict[float, float]]] = {}
        for run in runs:
            if run["text"] == text:
                curves.setdefault(run["architecture"], {})[run["seed"]] = {
                    float(t): loss for t, loss in run["annealed"]
                }
        if not curves:
            continue
        budgets = sorted({t for by_seed in curves.values() for curve in by_seed.values() for t in curve})
        seeds = {
            name: [seed for seed, curve in sorted(by_seed.items()) if all(_finite(curve.get(t)) for t in budgets)]
            for name, by_seed in curves.items()
        }
        counts = sorted(len(complete) for complete in seeds.values() if complete)
        if not counts:
            raise UserError(f"{path}: no architecture has a finite loss at every budget on the text {text}.")
        most = counts[len(counts) // 2]
        whole = [name for name, complete in seeds.items() if len(complete) >= min(2, most)]
        loss_ASB = np.array(
            [[[curves[n][s][t] for t in budgets] for s in (seeds[n] * most)[:most]] for n in whole], np.float64
        )
        provenance = {**document.get("provenance", {}), "left_out": sorted(set(curves) - set(whole))}
        families = [str(rows[name].get("family", name)) for name in whole]
        costs = np.array([float(rows[name].get("flops_per_token") or 1.0) for name in whole])
        tables.append(CurveTable(text, whole, families, budgets, loss_ASB, costs, provenance))
    return tables


def _finite(loss: float | None) -> bool:
    return loss is not None and math.isfinite(loss)


def library_document(
    tables: Sequence[CurveTable],
    specs: Mapping[str, str],
    provenance: Mapping[str, Any],
    width: float,
    screened_width: float,
    screenings: Screenings,
) -> dict[str, object]:
    """The contents of `reference_curves.json`, from complete trainings. widths: from
    `benchmarks/curve_calibration.py`."""
    whole = library(tables, {name: traits(architecture(spec)) for name, spec in specs.items()})
    learnt = whole.covariances
    rows = [
        {
            "spec": architecture(specs[name]).text,
            "weight": round(float(weight), 3),
            "deviations": [[round(float(x), 4) for x in text_B] for text_B in deviation_TB],
        }
        for name, weight, deviation_TB in zip(
            whole.names, learnt.weight_A, whole.deviation_TAB.swapaxes(0, 1), strict=True
        )
    ]
    matrices = {"alike": learnt.alike_BB, "own": learnt.own_BB, "text": learnt.text_BB, "seeds": whole.seeds_BB}
    return {
        "provenance": dict(provenance),
        "texts": [table.text for table in tables],
        "runs": whole.runs,
        "budgets": whole.budgets,
        "width": round(width, 3),
        "curves": [[round(float(x), 4) for x in curve_B] for curve_B in whole.curve_TB],
        **{f"{name}_covariance": [[round(float(x), 7) for x in row] for row in m] for name, m in matrices.items()},
        "screenings": {
            "steps": screenings.steps,
            "tokens_per_step": screenings.tokens_per_step,
            "runs": screenings.runs,
            "width": round(screened_width, 3),
            "noise": [round(float(x), 7) for x in screenings.noise_S],
            "loss": [[[round(float(x), 4) for x in row] for row in text] for text in screenings.loss_TAS],
        },
        "architectures": rows,
    }
