"""The dashboard by its answers: every view is there, names are text, and nothing but reading is possible."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from html.parser import HTMLParser
from pathlib import Path

import pytest

from plait.core.errors import UserError
from plait.records import Record, Store, open_store
from plait.records.jobs import Publisher

pytest.importorskip("starlette")
pytest.importorskip("httpx2")
from starlette.testclient import TestClient

from plait.serving.app import application
from plait.serving.guard import LOOPBACK
from plait.serving.lists import record_line
from plait.serving.record_index import RecordIndex
from plait.serving.run_folders import read_run, run_states
from plait.serving.server import checked_token, is_loopback, serve

from .stored import NASTY, filled, record

HOSTS = (*LOOPBACK, "testserver")


class Seen(HTMLParser):
    """What a browser would make of a page: elements, attributes, and the text outside of data."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def harmless(text: str) -> Seen:
    """No script but our own and data, no handler, no style, nothing from outside."""
    seen = Seen(text)
    for tag, attributes in seen.tags:
        assert not any(name.startswith("on") or name == "style" for name in attributes), attributes
        if tag == "script":
            own = (attributes.get("src") or "").startswith("/static/page.js?")
            assert own or attributes.get("type") in ("application/json", "text/plain"), attributes
        for name in ("href", "src", "action"):
            value = attributes.get(name)
            assert value is None or re.match(r"/(?!/)|#|data:", value), attributes
    return seen


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("serving")
    with filled(root):
        pass
    run = root / "train-0123456789"
    run.mkdir()
    about = {"key": "0" * 32, "data": NASTY, "steps": 100,
             "config": {"spec": f"d=8 | {NASTY}", "recipe": {"batch": 2, "seq_len": 8}}}  # fmt: skip
    (run / "run.json").write_text(json.dumps(about))
    rows = [{"step": n, "loss": 5 - n / 20, "tokens_per_second": 400} for n in range(1, 40)]
    (run / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 40, "lo')
    return root


@pytest.fixture(scope="module")
def store(folder: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{folder}/plait.db") as opened:
        yield opened


@pytest.fixture(scope="module")
def client(store: Store, folder: Path) -> TestClient:
    return TestClient(application(store, folder, hosts=HOSTS), follow_redirects=False)


def addresses(store: Store) -> list[str]:
    from urllib.parse import quote

    found = ["/", "/records", f"/records?q={quote(NASTY)}", "/records?kind=train&sort=value&up=1", "/runs", "/beside",
             "/run/train-0123456789"]  # fmt: skip
    found += [f"/kind/{quote(kind, safe='')}" for kind in store.kinds()]
    found += [f"/record/{one.key}" for one in store.find()]
    trained = store.find("train", limit=2)
    return [*found, f"/beside?key={trained[0].key}&key={trained[1].key}"]


def test_every_view_is_there_and_names_are_text(client: TestClient, store: Store) -> None:
    for address in addresses(store):
        answer = client.get(address)
        assert answer.status_code == 200, address
        seen = harmless(answer.text)
        assert "It is not as" not in seen.text, address
        assert "cannot be drawn" not in seen.text, address
    assert NASTY in Seen(client.get("/").text).text


@pytest.mark.parametrize(
    ("kind", "words", "things"),
    [
        ("train", ("validation loss", "Loss while it trains", "Architecture", "Provenance", "Cost"), ("figure", "svg")),
        ("compare", ("is best", "P(best)", "Learning curves", "At other budgets"), ("figure",)),
        (
            "probe",
            ("Validation accuracy during training", "On longer sequences", "95 % (Student's t over seeds): "),
            ("figure",),
        ),
        ("probe-verdict", ("What they can do", "Longer sequences"), ("rect",)),
        ("scale", ("runs", "FLOPs", "loss, nats"), ("figure",)),
        ("measure", ("latency.seconds",), ()),
    ],
)
def test_what_a_view_shows(
    client: TestClient, store: Store, kind: str, words: tuple[str, ...], things: tuple[str, ...]
) -> None:
    seen = Seen(client.get(f"/record/{store.find(kind, limit=1)[0].key}").text)
    whole = seen.text + " ".join(str(value) for _, attributes in seen.tags for value in attributes.values())
    for each in words:
        assert each in whole
    for thing in things:
        assert thing in {tag for tag, _ in seen.tags}


def test_a_front_has_two_axes_three_axes_a_filter_and_choices(client: TestClient, store: Store) -> None:
    gumbel, plain = store.find("search", limit=2)
    text = client.get(f"/record/{plain.key}").text
    seen = Seen(text)
    classes = [attributes.get("class") for tag, attributes in seen.tags if tag == "figure"]
    assert (classes.count("plot"), classes.count("cube")) == (2, 1)
    assert any("data-explore" in attributes for _, attributes in seen.tags)
    assert "Choices over the layers" not in seen.text
    assert "Choices over the layers" in Seen(client.get(f"/record/{gumbel.key}").text).text
    more = client.get(f"/record/{plain.key}/model/0.json").json()
    assert more["drawing"].startswith("<svg")
    assert client.get(f"/record/{plain.key}/model/99.json").status_code == 404


def test_maps_are_drawn(client: TestClient, store: Store) -> None:
    maps = next(one for one in store.find("eval") if "maps" in one.result)
    pictures = [attributes for tag, attributes in Seen(client.get(f"/record/{maps.key}").text).tags if tag == "image"]
    assert len(pictures) == 2
    assert all(str(attributes["href"]).startswith("data:image/png;base64,") for attributes in pictures)


def test_files_of_a_record(client: TestClient, store: Store) -> None:
    one = store.find("compare", limit=1)[0]
    assert client.get(f"/record/{one.key}/record.json").json()["key"] == one.key
    assert client.get(f"/record/{one.key}/numbers.csv").text.splitlines()[0].startswith("name,loss")
    svg = client.get(f"/record/{one.key}/figure/curves.svg")
    assert svg.text.startswith("<svg")
    assert svg.headers["content-disposition"].startswith("attachment")
    page = client.get(f"/record/{one.key}/report.html")
    assert "sandbox" in page.headers["content-security-policy"]
    assert NASTY in Seen(page.text).text
    assert client.get(f"/record/{one.key}/figure/nothing.svg").status_code == 404


def test_offline_pages_hold_names_as_text(client: TestClient, store: Store) -> None:
    """One of each kind; they may run their own script, and hold no other."""
    for kind in store.kinds():
        text = client.get(f"/record/{store.find(kind, limit=1)[0].key}/report.html").text
        assert "<script>alert" not in text
        scripts = [attributes for tag, attributes in Seen(text).tags if tag == "script"]
        assert sum("type" not in attributes for attributes in scripts) == 1


def test_a_key_s_beginning_leads_to_the_record(client: TestClient, store: Store) -> None:
    one = store.find("compare", limit=1)[0]
    answer = client.get(f"/record/{one.key[:12]}")
    assert (answer.status_code, answer.headers["location"]) == (303, f"/record/{one.key}")
    assert client.get("/record/ffffffffffff").status_code == 404
    assert client.get(f"/record/{one.key[:12]}%25").status_code == 404


# ---- lists


def test_lists_are_filtered_sorted_and_paged(store: Store) -> None:
    index = RecordIndex(store)
    index.follow()
    trained = index.find("train", sort="value", down=False)
    values = [line.value for line in trained.lines]
    assert values == sorted(values)
    assert trained.total == 10
    assert trained.kinds["search"] == 2
    page = index.find("train", sort="value", down=False, offset=4, limit=3)
    assert [line.value for line in page.lines] == values[4:7]
    assert {line.kind for line in index.find(words="nsga2").lines} == {"search"}
    assert index.find(words="%").total == 0  # no wildcard
    assert index.find(words="no-such-word").total == 0
    assert index.find(sort="no such column; DROP TABLE lines").total == store.count()


def test_what_tells_users_nothing_is_listed_if_asked_for(tmp_path: Path) -> None:
    clock = record("design-clock", {"stage": "race"}, seconds=1.0)
    with filled(tmp_path) as store:
        index, there = RecordIndex(store), store.count()
        store.put(clock)
        index.follow()
        every = index.find(limit=there + 1)
        assert every.total == len(every.lines) == there
        assert "design-clock" not in every.kinds
        assert index.find(words="design-clock").total == 0
        assert [line.key for line in index.find("design-clock").lines] == [clock.key]
        assert index.find("design-clock").kinds["design-clock"] == 1
        assert "design-clock" not in index.finished_since(0)
    alone = f"sqlite:///{tmp_path}/alone.db"
    with open_store(alone) as store:
        store.put(clock)
        client = TestClient(application(store, tmp_path, hosts=HOSTS))
        assert clock.key not in client.get("/live/overview").text
        assert clock.key not in client.get("/records").text
        assert clock.key in client.get("/records?kind=design-clock").text


def test_whole_seconds_are_shown_too() -> None:
    taken = [Record.of("train", {"protocol": 1}, {}, {"seconds": seconds}) for seconds in (90, 90.0, None)]
    assert [record_line(one).seconds for one in taken] == [90.0, 90.0, None]


def test_a_list_follows_what_comes_and_goes(tmp_path: Path) -> None:
    with filled(tmp_path) as store:
        index = RecordIndex(store)
        index.follow()
        before = index.find().total
        index._when = -10.0
        store.put(record("train", {"seed": 77}, spec="d=8 | attn", loss=1.0))
        assert index.find().total == before + 1
        assert index.find().lines[0].value == 1.0
        store.delete([index.find().lines[0].key, store.find("compare")[0].key])
        index._when = -10.0
        found = index.find()
        assert found.total == before - 1
        assert "compare" not in found.kinds


def test_reading_waits_while_a_page_is_made(tmp_path: Path) -> None:
    with filled(tmp_path) as store:
        index = RecordIndex(store)
        thread = threading.Thread(target=index.follow)
        with index.waiting():
            thread.start()
            time.sleep(0.05)
            assert index.read() == 0
        thread.join()
        assert index.read() == index.there() > 0


def test_what_has_just_ended_is_counted(tmp_path: Path) -> None:
    now = datetime(2026, 3, 4, 5, 6, 7, tzinfo=timezone.utc).timestamp()  # when all of them began; each took 30 s
    with filled(tmp_path) as store:
        index = RecordIndex(store)
        index.follow()
        assert index.finished_since(now + 29)["train"] == 10
        assert index.finished_since(now + 31) == {}


def test_the_latest_results_are_not_the_trainings_they_consist_of(tmp_path: Path) -> None:
    from .stored import compared

    tracks = [record("track", {"seed": seed}, loss=3.0, tokens=20_000) for seed in range(3)]
    answer = record("compare", {}, **compared())
    with open_store(f"sqlite:///{tmp_path}/plait.db") as store:
        client = TestClient(application(store, tmp_path, hosts=HOSTS))
        for one in tracks:
            store.put(one)
        alone = client.get("/live/overview").text
        store.put(answer)
        both = client.get("/live/overview").text
    assert "3.000 nats per token after 20 k tokens" in alone
    assert all(one.key in alone for one in tracks)
    assert answer.key in both
    assert not any(one.key in both for one in tracks)


def test_the_answer_of_a_design_comes_before_its_parts(tmp_path: Path) -> None:
    """It began before them, so its own line was below those of its stages and left out."""
    store_url = f"sqlite:///{tmp_path}/plait.db"
    whole = record("design", {}, points=["Take gla."], pick={"pattern": "gla"})
    whole = Record(whole.key, whole.kind, whole.config, whole.result, {**whole.provenance, "seconds": 300.0})
    later = {"started": "2026-03-04T05:07:07+00:00", "seconds": 1.0}
    parts = [
        Record.of(kind, {"protocol": 1, "at": at, "stage": "race"}, {"seconds": 1.0}, later)
        for kind in ("measure", "design-clock")
        for at in range(12)
    ]
    with open_store(store_url) as store:
        for part in [*parts, whole]:
            store.put(part)
        text = TestClient(application(store, tmp_path, hosts=HOSTS)).get("/live/overview").text
    assert "Take gla." in text
    assert text.index(whole.key) < text.index(parts[11].key)
    assert not any(part.key in text for part in parts if part.kind == "design-clock")


def test_a_long_verdict_is_a_short_title_and_cut_between_words(tmp_path: Path) -> None:
    """Four lines were the title, and a list ended in "better than gla on selec"."""
    from .stored import probed

    verdict = "attn: rank 1 of 2. It is" + " not distinguishable" * 9
    answer = record("probe-verdict", {}, **{**probed(), "verdict": verdict})
    with open_store(f"sqlite:///{tmp_path}/plait.db") as store:
        client = TestClient(application(store, tmp_path, hosts=HOSTS))
        store.put(answer)
        listed, page = client.get("/live/overview").text, client.get(f"/record/{answer.key}").text
    assert re.search("(not|distinguishable) …</td>", listed)
    assert "<h1>attn: rank 1 of 2</h1>" in page
    assert verdict.partition(". ")[2] in page


def test_an_answer_leads_to_its_trainings(tmp_path: Path) -> None:
    from .stored import compared, training

    one = training(3)
    with filled(tmp_path) as store:
        answer = record("compare", {"trainings": {NASTY: [[one.key]]}}, **compared())
        store.put(answer)
        seen = Seen(TestClient(application(store, tmp_path, hosts=HOSTS)).get(f"/record/{answer.key}").text)
    assert f"/record/{one.key}" in [attributes.get("href") for tag, attributes in seen.tags if tag == "a"]


def test_a_store_that_is_not_there_is_empty(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path}/none.db") as store:
        client = TestClient(application(store, tmp_path, hosts=HOSTS))
        assert "empty" in client.get("/").text
        assert client.get("/records").status_code == 200
    assert not (tmp_path / "none.db").exists()


def test_a_damaged_record_is_told_of(tmp_path: Path) -> None:
    with filled(tmp_path) as store:
        key = store.find("compare")[0].key
        with sqlite3.connect(tmp_path / "plait.db") as raw:
            raw.execute("UPDATE plait_records SET result = '{' WHERE key = ?", (key,))
        client = TestClient(application(store, tmp_path, hosts=HOSTS))
        answer = client.get(f"/record/{key}")
        assert answer.status_code == 503
        assert "damaged" in answer.text
        assert client.get("/records").status_code == 200


# ---- trainings


def test_a_running_training_is_followed(client: TestClient, folder: Path) -> None:
    state = read_run(folder, "train-0123456789")
    assert state is not None
    assert (state.running, state.step, state.share) == (True, 39, 0.39)
    assert state.seconds_left == pytest.approx(61 * 16 / 400)
    part = client.get("/live/run/train-0123456789").text
    assert "data-ended" not in part
    assert "39" in Seen(part).text
    assert NASTY in Seen(client.get("/live/overview").text).text
    (folder / "train-0123456789" / "result.json").write_text("{}")
    try:
        assert "data-ended" in client.get("/live/run/train-0123456789").text
        assert not [one for one in run_states(folder) if one.running]
    finally:
        (folder / "train-0123456789" / "result.json").unlink()


def test_a_command_is_followed_and_a_killed_one_is_told_of(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path}/plait.db") as store:
        client = TestClient(application(store, tmp_path, hosts=HOSTS))
        assert "Nothing is running here now." in client.get("/live/overview").text
        publisher = Publisher(store, "probe", f"gla, {NASTY}")
        publisher.update("training", 0.0)
        publisher.update("training", 0.25, "3 of 12 trials")
        publisher.write_if_due()
        for address in ("/live/overview", "/live/runs", "/runs"):
            page = client.get(address).text
            seen = Seen(page).text
            assert f"probe: gla, {NASTY}" in seen
            assert NASTY not in page
            assert "training, 3 of 12 trials" in seen
            assert f"process {os.getpid()} on this machine" in seen
            assert 'value="0.2500"' in page
            assert "stopped" not in seen
        ended = subprocess.Popen([sys.executable, "-c", ""])
        ended.wait()
        with sqlite3.connect(tmp_path / "plait.db") as raw:
            raw.execute("UPDATE plait_jobs SET owner = replace(owner, ?, ?)", (f":{os.getpid()}:", f":{ended.pid}:"))
        assert re.search(r"stopped \d+ s ago", Seen(client.get("/live/overview").text).text)


@pytest.mark.slow
def test_a_real_probe_is_followed_until_it_is_killed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/plait.db"
    asked = ["probe", "attn", "gla", "--full", "--workers", "1", "--tasks", "compression", "--store", url, "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "plait", *asked], stdout=subprocess.DEVNULL, start_new_session=True, cwd=tmp_path
    )
    try:
        with open_store(url) as store:
            client = TestClient(application(store, tmp_path, hosts=HOSTS))
            deadline = time.monotonic() + 120
            while "training, 0 of" not in (seen := Seen(client.get("/live/runs").text).text):
                assert process.poll() is None
                assert time.monotonic() < deadline, seen
                time.sleep(0.2)
            assert f"process {process.pid} on this machine" in seen
            assert "probe: attn, gla" in seen
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            assert "stopped" in Seen(client.get("/live/runs").text).text
    finally:
        os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    "name", ["..", "../plait.db", "train-", "train-../x", "train-0123456789/..", "plait.db", "%2e%2e"]
)
def test_a_run_is_no_path(client: TestClient, folder: Path, name: str) -> None:
    assert read_run(folder, name) is None
    assert "plait_records" not in client.get(f"/run/{name}").text
    assert "run.json" not in client.get(f"/live/run/{name}").text


def test_a_link_out_of_the_folder_is_not_followed(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "train-aaaaaaaaaa"
    outside.mkdir()
    (outside / "run.json").write_text(json.dumps({"config": {"spec": "d=8 | attn"}}))
    assert read_run(tmp_path, outside.name) is not None
    link = folder / outside.name
    link.symlink_to(outside)
    try:
        assert read_run(folder, link.name) is None
        assert link.name not in [one.name for one in run_states(folder)]
    finally:
        link.unlink()


# ---- who may ask what


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "QUERY"])
def test_writes_are_refused(client: TestClient, store: Store, method: str) -> None:
    before = store.count()
    for address in ("/", "/records", f"/record/{store.find(limit=1)[0].key}"):
        answer = client.request(method, address)
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
    assert store.count() == before


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8642", "127.0.0.1.evil.example", "", "localhost@evil", "[::1].x"]
)
def test_another_name_than_ours_is_refused(client: TestClient, host: str) -> None:
    assert client.get("/", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", ["127.0.0.1:8642", "localhost", "LOCALHOST:1", "[::1]:8642"])
def test_the_loopback_s_names_are_ours(client: TestClient, host: str) -> None:
    assert client.get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://testserver.evil.example", "http://testserver:1"]
)
def test_foreign_origins_are_refused(client: TestClient, origin: str) -> None:
    assert client.get("/live/overview", headers={"origin": origin}).status_code == 403
    assert client.get("/", headers={"origin": "http://testserver"}).status_code == 200


def test_other_sites_may_link_here_and_no_more(client: TestClient) -> None:
    foreign = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "script"}
    assert client.get("/static/page.js", headers=foreign).status_code == 403
    followed = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert client.get("/", headers=followed).status_code == 200
    assert client.get("/", headers={**followed, "sec-fetch-dest": "iframe"}).status_code == 403


def test_every_answer_is_guarded(client: TestClient) -> None:
    for address in ("/", "/nothing", "/static/page.js", "/live/overview"):
        headers = client.get(address).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe-inline" not in headers["content-security-policy"]
        assert (headers["x-content-type-options"], headers["x-frame-options"]) == ("nosniff", "DENY")
        assert "access-control-allow-origin" not in headers


def test_a_token_is_asked_for_and_leaves_the_address(store: Store, folder: Path) -> None:
    token = "correct-horse-battery"
    client = TestClient(application(store, folder, hosts=None, token=token), follow_redirects=False)
    for wrong in ("/", "/?token=wrong", "/static/page.js", f"/?token={token}x", "/?token="):
        assert client.get(wrong).status_code == 401
    answer = client.get(f"/records?kind=train&token={token}")
    assert (answer.status_code, answer.headers["location"]) == (303, "/records?kind=train")
    assert "httponly" in answer.headers["set-cookie"].lower()
    assert client.get("/records").status_code == 200  # by the cookie
    fresh = TestClient(application(store, folder, hosts=None, token=token))
    assert fresh.get("/", headers={"authorization": f"Bearer {token}"}).status_code == 200
    assert fresh.get("/", headers={"cookie": "plait_token=x"}).status_code == 401
    inside = TestClient(application(store, folder, hosts=None, token=token), follow_redirects=False)
    assert not inside.get(f"//evil.example/?token={token}").headers["location"].startswith("//")


def test_a_host_that_others_reach_has_a_token() -> None:
    assert checked_token("127.0.0.1", None) is None
    assert len(str(checked_token("0.0.0.0", None))) >= 32
    assert checked_token("0.0.0.0", None) != checked_token("0.0.0.0", None)
    assert checked_token("127.0.0.1", "a-token-of-my-own") == "a-token-of-my-own"
    with pytest.raises(UserError, match="at least 16"):
        checked_token("0.0.0.0", "short")
    assert [is_loopback(host) for host in ("localhost", "127.5.0.1", "::1", "0.0.0.0", "example.org", "10.0.0.1")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip


def test_without_its_libraries_it_says_what_to_install(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("starlette", "starlette.applications", "starlette.routing"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=re.escape("pip install 'plait[serve]'")):
        application(store, folder, hosts=HOSTS)


def test_a_port_that_is_taken_is_told_of(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UserError, match="Give another --port"):
            serve(store=f"sqlite:///{folder}/plait.db", port=taken.getsockname()[1])


def test_the_program_listens_and_prints_where(folder: Path, started: Callable[..., str]) -> None:
    """On every address of the machine: with a token that it made."""
    address = started(folder, "--host", "0.0.0.0", "--json")
    port, token = re.match(r"http://[^:]+:(\d+)/\?token=([\w-]{32,})$", address).groups()  # type: ignore[union-attr]
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10)
    asked = urllib.request.Request(f"http://127.0.0.1:{port}/", headers={"Authorization": f"Bearer {token}"})
    assert urllib.request.urlopen(asked, timeout=10).status == 200
