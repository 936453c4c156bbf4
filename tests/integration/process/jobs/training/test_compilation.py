"""Compilation is believed only when graphs are counted; that it works is shown in a container."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from jobs.training.step import Training
from tests.unit.jobs.conftest import JobDir
from tests.unit.jobs.training.test_step import make


@pytest.fixture
def training(job: JobDir) -> Training:
    return make(job, profile={"compile": True})


@pytest.fixture(autouse=True)
def _eager_again() -> Iterator[None]:
    yield
    torch.compiler.reset()
    torch.compiler.set_stance("default")


def compile_now(training: Training, model: nn.Module) -> None:
    from jobs.training.compilation import compile_model

    compile_model(model, training.switches, training.device, training.rehearse)


ELSEWHERE = """
import sys
from pathlib import Path
from tests.unit.jobs.conftest import JobDir
from tests.integration.process.jobs.training.test_compilation import fall_back
fall_back(JobDir(*map(Path, sys.argv[1:])))
"""


def test_a_compilation_that_fails_falls_back_and_says_why(job: JobDir) -> None:
    """In a process of its own: torch cannot read functions in which it is noted what runs."""
    told = [sys.executable, "-c", ELSEWHERE, str(job.root), str(job.corpus)]
    done = subprocess.run(told, cwd=Path(__file__).parents[5], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def fall_back(job: JobDir) -> None:
    training = make(job, profile={"compile": True})
    model = training.workload.model
    model.compile = lambda **_: torch.nn.Module.compile(model, backend=broken)
    compile_now(training, model)
    effective = training.effective()
    assert effective.compile_graphs == 0
    assert effective.switches["compile"].applied == "off"
    assert effective.fallbacks[0].startswith("compile default: using off: backend='broken' raised")
    assert training.update(0)[0]


def broken(_graph: object, _inputs: object) -> None:
    raise RuntimeError("no compiler here")
