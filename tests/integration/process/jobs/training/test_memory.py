"""Memory is said when the profile wants it, and given back only where there is a cache."""

import ctypes
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from jobs.training.memory import M_TRIM_THRESHOLD, MIB, OWN_WORDS, keep_freed_memory

ROOT = Path(__file__).parents[5]
CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def faults_of_a_step(prepared: Callable[[], object]) -> int:
    """Return the page faults of a step in a process of its own, whose C library is prepared first."""
    # A new interpreter: in one that has run other tests, the heap's free room decides, not its settings.
    script = f"from {__name__} import {prepared.__name__}, _faults; {prepared.__name__}(); print(_faults())"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    return int(done.stdout)


def trim_early() -> None:
    """Give free memory back at once, as a heap does whose top is free."""
    ctypes.CDLL(None).mallopt(M_TRIM_THRESHOLD, MIB)


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
    assert faults_of_a_step(trim_early) > 3_000
    assert faults_of_a_step(keep_freed_memory) < 100
