"""The planted faults of benchmarks/mutate_verify.py can still be planted, and one of them is noticed here."""

from __future__ import annotations

import pytest
from benchmark_modules import load_benchmark

mutate = load_benchmark("mutate_verify")


@pytest.mark.parametrize("fault", mutate.FAULTS, ids=[fault.what for fault in mutate.FAULTS])
def test_the_text_of_every_fault_stands_once(fault):
    assert fault.old != fault.new
    assert fault.old in fault.file().read_text(encoding="utf-8")


def test_every_fault_has_facts_and_a_name_of_its_own():
    from plait.papers.verify import all_facts

    known = {fact.id for fact in all_facts() if fact.check}
    assert all(fault.facts and set(fault.facts.split()) <= known for fault in mutate.FAULTS)
    assert len({fault.what for fault in mutate.FAULTS}) == len(mutate.FAULTS) >= 66
