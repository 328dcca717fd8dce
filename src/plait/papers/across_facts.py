"""Facts that hold across the papers."""

from __future__ import annotations

from plait.model.architecture import architecture
from plait.model.cost import model_cost
from plait.papers.conventions import fox_flops_per_token, mad_terms
from plait.papers.verify import FactTable
from plait.spec import format_spec, parse, presets

facts = FactTable()


@facts.fact("C01", "every preset loads, round-trips, is checked and costed")
def every_preset() -> tuple[str, str, bool]:
    names = presets.names()
    good = 0
    for name in names:
        arch = architecture(name)
        good += parse(format_spec(arch.spec)) == arch.spec and model_cost(arch).total_params > 0
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


@facts.fact("C03", "`plait verify` states every checkable fact: passed, failed, erratum, or not yet")
def every_fact() -> tuple[str, str, bool]:
    from plait.papers.verify import all_facts

    facts = all_facts()
    ids = [fact.id for fact in facts]
    open_ones = sum(fact.check is None for fact in facts)
    return "each id once", f"{len(ids)} facts, {len(ids) - open_ones} with a check", len(set(ids)) == len(ids)
