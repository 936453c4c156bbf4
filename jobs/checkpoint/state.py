"""Copies and digests of a training state, restricted to values that a safe load accepts.

A *plain* state consists of tensors, numbers, strings, None, lists, tuples and dicts with string or
integer keys.  These are the values that ``torch.load(weights_only=True)`` returns.
"""

import ctypes
import hashlib
from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

Plain: TypeAlias = Any
"""Stands for the recursive type of the module docstring; ``clone`` checks it."""

_SCALARS = (bool, int, float, str, type(None))


def clone(state: Plain) -> Plain:
    """Return a copy on the CPU that shares nothing with the original, including step counters.

    Raises:
        TypeError: A value in the state is not plain, so a later load would reject it.
    """
    match state:
        case Tensor():
            return state.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        case Mapping():
            return {_key(key): clone(value) for key, value in state.items()}
        case list():
            return [clone(value) for value in state]
        case tuple():
            return tuple(clone(value) for value in state)
        case _:
            return _scalar(state)


def digest(state: Plain) -> str:
    """Return the sha256 of a cloned state; it covers every name, type, shape and value."""
    sha = hashlib.sha256()
    _feed(sha, state)
    return sha.hexdigest()


def weights_sha256(model_state: Mapping[str, Tensor]) -> str:
    """Return the sha256 over (name, type, shape, bytes) of every tensor, sorted by name."""
    sha = hashlib.sha256()
    for name in sorted(model_state):
        sha.update(f"{name}\0".encode())
        _feed_tensor(sha, model_state[name])
    return sha.hexdigest()


def size_bytes(state: Plain) -> int:
    """Return the bytes that the tensors of a state hold."""
    match state:
        case Tensor():
            return state.numel() * state.element_size()
        case Mapping():
            return sum(map(size_bytes, state.values()))
        case list() | tuple():
            return sum(map(size_bytes, state))
        case _:
            return 0


def _scalar(value: object) -> Plain:
    if type(value) not in _SCALARS:  # no subclasses: numpy.float64 is a float but cannot be loaded
        raise TypeError(f"a checkpoint cannot hold a {type(value).__module__}.{type(value).__qualname__}")
    return value


def _key(key: object) -> object:
    if type(key) not in {str, int}:
        raise TypeError(f"a checkpoint cannot have the key {key!r}")
    return key


def _feed(sha: "hashlib._Hash", state: Plain) -> None:
    match state:
        case Tensor():
            _feed_tensor(sha, state)
        case Mapping():
            sha.update(f"dict {len(state)}\0".encode())
            for key in sorted(state, key=repr):
                sha.update(f"{key!r}\0".encode())
                _feed(sha, state[key])
        case list() | tuple():
            sha.update(f"list {len(state)}\0".encode())
            for value in state:
                _feed(sha, value)
        case _:
            sha.update(f"{type(state).__name__} {state!r}\0".encode())


def _feed_tensor(sha: "hashlib._Hash", tensor: Tensor) -> None:
    here = tensor.detach().cpu().contiguous()
    sha.update(f"{here.dtype}\0{tuple(here.shape)}\0".encode())
    count = here.numel() * here.element_size()
    if count:
        sha.update((ctypes.c_char * count).from_address(here.data_ptr()))  # no copy, and no numpy
