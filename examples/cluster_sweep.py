"""A search whose candidates are trained for a few steps each, shared by workers: two processes here, or a cluster.

python cluster_sweep.py                          # two processes of this machine
python cluster_sweep.py ray://head:10001         # a Ray cluster; auto from one of its machines, slurm from a login node
"""

import sys

import plait

if __name__ == "__main__":  # workers import this file
    where = {"cluster": sys.argv[1]} if len(sys.argv) > 1 else {"workers": 2}
    found = plait.search(
        "small-hybrid", objectives=["short_training", "min:flops"], data="builtin:language",
        method="random", iterations=1, population=6, fix={"layers": "2", "d": "64"}, validate=False, **where,
    )  # fmt: skip
    for row in found.rows():
        print(f"loss {-row['short_training']:.3f}, {row['flops'] / 1e6:.0f} MFLOP: {row['spec']}")
    print(f"{found.as_dict()['evaluated']} candidates compared; again, nothing is trained")
