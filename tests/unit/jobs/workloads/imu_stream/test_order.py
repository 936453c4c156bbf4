"""The order of windows is fixed by seed and step, complete in each pass, and sharded."""

import pickle
from collections import Counter

import numpy as np
import pytest

from jobs.workloads.imu_stream.order import Order

WINDOWS = (3, 1, 2, 4, 2)


def order(shards: int = 2, block: int = 2, seed: int = 0) -> Order:
    return Order(
        tuple(range(10, 15)), WINDOWS, combos=3, shards=shards, block=block, seed=seed, purpose="train"
    )


def rows(one: Order, step: int, count: int = 5) -> list[tuple[int, ...]]:
    return [tuple(row) for row in one.rows(step, count).tolist()]


def test_a_step_gets_the_same_rows_in_any_process_and_in_any_order() -> None:
    forward = [rows(order(), step) for step in range(12)]
    used = order()
    assert [rows(used, step) for step in reversed(range(12))] == forward[::-1]
    assert rows(pickle.loads(pickle.dumps(used)), 7) == forward[7]  # noqa: S301 - our own bytes


def test_another_seed_or_step_gets_other_rows() -> None:
    assert rows(order(seed=1), 0) != rows(order(), 0)
    assert rows(order(), 2) != rows(order(), 0)


@pytest.mark.parametrize("block", [1, 2, 99])
def test_every_row_comes_once_in_every_pass(block: int) -> None:
    one = order(shards=1, block=block)
    (size,) = one.shard_rows
    assert size == sum(WINDOWS) * 3
    expected = {(10 + r, w, c) for r in range(5) for w in range(WINDOWS[r]) for c in range(3)}
    for number in range(3):
        assert set(rows(one, number, size)) == expected


def test_steps_of_any_size_cut_one_endless_sequence() -> None:
    whole = rows(order(shards=1), 0, 140)
    parts = [row for step in range(20) for row in rows(order(shards=1), step, 7)]
    assert parts == whole


def test_passes_are_shuffled_differently() -> None:
    one = order(shards=1)
    assert rows(one, 0, 36) != rows(one, 1, 36)


def test_a_step_takes_from_its_shard_alone() -> None:
    one = order(shards=2)
    for step in range(20):
        recordings = {recording - 10 for recording, _, _ in rows(one, step)}
        assert {recording % 2 for recording in recordings} == {step % 2}


def test_a_step_may_be_larger_than_a_pass() -> None:
    one = order(shards=2)
    counted = Counter(rows(one, 1, 2 * one.shard_rows[1]))
    assert set(counted.values()) == {2}


def test_no_more_than_a_block_of_recordings_is_in_use_at_a_time() -> None:
    recordings = order(shards=1, block=2).rows(0, 36)[:, 0]
    last = {each: int(np.flatnonzero(recordings == each).max()) for each in range(10, 15)}
    first = {each: int(np.flatnonzero(recordings == each).min()) for each in range(10, 15)}
    in_use = [sum(first[each] <= place <= last[each] for each in first) for place in range(36)]
    assert max(in_use) == 2
