"""As archai counts: sums in train mode, without weights."""

from __future__ import annotations

import subprocess
import sys

import pytest

from plait.core.errors import UserError
from plait.device.archai import LiveTensors, measure_archai
from plait.device.quantities import Setting
from plait.device.workload import Workload
from plait.model.architecture import architecture


def test_it_sums_up_outputs_and_leaves_the_weights_out() -> None:
    shallow, deep = (architecture(f"d=64 vocab=100 | (mlp[inner=512])x{n}") for n in (1, 4))
    counted = [measure_archai(arch, Setting(seq=64), repeats=1).memory for arch in (shallow, deep)]
    # Three more layers: norm, up, activation, down and sum, each an output of its own.
    a_layer = 4 * 64 * (64 + 512 + 512 + 64 + 64)
    assert counted[1] - counted[0] == pytest.approx(3 * a_layer, rel=0.15)
    with LiveTensors() as alive:
        Workload(deep, Setting(seq=64)).run()
    assert counted[1] > 2 * 4 * 64 * (512 + 512)
    assert counted[1] < alive.made + 4 * 64 * 64 * 100  # no weights in it


def test_whole_sequences_only() -> None:
    with pytest.raises(UserError, match="whole sequences"):
        measure_archai(architecture("d=32 vocab=9 | attn[heads=2]"), Setting(mode="decode"))


def test_counting_does_not_import_the_compiler() -> None:
    """Which takes four seconds of a core, in every process that measures."""
    code = "import sys, torch; from plait.device.archai import LiveTensors as L\nwith L() as t: torch.zeros(3)\n"
    code += "print(t.peak, 'torch._dynamo' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["12", "False"]
