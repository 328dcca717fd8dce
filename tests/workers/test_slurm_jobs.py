"""Jobs through submitit's own local executor, which runs them as Slurm would: files in a folder, a process each."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from plait.core.errors import UserError
from plait.records import Store, open_store
from plait.workers.pool import Place, Pool, Setup, Task
from plait.workers.slurm_jobs import SlurmJobs, _key, _parameters

sys.path.insert(0, str(Path(__file__).parent))
from workers_tasks import asked_once_begun, record, square_task


def test_parameters() -> None:
    assert _parameters("slurm") == {}
    assert _parameters("slurm:partition=gpu, account=me") == {"partition": "gpu", "account": "me"}
    with pytest.raises(UserError, match="'gpu' is not key=value"):
        _parameters("slurm:gpu")
    named = [_key(name, "slurm") for name in ("partition", "slurm_qos", "mem_gb")]
    assert named == ["slurm_partition", "slurm_qos", "mem_gb"]
    assert _key("partition", "local") == "partition"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Store, Place]]:
    pytest.importorskip("submitit")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    with open_store(f"sqlite:///{tmp_path}/plait.db") as store:
        yield store, Place(cluster="slurm:executor=local", workers=2)


@pytest.mark.slow
def test_jobs_have_their_results_also_where_one_is_killed(here: tuple[Store, Place], tmp_path: Path) -> None:
    store, place = here
    with Pool(place, Setup.of(store, preload=()), store, local_workers=1) as pool:
        found = pool.run([square_task(number, str(tmp_path), deaths=number == 1) for number in range(3)])
        with pytest.raises(UserError, match=r"there is no file x\.txt"):
            pool.run([Task("a", "workers_tasks:wrong")])
    assert sorted(found.values()) == [0, 1, 4]
    assert store.kinds() == {"number": 3}
    assert sorted(path.name for path in tmp_path.glob("?-?")) == ["0-0", "1-0", "1-1", "2-0"]


@pytest.mark.slow
def test_whoever_is_started_again_finds_its_jobs(here: tuple[Store, Place], tmp_path: Path) -> None:
    store, place = here
    setup = Setup.of(store, preload=())
    killed = SlurmJobs(place, setup)  # it submits a job and is no more
    killed.start(square_task(5, str(tmp_path)))
    (job,) = killed._jobs.values()
    again, events = SlurmJobs(place, setup), []
    again.start(square_task(5, str(tmp_path)))
    assert again._jobs[record(5).key].job_id == job.job_id
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not any(event.kind == "done" for event in events):
        again.poll_events(events.append, 0.2)
    assert [(event.kind, event.detail) for event in events if event.kind != "progress"] == [("done", 25)]
    assert len(list(tmp_path.glob("5-*"))) == 1


@pytest.mark.slow
def test_jobs_that_are_asked_to_stop_save(here: tuple[Store, Place], tmp_path: Path) -> None:
    store, place = here
    asked = asked_once_begun(tmp_path)
    with (
        Pool(place, Setup.of(store, preload=()), store, local_workers=1) as pool,
        pytest.raises(KeyboardInterrupt),
    ):
        pool.run([Task("wait", "workers_tasks:wait", (str(tmp_path),))], asked=asked)
    assert (tmp_path / "saved").exists()


@pytest.mark.slow
def test_a_parameter_that_slurm_has_not_is_refused(here: tuple[Store, Place]) -> None:
    store, _ = here
    with pytest.raises(UserError, match="--cluster slurm:executor=local,colour=red"):
        SlurmJobs(Place(cluster="slurm:executor=local,colour=red"), Setup.of(store))
