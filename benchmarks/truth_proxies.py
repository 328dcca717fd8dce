"""Zero-cost proxies of the truth table's architectures, at initialisation and at the table's shapes.

    python benchmarks/truth_proxies.py TRUTH.json -o benchmarks/results/DATE-truth-proxies.json

Every proxy of plait except short training, which the table contains; the mean over three initialisations on bytes of
the standard library. `benchmarks/verdict.py` compares them with the table.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

BATCH, SEQ_LEN, SEEDS = 8, 128, (0, 1, 2)


def main() -> None:
    import torch

    from plait.algorithms.proxies import PROXIES, Windows, load_proxy
    from plait.data import open_corpus
    from plait.model import build
    from plait.model.architecture import architecture

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("truth", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    tokens = np.asarray(open_corpus("builtin:stdlib").tokens("train"))
    names = [name for name in PROXIES.names() if name != "short_training"]
    found: dict[str, dict[str, float | None]] = {}
    began = time.perf_counter()
    for row in json.loads(options.truth.read_text(encoding="utf-8"))["architectures"]:
        scores: dict[str, float | None] = {}
        for name in names:
            values = []
            for seed in SEEDS:
                model = build(architecture(row["spec"]), seed=seed)
                values.append(load_proxy(name).score(model, Windows(tokens, batch=BATCH, seq=SEQ_LEN, seed=seed)))
            mean = float(np.mean(values))
            scores[name] = mean if np.isfinite(mean) else None
        found[row["name"]] = scores
        print(row["name"], scores, flush=True)
        about = {"batch": BATCH, "seq_len": SEQ_LEN, "seeds": len(SEEDS), "seconds": time.perf_counter() - began}
        options.out.write_text(json.dumps({"provenance": about, "proxies": found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
