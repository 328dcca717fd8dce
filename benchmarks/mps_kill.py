"""Does a client of MPS that is killed in the middle of a kernel take the others with it?

    python benchmarks/mps_kill.py [--device cpu]

An MPS server of its own, in a folder of its own. Two clients work on, one with nothing but torch's products of
matrices, one with the delta rule's kernels. Beside them one client ends by itself, then another is killed. After each,
whether the two still work. Needs a CUDA device; `--device cpu` tries the order of things without one.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LONGEST = 90.0  # seconds; clients end by themselves


def work(kind: str, folder: Path, name: str, device: str) -> None:
    """A client: waits for its turn, works until it is told to stop, and writes down what it met."""
    import torch

    place, gpu = torch.device(device), device != "cpu"
    if kind == "delta" and gpu:
        import kernel_faults

        inputs = kernel_faults.draw(8, 4096, 6, 128, 128, "head", False)
        run = lambda: kernel_faults.both(inputs, "head")  # noqa: E731
    else:
        x = torch.randn(*((8192, 8192) if gpu else (64, 64)), device=place, dtype=torch.bfloat16 if gpu else None)
        run = lambda: x @ x  # noqa: E731
    wait = torch.cuda.synchronize if gpu else (lambda: None)
    until = time.time() + LONGEST
    while not (folder / f"{name}.go").exists() and time.time() < until:
        time.sleep(0.05)
    try:
        run()
        wait()
        (folder / f"{name}.ready").touch()
        while not (folder / f"{name}.stop").exists() and time.time() < until:
            for _ in range(20):
                run()
            if name in ("products", "delta"):
                wait()  # the others always have kernels under way
        wait()
        (folder / f"{name}.end").write_text("no fault")
    except Exception as wrong:
        (folder / f"{name}.end").write_text(f"FAULT: {str(wrong).splitlines()[0][:110]}")
        os._exit(1)


def there(file: Path) -> None:
    until = time.time() + LONGEST
    while not file.exists():
        if time.time() > until:
            raise SystemExit(f"{file.name} did not come")
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--client", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.client:
        kind, folder, name = asked.client
        work(kind, Path(folder), name, asked.device)
        return
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        os.environ["CUDA_MPS_PIPE_DIRECTORY"] = os.environ["CUDA_MPS_LOG_DIRECTORY"] = made
        if asked.device != "cpu":
            subprocess.run(["nvidia-cuda-mps-control", "-d"], check=True)
        kinds = {"products": "products", "delta": "delta", "clean": "products", "killed": "products"}
        clients = {
            name: subprocess.Popen([sys.executable, __file__, "--device", asked.device, "--client", kind, made, name])
            for name, kind in kinds.items()
        }

        def say(event: str) -> None:
            time.sleep(3)
            ends = {name: folder / f"{name}.end" for name in ("products", "delta")}
            state = {name: end.read_text() if end.exists() else "at work" for name, end in ends.items()}
            print(event, state, flush=True)

        try:
            for name in ("products", "delta", "clean"):
                (folder / f"{name}.go").touch()
                there(folder / f"{name}.ready")
            (folder / "clean.stop").touch()
            clients["clean"].wait()
            say("one client has ended by itself:")
            (folder / "killed.go").touch()
            there(folder / "killed.ready")
            time.sleep(1)
            clients["killed"].kill()
            say("one client was killed in the middle of a kernel:")
        finally:
            for name in ("products", "delta", "killed", "clean"):
                (folder / f"{name}.go").touch()
                (folder / f"{name}.stop").touch()
            for client in clients.values():
                client.wait()
            if asked.device != "cpu":
                with contextlib.suppress(subprocess.TimeoutExpired):
                    subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, timeout=10)


if __name__ == "__main__":
    main()
