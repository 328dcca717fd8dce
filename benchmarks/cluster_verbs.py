"""`plait probe`, `scale run`, `study verdict` and `design` on two Ray nodes of this machine: are their tables those of
one process?

python benchmarks/cluster_verbs.py [probe scale verdict design] [-o FILE.json]

A node is killed while the probe trains, and later its driver; started again, the driver trains what is not in the store
and nothing else. A design decides by the clock, and stores what it decided (profile, search, speeds, plans): a cluster
is given these records of the one process, and none of its trainings, so that it must train all of them to the same
document. The nodes run with one CPU each, the store is PostgreSQL.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from cluster import ROOT, RayNodes, family, postgresql

import plait
from plait.records import open_store

SPECS = ("d=16 | attn[heads=2] swiglu", "d=16 | gla[heads=2] swiglu", "d=16 | hyena swiglu")
PROBE_STEPS = 500
TRAININGS = ("probe", "probe-verdict", "track", "train", "compare", "design")


def tiny_protocol() -> Any:
    """The module of the tests that has it."""
    spec = spec_from_file_location("tiny_protocol", ROOT / "tests" / "probing" / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    small = module_from_spec(spec)
    spec.loader.exec_module(small)
    return small


def probe(folder: Path, store: str, cluster: str) -> dict[str, Any]:
    """The tests' tiny protocol with three seeds: four trials, each an ensemble of its seeds and rates."""
    small = tiny_protocol()
    from plait.probing.plan import with_seeds
    from plait.probing.run import Machine, compare, run_all
    from plait.probing.verdict import document
    from plait.workers.pool import Place

    protocol = small.tiny(PROBE_STEPS)
    work = with_seeds(small.tiny_candidates(protocol), protocol, [3, 3], "cpu")
    with open_store(store) as opened:
        outcome = run_all(work, opened, Machine(Place(cluster, None if cluster else 1), 1.0), lambda _: None)
    return {"table": document(compare(outcome)), "trained": outcome.fresh, "trials": len(outcome.records)}


def scale(folder: Path, store: str, cluster: str) -> dict[str, Any]:
    planned = plait.scale.plan(
        [f"{mixer}=d=16 vocab=32 | {mixer}[heads=2] swiglu" for mixer in ("attn", "gla")],
        budgets="5e7,1e8", sizes=3, span=1.5, data="builtin:language", seq_len=16, batch=2, validation_tokens=1024,
        priced=False,
    )  # fmt: skip
    found = plait.scale.run(planned.plan, cluster=cluster, runs=folder, store=store)
    return {"table": [{key: value for key, value in row.items() if "second" not in key} for row in found.rows()]}


def verdict(folder: Path, store: str, cluster: str) -> dict[str, Any]:
    found = plait.study.verdict(
        SPECS, data="builtin:language", tokens=4000, seeds=2, batch=2, seq_len=16, held_out=64,
        workers=0 if cluster else 1, cluster=cluster, runs=folder, store=store,
    )  # fmt: skip
    return {"table": [{key: value for key, value in row.items() if "second" not in key} for row in found.rows()]}


def design(folder: Path, store: str, cluster: str) -> dict[str, Any]:
    """With the tests' tiny protocol as its probe, so that it ends in minutes on two cores."""
    import plait.designing.workflow as workflow

    small = tiny_protocol()
    workflow.quick = lambda tasks: small.tiny(60)  # type: ignore[assignment, misc]
    found = plait.design(
        latency="5ms", memory="30MB", seq_len=32, time="60s", train_for="8k tokens", cluster=cluster, runs=folder,
        store=store, out=folder / "report.html",
    )  # fmt: skip
    document = found.as_dict()
    return {
        "table": without_times(document),
        "pick": document["pick"]["pattern"],
        "loss": document["train"]["loss"],
        "page": (folder / "report.html").exists(),
    }


def without_times(value: Any) -> Any:
    """The document without what depends on when and how long."""
    if isinstance(value, dict):
        timed = ("second", "machine", "stages", "trained_now", "folder", "mfu", "started", "report", "points", "advice")
        return {key: without_times(part) for key, part in value.items() if not any(word in key for word in timed)}
    return [without_times(part) for part in value] if isinstance(value, (list, tuple)) else value


def give_decisions(alone: Path, alone_store: str, folder: Path, store: str) -> dict[str, int]:
    """What one process decided, for a cluster to train by; gives how many trainings it was not given, by kind."""
    shutil.copytree(alone, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("train-*", "track*", "*.html"))
    with open_store(alone_store) as source, open_store(store) as target:
        for record in source.each():
            if record.kind not in TRAININGS:
                target.put(record)
        return {kind: count for kind, count in source.kinds().items() if kind in TRAININGS}


VERBS: dict[str, Callable[[Path, str, str], dict[str, Any]]] = {
    "probe": probe, "scale": scale, "verdict": verdict, "design": design,
}  # fmt: skip


def start(verb: str, folder: Path, store: str, cluster: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, __file__, "--drive", verb, str(folder), store, cluster]
    return subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True)


def kill(process: subprocess.Popen[bytes]) -> None:
    for pid in reversed(family(process.pid)):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def wait_for(records: int, store: str, driver: subprocess.Popen[bytes]) -> int:
    """Until so many probe trials are in the store; how many are."""
    with open_store(store) as opened:
        while (done := opened.kinds().get("probe", 0)) < records:
            assert driver.poll() is None, "the driver has ended"
            time.sleep(0.2)
    return done


def killed_probe(folder: Path, store: str, nodes: RayNodes) -> dict[str, Any]:
    """A node dies after the first trial, the driver after the second; the driver that is started again ends."""
    cluster = f"127.0.0.1:{nodes.port}"
    driver = start("probe", folder, store, cluster)
    lost_node = wait_for(1, store, driver)
    nodes.kill("second")
    lost_driver = wait_for(2, store, driver)
    kill(driver)
    nodes.start("second")
    again = start("probe", folder, store, cluster)
    assert again.wait(timeout=400) == 0
    found = json.loads((folder / "probe.json").read_text())
    return {**found, "at_node_loss": lost_node, "at_driver_loss": lost_driver}


def measured(verbs: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pv-", dir="/tmp")))
        store, _ = stack.enter_context(postgresql())
        nodes = stack.enter_context(RayNodes(folder))
        nodes.start("head")
        time.sleep(5)
        nodes.start("second")
        for verb in verbs:
            began = time.time()
            alone_store = f"sqlite:///{folder}/alone-{verb}.db"
            alone = VERBS[verb](folder / f"alone-{verb}", alone_store, "")
            alone_seconds = round(time.time() - began)
            (folder / verb).mkdir()
            if verb == "design":
                print(
                    "not given:", give_decisions(folder / "alone-design", alone_store, folder / verb, store), flush=True
                )
            if verb == "probe":
                one = killed_probe(folder / verb, store, nodes)
            else:
                driver = start(verb, folder / verb, store, f"127.0.0.1:{nodes.port}")
                assert driver.wait(timeout=500) == 0
                one = json.loads((folder / verb / f"{verb}.json").read_text())
            if "table" in one:
                mine, theirs = json.loads(json.dumps(alone["table"])), one.pop("table")
                one = {"same_table": mine == theirs, **one}
                for key in theirs if isinstance(theirs, dict) and mine != theirs else ():
                    if mine.get(key) != theirs[key]:
                        print("differs:", key, str(mine.get(key))[:300], "|", str(theirs[key])[:300], flush=True)
            with open_store(store) as opened:
                one["records"] = opened.kinds()
            found[verb] = {**one, "seconds_alone": alone_seconds, "seconds": round(time.time() - began)}
            print(verb, json.dumps(found[verb]), flush=True)
    return found


def main() -> None:
    if sys.argv[1:2] == ["--drive"]:
        verb, folder, store, cluster = sys.argv[2:]
        result = VERBS[verb](Path(folder), store, cluster)
        (Path(folder) / f"{verb}.json").write_text(json.dumps(result))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verbs", nargs="*", default=list(VERBS), choices=[*VERBS, []])
    parser.add_argument("-o", "--out", type=Path)
    given = parser.parse_args()
    text = json.dumps({"plait": plait.__version__, **measured(given.verbs or list(VERBS))}, indent=1)
    if given.out:
        given.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
