"""The process that measures memory outlives nobody, and leaves without complaint."""

from __future__ import annotations

import subprocess

from plait.core.progress import python_command


def test_it_leaves_quietly_when_nobody_waits_for_it() -> None:
    process = subprocess.Popen(
        python_command("plait.device.memory", "serve"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.close()  # as when a command is killed while this one starts
    _, said = process.communicate(timeout=600)
    assert process.returncode == 0
    assert "Traceback" not in said
