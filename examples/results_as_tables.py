"""Everything that was measured is a record; any result is rows, a CSV file or a pandas table."""

import csv
import sys

import plait

for lr in (1e-3, 3e-3):
    plait.train("d=32 | attn[heads=2] swiglu", data="builtin:language", steps=20, batch=4, seq_len=32, lr=lr)

trainings = plait.runs.find("train")
writer = csv.writer(sys.stdout)
writer.writerow(["lr", "validation loss", "seconds"])
for record in trainings.records:
    writer.writerow([record.config["recipe"]["lr"], record.result["loss"], record.provenance["seconds"]])

# With pandas installed: plait.probe(...).to_frame(), plait.compare(...).to_frame(), front.to_frame() …
