"""Processes that plait starts: Ctrl-C, which reaches all of them, is their parent's to answer."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from plait.core.progress import python_command

pytestmark = pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="signals of POSIX")
INTERRUPTED = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\ndef main(): print('alive')\n"


def test_a_program_is_not_interrupted_while_it_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "of_the_child.py").write_text(INTERRUPTED)
    monkeypatch.syspath_prepend(tmp_path)
    ran = subprocess.run(python_command("of_the_child", "main"), capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "alive\n", "")


def test_a_worker_is_not_interrupted_and_its_parent_still_is(tmp_path: Path) -> None:
    """In a program of its own: workers of tests are forked, not started."""
    (tmp_path / "of_the_worker.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\ndef answer(pipe): pipe.send('alive')\n"
    )
    program = (
        f"import os, signal, sys\nsys.path.append({str(tmp_path)!r})\n"
        "kept = signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "from of_the_worker import answer\n"  # which interrupts, here to no effect
        "signal.signal(signal.SIGINT, kept)\n"
        "from plait.workers.local_processes import start_process\n"
        "process, pipe = start_process(answer)\n"
        "print(pipe.recv())\n"
        "process.join()\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "print('not interrupted')\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.stdout == "alive\n", ran.stderr
    assert ran.stderr.strip().endswith("KeyboardInterrupt")
    assert "of_the_worker" not in ran.stderr


def test_the_program_itself_answers_while_it_imports() -> None:
    program = (
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'typer': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "from plait.__main__ import main\n"
        "main()\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "plait: interrupted\n")
