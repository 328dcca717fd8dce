"""A track's annealed branch is the training of that length, number for number, and leaves the track as it was."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from plait.core.errors import UserError
from plait.data import open_corpus
from plait.model.architecture import architecture
from plait.training.distributed import Processes
from plait.training.ensemble_step import AdamW, Moments, zeros_like
from plait.training.recipe import Budget, Job, Recipe, rate
from plait.training.track import Replica, Text, Track, track_recipe
from plait.training.trainer import Trainer

RECIPE = track_recipe(Recipe(batch=3, seq_len=24, lr=4e-3), warmup=3)
SPEC = "d=16 vocab=256 | attn[heads=2] swiglu gla[heads=2] swiglu"


@pytest.fixture(scope="module")
def corpus():
    return open_corpus("builtin:stdlib")


def track(corpus, *replicas):
    return Track(architecture(SPEC), replicas, [Text.of(corpus, RECIPE.seq_len, 480)], RECIPE)


def trained(corpus, seed, steps):
    """Held-out losses of a plain training, by window."""
    trainer = Trainer(
        Job(architecture(SPEC), corpus, RECIPE, Budget(steps=steps), seed=seed),
        steps,
        Processes(0, 1, torch.device("cpu")),
    )
    while trainer.step < steps:
        trainer.advance()
    text = Text.of(corpus, RECIPE.seq_len, 480)
    with torch.no_grad():
        logs = trainer.model(torch.from_numpy(text.inputs_NT)).log_softmax(-1)
        return -logs.gather(-1, torch.from_numpy(text.targets_NT)[..., None])[..., 0].mean(-1).numpy()


def test_a_branch_is_the_training_of_that_length(corpus):
    mine = track(corpus, Replica(4e-3, 0), Replica(4e-3, 5))
    for steps, decay in ((10, 2), (20, 4)):  # two budgets of one track
        losses = mine.annealed(steps, decay)
        assert mine.step == steps - decay
        for row, seed in zip(losses, (0, 5), strict=True):
            np.testing.assert_allclose(row, trained(corpus, seed, steps), rtol=1e-5)


def test_a_track_is_where_it_was_after_a_branch(corpus):
    branched, plain = track(corpus, Replica(4e-3, 1)), track(corpus, Replica(4e-3, 1))
    branched.annealed(10, 5)
    np.testing.assert_array_equal(branched.advance_to(12), plain.advance_to(12))
    np.testing.assert_array_equal(branched.score(), plain.score())


def test_restored_it_goes_on_as_if_never_stopped(corpus):
    whole, cut = track(corpus, Replica(4e-3, 1)), track(corpus, Replica(4e-3, 1))
    cut.advance_to(7)
    later = track(corpus, Replica(4e-3, 1))
    later.restore([cut.state(0)])
    np.testing.assert_array_equal(later.annealed(16, 3), whole.annealed(16, 3))


def test_restarted_with_others_it_is_theirs(corpus):
    used, fresh = track(corpus, Replica(1e-2, 3)), track(corpus, Replica(4e-3, 1))
    used.advance_to(5)
    used.restart([Replica(4e-3, 1)])
    np.testing.assert_array_equal(used.annealed(8, 2), fresh.annealed(8, 2))


def test_the_rate_is_the_schedule_s(corpus):
    mine = track(corpus, Replica(4e-3, 0))
    mine._decay_from.fill_(15.0)
    mine._decay_steps.fill_(5.0)
    recipe = Recipe(schedule="wsd", warmup=3.0, decay=0.25)
    for step in range(20):
        assert float(mine.rate(torch.tensor(float(step)))) == pytest.approx(rate(recipe, step, 20), abs=1e-6)


def test_held_out_windows_are_from_all_over_the_text(corpus):
    few = Text.of(corpus, 64, 640)
    tokens = np.asarray(corpus.tokens("validation"))
    assert few.inputs_NT.shape == (10, 64)
    last = len(tokens) * 9 // 10
    assert any((tokens[i : i + 64] == few.inputs_NT[-1]).all() for i in range(last - 128, last + 128))
    with pytest.raises(UserError, match="fewer than one sequence"):
        Text.of(corpus, 10**7, 640)


def test_held_out_windows_that_repeat_the_training_text_are_counted():
    """A file of repeated paragraphs is cut by position, so both splits have them."""
    rng = np.random.default_rng(0)
    page, own = rng.integers(0, 256, (2, 1024)).astype(np.uint8)
    text = Text.cut("a text", np.concatenate([page, page[::-1]]), np.concatenate([page, own, page[:1]]), 128, 2048)
    assert len(text.inputs_NT) == 16
    assert text.windows_seen() == 8
    text.inputs_NT[:, :32] += 1  # the beginnings of paragraphs differ, their middles are copies
    assert text.windows_seen() == 8
    text.inputs_NT[:4, 64] += 1
    assert text.windows_seen() == 4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_captured_step_that_was_not_compiled_is_the_plain_one(corpus):
    text, losses = Text.of(corpus, RECIPE.seq_len, 480), []
    for captured in (True, False):
        mine = Track(architecture(SPEC), [Replica(4e-3, 0)], [text], RECIPE, device="cuda", compiled=False)
        mine._stepper.captured = captured
        losses.append([float(mine.advance_to(step)[0]) for step in range(1, 9)])
    np.testing.assert_allclose(*losses, rtol=1e-3)


def test_an_update_with_few_kernels_is_the_update():
    """What a GPU takes where nothing is compiled, held to the one that is written out; three replicas, clipped."""
    shapes = {"w": (3, 5, 4), "b": (3, 7)}
    lr_M, decay_M = torch.tensor([1e-2, 2e-3, 0.0]), torch.tensor([0.1, 0.0, 0.3])
    found = []
    for update in (AdamW.update, AdamW.update_fused):
        drawn = torch.Generator().manual_seed(0)
        params = {name: torch.randn(shape, generator=drawn) for name, shape in shapes.items()}
        first, second = zeros_like(params), zeros_like(params)
        for step in range(1, 5):
            grads = {name: torch.randn(shape, generator=drawn) for name, shape in shapes.items()}
            counted = torch.tensor(float(step))
            update(AdamW(clip=1.0), Moments(params, first, second, frozenset({"w"})), grads, counted, lr_M, decay_M)
        found.append([params, first, second])
    for one, other in zip(*found, strict=True):
        for name in shapes:
            torch.testing.assert_close(one[name], other[name], rtol=1e-5, atol=1e-6)
