"""From the death of one of four processes on two nodes until all train again, beside torchrun.

The same training with the same code and checkpoints.  The runner runs it in containers of two nodes of the
small Slurm: a killed process ends the attempt, and the next one is a new job of Slurm.  torchrun runs one
agent with four processes on this machine, in the environment of the bench, with restarts; that is its easier
case.  The clock starts with the kill and stops with the next step in the log.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from bench.cases.slurm_jobs import daemon_on
from bench.rivals.slurm_cluster import SmallCluster, small_cluster
from bench.support import interleave
from bench.support.daemon import BenchDaemon
from bench.support.result import Aim, CannotMeasure, Line, Result, Series
from bench.support.scratch import Scratch
from jobs.contract import AttemptSpec, RunPaths

BENCH: Final = "slurm-ranks"
OURS: Final = "runner, 2 nodes of Slurm x 2"
TORCHRUN: Final = "torchrun, 1 agent x 4, with restarts"
LIMIT_S: Final = 180.0
BEFORE: Final = 20
"""The step at which a process is killed."""


def measure(scratch: Scratch) -> Iterator[Line]:
    """Yield the one line."""
    corpus = _corpus(scratch)
    with small_cluster(may_install=scratch.effort.may_install) as cluster:
        contestants = {OURS: _ours(scratch, cluster, corpus), TORCHRUN: _torchrun(scratch, corpus)}
        took = interleave.interleave(min(scratch.effort.resumes, 3), 0, contestants)
    ours, theirs = (Series(name, "s", took[name]) for name in (OURS, TORCHRUN))
    yield Result(BENCH, ours, theirs, Aim(1.0, "ratio"))


def _corpus(scratch: Scratch) -> Path:
    corpus = scratch.directory("corpus")
    for path in sorted(Path(json.__file__).parent.glob("*.py")):
        shutil.copy(path, corpus)
    return corpus


def _workload(corpus: Path) -> dict[str, Any]:
    return {
        "kind": "causal_lm", "data": str(corpus), "steps": 10**6, "batch_size": 8, "context": 32, "layers": 1,
        "heads": 2, "width": 32, "eval_every": None, "log_every": 1,
    }  # fmt: skip


# --- the runner


def _ours(scratch: Scratch, cluster: SmallCluster, corpus: Path) -> Callable[[], float]:
    def measure() -> float:
        slurm = {"containers": "crun", "nodes_network": "host", "poll_every_s": 1}
        with daemon_on(scratch, cluster, **slurm) as daemon:
            job = daemon.submit(daemon.write(json.dumps(_job(corpus))))
            log = daemon.log(job, 1)
            interleave.wait_for("the training", lambda: f"step {BEFORE}/" in _text(log), LIMIT_S, 0.05)
            return _killed(3, lambda: _has_step(daemon, job), daemon.log(job, 1).parents[2])

    return measure


def _job(corpus: Path) -> dict[str, Any]:
    return {
        "name": "ranks",
        "workload": _workload(corpus),
        "profile": {"extends": "cpu", "threads": 1},
        "resources": {"cpus": 1, "memory": "3GiB", "nodes": 2},
        "parallel": {"processes": 2, "shards": 4},
        "checkpoint": {"every_steps": 5, "keep": 3},
        "retry": {"backoff": "0s"},
    }


def _has_step(daemon: BenchDaemon, job: str) -> bool:
    return any("/1000000 " in line or "/1000000:" in line for line in _steps(daemon.log(job, 2)))


def _steps(log: Path) -> list[str]:
    return [line for line in _text(log).splitlines() if "step " in line and "/1000000" in line]


# --- torchrun


def _torchrun(scratch: Scratch, corpus: Path) -> Callable[[], float]:
    def measure() -> float:
        paths = RunPaths(scratch.directory("torchrun"), 1, 1)
        spec = AttemptSpec.model_validate(
            {
                "job_id": "t1", "attempt": 1, "lineage": 1, "seed": 1, "workload": _workload(corpus),
                "checkpoint": {"every_steps": 5, "keep": 3}, "parallel": {"processes": 4, "shards": 4},
                "profile": {"threads": 1},
            }
        )  # fmt: skip
        for place in (paths.attempt_dir, paths.lineage_dir):
            place.mkdir(parents=True, exist_ok=True)
        paths.spec.write_text(spec.model_dump_json())
        with _agent(paths) as log:
            interleave.wait_for("the training", lambda: f"step {BEFORE}/" in _text(log), LIMIT_S, 0.05)
            before = len(_steps(log))

            def trains() -> bool:
                """Return True if a step comes again that was there before: it was resumed."""
                after = _steps(log)[before:]
                return any("resumed" in line for line in _text(log).splitlines()) and bool(after[1:])

            return _killed(3, trains, paths.root)

    return measure


@contextmanager
def _agent(paths: RunPaths) -> Iterator[Path]:
    """Yield the log of an agent that runs a training."""
    log = paths.attempt_dir / "log.txt"
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4",
        "--max-restarts=3", "-m", "jobs", "--root", str(paths.root), "--attempt", "1", "--lineage", "1",
    ]  # fmt: skip
    # Else gloo finds the addresses of the processes before the restart in the agent's store.
    fresh = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    environment = {**os.environ, **fresh, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    with log.open("ab") as output:
        agent = subprocess.Popen(command, stdout=output, stderr=output, env=environment, process_group=0)
    try:
        yield log
    finally:
        os.killpg(agent.pid, signal.SIGKILL)
        agent.wait()
        for pid in _ranks(paths.root).values():
            os.kill(pid, signal.SIGKILL)


# --- both


def _killed(rank: int, trains: Callable[[], bool], root: Path) -> float:
    """Kill a process, and return the seconds until all train again."""
    found = _ranks(root).get(rank)
    if found is None:
        raise CannotMeasure(f"there is no process with rank {rank}")
    began = perf_counter()
    os.kill(found, signal.SIGKILL)
    return interleave.wait_for("the training after the kill", trains, LIMIT_S, 0.02) - began


def _ranks(root: Path) -> dict[int, int]:
    """Return by rank the pids of the processes of the training in a run directory, also in containers."""
    run_directory, found = root.stat(), {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_text().split("\0")
            variables = dict(each.partition("=")[::2] for each in (place / "environ").read_text().split("\0"))
            is_its = str(root) in words or os.path.samestat((place / "root/job").stat(), run_directory)
        except (OSError, UnicodeDecodeError):
            continue
        is_rank = "RANK" in variables and "jobs" in words and "torch.distributed.run" not in words
        if is_rank and is_its:
            found[int(variables["RANK"])] = int(place.name)
    return found


def _text(log: Path) -> str:
    try:
        return log.read_text(errors="replace")
    except FileNotFoundError:
        return ""
