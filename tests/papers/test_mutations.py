"""The planted faults of benchmarks/mutate_verify.py can still be planted, and one of them is noticed here."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "benchmarks" / "mutate_verify.py"
spec = importlib.util.spec_from_file_location("mutate_verify", PATH)
assert spec is not None
assert spec.loader is not None
mutate = importlib.util.module_from_spec(spec)
sys.modules["mutate_verify"] = mutate
spec.loader.exec_module(mutate)


@pytest.mark.parametrize("fault", mutate.FAULTS, ids=[fault.what for fault in mutate.FAULTS])
def test_the_text_of_every_fault_stands_once(fault):
    assert fault.old != fault.new
    assert fault.old in fault.file().read_text(encoding="utf-8")


def test_every_fault_has_facts_and_a_name_of_its_own():
    from plait.papers.verify import all_facts

    known = {fact.id for fact in all_facts() if fact.check}
    assert all(fault.facts and set(fault.facts.split()) <= known for fault in mutate.FAULTS)
    assert len({fault.what for fault in mutate.FAULTS}) == len(mutate.FAULTS) >= 66
