"""The parts of a Slurm cluster die, and nothing is lost, doubled or blamed; each test has one of its own."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
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
from tests.fakes.engine.slurm import own_cluster
from tests.fakes.engine.slurm_site import (
    SAVES,
    SLEEP,
    Site,
    begun,
    end,
    site_on,
    when,
)


@pytest.fixture
def broken(slurm_conf: str) -> Iterator[Site]:
    """A site on a cluster that no other test uses.

    A controller that was killed gives numbers of jobs again, and Slurm drains the nodes that know them.
    """
    assert slurm_conf
    with own_cluster() as cluster, site_on(cluster) as site:
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


def test_of_a_job_that_the_controller_has_forgotten_the_end_is_what_its_script_has_written(
    broken: Site,
) -> None:
    program = ("/bin/sh", "-c", "echo ready; while [ ! -e go ]; do sleep 0.1; done; exit 3")
    request = broken.request(*program, job="forgotten")
    with broken.cluster.amnesia() as forget:  # it comes back without the job
        executor = broken.executor()
        executor.launch(request)
        begun(executor, request)
        (number,) = broken.cluster.numbers(attempt_name(request.key))
        broken.cluster.script("kill", "slurmctld")
        (request.run_dir / "go").touch()
        eventually((request.log.parent / ".slurm-exit").exists)
        forget()
    assert number not in broken.cluster.numbers(attempt_name(request.key))
    assert end(broken.executor(), request.key).exit_code == 3


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


@pytest.mark.parametrize("after_s", [0.0, 1.0])
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


@contextmanager
def stopped_keeper(pid: int) -> Iterator[None]:
    """Stop what keeps a job on its node, the parent of the batch script: the node cannot end the job."""
    batch = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    keeper = int(Path(f"/proc/{batch}/stat").read_text().rpartition(")")[2].split()[1])
    assert "slurmstepd" in Path(f"/proc/{keeper}/cmdline").read_text()
    os.kill(keeper, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(keeper, signal.SIGCONT)


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_job_whose_number_slurm_gives_twice_was_not_cancelled_by_a_person(
    broken: Site, *, is_ours: bool
) -> None:
    """slurmctld forgets a job and gives its number again; a node that still has the job refuses."""
    cluster, executor = broken.cluster, broken.executor()
    fast = BatchOptions(constraint="fast")
    program = ("/bin/sh", "-c", "echo ready $$; exec sleep 1000")
    request = broken.request(*program, job="one", options=fast)
    before = cluster.ask("sbatch", "--parsable", "--output=/dev/null", "--hold", "--wrap=true")
    eventually(cluster.write_down(before))
    with cluster.amnesia() as forget:
        executor.launch(request)
        begun(executor, request)
        (number,) = cluster.numbers(attempt_name(request.key))
        with stopped_keeper(int(request.log.read_text().split()[1])):
            forget()
            second = broken.request(*SLEEP, job="two", options=fast)
            other = executor if is_ours else replace(broken, root=broken.root / "other").executor()
            other.launch(second)
            ask = ("squeue", "--noheader", "--states=all", f"--jobs={number}", "--format=%T")
            eventually(lambda: cluster.ask(*ask) == "COMPLETING")
        gone = end(other, second.key)
        cluster.ask("scancel", before)
    assert (gone.exit_code, gone.reason, gone.never_started) == (None, EndReason.NODE_FAILED, True)
    why = "has given its number again" if is_ours else "Duplicate jobid"
    assert f"Slurm could not start job {number} on {cluster.node}1 and has cancelled it" in gone.error
    assert why in gone.error


def test_a_node_that_is_lost_is_the_reason(broken: Site) -> None:
    request = broken.request(*SLEEP, job="power", options=BatchOptions(partition="spare"))
    executor = broken.executor()
    executor.launch(request)
    spare = f"{broken.cluster.node}4"
    assert begun(executor, request).host == spare
    broken.cluster.script("kill", spare)
    gone = end(executor, request.key)
    assert (gone.exit_code, gone.reason) == (None, EndReason.NODE_FAILED)
    assert spare in gone.error


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


def test_a_preempted_attempt_saves_first(broken: Site) -> None:
    options = BatchOptions(constraint="fast", extra=("--exclusive",))
    request = broken.request(*SAVES, job="preempted", options=options)
    executor = broken.executor()
    executor.launch(request)
    assert begun(executor, request).host == f"{broken.cluster.node}1"
    urgent = (
        "--partition=urgent",
        "--constraint=fast",
        "--exclusive",
        "--output=/dev/null",
        "--wrap=sleep 60",
    )
    number = broken.cluster.ask("sbatch", "--parsable", *urgent)
    gone = end(executor, request.key)
    broken.cluster.ask("scancel", number)
    assert (gone.exit_code, gone.reason) == (75, EndReason.PREEMPTED)
    assert request.log.read_text() == "ready\nsaved\n"
