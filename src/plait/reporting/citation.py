"""A methods paragraph for a paper, and BibTeX entries of the methods used, both from the records alone."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from xml.etree.ElementTree import Element

from plait.records.record import Record
from plait.reporting.page import folded, section, tag
from plait.reporting.summaries import mapping, number, sequence, time_text

ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")


def methods(records: Sequence[Record]) -> str:
    kinds = Counter(record.kind for record in records)
    what = ", ".join(f"{count} of kind {kind}" for kind, count in kinds.most_common())
    texts = sorted({str(record.result["data"]) for record in records if isinstance(record.result.get("data"), str)})
    seeds = seeds_used(records)
    where = distinct(records, "gpu") or distinct(records, "cpu")
    code_hashes = distinct(records, "code")
    return " ".join([
        f"All results are records of plait {', '.join(distinct(records, 'plait'))} (source {', '.join(code_hashes)})"
        f" with torch {', '.join(distinct(records, 'torch'))} on {', '.join(where) or 'an unknown machine'}:"
        f" {what}, {time_text(seconds_of(records))} of computing in total.",
        f"Models were trained on {', '.join(texts)}." if texts else "",
        f"{seeds} seeds were used." if seeds > 1 else "One seed was used." if seeds else "",
    ]).strip()  # fmt: skip


def seeds_used(records: Sequence[Record]) -> int:
    """The largest number of seeds behind any result: distinct seeds of single trainings, or those stated by a
    comparison or a probe for its architectures. 0 if unknown. The seed of a search is not a training seed."""
    single = {
        str(seed) for record in records if record.kind != "search" and (seed := record.config.get("seed")) is not None
    }
    stated = [len(sequence(record.result.get("seeds"))) for record in records if record.kind == "probe"]
    for record in records:
        for row in map(mapping, sequence(record.result.get("architectures"))):
            scores = [row, *map(mapping, mapping(row.get("tasks")).values())]
            stated += [int(count) for score in scores if (count := number(score.get("seeds"))) is not None]
    return max([len(single), *stated])


def bibtex(references: Mapping[str, str]) -> str:
    """An entry per paper, found by its arXiv number."""
    papers: dict[str, list[str]] = defaultdict(list)
    authors: dict[str, str] = {}
    for mixer, text in references.items():
        for reference in text.split(";"):
            if match := ARXIV.search(reference):
                papers[match[1]].append(mixer)
                authors[match[1]] = reference.partition(",")[0].strip()
    return "\n".join(
        f"@misc{{arxiv{paper.replace('.', '')},\n  author = {{{re.sub(r' [0-9]{4}$', '', authors[paper])}}},\n"
        f"  year = {{{_year(authors[paper], paper)}}},\n  eprint = {{{paper}}},\n  archivePrefix = {{arXiv}},\n"
        f"  note = {{{', '.join(mixers)}}},\n}}"
        for paper, mixers in papers.items()
    )


def _year(author: str, paper: str) -> str:
    stated = re.search(r"\b(\d{4})$", author)
    return stated[1] if stated else f"20{paper[:2]}"


def references_of(records: Sequence[Record]) -> dict[str, str]:
    """The publication of each mixer that the records name, by mixer."""
    from plait.mixers.table import MIXERS

    text = " ".join(str(record.config) + str(record.result.get("spec", "")) for record in records)
    used = [name for name in MIXERS.lines if f" {name} " in text or f" {name}[" in text or f"({name}" in text]
    return {name: MIXERS.load(name).reference for name in used}


def methods_section(records: Sequence[Record], references: Mapping[str, str]) -> Element:
    entries = bibtex(references)
    cited = [folded("BibTeX of the mixers", tag("pre", entries, data_copy="the entries"))] if entries else []
    return section("Methods", tag("p", methods(records), data_copy="the paragraph"), *cited)


def seconds_of(records: Sequence[Record]) -> float:
    return sum(number(record.provenance.get("seconds")) or 0.0 for record in records)


def distinct(records: Sequence[Record], name: str) -> list[str]:
    return sorted({str(value) for record in records if (value := record.provenance.get(name))})
