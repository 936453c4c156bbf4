"""The parts of a Slurm cluster die, and nothing is lost, doubled or blamed; nobody else uses it meanwhile."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from signal import SIGTERM

import pytest

from runner.adapters.launch import attempt_name
from runner.base.errors import Unavailable
from runner.core.ports.executor import (
    Alive,
    BatchOptions,
    EndReason,
    Unknown,
)
from tests.contract.worlds import eventually
from tests.fakes.engine.slurm import SPARE, used
from tests.fakes.engine.slurm_site import (
    SLEEP,
    Site,
    begun,
    end,
    site_on,
    when,
)


@pytest.fixture
def broken(slurm_conf: str) -> Iterator[Site]:
    """A site on a cluster that nobody else uses; it is mended afterwards."""
    with used(slurm_conf, alone=True) as cluster, site_on(cluster) as site:
        yield site


def test_a_controller_that_is_dead_ends_nothing_and_finds_the_attempt_again(broken: Site) -> None:
    request = broken.request(*SLEEP, job="headless")
    executor = broken.executor()
    executor.launch(request)
    begun(executor, request)
    (number,) = broken.cluster.numbers(attempt_name(request.key))
    eventually(broken.cluster.write_down(number))
    broken.cluster.script("kill", "slurmctld")
    told = when(executor, request.key, lambda each: isinstance(each, Unknown))
    assert isinstance(told, Unknown)
    assert "squeue: " in told.why
    with pytest.raises(Unavailable):
        executor.signal(request.key, SIGTERM)
    broken.cluster.mend()
    adopter = broken.executor()
    assert isinstance(when(adopter, request.key, lambda each: not isinstance(each, Unknown)), Alive)
    adopter.signal(request.key, SIGTERM)
    assert end(adopter, request.key).exit_code == 143


def test_an_attempt_that_completes_while_the_controller_is_dead_has_completed(broken: Site) -> None:
    request = broken.request(
        "/bin/sh", "-c", "echo ready; while [ ! -e go ]; do sleep 0.1; done", job="alone"
    )
    executor = broken.executor()
    executor.launch(request)
    begun(executor, request)
    broken.cluster.script("kill", "slurmctld")
    (request.run_dir / "go").touch()
    assert end(executor, request.key).exit_code == 0


def test_a_controller_that_is_stopped_during_a_submission_starts_one_job(broken: Site) -> None:
    request = broken.request("/bin/sh", "-c", "echo one start", job="stopped")
    executor = broken.executor()
    executor.launch(broken.request("/bin/true", job="before"))  # it has asked for the configuration
    pid = broken.cluster.pid("slurmctld")
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(Unavailable):
            executor.launch(request)
    finally:
        os.kill(pid, signal.SIGCONT)

    def insist() -> bool:
        with suppress(Unavailable):
            executor.launch(request)
            return True
        return False

    eventually(insist)
    assert end(executor, request.key).exit_code == 0
    assert request.log.read_text() == "one start\n"


@pytest.mark.parametrize("after_s", [0.0, 0.3, 1.0])
def test_a_controller_that_is_killed_after_a_submission_never_runs_a_program_twice(
    broken: Site, after_s: float
) -> None:
    program = ("/bin/sh", "-c", "echo start; sleep 2; echo end")
    request = broken.request(*program, job=f"amnesia{after_s}")
    site = replace(broken, patience_s=15.0)
    executor = site.executor()
    executor.launch(request)
    threading.Event().wait(after_s)
    broken.cluster.script("kill", "slurmctld")
    broken.cluster.mend()
    gone = end(executor, request.key)
    said = request.log.read_text() if request.log.exists() else ""
    assert said.count("start") <= 1
    assert (gone.exit_code == 0) is (said == "start\nend\n")
    assert gone.exit_code == 0 or gone.reason is not None or gone.exit_code is None


def test_a_node_that_is_lost_is_the_reason(broken: Site) -> None:
    request = broken.request(*SLEEP, job="power", options=BatchOptions(partition="spare"))
    executor = broken.executor()
    executor.launch(request)
    assert begun(executor, request).host == SPARE
    broken.cluster.script("kill", SPARE)
    gone = end(executor, request.key)
    assert (gone.exit_code, gone.reason) == (None, EndReason.NODE_FAILED)
    assert SPARE in gone.error


def test_without_munge_nothing_is_submitted_and_nothing_has_ended(broken: Site) -> None:
    request = broken.request(*SLEEP, job="munge")
    executor = broken.executor()
    executor.launch(request)
    begun(executor, request)
    broken.cluster.script("kill", "munged")
    assert isinstance(when(executor, request.key, lambda each: isinstance(each, Unknown)), Unknown)
    with pytest.raises(Unavailable):
        executor.launch(broken.request(*SLEEP, job="munge2"))
    broken.cluster.mend()
    assert isinstance(when(broken.executor(), request.key, lambda each: isinstance(each, Alive)), Alive)
