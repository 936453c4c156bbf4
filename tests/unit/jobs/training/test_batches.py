"""Batches are cut, copied and measured whole, and every row keeps its place."""

import pytest
import torch

from jobs.training import batches
from jobs.training.batches import Batch


def batch(rows: int) -> Batch:
    return {"x": torch.arange(rows * 2.0).view(rows, 2), "y": torch.arange(rows)}


@pytest.mark.parametrize(("rows", "size", "sizes"), [(5, 2, [2, 2, 1]), (4, 2, [2, 2]), (3, 9, [3])])
def test_the_parts_of_a_batch_are_the_batch(rows: int, size: int, sizes: list[int]) -> None:
    whole = batch(rows)
    parts = list(batches.split(whole, size))
    assert [batches.rows(part) for part in parts] == sizes
    for name, tensor in whole.items():
        assert torch.cat([part[name] for part in parts]).equal(tensor)


def test_a_batch_that_needs_no_cut_is_handed_on_as_it_is() -> None:
    whole = batch(3)
    assert next(batches.split(whole, 3)) is whole


def test_a_copy_shares_no_memory() -> None:
    whole = batch(2)
    copy = batches.clone(whole)
    copy["x"].zero_()
    assert whole["x"].tolist() == [[0.0, 1.0], [2.0, 3.0]]


def test_moving_keeps_names_and_values() -> None:
    moved = batches.to(batch(2), torch.device("meta"))
    assert batches.device_of(moved).type == "meta"
    assert {name: tuple(tensor.shape) for name, tensor in moved.items()} == {"x": (2, 2), "y": (2,)}


def test_the_size_is_that_of_all_tensors() -> None:
    assert batches.size_bytes(batch(3)) == 3 * 2 * 4 + 3 * 8


@pytest.mark.parametrize(
    ("whole", "part"),
    [(1, 1), (20, 20), (32, 32), (64, 32), (100, 50), (1023, 511), (1024, 512), (4096, 512), (8192, 1024)],
)
def test_the_automatic_size_is_an_eighth_of_a_large_batch_and_half_of_a_small_one(
    whole: int, part: int
) -> None:
    assert batches.automatic_size(whole) == part
