"""A page of any records: escaped, whole, and with nothing that the records do not say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import plait
from plait.core.errors import UserError
from plait.records import Record, open_store
from plait.records.record import flat
from plait.reporting.citation import bibtex, methods
from plait.reporting.page import text_of
from plait.reporting.records_page import kind_section, records_page
from plait.reporting.views import field_table

ABOUT = {
    "started": "2026-03-04T05:06:07+00:00",
    "seconds": 30.0,
    "plait": "0.1",
    "torch": "2.13",
    "code": "abc",
    "cpu": "X",
}
NASTY = "d=8 | <script>alert(1)</script>"


def record(kind: str, seed: int = 0, config: Any = None, **result: Any) -> Record:
    return Record.of(kind, {"protocol": 1, "seed": seed, **(config or {})}, result, ABOUT)


RECORDS = [
    record(
        "train",
        spec=NASTY,
        data="mine.txt",
        loss=1.25,
        tokens=1000,
        steps=10,
        params=77,
        held_out_curve=[[5, 2.0], [10, 1.25]],
    ),
    record("track", 0, {"spec": "d=8 | gla", "recipe": {"lr": 0.1}}, loss=3.0, tokens=64.0),
    record("track", 1, {"spec": "d=8 | gla", "recipe": {"lr": 0.1}}, loss=2.0, tokens=64.0),
    record("track", 2, {"spec": "d=8 | gla", "recipe": {"lr": 0.2}}, loss=9.0, tokens=64.0),
    record("probe", 0, {"arch": "attn", "task": {"name": "recall"}}, accuracy=0.5),
    record("probe", 1, {"arch": "attn", "task": {"name": "recall"}}, accuracy=1.0),
    record("search", space="tiny", method="lts", front=[{"spec": "d=8 | attn", "latency": 0.25}], evaluated=40),
    record("theirs", **{"<b>size": 3.5}),
]


def test_every_kind_has_its_part_and_nothing_is_run() -> None:
    page = records_page(RECORDS, "a <store>", {})
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<b>size" not in page
    text = re.sub(r"<[^>]+>", " ", page)
    for words in ("Trainings", "Comparisons and races", "Probes", "Searches", "theirs", "mine.txt", "1.25", "77"):
        assert words in text
    assert "0.750 (2)" in text  # accuracy over both seeds
    assert re.search(r"64\s+2\.5\s+3", text)  # mean over seeds at the better rate, of three trainings
    assert "0.25" in text


def test_answers_come_first_and_their_parts_last() -> None:
    """The newest kind did: a sweep's rows filled the first screen above the answer of a design."""
    page = records_page(RECORDS, "store", {})
    places = [page.index(f"<h2>{title}</h2>") for title in ("Searches", "Trainings", "theirs", "Comparisons and races")]
    assert places == sorted(places)


def test_trainings_on_different_texts_are_not_ranked_together() -> None:
    """They shared a chart and a table, by loss; and a model with a single budget was in the legend only."""
    on = [
        ("one", "attn", 3.0, {}),
        ("one", "gla", 2.0, {}),
        ("two", "gla", 1.0, {}),
        ("two", "gla", 0.5, {"screening": 1}),
    ]
    tracks = [
        record("track", at, {"spec": f"d=8 | {mixer}", "data": f"{data}-fingerprint", **more}, loss=loss, tokens=64.0)
        for at, (data, mixer, loss, more) in enumerate(on)
    ]
    page = ElementTree.fromstring(text_of(kind_section("track", tracks)))
    tables = [[cell.text for cell in table.iter("td")] for table in page.iter("table")]
    assert [len(cells) // 4 for cells in tables] == [2, 1, 1]
    assert [title.text for title in page.iter("h3")] == ["On the text one-fing…", "On the text two-fing…",
                                                         "Screenings on the text two-fing…"]  # fmt: skip
    charts = [figure for figure in page.iter("svg") if "loss after decay" in text_of(figure)]
    assert [len([part for part in chart.iter() if part.get("class") == "hover"]) for chart in charts] == [2, 1, 1]


def test_records_of_a_kind_without_a_view_are_told_apart() -> None:
    """A sweep's table of 24 losses named neither rate nor seed."""
    made = [record("sweep", 0, {"lr": lr, "steps": 9}, loss=2.0 + at) for at, lr in enumerate((0.01, 0.1))]
    table = text_of(kind_section("sweep", made))
    assert re.findall(r"<th [^>]*>([^<]*)<", table) == ["record", "lr", "loss"]
    assert re.findall(r'data-label="lr">([^<]*)<', table) == ["0.01", "0.1"]


def test_fields_are_in_words_and_no_list_of_objects() -> None:
    """They were printed as Python prints them: [{'spec': …}], None, True."""
    document = {"raced": [{"spec": "attn", "lr": 0.1}, "none"], "limit": None, "exact": True, "grid": [[1, 2]]}
    table = ElementTree.fromstring(text_of(field_table(flat(document), "config")))
    cells = [cell.text for cell in table.iter("td")]
    assert dict(zip(cells[::2], cells[1::2], strict=True)) == {
        "raced.1.spec": "attn", "raced.1.lr": "0.1", "raced.2": "none", "limit": "–", "exact": "true",
        "grid": "[[1, 2]]",
    }  # fmt: skip


def test_methods_say_what_the_records_say() -> None:
    told = methods(RECORDS)
    assert told == (
        "All results are records of plait 0.1 (source abc) with torch 2.13 on X: 3 of kind track, 2 of kind probe, "
        "1 of kind train, 1 of kind search, 1 of kind theirs, 4 m 0 s of computing in total. "
        "Models were trained on mine.txt. 3 seeds were used."
    )


def test_methods_count_the_seeds_that_a_comparison_states_and_not_those_of_a_search() -> None:
    config, about = {"protocol": 1, "seed": 0}, {"plait": "0.1"}
    search = Record.of("search", config, {"front": []}, about)
    compare = Record.of("compare", {"protocol": 1}, {"architectures": [{"name": "a", "seeds": 5}]}, about)
    probed = {"architectures": [{"name": "a", "tasks": {"recall": {"accuracy": 0.5, "seeds": 3}}}]}
    assert "seed" not in methods([search])
    assert methods([search, compare]).endswith("5 seeds were used.")
    assert methods([Record.of("probe-verdict", {"protocol": 1}, probed, about)]).endswith("3 seeds were used.")


def test_a_paper_is_cited_once() -> None:
    found = bibtex({"hyena": "Poli et al. 2023, arXiv:2302.10866; Massaroli et al. 2023, arXiv:2310.18780",
                    "mh-hyena": "Massaroli et al. 2023, arXiv:2310.18780", "mine": ""})  # fmt: skip
    assert found.count("@misc") == 2
    assert "note = {hyena, mh-hyena}" in found
    assert "author = {Poli et al.},\n  year = {2023}" in found


def test_the_command(plait_store: str, tmp_path: Path) -> None:
    made = plait.report(out=tmp_path / "page.html", store=plait_store)
    assert (made.records, made.kinds["track"]) == (8, 3)
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")
    only = plait.report(kind="probe", out=tmp_path / "page.html", store=plait_store)
    assert only.kinds == {"probe": 2}
    one = plait.report([RECORDS[0].key[:10]], out=tmp_path / "page.html", store=plait_store)
    assert json.loads(json.dumps(one.as_dict()))["records"] == 1
    with pytest.raises(UserError, match="no records of kind 'nothing'"):
        plait.report(kind="nothing", out=tmp_path / "page.html", store=plait_store)


@pytest.fixture
def plait_store(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/plait.db"
    with open_store(url) as store:
        for each in RECORDS:
            store.put(each)
    return url
