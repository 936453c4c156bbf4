from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from jobs.training import checksum as module
from jobs.training.checksum import checksum

KINDS = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex128]


def values(kind: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(300, generator=torch.Generator().manual_seed(1)).mul(100).to(kind)


def changed(change: Callable[[Tensor], None], kind: torch.dtype = torch.float32) -> bool:
    other = values(kind)
    change(other)
    return not torch.equal(checksum([values(kind)]), checksum([other]))


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_tensors_have_the_same_sum_and_one_flipped_bit_another(kind: torch.dtype) -> None:
    def flip(tensor: Tensor) -> None:
        tensor.view(torch.uint8)[77] ^= 1

    assert torch.equal(checksum([values(kind)]), checksum([values(kind)]))
    assert changed(flip, kind)


def test_swapped_elements_are_seen() -> None:
    def swap(tensor: Tensor) -> None:
        tensor[[3, 250]] = tensor[[250, 3]]

    assert changed(swap)


def test_words_that_grow_and_shrink_by_the_same_are_seen() -> None:
    def compensate(tensor: Tensor) -> None:
        words = tensor.view(torch.int32)
        words[5] += 1
        words[6] -= 1

    assert changed(compensate)


def test_inverted_words_are_seen() -> None:
    def invert(tensor: Tensor) -> None:
        words = tensor.view(torch.int32)
        words[[5, 6]] = ~words[[5, 6]]

    assert changed(invert)


def test_swapped_tensors_and_one_more_are_seen() -> None:
    one, two = values(), values().flip(0)
    sums = [checksum(tensors) for tensors in ([one, two], [two, one], [one, two, torch.empty(0)], [one])]
    assert torch.equal(sums[0], sums[2])
    assert len({int(each.item()) for each in sums}) == 3


def test_the_sum_does_not_depend_on_how_much_is_mixed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    before = checksum([values(), values()])
    monkeypatch.setitem(module._CHUNK, "cpu", 7)
    assert torch.equal(checksum([values(), values()]), before)


def test_nothing_has_a_sum() -> None:
    assert checksum([]).shape == (1,)
