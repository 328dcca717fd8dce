"""Tasks in places: each has its result, whoever dies; what others compute is waited for; asked to stop, all save."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest

from plait.core.errors import UserError
from plait.core.user_files import MixerSource
from plait.mixers import table
from plait.model.user_mixers import load_mixer
from plait.records import Store, open_store
from plait.workers import worker as worker_module
from plait.workers.pool import ATTEMPTS, Place, Pool, Setup, Task
from plait.workers.worker import WorkerHome

sys.path.insert(0, str(Path(__file__).parent))
import workers_tasks
from workers_tasks import asked_once_begun, record, square_task


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/plait.db") as opened:
        yield opened


def setup_of(store: Store) -> Setup:
    """Without torch, which these tasks do not need."""
    return Setup.of(store, preload=())


@pytest.fixture(params=[1, 2], ids=["in process", "two processes"])
def pool(request: pytest.FixtureRequest, store: Store, new_processes: None) -> Iterator[Pool]:
    with Pool(Place(), setup_of(store), store, local_workers=request.param) as made:
        yield made


def test_every_task_has_its_result(pool: Pool, store: Store) -> None:
    told: list[int] = []
    done: list[str] = []
    work = [square_task(number) for number in range(5)]
    later = [square_task(number) for number in (7, 8)]
    found = pool.run(work, lambda name, at: told.append(at), done.append, lambda: [later.pop()] if later else [])
    assert sorted(found.values()) == [0, 1, 4, 9, 16, 49, 64]
    assert sorted(told) == [0, 1, 2, 3, 4, 7, 8]
    assert store.kinds() == {"number": 7}
    assert sorted(done) == sorted(found)
    assert set(pool.run([square_task(2)]).values()) == {-1}, "what is stored is not computed"


def test_what_is_wrong_is_said(pool: Pool) -> None:
    with pytest.raises(UserError, match=r"there is no file x\.txt"):
        pool.run([Task("a", "workers_tasks:wrong")])
    with pytest.raises(UserError, match="dividing: ZeroDivisionError: by zero"):
        pool.run([Task("a", "workers_tasks:broken", what="dividing")])
    assert pool.run([Task("b", "workers_tasks:seconds", (1.0,))]) == {"b": 1.0}


def test_timing_is_the_mean(pool: Pool) -> None:
    asked = [Task(str(number), "workers_tasks:seconds", (float(number),)) for number in range(3)]
    timed: list[str] = []
    assert pool.timed(asked, timed.append) == [0.0, 1.0, 2.0]
    assert len(timed) == 3 * pool.times(3)
    timed.clear()
    assert pool.timed(asked, timed.append, most=0.0) == [0.0, 1.0, 2.0]  # a busy machine: once each
    assert sorted(timed) == ["0", "1", "2"]


def test_a_worker_that_dies_is_replaced_and_its_task_started_again(store: Store, tmp_path: Path) -> None:
    with Pool(Place(), setup_of(store), store, local_workers=2) as pool:
        pool.run([square_task(number, str(tmp_path), deaths=number == 1) for number in range(4)])
        assert store.kinds() == {"number": 4}
        begun = sorted(path.name for path in tmp_path.glob("?-?"))
        assert begun == ["0-0", "1-0", "1-1", "2-0", "3-0"], "only what was in flight is computed again"


def test_a_task_that_kills_every_worker_is_given_up(store: Store, tmp_path: Path) -> None:
    with (
        Pool(Place(), setup_of(store), store, local_workers=2) as pool,
        pytest.raises(UserError, match=f"the square of 3 has lost its worker {ATTEMPTS} times"),
    ):
        pool.run([square_task(3, str(tmp_path), deaths=99)])
    assert len(list(tmp_path.glob("3-*"))) == ATTEMPTS


def test_what_another_process_computes_is_waited_for_and_taken_over(pool: Pool, store: Store) -> None:
    key, stuck = record(1).key, record(2).key
    assert store.claim(key, "someone else", 60)
    assert store.claim(stuck, "someone who has died", 3)
    threading.Timer(1.0, lambda: store.put(record(1))).start()
    found = pool.run([square_task(1), square_task(2)])
    assert found[stuck] == 4
    assert found[key] in (None, -1), "it was there when it was looked for again"


def test_what_stores_nothing_and_finds_another_process_at_it_is_tried_again(pool: Pool, store: Store) -> None:
    assert store.claim(record(2).key, "someone who has died", 2)
    assert pool.run([Task("2", "workers_tasks:square", (2,))]) == {"2": 4}


def test_what_another_process_computes_may_be_left_to_it(pool: Pool, store: Store) -> None:
    assert store.claim(record(1).key, "someone else", 60)
    assert list(pool.run([square_task(1), square_task(2)], wait_for_others=False).values()) == [4]


def test_asked_to_stop_everything_is_saved(store: Store, tmp_path: Path) -> None:
    asked = asked_once_begun(tmp_path)
    with Pool(Place(), setup_of(store), store, local_workers=2) as pool, pytest.raises(KeyboardInterrupt):
        pool.run([Task("wait", "workers_tasks:wait", (str(tmp_path),), keys=("wait",))], asked=asked)
    assert (tmp_path / "saved").exists()
    assert not multiprocessing.active_children()


def test_an_exception_of_who_listens_is_not_the_tasks(pool: Pool, tmp_path: Path) -> None:
    class TooLateError(Exception):
        pass

    def listen(name: str, detail: object) -> None:
        raise TooLateError

    with pytest.raises(TooLateError):
        pool.run([Task("wait", "workers_tasks:wait", (str(tmp_path),), keys=("wait",))], listen)
    pool.stop()
    assert (tmp_path / "saved").exists()


def test_what_stores_nothing_is_not_waited_for(store: Store, tmp_path: Path) -> None:
    """A timing has no result to keep, and its steps may be long: its worker is killed, not waited for."""
    asked = asked_once_begun(tmp_path)
    with Pool(Place(), setup_of(store), store, local_workers=2) as pool, pytest.raises(KeyboardInterrupt):
        pool.run([Task("time", "workers_tasks:wait", (str(tmp_path),))], asked=asked)
    assert not (tmp_path / "saved").exists()
    assert not multiprocessing.active_children()


def test_a_users_mixer_travels_as_its_text(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "my_mixer.py"
    file.write_text(files("plait").joinpath("model/mixer_template.txt").read_text())
    try:
        mixer = load_mixer(file)
        source = type(mixer).source
        assert source is not None
        file.unlink()  # the worker's machine has none
        setup = Setup.of(store, [source])
        with Pool(Place(), setup, store, local_workers=2) as pool:
            found = pool.run([Task("a", "workers_tasks:named", (f"d=16 vocab=32 | {mixer.name} swiglu",))])
        assert found == {"a": mixer.name}
    finally:
        table.MIXERS._registered.clear()
    other = MixerSource(source.file, source.attribute, source.text + "\n# edited", source.package)
    with pytest.raises(UserError, match="has changed on its way"):
        WorkerHome.of(Setup(setup.store, (other,), hashes=setup.hashes, version=setup.version))


def test_a_file_of_another_machine_is_not_written_to_and_the_records_travel_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = setup_of(store)
    monkeypatch.setattr(worker_module, "this_machine", lambda: "another")
    home = WorkerHome.of(setup)
    event = home.run(square_task(3), lambda detail: None, lambda: False)
    assert (event.kind, event.detail, [one.result for one in event.records]) == ("done", 9, [{"square": 9}])
    assert store.count() == 0
    assert home.run(square_task(4), lambda detail: None, lambda: False).records[0].result == {"square": 16}


def test_another_version_is_refused(store: Store) -> None:
    with pytest.raises(UserError, match=r"0\.0\.1 asks"):
        WorkerHome.of(Setup(store.url, version="0.0.1"))


def test_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait.workers.pool.find_spec", lambda package: package)  # as if all were installed
    assert [Place(cluster=c).kind for c in ("", "auto", "ray://head:10001", "10.0.0.1:6379", "slurm:partition=x")] == [
        "local", "ray", "ray", "ray", "slurm",
    ]  # fmt: skip
    for given in ("ray", "ray://head", "kubernetes", "slurmy"):
        with pytest.raises(UserError, match=f"--cluster {given}: known:"):
            Place(cluster=given)
    for share in (0.0, -1.0, 1.5):
        with pytest.raises(UserError, match="--gpus-per-training"):
            Place(device="cuda", gpus_per_training=share)
    with pytest.raises(UserError, match="needs --device cuda"):
        Place(gpus_per_training=0.5)
    assert Place(device="cuda", gpus_per_training=0.25).gpus == 0.25
    assert Place(device="cuda").gpus == 1.0
    assert Place().gpus == 0.0


def test_without_the_package_the_way_to_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait.workers.pool.find_spec", lambda name: None)
    for cluster, package in (("auto", "ray"), ("slurm", "submitit")):
        with pytest.raises(UserError, match=rf"needs the package {package}: pip install 'plait\[cluster\]'"):
            Place(cluster=cluster)


def test_the_store_travels_by_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with open_store("sqlite:///runs/plait.db") as relative:
        assert Setup.of(relative).store == f"sqlite:///{tmp_path}/runs/plait.db"
    assert workers_tasks.record(2).result == {"square": 4}
    assert os.getcwd() == str(tmp_path)


def test_asked_to_stop_before_anything_begins(pool: Pool, store: Store) -> None:
    asked = threading.Event()
    asked.set()
    with pytest.raises(KeyboardInterrupt):
        pool.run([square_task(1)], asked=asked)
    assert store.kinds() == {}


def test_why_a_worker_cannot_begin_is_said(store: Store) -> None:
    """Also where every worker has a task by the time it says so."""
    older = replace(setup_of(store), version="0.0.1")
    with Pool(Place(), older, store, local_workers=2) as pool, pytest.raises(UserError, match=r"0\.0\.1 asks"):
        pool.run([square_task(1), square_task(2)])
