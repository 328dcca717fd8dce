"""Batches: every window once, the same whoever asks, whenever, and however many share the work."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.core.errors import UserError
from plait.data.stream import IGNORE, Segments, Windows, mask_tokens, permuted


@given(
    count=st.integers(3, 400),
    length=st.integers(1, 20),
    batch=st.integers(1, 8),
    seed=st.integers(0, 2**63),
    data=st.data(),
)
@settings(deadline=None)
def test_every_window_is_visited_once_an_epoch(
    count: int, length: int, batch: int, seed: int, data: st.DataObject
) -> None:
    tokens = np.arange(count, dtype=np.uint16)
    try:
        windows = Windows(tokens, length, batch, data.draw(st.sampled_from([seed, None])))
    except UserError:
        assert batch > max((count - length) // length, int(count > length))
        return
    steps = -(-2 * windows.windows // batch)
    rows = [windows.rows(step) for step in range(steps)]
    inputs = np.concatenate([row for row, _ in rows])
    targets = np.concatenate([row for _, row in rows])
    assert (inputs.dtype, targets.dtype) == (np.int64, np.int64)
    assert np.array_equal(targets, inputs + 1)  # tokens are their own places
    assert np.array_equal(inputs, inputs[:, :1] + np.arange(length))
    for epoch in range(2):
        starts = np.sort(inputs[epoch * windows.windows : (epoch + 1) * windows.windows, 0])
        assert np.array_equal(np.diff(starts), np.full(windows.windows - 1, length))  # side by side, none twice
        assert starts[0] < length or windows.windows == 1
        assert count - starts[-1] <= 3 * length + 1  # and little is left over at the end


def test_epochs_differ_in_order_and_offset() -> None:
    windows = Windows(np.arange(10_001, dtype=np.uint16), 10, 999, seed=5)
    epochs = [windows.rows(step)[0][:, 0] for step in range(4)]
    assert windows.windows == 999
    assert [windows.epoch(step) for step in range(4)] == [0, 1, 2, 3]
    assert len({int(starts.min()) for starts in epochs}) > 1
    orders = {tuple((starts // 10).tolist()) for starts in epochs}
    assert len(orders) == 4
    assert tuple(range(999)) not in orders
    other = Windows(windows.tokens, 10, 999, seed=6).rows(0)[0]
    assert not np.array_equal(other, windows.rows(0)[0])


def test_in_order_reads_from_the_first_token_to_the_last() -> None:
    windows = Windows(np.arange(21), 5, 2, seed=None)
    read = np.concatenate([windows.rows(step)[0].ravel() for step in range(2)])
    assert np.array_equal(read, np.arange(20))
    assert windows.rows(1)[1][-1, -1] == 20


@pytest.mark.parametrize("make", [lambda t: Windows(t, 7, 12, 3), lambda t: Segments(t, 7, 12)])
@given(step=st.integers(0, 10**9), world=st.sampled_from([1, 2, 3, 4, 6, 12]))
@settings(max_examples=40, deadline=None)
def test_the_batch_does_not_depend_on_who_shares_it(make: object, step: int, world: int) -> None:
    stream = make(np.arange(5000, dtype=np.uint16) % 251)  # type: ignore[operator]
    parts = [stream.rows(step, rank, world) for rank in range(world)]
    for whole, *shared in zip(stream.rows(step), *parts, strict=True):
        assert {part.shape for part in shared} == {(12 // world, 7)}
        assert np.array_equal(np.concatenate(shared), whole)


def test_resuming_is_asking_for_the_next_step() -> None:
    tokens = np.arange(3000, dtype=np.uint16)
    went_on = [Windows(tokens, 16, 8, 1).rows(step)[0] for step in range(60)]
    resumed = Windows(tokens, 16, 8, 1)  # another object, another order of asking
    for step in (59, 3, 31, 30):
        assert np.array_equal(resumed.rows(step)[0], went_on[step])


def test_rows_of_segments_go_on_where_they_were() -> None:
    tokens = np.arange(100)
    segments = Segments(tokens, 8, 3)
    assert segments.steps == 4
    read = [segments.rows(step) for step in range(9)]
    for step in range(8):
        inputs, targets = read[step]
        assert np.array_equal(targets, inputs + 1)
        goes_on = read[step + 1][0][:, 0] == inputs[:, -1] + 1
        assert np.array_equal(goes_on, ~segments.fresh(step + 1))
    assert segments.fresh(0).tolist() == [True] * 3
    assert segments.fresh(5, 1, 3).tolist() == [False]
    assert np.array_equal(np.sort(np.concatenate([row.ravel() for row, _ in read[:4]])), np.arange(96))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Windows(np.arange(50), 10, 5, 0), "50 tokens make 4 windows"),
        (lambda: Windows(np.arange(0), 10, 1, 0), "0 tokens make 0 windows"),
        (lambda: Windows(np.arange(50), 0, 5, 0), "length=0"),
        (lambda: Windows(np.arange(50), 5, 0, 0), "batch=0"),
        (lambda: Segments(np.arange(40), 10, 4), "need 41 tokens; there are 40"),
        (lambda: Windows(np.arange(50), 5, 4, 0).rows(0, 0, 3), "4 rows cannot be shared evenly by 3"),
        (lambda: Windows(np.arange(50), 5, 4, 0).rows(0, 2, 2), "rank 2 of 2"),
        (lambda: mask_tokens(np.zeros((1, 1), int), vocab=2, mask_id=0, seed=0, step=0, share=0.0), "share=0.0"),
        (
            lambda: mask_tokens(np.zeros((1, 1), int), vocab=2, mask_id=0, seed=0, step=0, special=[1]),
            "no tokens beside",
        ),
    ],
)
def test_what_cannot_be_served_is_explained(call: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        call()  # type: ignore[operator]


@given(size=st.integers(1, 3000), key=st.integers(0, 2**64 - 1))
@settings(max_examples=50, deadline=None)
def test_permutations_are_permutations(size: int, key: int) -> None:
    assert np.array_equal(np.sort(permuted(np.arange(size), size, key)), np.arange(size))


def test_permutations_look_random() -> None:
    size = 10_000
    places = np.arange(size)
    found = permuted(places, size, 12345)
    assert abs(np.corrcoef(places, found)[0, 1]) < 0.05
    assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 0.05
    # Small ones too: of the 6 orders of three things each is as likely as any other.
    orders = [tuple(permuted(np.arange(3), 3, key).tolist()) for key in range(1200)]
    counts = [orders.count(order) for order in sorted(set(orders))]
    assert len(counts) == 6
    assert min(counts) > 140  # 200 expected; five standard deviations are 65
    huge = permuted(np.array([0, 1, 2**40]), 2**41 + 3, 1)
    assert len(set(huge.tolist())) == 3
    assert huge.max() > 2**30


def masked(rows: np.ndarray, **change: object) -> tuple[np.ndarray, np.ndarray]:
    return mask_tokens(rows, **{"vocab": 50, "mask_id": 3, "seed": 0, "step": 0, **change})  # type: ignore[arg-type]


def test_masking_follows_the_rule() -> None:
    rows = np.random.default_rng(0).integers(4, 50, size=(400, 500))
    rows[:, 0], rows[:, -1] = 1, 2
    inputs, targets = masked(rows, special=(0, 1, 2))
    scored = targets != IGNORE
    assert np.array_equal(targets[scored], rows[scored])
    assert np.array_equal(inputs[~scored], rows[~scored])
    assert not scored[:, [0, -1]].any()
    assert abs(scored[:, 1:-1].mean() - 0.15) < 0.005
    now = inputs[scored]
    assert abs((now == 3).mean() - 0.8) < 0.01
    assert abs((now == rows[scored]).mean() - 0.1 - 0.1 / 46) < 0.01
    put_in = now[(now != 3) & (now != rows[scored])]
    assert set(put_in.tolist()) == set(range(4, 50))


def test_masking_is_decided_by_seed_and_step_and_shared_evenly() -> None:
    rows = np.random.default_rng(0).integers(4, 50, size=(6, 40))
    whole = masked(rows, step=7)
    assert np.array_equal(masked(rows, step=7)[0], whole[0])
    assert not np.array_equal(masked(rows, step=8)[1], whole[1])
    assert not np.array_equal(masked(rows, step=7, seed=1)[1], whole[1])
    shared = [masked(part, step=7, rank=rank) for rank, part in enumerate(np.split(rows, 3))]
    for number in range(2):
        assert np.array_equal(np.concatenate([part[number] for part in shared]), whole[number])


@pytest.mark.parametrize("length", [1, 3, 40])
def test_every_row_has_a_token_to_predict(length: int) -> None:
    rows = np.random.default_rng(0).integers(0, 9, (600, length))
    whole, targets = mask_tokens(rows, vocab=9, mask_id=9, seed=1, step=2)
    assert ((targets != -100).sum(axis=1) >= 1).all()
    # Whoever shares the batch masks the same.
    half = [mask_tokens(part, vocab=9, mask_id=9, seed=1, step=2, rank=r) for r, part in enumerate(np.split(rows, 2))]
    assert np.array_equal(np.concatenate([inputs for inputs, _ in half]), whole)
    _, targets = mask_tokens(np.full((2, length), 4), vocab=9, mask_id=9, seed=1, step=2, special=[4])
    assert (targets == -100).all()


@pytest.mark.parametrize("seed", range(12))
def test_a_text_of_one_window_has_room_for_few_offsets(seed: int) -> None:
    """Fifteen tokens hold a window of ten, its targets one place on, at one of five places."""
    windows = Windows(np.arange(15), 10, 1, seed)
    starts = [int(windows.starts(epoch)[0]) for epoch in range(60)]
    assert set(starts) == set(range(5))
