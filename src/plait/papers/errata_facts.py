"""Where the papers contradict themselves, beyond the tables that other facts read; each computed where it can be."""

from __future__ import annotations

from plait.model.cost import model_cost
from plait.papers.conventions import fox_flops_per_token
from plait.papers.fox.presets import TABLE_5
from plait.papers.mad.recipes import mad_recipe
from plait.papers.recipes import recipe
from plait.papers.verify import FactTable

facts = FactTable()


@facts.fact(
    "E12", "MAD Table C.2: learning rates fall evenly from row to row, not with the size as C.1 states", erratum=True
)
def learning_rates() -> tuple[str, str, bool]:
    """Nine rows from 150M to 350M: equal steps of 2.5e-5, though the sizes are 13, 12, 21 … 44 million apart."""
    sizes = (150, 163, 175, 196, 217, 251, 278, 306, 350)
    found = [mad_recipe(1e6 * size, 8e19).lr for size in sizes]
    by_row = [8e-4 - 2.5e-5 * row for row in range(9)]
    by_size = [8e-4 - 2e-4 * (size - 150) / 200 for size in sizes]
    off_row, off_size = (
        max(abs(lr / wanted - 1) for lr, wanted in zip(found, line, strict=True)) for line in (by_row, by_size)
    )
    ours = f"largest gap {off_row:.1%} to a line in the row, {off_size:.1%} to one in the size"
    return "a line between 150M and 350M, in the size", ours, off_row < 1e-9 and off_size > 0.03


@facts.fact("E13", "MAD has no Finding 4: its findings are numbered 1, 2, 3, 5, 6, 7, 8, 9", erratum=True)
def findings() -> tuple[str, str, bool]:
    """Nothing to compute: the text's own headings."""
    numbered = {"striping": 1, "heads": 2, "experts": 3, "allocation": 5, "optimality gap": 6, "ratio": 7,
                "state": 8, "MAD scores": 9}  # fmt: skip
    missing = sorted(set(range(1, 10)) - set(numbered.values()))
    return "Findings 1 to 9", f"{len(numbered)} findings, no {missing[0]}", missing == [4]


@facts.fact("E14", "FoX Table 9: its summary says 48B tokens, its caption 16B", erratum=True)
def table_9() -> tuple[str, str, bool]:
    """Its six models include Samba and the sliding window, which have no learning rate at 48B (Table 5)."""
    shown = ("fox-pro", "transformer-pro", "fox-llama", "transformer-llama", "samba", "swa")
    long = [name for name in shown if f"{name}-760m" in TABLE_5]
    runs = (recipe("fox-760m"), recipe("fox-48b-fox-pro-760m"))
    tokens = [run.steps * run.recipe.batch * run.recipe.seq_len / 1e9 for run in runs]
    ours = f"{tokens[0]:.1f}B and {tokens[1]:.1f}B; {len(long)} of {len(shown)} models have a recipe for the longer"
    return "one number of tokens", ours, [round(n) for n in tokens] == [16, 48] and len(long) == 4


@facts.fact("E15", 'FoX: "non-embedding parameters" leave out the input table and count the output layer', erratum=True)
def non_embedding() -> tuple[str, str, bool]:
    cost = model_cost("fox-pro-760m")
    counted, layers = (n / 1e6 for n in (cost.params_without_input_embedding, cost.decoder_params))
    ours = f"{counted:.0f}M with the output layer, {layers:.0f}M without"
    return "759M without embeddings", ours, round(counted) in (759, 760) and round(counted - layers) == 77


@facts.fact(
    "E16", "FoX Table 6: Mamba-2's 20·n·d·state gives the printed 1.65e9 for 24 layers; it has 48", erratum=True
)
def mamba2_flops() -> tuple[str, str, bool]:
    cost = model_cost("mamba2-760m")
    table = fox_flops_per_token("mamba2-760m") / 1e9
    as_written = (2 * cost.params_without_input_embedding + 20 * len(cost.layers) * 1536 * 128) / 1e9
    ours = f"{len(cost.layers)} layers: {as_written:.2f}e9; as 24 pairs: {table:.2f}e9"
    return "1.65e9", ours, len(cost.layers) == 48 and abs(table - 1.65) < 0.01 < as_written - 1.65
