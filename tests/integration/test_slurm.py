"""Attempts in a real Slurm that loses answers, while people act behind our back."""

import os
import pwd
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any

import pytest

from runner.adapters.launch import attempt_name
from runner.adapters.slurm.check import SlurmCheck
from runner.adapters.slurm.commands import SlurmCommands
from runner.adapters.slurm.options import SlurmRules
from runner.base.errors import Unavailable
from runner.core.ports.executor import (
    Alive,
    BatchOptions,
    BatchRequest,
    EndReason,
    LaunchResult,
    Limits,
    Waiting,
)
from runner.core.ports.users import Owner
from tests.contract.worlds import eventually
from tests.fakes.daemon.service import service, until
from tests.fakes.engine.slurm import Cluster
from tests.fakes.engine.slurm_site import (
    LATER,
    LIMITS,
    NOBODY,
    PYTHON,
    SLEEP,
    Site,
    begun,
    end,
    seen,
    site_on,
    when,
)
from tests.fakes.engine.slurm_training import training_site

STRANGER = Owner(pwd.getpwnam("games").pw_uid, pwd.getpwnam("games").pw_gid, "games")
NOTHING = {"kind": "program", "command": ["true"]}
LOST = """#!/bin/sh
# An sbatch whose answer is lost: the job is there.
"$REAL" "$@" >/dev/null && echo "sbatch: error: Batch job submission failed: Socket timed out" >&2
exit 1
"""


@pytest.fixture(scope="module")
def together(slurm_conf: str) -> Cluster:
    return Cluster(Path(slurm_conf))


@pytest.fixture
def site(together: Cluster) -> Iterator[Site]:
    with site_on(together) as site:
        yield site


# --- exactly once


def test_a_submission_whose_answer_is_lost_is_found_and_not_repeated(site: Site) -> None:
    request = site.request("/bin/sh", "-c", "echo one start", job="lost")
    door = site.root / "bin"
    door.mkdir()
    (door / "sbatch").write_text(LOST.replace("$REAL", str(shutil.which("sbatch"))))
    (door / "sbatch").chmod(0o755)
    with pytest.raises(Unavailable, match="timed out"):
        replace(site, path=f"{door}:{site.path}").executor().launch(request)
    executor = site.executor()
    assert executor.launch(request) is LaunchResult.ACCEPTED
    assert end(executor, request.key).exit_code == 0
    assert request.log.read_text() == "one start\n"
    assert len(site.cluster.numbers(attempt_name(request.key))) == 1


@pytest.mark.parametrize("is_gone", ["number", "booking.json"])
def test_a_daemon_that_was_killed_during_a_launch_submits_nothing_twice(site: Site, is_gone: str) -> None:
    request = site.request(*SLEEP, job=f"killed-{is_gone.partition('.')[0]}")
    site.executor().launch(request)
    (site.root / "books" / attempt_name(request.key) / is_gone).unlink()
    executor = site.executor()
    executor.launch(request)
    begun(executor, request)
    assert len(site.cluster.numbers(attempt_name(request.key))) == 1
    executor.signal(request.key, SIGTERM)
    assert end(executor, request.key).exit_code == 143


def test_a_signal_finds_a_job_whose_number_was_not_noted(site: Site) -> None:
    request = site.request(*SLEEP, job="unnoted", options=LATER)
    site.executor().launch(request)
    (site.root / "books" / attempt_name(request.key) / "number").unlink()
    executor = site.executor()
    executor.signal(request.key, SIGTERM)
    assert end(executor, request.key).never_started


def test_a_job_of_a_stranger_with_our_name_is_not_adopted(site: Site) -> None:
    request = site.request("/bin/sh", "-c", "echo ours", job="forged")
    name = attempt_name(request.key)
    forged = f"--job-name={name}", "--output=/dev/null", "--chdir=/", "--mem=10M", "--wrap=sleep 100"
    number = site.cluster.ask(
        "sbatch", "--parsable", f"--uid={STRANGER.uid}", f"--gid={STRANGER.gid}", *forged
    )
    executor = site.executor()
    (site.root / "books" / name).mkdir(parents=True, exist_ok=True)  # it may have been submitted before
    executor.launch(request)
    assert end(executor, request.key).exit_code == 0
    assert request.log.read_text() == "ours\n"
    executor.signal(request.key, SIGKILL)
    assert site.cluster.ask("squeue", "--noheader", "--format=%T", "-j", number) in {"RUNNING", "PENDING"}
    site.cluster.ask("scancel", number)


def test_a_second_start_of_an_attempt_runs_nothing(site: Site) -> None:
    request = site.request("/bin/sh", "-c", "echo one start; exit 3", job="second")
    executor = site.executor()
    executor.launch(request)
    assert end(executor, request.key).exit_code == 3
    (request.log.parent / ".slurm-exit").unlink()
    script = Path(__file__).parents[2] / "runner" / "adapters" / "slurm" / "batch.sh"
    place = request.run_dir / ".slurm-1"
    done = site.cluster.ask(
        "sh", "-c", f"SLURM_JOB_ID=1 SLURMD_NODENAME=n sh {script} {request.log.parent} {place} || echo $?"
    )
    assert done.endswith("79")
    assert request.log.read_text() == "one start\n"


@pytest.mark.parametrize(
    ("script", "patience_s", "state"),
    [
        ("echo 0 >$0/.slurm-exit; touch -d @1 $0/.slurm-exit; exec sleep 100", 0.0, "CANCELLED"),
        ("true", 60.0, "COMPLETED"),
    ],
)
def test_what_runs_on_after_a_program_has_written_its_own_end_is_cancelled(
    site: Site, script: str, patience_s: float, state: str
) -> None:
    request = site.request("/bin/sh", "-c", script, job=f"end-{state}")
    request = replace(request, argv=(*request.argv, str(request.log.parent)))
    executor = replace(site, patience_s=patience_s).executor()
    executor.launch(request)
    gone = end(executor, request.key)
    assert gone.exit_code == 0
    assert gone.at is not None
    assert gone.at.year > 1970
    [number] = site.cluster.numbers(attempt_name(request.key))

    def is_removed() -> bool:
        with suppress(Unavailable):  # Slurm has not ended it yet
            executor.remove(request.key)
        return not executor.observe()

    eventually(is_removed)
    eventually(
        lambda: site.cluster.ask("squeue", "--noheader", "--states=all", "--format=%T", "-j", number) == state
    )


# --- the queue of Slurm


def test_what_waits_has_a_reason_and_is_cancelled_without_having_run(site: Site) -> None:
    request = site.request(*SLEEP, job="waits", options=LATER)
    executor = site.executor()
    executor.launch(request)
    words = "Slurm: its begin time has not come (BeginTime)"  # said first may be that all is in use by others
    waiting = when(executor, request.key, lambda each: isinstance(each, Waiting) and each.why == words)
    assert isinstance(waiting, Waiting)
    assert waiting.starts_at is not None
    with pytest.raises(Unavailable, match="signal it first"):
        executor.remove(request.key)
    executor.signal(request.key, SIGTERM)
    gone = end(executor, request.key)
    assert (gone.exit_code, gone.never_started, gone.reason) == (143, True, None)
    assert not request.log.exists()


def test_a_hold_and_a_release_by_hand_are_told(site: Site) -> None:
    request = site.request(*SLEEP, job="held", options=BatchOptions(extra=("--hold",)))
    executor = site.executor()
    executor.launch(request)
    told = when(executor, request.key, lambda each: isinstance(each, Waiting) and "held" in each.why)
    assert isinstance(told, Waiting)
    site.cluster.ask("scontrol", "release", site.cluster.numbers(attempt_name(request.key))[0])
    begun(executor, request)


@pytest.mark.parametrize("begins", [True, False])
def test_a_cancellation_by_hand_has_its_own_reason(site: Site, *, begins: bool) -> None:
    request = site.request(*SLEEP, job=f"scancel{begins}", options=None if begins else LATER)
    executor = site.executor()
    executor.launch(request)
    if begins:
        begun(executor, request)
    number = site.cluster.numbers(attempt_name(request.key))[0]
    site.cluster.ask("scancel", number)
    gone = end(executor, request.key)
    assert gone.reason is EndReason.CANCELLED_ELSEWHERE
    assert f"job {number} was cancelled in Slurm" in gone.error


def test_slurm_refuses_to_requeue_an_attempt(site: Site) -> None:
    request = site.request(*SLEEP, job="requeue")
    executor = site.executor()
    executor.launch(request)
    begun(executor, request)
    number = site.cluster.numbers(attempt_name(request.key))[0]
    with pytest.raises(AssertionError, match="disabled"):
        site.cluster.ask("scontrol", "requeue", number)
    assert isinstance(seen(executor, request.key), Alive)


def test_an_attempt_that_its_user_has_renamed_is_still_his_attempt(site: Site) -> None:
    request = site.request(*SLEEP, job="renamed")
    executor = replace(site, patience_s=1.0).executor()
    executor.launch(request)
    begun(executor, request)
    number = site.cluster.numbers(attempt_name(request.key))[0]
    site.cluster.ask("scontrol", "update", f"jobid={number}", "name=other")
    executor.queue.expire()
    assert isinstance(seen(executor, request.key), Alive)
    adopter = replace(site, patience_s=1.0).executor()
    assert isinstance(seen(adopter, request.key), Alive)
    adopter.signal(request.key, SIGTERM)
    assert end(adopter, request.key).exit_code == 143


@pytest.mark.parametrize("words", [("hold",), ("requeue",), ("suspend",), ("update", "name=mine")])
def test_a_stranger_cannot_touch_an_attempt(site: Site, words: tuple[str, ...]) -> None:
    request = site.request(*SLEEP, job=f"stranger-{words[0]}", options=LATER if words[0] == "hold" else None)
    executor = site.executor()
    executor.launch(request)
    if words[0] != "hold":
        begun(executor, request)
    number = site.cluster.numbers(attempt_name(request.key))[0]
    told = f"jobid={number}" if words[0] == "update" else number
    command = ("scontrol", words[0], told, *words[1:])
    done = subprocess.run(
        command,
        user=STRANGER.uid,
        group=STRANGER.gid,
        env=site.cluster.environment,
        capture_output=True,
        check=False,
    )
    assert done.returncode != 0
    executor.queue.expire()
    assert isinstance(seen(executor, request.key), Waiting if words[0] == "hold" else Alive)


def is_quiet(log: Path) -> bool:
    """Return True if nothing is written for two seconds."""
    return time.time() - log.stat().st_mtime > 2


def test_a_suspended_attempt_is_alive_and_goes_on(site: Site) -> None:
    ticks = ("/bin/sh", "-c", "echo ready; while :; do echo tick; sleep 0.1; done")
    request = site.request(*ticks, job="suspended")
    executor = site.executor()
    executor.launch(request)
    begun(executor, request)
    number = site.cluster.numbers(attempt_name(request.key))[0]
    site.cluster.ask("scontrol", "suspend", number)
    when(executor, request.key, lambda each: isinstance(each, Alive) and each.suspended)
    eventually(lambda: is_quiet(request.log))  # what Slurm says comes before it is done
    site.cluster.ask("scontrol", "resume", number)
    when(executor, request.key, lambda each: isinstance(each, Alive) and not each.suspended)
    said = request.log.stat().st_size
    eventually(lambda: request.log.stat().st_size > said)
    executor.signal(request.key, SIGTERM)
    assert end(executor, request.key).exit_code == 143


def test_on_a_drained_node_what_runs_goes_on_and_what_waits_says_so(site: Site) -> None:
    fast = BatchOptions(constraint="fast")
    runs, waits = (site.request(*SLEEP, job=f"drained-{name}", options=fast) for name in ("runs", "waits"))
    executor = site.executor()
    executor.launch(runs)
    assert begun(executor, runs).host == "node1"
    site.cluster.ask("scontrol", "update", "nodename=node1", "state=drain", "reason=test")
    try:
        executor.launch(waits)
        told = when(executor, waits.key, lambda each: isinstance(each, Waiting) and "drained" in each.why)
        assert isinstance(told, Waiting)
        assert isinstance(seen(executor, runs.key), Alive)
    finally:
        site.cluster.ask("scontrol", "update", "nodename=node1", "state=resume")
    begun(executor, waits)


# --- limits and devices


def test_memory_beyond_the_limit_is_slurms_word(site: Site) -> None:
    program = "b = bytearray(400 * 2**20); import time; time.sleep(60)"
    request = site.request("python3", "-c", f"print('ready', flush=True); {program}", job="memory")
    executor = site.executor()
    executor.launch(request)
    gone = end(executor, request.key)
    assert (gone.exit_code, gone.oom_seen) == (137, True)


def test_a_program_that_survives_its_child_that_needs_too_much_memory_has_succeeded(site: Site) -> None:
    child = "python3 -c 'b = bytearray(400 * 2**20); import time; time.sleep(60)'"
    request = site.request("/bin/sh", "-c", f"{child} || echo $?; exit 0", job="child")
    executor = site.executor()
    executor.launch(request)
    assert end(executor, request.key).exit_code == 0
    assert request.log.read_text().splitlines()[-1] == "137"


@pytest.mark.skipif(
    not Path("/sys/fs/cgroup/devices").exists(), reason="cgroup v2: devices are not fenced here"
)
def test_the_gpu_of_another_attempt_on_the_node_cannot_be_opened(site: Site) -> None:
    """There is no driver behind these devices, so the own one is ENXIO and the other one EPERM."""
    tries = (
        "import os\n"
        "for number in (0, 1):\n"
        f"    try: os.open('{site.cluster.conf.parent}/gpus/gpu%d' % number, os.O_RDONLY)\n"
        "    except OSError as error: print(number, error.errno)\n"
        "print('ready', flush=True)\n"
        "import time; time.sleep(1000)"
    )
    options = BatchOptions(constraint="fast")
    executor = site.executor()
    found = {}
    for job in ("fence-a", "fence-b"):
        request = site.request(PYTHON, "-c", tries, job=job, options=options, gpus=1)
        executor.launch(request)
        (device,) = begun(executor, request).devices
        found[device] = request.log.read_text()
    assert found == {"gpu:0": "0 6\n1 1\nready\n", "gpu:1": "0 1\n1 6\nready\n"}


def test_a_stop_that_comes_at_any_time_after_a_launch_is_not_lost(site: Site) -> None:
    executor = site.executor()
    requests = [site.request(*SLEEP, job=f"early{number}") for number in range(25)]
    for number, request in enumerate(requests):
        executor.launch(request)
        threading.Event().wait(number % 5 * 0.1)  # some wait, some are being started, some have begun
        executor.signal(request.key, SIGTERM)
    assert [end(executor, request.key).exit_code for request in requests] == [143] * len(requests)


def test_gpus_are_chosen_by_slurm_and_told(site: Site) -> None:
    program = ("/bin/sh", "-c", "echo ready; echo $CUDA_VISIBLE_DEVICES; exec sleep 1000")
    options = BatchOptions(constraint="fast")
    first, second = (site.request(*program, job=job, options=options, gpus=1) for job in ("gpu-a", "gpu-b"))
    executor = site.executor()
    for request in (first, second):
        executor.launch(request)
    found = [begun(executor, request) for request in (first, second)]
    assert {each.host for each in found} == {"node1"}
    assert {each.devices for each in found} == {("gpu:0",), ("gpu:1",)}


@pytest.mark.parametrize(
    ("options", "limits", "field"),
    [
        (BatchOptions(partition="nope"), LIMITS, "slurm.partition"),
        (BatchOptions(constraint="nope"), LIMITS, "slurm.constraint"),
        (BatchOptions(reservation="nope"), LIMITS, "slurm.reservation"),
        (BatchOptions(), Limits(1.0, 2**50), "resources"),
        (BatchOptions(), Limits(1000.0, 2**30), "resources"),
    ],
)
def test_what_slurm_refuses_is_about_a_field(
    site: Site, options: BatchOptions, limits: Limits, field: str
) -> None:
    check = SlurmCheck(SlurmCommands(site.cluster.conf), SlurmRules())
    found = check.problem(BatchRequest(limits, options=options), NOBODY)
    assert found is not None
    assert found[0] == field
    assert check.problem(BatchRequest(LIMITS), NOBODY) is None


# --- looking costs little


def test_slurm_is_not_asked_while_nothing_is_there_and_once_for_all(site: Site) -> None:
    executor = site.executor()
    assert executor.observe() == ()
    assert executor.queue.asked == 0
    requests = [site.request(*SLEEP, job=f"many{n}", options=LATER) for n in range(5)]
    for request in requests:
        executor.launch(request)
    submitting = executor.queue.asked
    assert len(executor.observe()) == len(requests)
    assert executor.queue.asked == submitting + 1


# --- a daemon


def test_jobs_that_may_run_here_and_in_slurm_start_where_there_is_room_first(together: Cluster) -> None:
    settings = {
        "executor": "slurm",
        "root_jobs_run_as": {"uid": NOBODY.uid, "gid": NOBODY.gid},
        "slurm": {
            "conf": str(together.conf),
            "poll_every_s": 0.5,
            "local": {"cpus": 1, "memory_bytes": 256 * 2**20},
        },
    }
    program = {"kind": "program", "command": ["sleep", "1000"]}
    fields: dict[str, Any] = {
        "workload": program,
        "resources": {"memory": "128MiB"},
        "executor": ["local", "slurm"],
    }
    with service(**settings) as daemon:
        daemon.start()
        here, there = (daemon.submit(daemon.file(name, **fields), end="any") for name in ("first", "second"))
        assert daemon.reaches(here, "running")["host"] == os.uname().nodename
        assert str(daemon.reaches(there, "running")["host"]).startswith("node")
        assert f"runs on {os.uname().nodename}" in daemon.runner("why", here)
        alone = daemon.submit(daemon.file("third", **{**fields, "executor": ["local"]}), end="any")
        said = "waits for room on this machine, where 0 CPUs and 128 MiB are free"
        until(lambda: said in daemon.runner("why", alone), "it says what it waits for")
        daemon.kill()
        daemon.start()
        daemon.runner("cancel", here)
        assert daemon.reaches(alone, "running")["host"] == os.uname().nodename
        for job in (alone, there):
            daemon.runner("cancel", job)
            assert daemon.ends(job)["outcome"] == "cancelled"


def test_a_command_beside_an_attempt_on_a_node_is_refused_with_slurms_own(together: Cluster) -> None:
    with training_site(together, containers="none") as daemon:
        program = {"kind": "program", "command": ["sleep", "1000"]}
        job = daemon.submit(daemon.file("long", workload=program, resources={"memory": "128MiB"}), end="any")
        daemon.reaches(job, "running")
        number = together.numbers(f"runner-{daemon.instance}-{job}-1")[0]
        said = daemon.runner("exec", job, "true", code=set(range(1, 256)))
        assert f"srun --jobid={number} --overlap --pty sh" in said
        daemon.runner("cancel", job)
        daemon.ends(job)


def test_a_job_is_held_that_somebody_cancels_in_slurm_and_goes_on_when_it_is_released(
    together: Cluster,
) -> None:
    settings = {
        "executor": "slurm",
        "root_jobs_run_as": {"uid": NOBODY.uid, "gid": NOBODY.gid},
        "slurm": {"conf": str(together.conf), "poll_every_s": 0.5, "extra": ["comment2", "exclusive"]},
        "cpus": 64,
    }
    with service(**settings) as daemon:
        daemon.start()
        bad = daemon.file(
            "bad", workload={"kind": "program", "command": ["true"]}, slurm={"partition": "nope"}
        )
        assert "slurm.partition: Slurm says: " in daemon.runner("submit", str(bad), code=2)
        denied = daemon.file("denied", workload=NOTHING, slurm={"extra": ["--nice=5"]})
        assert "--nice is not allowed here" in daemon.runner("submit", str(denied), code=2)
        program = {"kind": "program", "command": ["sh", "-c", "sleep 1000"]}
        job = daemon.submit(daemon.file("long", workload=program, resources={"memory": "128MiB"}), end="any")
        running = daemon.reaches(job, "running")
        assert running["host"] in {"node1", "node2", "node3"}
        daemon.kill()
        daemon.start()
        assert daemon.reaches(job, "running")["attempt"] == 1
        instance = daemon.instance
        number = together.numbers(f"runner-{instance}-{job}-1")[0]
        together.ask("scancel", number)
        held = daemon.reaches(job, "held")
        assert f"job {number} was cancelled in Slurm" in held["why"]
        daemon.runner("release", job)
        assert daemon.reaches(job, "running")["attempt"] == 2
        daemon.runner("cancel", job)
        assert daemon.ends(job)["outcome"] == "cancelled"
        assert "started on node" in daemon.told(job)
