"""Memory is said when the profile wants it, and given back only where there is a cache."""

import ctypes
import os
import resource
from collections.abc import Callable

import pytest
import torch

from jobs.training.memory import M_TRIM_THRESHOLD, MIB, OWN_WORDS, keep_freed_memory

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def faults_of_a_step(prepared: Callable[[], object]) -> int:
    """Return the page faults of a step in a process of its own, whose C library is prepared first."""
    here, there = os.pipe()
    child = os.fork()
    if not child:
        prepared()
        os.write(there, str(_faults()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    found = os.read(here, 100)
    for end in (here, there):
        os.close(end)
    return int(found)


def _faults() -> int:
    for _ in range(3):
        _step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    _step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def _step() -> None:
    """Take 20 MiB in pieces as a small model has them, and give them back."""
    kept = [b"x" * (2**18 + number) for number in range(80)]
    del kept


def test_what_a_step_frees_the_next_one_finds_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OWN_WORDS:
        monkeypatch.delenv(name, raising=False)
    trimmed = lambda: ctypes.CDLL(None).mallopt(M_TRIM_THRESHOLD, MIB)  # noqa: E731 - as a heap whose top is free
    assert faults_of_a_step(trimmed) > 3_000
    assert faults_of_a_step(keep_freed_memory) < 100
