"""The paper's findings 1 to 3 (Sec. 3.4), computed from the 21 architectures as paired differences."""

from __future__ import annotations

from typing import Any

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


def _sides(pairs: list[tuple[str, str]]) -> tuple[list[str], list[str]]:
    return [first for first, _ in pairs], [second for _, second in pairs]
