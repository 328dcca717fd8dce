"""The screening: its text, its score, its records, and when a race has one."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from plait.core.errors import UserError
from plait.designing.config import TrainFor
from plait.model.architecture import architecture
from plait.racing import screening
from plait.racing.contenders import Contender
from plait.racing.document import race_result
from plait.racing.leg import KIND, Course, Leg
from plait.racing.race import race
from plait.racing.screening import (
    AT_MOST,
    FEWEST_STEPS,
    PIECES,
    at_least,
    copied,
    copies_share,
    repeats,
    screening_course,
    screening_rate,
    screening_text,
)
from plait.records import Record, open_store
from plait.training.recipe import Recipe
from plait.training.track import Replica, Text, Track, track_recipe

COURSE = Course("text", None, "print", track_recipe(Recipe(batch=32, seq_len=32), 4), held_out=64)
SPECS = {
    "attn": "d=128 vocab=256 | (attn[heads=4] swiglu)x4",
    "gla": "d=128 vocab=256 | (gla[heads=4] swiglu)x4",
    "hybrid": "d=128 vocab=256 | (mamba2[head_dim=32,state=64] swiglu attn[heads=4] swiglu)x2",
}
CONTENDERS = [Contender(name, architecture(spec)) for name, spec in SPECS.items()]


def test_every_piece_is_followed_by_its_copy() -> None:
    tokens = np.arange(1000)
    found = copied(tokens, 1.0)
    assert len(found) == 2 * len(tokens)
    at, lengths = 0, []
    while at < len(found):
        again = np.flatnonzero(found[at + 1 :] == found[at])[0] + 1  # tokens are all different, but for copies
        np.testing.assert_array_equal(found[at : at + again], found[at + again : at + 2 * again])
        lengths.append(int(again))
        at += 2 * again
    assert sum(lengths) == len(tokens)
    assert all(PIECES[0] <= length < PIECES[1] for length in lengths[:-1])
    assert len(set(lengths)) > 5


def test_every_second_piece_is_followed_by_its_copy() -> None:
    tokens = np.arange(100_000)
    doubled = copied(tokens, 0.5)
    np.testing.assert_array_equal(np.unique(doubled), tokens)
    assert len(doubled) == pytest.approx(1.5 * len(tokens), rel=0.03)
    begins = np.flatnonzero(np.diff(doubled) < 0) + 1  # where a copy begins: tokens rise, but for copies
    lengths = 1 - np.diff(doubled)[begins - 1]
    assert ((PIECES[0] <= lengths) & (lengths < PIECES[1])).all()
    for begin, length in zip(begins.tolist(), lengths.tolist(), strict=True):
        np.testing.assert_array_equal(doubled[begin : begin + length], doubled[begin - length : begin])
    assert len(begins) == pytest.approx(len(tokens) / 20 / 2, rel=0.1)


def test_repeats_are_what_the_context_has_shown() -> None:
    rng = np.random.default_rng(0)
    windows = rng.integers(0, 3, (5, 41))
    inputs, targets = windows[:, :-1], windows[:, 1:]
    found = repeats(inputs, targets)
    for row in range(5):
        for at in range(40):
            last = windows[row, at - 2 : at + 2].tolist()  # three tokens and the target
            before = [windows[row, k - 2 : k + 2].tolist() for k in range(2, at)]
            assert found[row, at] == (at >= 2 and last in before)
    assert found.any()
    assert not found.all()


def test_the_score_is_the_loss_of_the_repeats(text: Text, course: Course) -> None:
    arch = architecture("d=16 vocab=256 | attn[heads=2] swiglu")
    few = Text(text.train, text.inputs_NT % 4, text.targets_NT % 4)
    mask_NT = repeats(few.inputs_NT, few.targets_NT)
    assert 0 < mask_NT.mean() < 1
    track = Track(arch, [Replica(1e-3, 0)], [few], course.recipe)
    with torch.no_grad():
        logits = track.template.model(torch.from_numpy(few.inputs_NT))
    target = torch.from_numpy(few.targets_NT)[..., None]
    loss_NT = -logits.log_softmax(-1).gather(-1, target)[..., 0].numpy()
    scored = Track(arch, [Replica(1e-3, 0)], [screening_text(few, 0.5)], course.recipe).score().mean()
    assert scored == pytest.approx(loss_NT[mask_NT].mean(), rel=1e-5)
    assert loss_NT[mask_NT].mean() != pytest.approx(loss_NT.mean(), rel=1e-4)


def test_a_text_without_repeats_is_refused(text: Text) -> None:
    counting = np.arange(text.inputs_NT.size).reshape(text.inputs_NT.shape)
    with pytest.raises(UserError, match="too short"):
        screening_text(replace(text, inputs_NT=counting, targets_NT=counting + 1), 1.0)


def test_all_pieces_of_a_short_screening_have_a_copy_and_half_of_a_long_ones() -> None:
    shares = [copies_share(512 * steps) for steps in (100, 2048, 2896, 4096, 50_000)]
    assert shares == pytest.approx([1.0, 1.0, 0.75, 0.5, 0.5], abs=1e-3)
    assert screening_course(COURSE, 1024).screening > screening_course(COURSE, 100_000).screening == 0.5


def test_its_records_are_its_own(text: Text, course: Course, tmp_path: Path) -> None:
    arch, replica = architecture("d=16 vocab=256 | attn[heads=2] swiglu"), Replica(1e-3, 0)
    small = screening_course(course, 4)
    assert (small.recipe.batch, small.recipe.seq_len) == (1, 16)
    assert small.key(arch, replica, 4) != replace(small, screening=0.0).key(arch, replica, 4)
    assert "screening" not in course.config(arch, replica, 4)
    kept: list[Record] = []
    text = replace(text, inputs_NT=text.inputs_NT % 4, targets_NT=text.targets_NT % 4)
    Leg(small, arch, (replica,), (4,), tmp_path).run(screening_text(text, 1.0), kept.append)
    assert [record.key for record in kept] == [small.key(arch, replica, 4)]
    assert 0 < kept[0].result["loss"] < 10


@pytest.mark.parametrize(
    ("batch", "seq_len", "smaller", "shorter"),
    [(32, 256, 2, 256), (16, 256, 1, 256), (24, 256, 1, 256), (8, 256, 1, 128), (8, 512, 1, 256), (4, 256, 1, 128),
     (8, 100, 1, 100), (1, 1024, 1, 128)],
)  # fmt: skip
def test_a_step_has_a_sixteenth_of_the_tokens(batch: int, seq_len: int, smaller: int, shorter: int) -> None:
    """Fewer sequences as far as that goes, then a shorter one, as far as it still holds copies."""
    whole = replace(COURSE, recipe=replace(COURSE.recipe, batch=batch, seq_len=seq_len))
    found = screening_course(whole, 1024)
    assert (found.recipe.batch, found.recipe.seq_len) == (smaller, shorter)
    assert found.held_out == whole.held_out


def test_screenings_are_placed_in_the_library_by_their_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """4096 steps of 128 tokens beside the library's 1024 of 512: their deviations are nearly the same ones."""
    placed: list[int] = []
    monkeypatch.setattr(screening, "screened_known", lambda archs, steps, losses: placed.append(steps))
    for batch, seq_len, tokens in ((32, 256, 2 * 256), (8, 256, 128)):
        small = screening_course(replace(COURSE, recipe=replace(COURSE.recipe, batch=batch, seq_len=seq_len)), 1024)
        assert small.tokens_per_step == tokens
        result = {"loss": 1.0, "tokens": 4096 * tokens}
        screening.known_after(CONTENDERS[:1], {"attn": Record.of(KIND, {"protocol": tokens}, result, {})})
    assert placed == [4096, 1024]


def test_the_rate_of_a_sixteenth_of_the_tokens() -> None:
    assert screening_rate(2e-3, COURSE) == pytest.approx(0.35 * 2e-3)
    whole = replace(COURSE, recipe=replace(COURSE.recipe, batch=1))
    assert screening_rate(2e-3, whole) == pytest.approx(2e-3)
    usual = replace(COURSE, recipe=replace(COURSE.recipe, batch=8, seq_len=256))
    assert screening_rate(2e-3, usual) == pytest.approx(0.35 * 2e-3)


class Pool:
    """Trains by formula: all learn alike at first, and in the screening `copier` is ahead."""

    course, workers = COURSE, 1

    def __init__(self, copier: str = "", slow: float = 1.0) -> None:
        self.legs: list[Leg] = []
        self.copier, self.slow, self.timed = copier, slow, 0
        self.store = self

    def computed(self, kind: str, config: dict[str, Any], compute: Any) -> Record:
        return Record.of(kind, config, compute(), {})

    def step_seconds(self, archs: list[Any], course: Course, most: float | None = None) -> list[float]:
        assert course.screening
        self.timed += 1
        return [self.slow * 1e-5 * course.tokens_per_step] * len(archs)

    def run(self, legs: list[Leg], on_tokens: Any = None) -> list[list[list[Record]]]:
        names = {contender.arch.text: contender.name for contender in CONTENDERS}
        self.legs += legs
        found = []
        for leg in legs:
            (replica,), (steps,), course = leg.replicas, leg.budgets, leg.course
            tokens = steps * course.tokens_per_step
            loss = 0.5 + 3 * steps**-0.3
            if course.screening:
                loss = None if self.copier == "nobody" else 0.6 if names[leg.arch.text] == self.copier else 1.0
            result = {"loss": loss, "windows": [], "tokens": tokens, "tokens_trained": tokens, "seconds": 1.0}
            found.append([[Record.of(KIND, course.config(leg.arch, replica, steps), result, {})]])
        return found


def held(pool: Pool, steps: int = 4096, limit: float = 0.1, contenders: Any = CONTENDERS) -> Any:
    speed, rates = dict.fromkeys(SPECS, 1e-5), dict.fromkeys(SPECS, 1e-3)
    target = steps * COURSE.tokens_per_step
    return race(contenders, target, pool, Path("nowhere"), speed=speed, limit=limit, rates=rates)  # type: ignore[arg-type]


@pytest.mark.parametrize("copier", list(SPECS))
def test_a_race_with_a_screening_pays_for_it_and_listens_to_it(copier: str) -> None:
    """Who copies best is forecast lower beside the others than where nobody does, in the same race by the same library
    (which knows all three, and so is not easily persuaded)."""
    pool = Pool(copier)
    found, even = held(pool), held(Pool())
    first = pool.legs[: len(SPECS)]
    assert all(leg.course.screening and leg.budgets == (4096,) and leg.course.recipe.batch == 2 for leg in first)
    assert {leg.replicas[0].lr for leg in first} == {0.35e-3}
    assert 1 / 16 < found.cost <= 0.1
    tokens = dict.fromkeys(SPECS, float(found.target))
    prediction = found.prediction_at(tokens)
    before = even.prediction_at(tokens)
    others = [name for name in SPECS if name != copier]
    ahead, was_ahead = (np.mean([p.loss[o] / p.loss[copier] for o in others]) for p in (prediction, before))
    assert ahead > was_ahead + 0.005
    assert prediction.p_best[copier] > before.p_best[copier]
    rows = {row.name: row for row in race_result(found, prediction, tokens).architectures}
    assert {name: row.screening for name, row in rows.items()} == {n: 0.6 if n == copier else 1.0 for n in SPECS}


@pytest.mark.parametrize(("copier", "said"), [("attn", 0), ("nobody", 1)])
def test_short_trainings_after_a_screening_are_no_reason_for_caution(copier: str, said: int) -> None:
    """That the longest has 64 steps stood beside a screening that took all of them; where the screenings diverged, it
    is true."""
    raced = held(Pool(copier), steps=FEWEST_STEPS)
    assert raced.screened
    assert 0 < raced.longest < 80 * COURSE.tokens_per_step
    assert not raced.starved
    tokens = dict.fromkeys(SPECS, float(raced.reach))
    assert len(race_result(raced, raced.prediction_at(tokens), tokens).notes) == said


def test_when_there_is_none() -> None:
    assert not held(Pool(), steps=FEWEST_STEPS - 1).screened  # nothing was measured of so few steps
    assert not held(Pool(), limit=0.99 / 16 / AT_MOST).screened  # too dear
    slow = Pool(slow=2.0)  # a small batch that takes twice as long per token
    assert not held(slow).screened
    assert slow.timed == 1
    assert not any(leg.course.screening for leg in slow.legs)
    assert not held(Pool(), contenders=CONTENDERS[:1]).screened  # nobody to compare with
    assert held(Pool(), steps=FEWEST_STEPS).screened


def test_why_there_is_none_and_what_would_give_one() -> None:
    """Each reason names what to change, and the answer has it."""
    short = held(Pool(), steps=1000)
    assert short.unscreened == (
        "it needs a race to 1,024 steps, and this one goes to 1,000; use --train-for '1.1M tokens' or more, with a "
        "--time that allows for it"
    )
    tokens = dict.fromkeys(SPECS, float(short.reach))
    result = race_result(short, short.prediction_at(tokens), tokens)
    assert result.screening_left_out == short.unscreened
    assert held(Pool(), limit=0.99 / 16 / AT_MOST).unscreened == (
        "it would take 71 % of what this race may cost, more than 70 %; use 1.1 times the --time at the same "
        "--train-for, or a shorter --train-for"
    )
    assert "use 1.8 times the --time" in held(Pool(slow=2.0)).unscreened
    assert held(Pool(), contenders=CONTENDERS[:1]).unscreened == "there is only one candidate"
    shallow = [Contender(c.name, architecture(c.arch.text.replace("x4", "x2").replace("x2", "x1"))) for c in CONTENDERS]
    assert held(Pool(), contenders=shallow).unscreened == (
        "most candidates are unlike the architectures that it was tested on, which have 7 to 16 mixers (these have 2 "
        "to 4); use a --space of such models"
    )
    assert held(Pool()).unscreened == ""


@pytest.mark.parametrize(("tokens", "said"), [(2_097_152, "2.1M"), (524_288, "530k"), (1e6, "1M"), (96, "96")])
def test_tokens_are_rounded_up_as_train_for_reads_them(tokens: float, said: str) -> None:
    assert at_least(tokens) == said
    assert TrainFor.read(f"{said} tokens").value >= tokens


def test_diverged_screenings_tell_nothing_and_the_race_goes_on() -> None:
    found = held(Pool("nobody"))
    assert set(found.screened) == set(SPECS)
    assert found.known.screened == {}
    assert found.reach == 16 * found.longest < found.target
    assert found.prediction_at(dict.fromkeys(SPECS, float(found.reach))).pick in SPECS


KILLED = """
import json, sys
from pathlib import Path

from plait.data import open_corpus
from plait.core.errors import UserError
from plait.model.architecture import architecture
from plait.racing import leg, race
from plait.racing.contenders import Contender
from plait.racing.document import race_result
from plait.racing.workers import Workers
from plait.records import open_store
from plait.training.recipe import Recipe
from plait.training.track import track_recipe
from plait.workers.pool import Place

race.FEWEST_STEPS, leg.SAVE_SECONDS = 48, 0.0
Workers.step_seconds = lambda self, archs, course=None, most=None: [1e-5 * course.tokens_per_step] * len(archs)
folder = Path(sys.argv[1])
fingerprint = open_corpus("builtin:language").fingerprint
course = leg.Course("builtin:language", None, fingerprint, track_recipe(Recipe(batch=16, seq_len=64), 3), held_out=256)
contenders = [Contender(name, architecture(f"d=16 vocab=32 | {layers}")) for name, layers in json.loads(sys.argv[2])]
speed, rates = dict.fromkeys([c.name for c in contenders], 1e-5), dict.fromkeys([c.name for c in contenders], 4e-3)
with open_store(f"sqlite:///{folder}/plait.db") as store, Workers(course, store, Place(workers=1)) as pool:
    raced = race.race(contenders, 48 * 1024, pool, folder, speed=speed, limit=0.2, rates=rates)
tokens = dict.fromkeys(speed, float(raced.target))
found = race_result(raced, raced.prediction_at(tokens), tokens).as_dict()
del found["cost"]["seconds"]
print(json.dumps(found))
"""


def test_killed_in_the_middle_of_a_screening_it_gives_the_same_answer(tmp_path: Path) -> None:
    """kill -9 in the middle of the first candidate's screening, and again after it has its record."""
    layers = [(name, spec.split("|")[1].strip().replace("heads=4", "heads=2")) for name, spec in SPECS.items()]

    def begun(name: str) -> subprocess.Popen[str]:
        (tmp_path / name).mkdir(exist_ok=True)
        program = [sys.executable, "-c", KILLED, str(tmp_path / name), json.dumps(layers)]
        return subprocess.Popen(program, stdout=subprocess.PIPE, text=True)

    def screened(name: str) -> int:
        with open_store(f"sqlite:///{tmp_path}/{name}/plait.db") as store:
            return sum("screening" in record.config for record in store.find(KIND))

    whole = begun("whole")
    answer, _ = whole.communicate(timeout=300)
    assert screened("whole") == len(SPECS)
    for moment in (lambda: any((tmp_path / "killed" / "tracks").glob("*")), lambda: screened("killed") > 0):
        process, deadline = begun("killed"), time.monotonic() + 300
        while not moment():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.kill()
        process.communicate()
        assert screened("killed") < len(SPECS)
    resumed, _ = begun("killed").communicate(timeout=300)
    assert json.loads(resumed) == json.loads(answer)
    assert all(row["screening"] for row in json.loads(answer)["architectures"])
