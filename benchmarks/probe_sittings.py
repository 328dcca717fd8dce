"""The full MAD protocol in sittings: on a machine that is lent for minutes, and keeps nothing but a few small files.

    python benchmarks/probe_sittings.py FILES -o FILES [--seconds 520] [--workers 3] [--mixers attn] [--tasks …]
    python benchmarks/probe_sittings.py FILES --records benchmarks/results/DATE-h200-probe-full.jsonl

A sitting unpacks the store and the checkpoints that the one before it left in FILES (a folder, empty at first), trains
for so many seconds, and packs them again into pieces that may come back. Checkpoints are large: one is kept of the
training that would lose most, and others while there is room. So what has a checkpoint comes first, then the others
from the shortest on: most of what a sitting begins, it ends. Those of one shape come one after the other. A sitting
that can end all that is left starts with the longest (`--longest-first`), so that none is left alone at the end.
SIGALRM ends a sitting early. With `--folder` the store and all checkpoints (one a minute) also stay in a folder of this
machine, from which the next sitting goes on even if this one was killed; `--pack-only` packs that folder, even while a
sitting runs, so that little is lost with the machine.
The result is that of `plait probe MIXERS --full --no-baselines --device cuda`, uninterrupted, and in the same store.
On a GPU several workers share it: start `nvidia-cuda-mps-control -d` first. `--records` writes what is finished, a line
per setting, and reads it before a sitting, so that a later one needs no other file.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import signal
import sqlite3
import tarfile
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from plait.probing.plan import Work, with_seeds
from plait.probing.protocol import candidates, full
from plait.probing.run import Machine, Progress, run_all
from plait.probing.trial import Trial, checkpoint_path, tokens
from plait.records import Record, Store, open_store
from plait.workers.pool import Place

MIB = 2**20
PIECE, ROOM = 15 * MIB, 60  # of what may come back: 16 MiB a file, 64 MiB in all
STORE, CHECKPOINTS, PIECES = "plait.db", "checkpoints", "sitting.tar."


def in_order(trials: Sequence[Trial], folder: Path, *, longest_first: bool = False) -> tuple[Trial, ...]:
    """First what has a checkpoint, then the shortest (or longest) sequences, by shape."""

    def rank(trial: Trial) -> tuple[bool, int, str, int, int]:
        fresh = not checkpoint_path(folder / CHECKPOINTS, trial.key).exists()
        size = -tokens(trial) if longest_first else tokens(trial)
        return fresh, size, trial.task.name, trial.task.model_vocab, -trial.training.steps

    return tuple(sorted(trials, key=rank))


def sit(work: Work, folder: Path, machine: Machine, seconds: float, *, longest_first: bool = False) -> bool:
    """Train for so many seconds; whether all is done. What was begun is in the folder's checkpoints."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    def tell(progress: Progress) -> None:
        nonlocal told
        if time.monotonic() - told > 10 or progress.phase != "training":
            told = time.monotonic()
            now = ", ".join(f"{x['step']:,} ({x['accuracy'] or 0:.3f})" for x in progress.running.values())
            print(f"[{told - begun:4.0f} s] {len(progress.done)} of {len(work.trials)} done; at {now}", flush=True)

    begun, told = time.monotonic(), 0.0
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        with open_store(f"sqlite:///{folder / STORE}") as store:
            left = [trial for trial in work.trials if not store.has([trial.key])]
            if left:
                ordered = in_order(left, folder, longest_first=longest_first)
                run_all(replace(work, trials=ordered), store, machine, tell)
        return True
    except KeyboardInterrupt:
        return False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def pack(folder: Path, files: Path, room: int = ROOM * MIB) -> list[str]:
    """The store, and as many checkpoints as there is room for, the longest-trained first, in pieces; what is left out
    is returned."""
    from plait.training.checkpoint import load_state

    states = {path: load_state(path) for path in folder.glob(f"{CHECKPOINTS}/*/fleet.safetensors")}
    found = sorted(((state["seconds"], path) for path, state in states.items() if state is not None), reverse=True)
    files.mkdir(parents=True, exist_ok=True)
    for old in files.glob(f"{PIECES}*"):
        old.unlink()
    left_out = []
    with tempfile.TemporaryFile() as whole:
        with tarfile.open(fileobj=whole, mode="w") as tar:

            def add(name: str, content: bytes) -> None:
                entry = tarfile.TarInfo(f"{name}.gz")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))

            add(STORE, gzip.compress(_snapshot(folder / STORE), 1))
            for seconds, path in found:
                content = gzip.compress(path.read_bytes(), 1)
                if whole.tell() + len(content) > room:
                    left_out.append(f"{path.parent.name}: {seconds:.0f} s")
                else:
                    add(str(path.relative_to(folder)), content)
        whole.seek(0)
        for number, piece in enumerate(iter(lambda: whole.read(PIECE), b"")):
            (files / f"{PIECES}{number}").write_bytes(piece)
    return left_out


def _snapshot(path: Path) -> bytes:
    """A store as one file, though others may be writing to it."""
    with closing(sqlite3.connect(path)) as live, closing(sqlite3.connect(":memory:")) as copy:
        live.backup(copy)
        return copy.serialize()


def unpack(files: Path, folder: Path) -> None:
    pieces = sorted(files.glob(f"{PIECES}*"), key=lambda path: int(path.name.removeprefix(PIECES)))
    if not pieces:
        return
    with tempfile.TemporaryFile() as whole:
        for piece in pieces:
            whole.write(piece.read_bytes())
        whole.seek(0)
        with tarfile.open(fileobj=whole) as tar:
            tar.extractall(folder, filter="data")
    for path in folder.rglob("*.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()


def write_records(work: Work, store: Store, path: Path) -> None:
    """The finished settings' records in the protocol's order, one per line."""
    finished = [record for trial in work.trials if (record := store.get(trial.key)) is not None]
    lines = [
        json.dumps({"key": r.key, "kind": r.kind, "config": r.config, "result": r.result, "provenance": r.provenance})
        for r in finished
    ]
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")


def read_records(store: Store, path: Path) -> None:
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        store.put(Record(**json.loads(line)))


def rows(work: Work, store: Store) -> list[dict[str, Any]]:
    """What every finished setting gave, and what it cost."""
    found = []
    for trial in work.trials:
        record = store.get(trial.key)
        if record is None:
            continue
        replicas = record.result["replicas"]
        found.append({
            "architecture": trial.candidate, "task": trial.task.name, "settings": dict(trial.settings),
            "tokens": trial.task.input_length, "accuracy": record.result["accuracy"],
            "steps": max(replica["steps"] for replica in replicas), "of": trial.training.steps,
            "stopped": sorted({replica["stopped"] for replica in replicas}),
            "seconds": record.provenance["seconds"], "gpu": record.provenance["gpu"], "key": trial.key,
        })  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, help="where the last sitting's pieces are")
    parser.add_argument("-o", "--out", type=Path, help="where this one's go; without it nothing is trained")
    parser.add_argument("--seconds", type=float, default=520.0)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--longest-first", action="store_true")
    parser.add_argument("--folder", type=Path, help="keep store and checkpoints here, and go on from them")
    parser.add_argument("--pack-only", action="store_true", help="pack what is in the folder, and train nothing")
    parser.add_argument("--room", type=float, default=ROOM, help="MiB of all that is packed")
    parser.add_argument("--mixers", nargs="*", default=["attn"])
    parser.add_argument("--tasks", nargs="*", default=[])
    parser.add_argument("--patience", type=int, default=0, help="as that of plait probe --full; 0: none")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--records", type=Path, help="read finished settings from here, and write them")
    asked = parser.parse_args()
    protocol = full(asked.tasks, patience=asked.patience)
    some = candidates(asked.mixers, protocol, baselines=False)
    work = with_seeds(some, protocol, [1] * len(protocol.settings), asked.device)
    share = None if asked.device == "cpu" else 1 / asked.workers
    machine = Machine(Place.of("", asked.workers, asked.device, share), checkpoint_seconds=60.0)
    with tempfile.TemporaryDirectory() as name:
        folder, begun = asked.folder or Path(name), time.perf_counter()
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / STORE).exists():
            unpack(asked.files, folder)
        if asked.records is not None and not asked.pack_only:
            with open_store(f"sqlite:///{folder / STORE}") as store:
                read_records(store, asked.records)
        if asked.out is not None:
            done = not asked.pack_only and sit(work, folder, machine, asked.seconds, longest_first=asked.longest_first)
            left_out = pack(folder, asked.out, int(asked.room * MIB))
            print(f"{'all done' if done else 'stopped'} after {time.perf_counter() - begun:.0f} s", flush=True)
            if left_out:
                print(f"no room for the checkpoints of {', '.join(left_out)}", flush=True)
        with open_store(f"sqlite:///{folder / STORE}") as store:
            found = rows(work, store)
            if asked.records is not None:
                write_records(work, store, asked.records)
    seconds = sum(row["seconds"] for row in found)
    print(f"{len(found)} of {len(work.trials)} settings, {seconds / 60:.1f} minutes of trainings", flush=True)
    for row in sorted(found, key=lambda row: (row["task"], row["tokens"])):
        print(
            f"  {row['task']}, {row['tokens']} tokens: {row['accuracy']:.4f} after {row['steps']:,} of {row['of']:,} "
            f"steps, {row['seconds']:.0f} s, {', '.join(row['stopped'])}",
            flush=True,
        )


if __name__ == "__main__":
    main()
