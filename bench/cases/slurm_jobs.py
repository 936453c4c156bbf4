"""Jobs on a small Slurm cluster through the runner, beside Slurm's own commands in the same sitting.

The first line: from the start of ``runner submit`` to the first line of a program in a container on an idle
node, beside ``sbatch`` of the script and the container that the runner itself has made for that job.
The rate: jobs ``true`` as plain processes, submitted one after the other, until the last one has ended.
The requests: what slurmctld is asked while many jobs are unfinished, by ``sdiag``, beside the number of
``sacct`` that the watcher of submitit starts for them in the same time, by its own rule.
"""

import json
import os
import pwd
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from itertools import count
from pathlib import Path
from typing import Final

from bench.cases.first_line import await_content
from bench.rivals.slurm_cluster import USER, SmallCluster, small_cluster
from bench.support import interleave
from bench.support.daemon import BenchDaemon, runner_command, running_daemon
from bench.support.result import Aim, Line, Result, Series, in_milliseconds
from bench.support.scratch import Scratch

BENCH: Final = "slurm"
OURS: Final = "runner submit to first line, on Slurm"
PLAIN: Final = "sbatch of the same container"
LIMIT_S: Final = 300.0
MINUTE_S: Final = 60.0
ASKED: Final = (
    "REQUEST_JOB_INFO",
    "REQUEST_JOB_USER_INFO",
    "REQUEST_JOB_INFO_SINGLE",
    "REQUEST_PARTITION_INFO",
)
"""Questions of ``squeue`` to slurmctld."""


def measure(scratch: Scratch) -> Iterator[Line]:
    """Yield the lines of all three."""
    with small_cluster(may_install=scratch.effort.may_install) as cluster:
        yield first_line(scratch, cluster)
        yield rate(scratch, cluster)
        yield requests(scratch, cluster)


# --- submit to first line


def first_line(scratch: Scratch, cluster: SmallCluster) -> Result:
    """Return the times to the first line."""
    with daemon_on(scratch, cluster, containers="crun", poll_every_s=1) as daemon:
        file = daemon.write(_program(["echo", "here"]))
        made = _made_by_the_runner(scratch, daemon)
        contestants = {
            OURS: lambda: _time_ours(daemon, file),
            PLAIN: _time_plain(scratch, cluster, made),
        }
        seconds = interleave.interleave(scratch.effort.first_lines, scratch.effort.warmups, contestants)
    ours, theirs = (in_milliseconds(name, seconds[name]) for name in (OURS, PLAIN))
    return Result(BENCH, ours, theirs, Aim(1.5, "ratio"))


def _made_by_the_runner(scratch: Scratch, daemon: BenchDaemon) -> tuple[Path, Path]:
    """Return a copy of what the runner prepares for a node, and the run directory that it is for."""
    job = daemon.submit(daemon.write(_program(["sleep", "1000"]), "sleeps.yaml"))
    daemon.await_state(job, "running")
    run_dir = daemon.directory / "jobs" / job
    copy = scratch.directory("made") / "place"
    shutil.copytree(run_dir / ".slurm-1", copy)
    daemon.client.act(job, "cancel", {})
    daemon.await_state(job, "finished")
    return copy, run_dir


def _time_ours(daemon: BenchDaemon, file: Path) -> float:
    job = daemon.next_id()
    began = time.perf_counter()
    with subprocess.Popen(
        [*runner_command(), "submit", str(file)], env=daemon.environment, stdout=subprocess.DEVNULL
    ):
        seen = await_content(daemon.log(job, 1))
    daemon.await_state(job, "finished")
    return seen - began


def _time_plain(scratch: Scratch, cluster: SmallCluster, made: tuple[Path, Path]) -> Callable[[], float]:
    """Return a contestant: ``sbatch`` until the first output in the same container."""
    copy, original = made
    user = pwd.getpwnam(USER)

    def measure() -> float:
        place = scratch.directory("plain")
        run_dir = place / "job"
        for leaf in (run_dir / "attempts" / "1", run_dir / "home"):
            leaf.mkdir(parents=True)
            os.chown(leaf, user.pw_uid, user.pw_gid)
        for name in ("program", "config.json"):
            text = (copy / name).read_text().replace('"sleep", "1000"', '"echo", "here"')
            text = text.replace(str(original / ".slurm-1"), str(place)).replace(str(original), str(run_dir))
            (place / name).write_text(f"#!/bin/sh\n{text}" if name == "program" else text)
        log = run_dir / "attempts" / "1" / "log.txt"
        began = time.perf_counter()
        number = cluster.sbatch(place / "program", run_dir / "home" / "out", ("--mem=64M",))
        seen = await_content(log)
        _await_end(cluster, number)
        return seen - began

    return measure


def _await_end(cluster: SmallCluster, number: str) -> None:
    def is_over() -> bool:
        with suppress(Exception):
            return not cluster.said("squeue", "--noheader", "--jobs", number).strip()
        return True

    interleave.wait_for("the end of a job of Slurm", is_over, LIMIT_S, 0.1)


# --- many jobs


def rate(scratch: Scratch, cluster: SmallCluster) -> Result:
    """Return jobs per second of both."""
    jobs = min(scratch.effort.burst, 200)
    with daemon_on(scratch, cluster, containers="none", poll_every_s=1) as daemon:
        file = daemon.write(_program(["true"]))
        contestants = {
            "ours": lambda: _burst_of_ours(daemon, file, jobs),
            "sbatch": lambda: _burst_of_sbatch(scratch, cluster, jobs),
        }
        took = interleave.interleave(scratch.effort.bursts, 0, contestants)
    ours, theirs = (
        Series(f"{name}, {jobs} jobs `true`", "jobs/s", tuple(jobs / each for each in took[key]))
        for key, name in (("ours", "runner on Slurm"), ("sbatch", "sbatch in a loop"))
    )
    return Result(BENCH, ours, theirs, Aim(0.9, "ratio", at_least=True))


def _burst_of_ours(daemon: BenchDaemon, file: Path, jobs: int) -> float:
    began = time.perf_counter()
    submitted = [daemon.submit(file) for _ in range(jobs)]
    for job in submitted:
        daemon.await_state(job, "finished")
    return time.perf_counter() - began


def _burst_of_sbatch(scratch: Scratch, cluster: SmallCluster, jobs: int) -> float:
    script = scratch.directory("sbatch") / "true.sh"
    script.write_text("#!/bin/sh\ntrue\n")
    began = time.perf_counter()
    for _ in range(jobs):
        cluster.sbatch(script, Path(os.devnull), ("--mem=64M", "--job-name=bench-true"))
    interleave.wait_for(
        "the end of Slurm's jobs",
        lambda: not cluster.said("squeue", "--noheader", "--name=bench-true").strip(),
        LIMIT_S,
        0.1,
    )
    return time.perf_counter() - began


# --- what slurmctld is asked


def requests(scratch: Scratch, cluster: SmallCluster) -> Result:
    """Return how often Slurm is asked in a minute while many jobs are unfinished."""
    jobs = min(scratch.effort.waiting, 300)
    window_s = MINUTE_S if jobs > 100 else 5.0
    with daemon_on(scratch, cluster, containers="none") as daemon:
        file = daemon.write(_program(["sleep", "1000"]))
        submitted = [daemon.submit(file) for _ in range(jobs)]
        for job in submitted[:8]:
            daemon.await_state(job, "running")
        interleave.wait_for(
            "all jobs in Slurm",
            lambda: len(cluster.said("squeue", "--noheader", "--format=%i").split()) >= jobs,
            LIMIT_S,
            0.5,
        )
        before = _asked(cluster)
        time.sleep(window_s)
        asked = _asked(cluster) - before
    mine = Series(f"squeue of the runner in {window_s:.0f} s, {jobs} jobs", "requests", (float(asked),))
    theirs = Series(
        "sacct of submitit's watcher, by its rule", "requests", (float(_calls_of_submitit(window_s)),)
    )
    note = "sacct asks slurmdbd, which this cluster has not, and not slurmctld"
    return Result(BENCH, mine, theirs, Aim(0.2, "ratio"), note)


def _asked(cluster: SmallCluster) -> int:
    """Return how many requests of ``squeue`` slurmctld has answered."""
    said = cluster.said("sdiag")
    counts = dict(re.findall(r"^\s+(REQUEST_\w+)\s+\(\s*\d+\)\s+count:(\d+)", said, re.MULTILINE))
    return sum(int(counts.get(name, 0)) for name in ASKED)


def _calls_of_submitit(window_s: float, delay_s: float = 600.0) -> int:
    """Return how often submitit 1.5.3 calls ``sacct`` for somebody who asks for states each second."""
    calls, last_s = 0, float("-inf")
    for now_s in count():
        if now_s > window_s:
            return calls
        if now_s - last_s > min(delay_s, max(2.0, now_s / 2)):
            calls, last_s = calls + 1, now_s
    return calls


# --- all of them


def daemon_on(
    scratch: Scratch, cluster: SmallCluster, **slurm: object
) -> AbstractContextManager[BenchDaemon]:
    """Return a daemon whose jobs run on the cluster; its end is that of its jobs."""
    settings = {**cluster.settings(**slurm), "observe_every_s": 0.5, "memory_bytes": 2**44}
    more = "".join(f"{name}: {json.dumps(value)}\n" for name, value in settings.items())
    return running_daemon(scratch.directory("daemon"), "slurm", more, cpus=4096)


def _program(command: list[str]) -> str:
    return (
        f"name: bench\nworkload: {{kind: program, command: {json.dumps(command)}}}\n"
        "resources: {cpus: 1, memory: 64MiB}\n"
    )
