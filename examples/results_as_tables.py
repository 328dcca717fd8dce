"""Everything that was measured is a record; any result is rows, and rows are a pandas table or a CSV file."""

import plait

for lr in (1e-3, 3e-3):
    plait.train("d=32 | attn[heads=2] swiglu", data="builtin:language", steps=20, batch=4, seq_len=32, lr=lr)

rows = [
    {"lr": record.config["recipe"]["lr"], "loss": record.result["loss"], "torch": record.provenance["torch"]}
    for record in plait.runs.find("train").records
]
try:
    import pandas
except ImportError:
    print(*rows, sep="\n")
else:
    print(pandas.DataFrame(rows).sort_values("lr").to_string(index=False))

# Of one result: plait.compare(...).to_frame(), front.to_frame(), found.rows() without pandas.
# The whole store: `plait runs export runs.csv` (or .parquet, .jsonl).
