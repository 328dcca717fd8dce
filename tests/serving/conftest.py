"""A dashboard as a process of its own, for tests that ask it from outside."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def started() -> Iterator[Callable[..., str]]:
    """Starts one over a folder with a store; its address. All are ended with the module."""
    processes: list[subprocess.Popen[str]] = []

    def start(folder: Path, *options: str) -> str:
        asked = ["serve", "--store", f"sqlite:///{folder}/plait.db", "--port", "0", *options]
        process = subprocess.Popen([sys.executable, "-u", "-m", "plait", *asked], stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout is not None
        if "--json" in options:
            told = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")
            assert told["process"] == process.pid
            return str(told["url"])
        address = process.stdout.readline().strip()
        assert address.startswith("http://"), address
        return address

    yield start
    for process in processes:
        assert process.poll() is None, "the dashboard has ended by itself"
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
