"""A comparison on two Ray nodes of this machine, with everything killed once: is its table that of one process?

python benchmarks/cluster.py faults [-o FILE.json]    # a node, PostgreSQL, the head and the driver, one after the other
python benchmarks/cluster.py speed --workers 2,4 [-o FILE.json]     # four worker processes against two; no Ray

One layer of every architecture is a user's mixer, from a file that workers are not given: it travels as text. It writes
a line wherever a model is made for a training, so that trainings are counted; what is in flight at a kill is counted by
the claims in the store. The nodes run with one CPU each, the store is PostgreSQL.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import module_from_spec, spec_from_file_location
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import plait
from plait.records import Store, open_store
from plait.workers.pool import Place

ROOT = Path(__file__).resolve().parents[1]
STEPS, SEEDS, BATCH, SEQ = 300, 3, 2, 16
SPECS = tuple(f"d=16 | {mixer} swiglu counted swiglu" for mixer in ("attn[heads=2]", "gla[heads=2]", "hyena"))
COUNTED = """
from dataclasses import dataclass
from typing import ClassVar
import os, time
import torch
from torch import nn
from plait.mixers import MIXING, Cost, Mixer, MixerOptions

@dataclass(frozen=True)
class Options(MixerOptions):
    "The mean of the tokens so far, projected; counts the models made of it outside the driver."
    name: ClassVar[str] = "counted"
    kind: ClassVar[str] = "sequence"

    def cost(self, d, seq, memory=0):
        return Cost(params={"projection": d * d}, flops={"projection": 2 * seq * d * d, MIXING: 2 * seq * d},
                    fixed_state=d + 1)

class Counted(Mixer):
    Options = Options

    def __init__(self, d, options):
        super().__init__(d, options)
        self.projection = nn.Linear(d, d, bias=False)
        if not os.environ.get("PLAIT_DRIVER"):
            with open("FILE", "a") as opened:
                opened.write(f"{os.getpid()} {time.time():.1f}\\n")

    def forward(self, x_BTD):
        return self.extend(x_BTD, self.init_state(len(x_BTD)))[0]

    def init_state(self, batch, *, rollback=0):
        return {"s": self.zeros(batch, self.d), "n": self.zeros(batch, 1)}

    def extend(self, x_BTD, state):
        n = state["n"][:, None] + torch.arange(1, x_BTD.shape[1] + 1, dtype=x_BTD.dtype)[None, :, None]
        s = x_BTD.cumsum(1) + state["s"][:, None]
        return self.projection(s / n), {"s": s[:, -1], "n": n[:, -1]}

    def step(self, x_BD, state):
        s, n = state["s"] + x_BD, state["n"] + 1
        return self.projection(s / n), {"s": s, "n": n}
"""


def compared(folder: Path, store: str, mixer: Path, **where: Any) -> list[dict[str, Any]]:
    """The table of the comparison, without what depends on the clock."""
    found = plait.compare(
        list(SPECS), data="builtin:language", tokens=STEPS * BATCH * SEQ, seeds=SEEDS, batch=BATCH, seq_len=SEQ,
        held_out=64, search_rates=False, mixers=[mixer], runs=folder, store=store, **where,
    )  # fmt: skip
    return [{key: value for key, value in row.items() if "second" not in key} for row in found.rows()]


def drive(arguments: list[str]) -> None:
    """A driver: started as a process of its own, so that it can be killed."""
    folder, store, mixer, cluster, out = arguments
    os.environ["PLAIT_DRIVER"] = "1"
    table = compared(Path(folder), store, Path(mixer), cluster=cluster)
    Path(out).write_text(json.dumps(table))


# ---- the machines


def free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


def family(pid: int) -> list[int]:
    """A process and all below it."""
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = status.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(status.parent.name))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found


@dataclass
class RayNodes:
    """Nodes of a cluster, each with one CPU; killed with all their processes, as a machine that is switched off. Who
    connects must have their token, which is in the environment of everything that is started from here."""

    folder: Path
    port: int = field(default_factory=free_port)
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}

    def start(self, name: str) -> None:
        head = ["--head", "--port", str(self.port), "--include-dashboard", "false", "--temp-dir", str(self.folder)]
        where = head if name == "head" else ["--address", f"127.0.0.1:{self.port}"]
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus", "1", *where]
        command += ["--object-store-memory", "80000000", "--min-worker-port", "0", "--max-worker-port", "0"]
        environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
        environment.pop("PLAIT_DRIVER", None)
        log = open(self.folder / f"{name}.log", "ab")  # noqa: SIM115 (the process's)
        self.running[name] = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)

    def kill(self, name: str) -> None:
        started = self.running.pop(name)
        for pid in reversed(family(started.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        started.wait()

    def __enter__(self) -> RayNodes:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self.running):
            self.kill(name)


@contextmanager
def postgresql():
    """A server that the tests' own fixture starts: its URL, and the command that restarts it."""
    spec = spec_from_file_location("records_fixtures", ROOT / "tests" / "records" / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    fixtures = module_from_spec(spec)
    spec.loader.exec_module(fixtures)
    server = fixtures.postgresql_server.__wrapped__()
    folder = next(server)
    try:
        user = fixtures._server_user()
        restart = (Path(folder) / "restart").read_text()

        def again() -> None:
            quiet = subprocess.DEVNULL
            subprocess.run(["sh", "-c", restart], check=True, cwd=folder, stdout=quiet, stderr=quiet, **user)

        yield f"postgresql://plait@/postgres?host={folder}", again
    finally:
        with suppress(StopIteration):
            next(server)


# ---- faults


@dataclass
class Watch:
    """The store while a driver works: how many trainings are done, and what is in flight."""

    store: Store
    began: float = field(default_factory=time.time)
    lines: list[str] = field(default_factory=list)
    in_flight: int = 0

    def done(self) -> int:
        return self.store.kinds().get("track", 0)

    def wait_for(self, done: int, driver: subprocess.Popen[bytes], seconds: float = 600.0) -> None:
        deadline = time.time() + seconds
        while self.done() < done:
            assert driver.poll() is None, "the driver has ended"
            assert time.time() < deadline, f"only {self.done()} trainings are done"
            time.sleep(0.5)

    def note(self, what: str, lost: int = 0) -> None:
        self.in_flight += lost
        self.lines.append(
            f"{time.time() - self.began:6.0f} s  {what}: {self.done()} records, {lost} trainings in flight"
        )
        print(self.lines[-1], flush=True)

    def claims(self) -> int:
        from sqlalchemy import select

        from plait.records.database import claims

        return len(self.store.raw_rows(select(claims.c.key)))


def faults() -> dict[str, Any]:
    """Everything killed once; what came of it."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pr-", dir="/tmp")))
        mixer, count = folder / "counted.py", folder / "begun"
        mixer.write_text(COUNTED.replace("FILE", str(count)))
        os.environ["PLAIT_DRIVER"] = "1"
        torch.set_num_threads(1)
        print("one process …", flush=True)
        alone = compared(folder / "alone", f"sqlite:///{folder}/alone.db", mixer, workers=1)
        with open_store(f"sqlite:///{folder}/alone.db") as store:
            records = store.kinds()["track"]
        legs = len(SPECS) * SEEDS
        rungs = records // legs  # a training has a record at each of its budgets
        url, restart = stack.enter_context(postgresql())
        nodes = stack.enter_context(RayNodes(folder))
        nodes.start("head")
        time.sleep(5)
        nodes.start("second")
        out, shared = folder / "table.json", folder / "shared"
        arguments = [str(shared), url, str(mixer), f"127.0.0.1:{nodes.port}", str(out)]

        def start() -> subprocess.Popen[bytes]:
            environment = {**os.environ, "PLAIT_DRIVER": "1", "OMP_NUM_THREADS": "1"}
            command = [sys.executable, __file__, "drive", *arguments]
            return subprocess.Popen(command, env=environment, start_new_session=True)

        driver = start()
        stack.callback(lambda: [os.kill(pid, signal.SIGKILL) for pid in family(driver.pid) if driver.poll() is None])
        watch = Watch(stack.enter_context(open_store(url)))
        watch.wait_for(rungs, driver)
        flying = min(1, watch.claims())  # it has one CPU
        nodes.kill("second")
        watch.note("a node is killed", lost=flying)
        watch.wait_for(2 * rungs, driver)
        restart()
        watch.note("PostgreSQL is restarted")
        nodes.start("second")
        watch.wait_for(4 * rungs, driver)
        flying = watch.claims()
        for name in ("head", "second"):
            nodes.kill(name)
        watch.note("the head is killed, and with it the cluster", lost=flying)
        time.sleep(3)
        nodes.start("head")
        time.sleep(5)
        nodes.start("second")
        watch.wait_for(6 * rungs, driver)
        flying = watch.claims()
        for pid in reversed(family(driver.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        driver.wait()
        watch.note("the driver is killed", lost=flying)
        driver = start()
        assert driver.wait(timeout=600) == 0
        watch.note("the driver, started again, has ended")
        table = json.loads(out.read_text())
        begun = len(count.read_text().splitlines())
        return {
            "same_table": table == json.loads(json.dumps(alone)),
            "records": watch.done(),
            "expected_records": records,
            "trainings": legs,
            "begun": begun,
            "in_flight_at_kills": watch.in_flight,
            "seconds": round(time.time() - watch.began),
            "log": watch.lines,
        }


# ---- speed


def speed(workers: list[int], seconds: float, steps: int, legs_per_worker: int = 4) -> dict[str, Any]:
    """Seconds of the same trainings with each number of worker processes, in turn, until `seconds` have passed. Every
    process has one torch thread, and all of them are started before the clock is."""
    from plait.racing.contenders import read_contenders
    from plait.racing.leg import Course, Leg
    from plait.racing.rates import usual_rate
    from plait.racing.workers import Workers
    from plait.training.recipe import Recipe
    from plait.training.track import Replica, track_recipe

    torch.set_num_threads(1)  # a single worker is this process
    corpus = plait.data.open_corpus("builtin:language")
    course = Course("builtin:language", None, corpus.fingerprint, track_recipe(Recipe(batch=8, seq_len=64), 10), 1024)
    contenders = read_contenders([f"d=64 | {name} swiglu" for name in ("attn", "gla")], corpus.vocab, None)
    seeds = range(legs_per_worker * max(workers) // len(contenders))
    took: dict[int, list[float]] = {count: [] for count in workers}
    deadline, slowest = time.perf_counter() + seconds, 0.0
    while time.perf_counter() + slowest < deadline:
        began_round = time.perf_counter()
        for count in workers:
            with tempfile.TemporaryDirectory() as folder, open_store(f"sqlite:///{folder}/plait.db") as store:
                legs = [
                    Leg(course, c.arch, (Replica(usual_rate(c, course), seed),), (steps,), Path(folder))
                    for seed in seeds
                    for c in contenders
                ]
                with Workers(course, store, Place(workers=count)) as pool:
                    pool.step_seconds([c.arch for c in contenders])
                    began = time.perf_counter()
                    pool.run(legs)
                    took[count].append(round(time.perf_counter() - began, 3))
        slowest = max(slowest, time.perf_counter() - began_round)
        print(json.dumps(took), flush=True)
    ratios = {
        f"{more} against {fewer}": [round(a / b, 3) for a, b in zip(took[fewer], took[more], strict=True)]
        for fewer, more in pairwise(workers)
    }
    return {
        "trainings": len(contenders) * len(seeds),
        "seconds": took,
        "times_as_fast": ratios,
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg(),
    }


def main() -> None:
    if sys.argv[1:2] == ["drive"]:
        drive(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("faults", "speed"))
    parser.add_argument("-o", "--out", type=Path)
    parser.add_argument("--workers", default="1,2", help="numbers of worker processes to compare")
    parser.add_argument("--seconds", type=float, default=120.0, help="start no further round that would end later")
    parser.add_argument("--steps", type=int, default=80, help="of each training whose speed is measured")
    given = parser.parse_args()
    counts = [int(count) for count in given.workers.split(",")]
    found = faults() if given.what == "faults" else speed(counts, given.seconds, given.steps)
    versions = {"plait": plait.__version__, "python": platform.python_version(), "date": time.strftime("%Y-%m-%d")}
    with suppress(ImportError):
        import ray

        versions["ray"] = ray.__version__
    text = json.dumps({**versions, **found}, indent=1)
    print(text)
    if given.out:
        given.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
