"""Both kinds of store: a file, and a database on a real PostgreSQL server that lives as long as the tests."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from plait.records import Record, Store, open_store

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(autouse=True)
def _no_store_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PLAIT_STORE", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store/plait.db"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    """An empty store of either kind."""
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with open_store(url) as opened:
        yield opened


@pytest.fixture
def make_record() -> Callable[..., Record]:
    """`make_record(3, loss=0.5)`: a record whose config has that seed."""

    def make(seed: int = 0, kind: str = "probe", **result: Any) -> Record:
        config = {"protocol": 1, "seed": seed, "task": {"name": "compression", "vocab": 16}, "lr": 0.001, "big": False}
        return Record.of(kind, config, result or {"accuracy": 0.5}, {"started": "2026-01-02T03:04:05+00:00"})

    return make


@pytest.fixture
def start() -> Iterator[Start]:
    """`start(program, *arguments)`: another Python process, which does not outlive the test."""
    running: list[subprocess.Popen[str]] = []

    def begin(program: str, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", program, *arguments]
        running.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return running[-1]

    yield begin
    for process in running:
        process.kill()
        process.communicate()


# ---- PostgreSQL


def _program(name: str) -> str | None:
    installed = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))  # where Debian hides them
    return shutil.which(name) or (str(installed[-1]) if installed else None)


def _server_user() -> dict[str, Any]:
    """Whom the server runs as: it refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    pytest.skip("PostgreSQL does not run as root, and there is no user 'postgres' or 'nobody'")


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    """The folder of a running server's socket."""
    pytest.importorskip("psycopg", reason="needs psycopg, from plait[postgresql]")
    initdb, pg_ctl = _program("initdb"), _program("pg_ctl")
    if initdb is None or pg_ctl is None:
        pytest.skip("needs PostgreSQL's server programs initdb and pg_ctl")
    user = _server_user()
    # Not below pytest's own folder, which only its owner may enter; and short, as a socket's path must be.
    folder = tempfile.mkdtemp(prefix="plait-pg-")
    data = f"{folder}/data"
    if user:
        os.chown(folder, user["user"], user["group"])

    def run(*command: str) -> None:
        # Into a file: the server inherits its starter's output, and a pipe would stay open with it.
        with open(f"{folder}/output", "a+") as output:
            done = subprocess.run(command, stdout=output, stderr=output, cwd=folder, check=False, **user)
            output.seek(0)
            assert done.returncode == 0, output.read()

    options = f"-k {folder} -c listen_addresses='' -c fsync=off -c max_connections=50"
    try:
        # --no-locale: the one that the user has chosen need not be installed.
        run(initdb, "-D", data, "-U", "plait", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync")
        run(pg_ctl, "-D", data, "-w", "-t", "300", "-l", f"{folder}/log", "-o", options, "start")
        # For a test that restarts it: as who runs it.
        (Path(folder) / "restart").write_text(f'{pg_ctl} -D {data} -w -m fast -l {folder}/log -o "{options}" restart')
        yield folder
        run(pg_ctl, "-D", data, "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


_numbers = itertools.count()


@pytest.fixture
def postgresql_url(postgresql_server: str) -> str:
    """A database of its own."""
    import psycopg

    name = f"test{next(_numbers)}"
    with psycopg.connect(host=postgresql_server, user="plait", dbname="postgres", autocommit=True) as connection:
        connection.execute(f"create database {name}")
    return f"postgresql://plait@/{name}?host={postgresql_server}"
