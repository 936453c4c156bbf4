"""Copies that share nothing, and digests that see everything."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from jobs.checkpoint.state import clone, digest, size_bytes, weights_sha256


def nested() -> dict[Any, Any]:
    tensor = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    return {
        "t": tensor,
        "scalar": torch.tensor(3),
        "l": [1, 2.5, None],
        "b": (True, "x"),
        0: {"empty": torch.empty(0)},
    }


def test_a_clone_is_equal_and_shares_no_memory() -> None:
    original = nested()
    copy = clone(original)
    assert digest(copy) == digest(original)
    original["t"].add_(1)
    original["scalar"].add_(1)
    original["l"].append(4)
    assert digest(copy) == digest(nested())


def test_a_view_is_cloned_as_what_it_shows() -> None:
    base = torch.arange(6).reshape(2, 3)
    assert clone(base.T).tolist() == base.T.tolist()
    assert digest(clone(base.T)) == digest(base.T)


@pytest.mark.parametrize("value", [Path(), np.float64(1.0), {1.5: 0}, {"a": {1, 2}}, b"bytes", torch.float32])
def test_what_a_safe_load_would_refuse_is_refused_before_it_is_written(value: object) -> None:
    with pytest.raises(TypeError, match="a checkpoint cannot h"):
        clone({"deep": [value]})


def test_a_clone_survives_a_safe_load(tmp_path: Path) -> None:
    state = clone(nested())
    torch.save(state, tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt", weights_only=True)
    assert digest(loaded) == digest(state)


def changed(key: object, value: object) -> dict[Any, Any]:
    return {**nested(), key: value}


@pytest.mark.parametrize(
    "other",
    [
        changed("t", torch.arange(6, dtype=torch.float32).reshape(3, 2)),
        changed("t", torch.arange(6, dtype=torch.int32).reshape(2, 3)),
        changed("t", torch.arange(6, dtype=torch.float32).reshape(2, 3).nextafter(torch.tensor(99.0))),
        changed("scalar", 3),
        changed("l", [1, 2.5]),
        changed("b", (True, "y")),
        changed("new", None),
    ],
)
def test_every_difference_changes_the_digest(other: dict[Any, Any]) -> None:
    assert digest(other) != digest(nested())


def test_the_order_of_names_does_not_change_the_digest() -> None:
    state = nested()
    assert digest(dict(reversed(state.items()))) == digest(state)


def test_the_hash_of_weights_can_be_computed_without_this_program() -> None:
    weights = {"b": torch.tensor([1.0, 2.0]), "a": torch.tensor([[3]], dtype=torch.int64)}
    expected = hashlib.sha256()
    expected.update(b"a\0torch.int64\0(1, 1)\0" + np.array([3], dtype="<i8").tobytes())
    expected.update(b"b\0torch.float32\0(2,)\0" + np.array([1, 2], dtype="<f4").tobytes())
    assert weights_sha256(weights) == expected.hexdigest()


def test_bfloat16_has_a_digest_too() -> None:
    assert digest(torch.ones(2, dtype=torch.bfloat16)) != digest(torch.ones(2, dtype=torch.float16))


def test_the_size_counts_tensors_wherever_they_are() -> None:
    assert size_bytes(nested()) == 6 * 4 + 8
