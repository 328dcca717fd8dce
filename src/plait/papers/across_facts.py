"""Facts across the papers: every preset, one workflow from a search to probed architectures, and the errata.

Errata are contradictions within a paper, beyond the tables that other facts check; each is computed if possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast

from plait.core.units import percent
from plait.device.quantities import Setting
from plait.model.architecture import architecture
from plait.model.cost import model_cost
from plait.papers.conventions import fox_flops_per_token, mad_terms
from plait.papers.fox.presets import TABLE_5
from plait.papers.recipes import mad_recipe, recipe
from plait.papers.verify import FactTable
from plait.records import Record, open_store, provenance_of
from plait.searching.job import Request, search_front
from plait.space.declaration import Declaration
from plait.space.space import Space
from plait.spec import parse, presets

if TYPE_CHECKING:
    from plait.probing.trial import Trial


facts = FactTable()


@facts.fact("C01", "every preset loads, round-trips, is checked and costed")
def every_preset() -> tuple[str, str, bool]:
    names = presets.names()
    good = 0
    for name in names:
        arch = architecture(name)
        good += parse(arch.text) == arch.spec and model_cost(arch).total_params > 0
    return f"{len(names)} of {len(names)} presets", f"{good} of {len(names)} presets", good == len(names)


@facts.fact("C02", "one Transformer, three conventions: they differ by what each leaves out, and by nothing else")
def conventions() -> tuple[str, str, bool]:
    text, L = "d=512 vocab=50257 | (attn[heads=8] swiglu[inner=1360])x6", 2048
    cost = model_cost(text, seq=L)
    d, vocab, layers = 512, 50257, 6
    norms = sum(cost.norms) + cost.parts["final norm"]
    # MAD adds the softmax's 2HL² and counts the input embedding as a product; FoX counts attention once (causal) and
    # two FLOPs for every norm weight.
    mad = sum(mad_terms(text, length=L).values()) - layers * 2 * 8 * L**2 - 2 * L * d * vocab
    fox = L * (fox_flops_per_token(text, length=L) - 2 * norms) + layers * 2 * d * L * L
    ours = f"exact {cost.flops:.6e}, MAD {mad:.6e}, FoX {fox:.6e}"
    return "equal once the stated differences are added", ours, cost.flops == mad == fox


@facts.fact("C03", "`plait verify` checks every checkable fact: pass, fail or erratum")
def every_fact() -> tuple[str, str, bool]:
    from plait.papers.verify import all_facts

    ids = [fact.id for fact in all_facts()]
    return "each id once", f"{len(ids)} facts", len(set(ids)) == len(ids)


@facts.fact(
    "E12", "MAD Table C.2: learning rates fall evenly from row to row, not with the size as C.1 states", erratum=True
)
def learning_rates() -> tuple[str, str, bool]:
    """Nine rows from 150M to 350M: equal steps of 2.5e-5, though the sizes are 13, 12, 21 … 44 million apart."""
    sizes = (150, 163, 175, 196, 217, 251, 278, 306, 350)
    rates = [mad_recipe(1e6 * size, 8e19).lr for size in sizes]
    by_row = [8e-4 - 2.5e-5 * row for row in range(9)]
    by_size = [8e-4 - 2e-4 * (size - 150) / 200 for size in sizes]
    off_row, off_size = (
        max(abs(lr / wanted - 1) for lr, wanted in zip(rates, line, strict=True)) for line in (by_row, by_size)
    )
    ours = f"largest gap {percent(off_row, 1)} to a line in the row, {percent(off_size, 1)} to one in the size"
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


SPACE = Declaration("tiny", "1", "32", [["attn[heads=2]", "gla[heads=2]"], ["swiglu[inner=32]"]], "vocab=16", seq=16)


@facts.fact("M42", "design, probe, compare as one workflow: resumable, results keyed by the architecture")
def one_workflow() -> tuple[str, str, bool]:
    """A search's front is probed; one training is interrupted half way and resumed; repeated calls use the store."""
    from plait.probing.plan import with_seeds
    from plait.probing.protocol import candidates, quick
    from plait.probing.run import Machine, compare, run_all
    from plait.probing.trial import KIND, result
    from plait.workers.pool import Place

    protocol = quick(["in-context-recall"])
    setting = protocol.settings[0]
    short = replace(setting.training, steps=6, eval_every=6, evaluation=8, grid=setting.training.grid[:1])
    protocol = replace(protocol, settings=(replace(setting, training=short),))
    request = Request(Space(SPACE), Setting(seq=16), objectives=["flops", "kv_cache"], method="random",
                      iterations=1, population=2)  # fmt: skip
    with TemporaryDirectory(prefix="plait-verify-") as folder, open_store(f"sqlite:///{folder}/runs.db") as store:
        front = search_front(request, None, store, Path(folder)).result["front"]
        specs = [row["spec"] for row in front]
        work = with_seeds(candidates(specs, protocol), protocol, [1], "cpu")
        whole = [result(trial, _trained(trial)) for trial in work.trials]
        stopped = result(work.trials[0], _trained(work.trials[0], Path(folder) / "stopped.pt"))
        for trial, trial_result in zip(work.trials, whole, strict=True):
            store.put(Record.of(KIND, trial.config, trial_result, provenance_of(0.0, 0.0)))
        outcome = run_all(work, store, Machine(Place(workers=1)), lambda progress: None)
        comparison = compare(outcome)
    same = _without_seconds(stopped) == _without_seconds(whole[0])
    hashes = {architecture(spec).hash for spec in specs}
    keys = {trial.key for trial in work.trials}
    ours = f"{len(hashes)} found, {len(keys)} keys, resumed the same: {same}, {outcome.fresh} trained again, " + (
        f"{len(comparison.names)} compared"
    )
    published = "2 found, 2 keys, resumed the same: True, 0 trained again, 2 compared"
    return published, ours, ours == published


def _trained(trial: Trial, stop_at: Path | None = None) -> Sequence[Any]:
    """A complete training; with a path it is saved half way and resumed by another object."""
    from plait.training import checkpoint
    from plait.training.ensemble import FleetState

    fleet = trial.fleet()
    if stop_at is not None:
        fleet.run(until=3)
        checkpoint.save_state(stop_at, fleet.state())
        fleet, saved = trial.fleet(), checkpoint.load_state(stop_at)
        assert saved is not None
        fleet.restore(cast(FleetState, saved))
    fleet.run(until=fleet.plan.steps)
    return fleet.records


def _without_seconds(document: Any) -> Any:
    """Results without durations."""
    if isinstance(document, dict):
        return {key: _without_seconds(value) for key, value in document.items() if "second" not in key}
    return [_without_seconds(value) for value in document] if isinstance(document, list) else document
