"""The paper's findings: 1 to 3 (Sec. 3.4) from the 21 architectures as paired differences, and who is best at which
task (Sec. 3.4: Mamba at compression, Hyena at fuzzy recall)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from plait.arch import Architecture
from plait.probe.verdict import Comparison


def findings(comparison: Comparison) -> list[dict[str, Any]]:
    """Each finding: its sentence, the difference in mean accuracy with its interval, and the paper's figure."""
    names = comparison.names
    striped = [name for name in names if "-striped-" in name]
    plain = [name for name in names if name not in striped]
    heads = [(name, name.replace("mh-hyena", "hyena")) for name in names if "mh-hyena" in name]
    experts = [(name, name.replace("-moe", "-swiglu")) for name in names if name.endswith("-moe")]
    pairs = {
        "striped architectures against all others": (striped, plain, 0.081),
        "heads against none (mh-hyena, hyena)": (*_sides(heads), 0.023),
        "sparse experts against SwiGLU": (*_sides(experts), 0.017),
    }
    found = []
    for said, (ours, theirs, paper) in pairs.items():
        difference = comparison.contrast(ours, theirs)
        found.append(
            {
                "finding": said,
                "difference": difference.value,
                "interval": None if difference.interval is None else list(difference.interval),
                "paper": paper,
            }
        )
    return found


def by_task(comparison: Comparison, architectures: Mapping[str, Architecture]) -> list[dict[str, Any]]:
    """For every task the best architecture by accuracy and by loss, and the mean accuracy of every sequence mixer over
    the architectures that hold it."""
    c = comparison
    holding: dict[str, list[str]] = {}
    for name in c.names:
        for mixer in dict.fromkeys(o.name for o in architectures[name].layers if o.kind == "sequence"):
            holding.setdefault(mixer, []).append(name)
    found = []
    for task in c.tasks:
        mixers = {
            mixer: float(np.mean([c.accuracy_value(name, task) for name in names])) for mixer, names in holding.items()
        }
        found.append(
            {
                "task": task,
                "best": min((c.rank(name, task), name) for name in c.names)[1],
                "best_by_loss": min((c.loss_rank(name, task), name) for name in c.names)[1],
                "best_mixer": max((accuracy, mixer) for mixer, accuracy in mixers.items())[1],
                "mixers": mixers,
            }
        )
    return found


def _sides(pairs: list[tuple[str, str]]) -> tuple[list[str], list[str]]:
    return [first for first, _ in pairs], [second for _, second in pairs]
