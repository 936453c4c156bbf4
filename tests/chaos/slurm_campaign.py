"""Kill daemons, controllers, processes and nodes of the small Slurm at random, and say what went wrong.

    python -m tests.chaos.slurm_campaign trials --number 10 [--seed N]
    python -m tests.chaos.slurm_campaign kills --number 50 [--seed N]

``trials``: trainings of two nodes with two processes each lose a random process at a random step, some also a
node, and go on with four, two or one process; the weights must be those of an undisturbed training.
``kills``: the daemon and slurmctld are killed at random moments while jobs are submitted and run; every job
must succeed, and no attempt may run twice.  A slurmctld that is killed before it has written down a start may
forget that job and give its number again, and Slurm then cancels the later job; nothing may be held for that.
``make soak`` makes some trials, and a test a few kills.
"""

import argparse
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tests.fakes.daemon.service import Service, until
from tests.fakes.engine.slurm import Cluster, own_cluster
from tests.fakes.engine.slurm_training import (
    kill_rank,
    node_names,
    reaches_step,
    training_site,
    weights,
    write_training,
)

PROGRAM: Final = (
    "echo $RUNNER_ATTEMPT >>$RUNNER_JOB_DIR/cache/begun; sleep {seconds};"
    " echo $RUNNER_ATTEMPT >>$RUNNER_JOB_DIR/cache/ended"
)


@dataclass(frozen=True)
class Trial:
    """Interruption of one training."""

    seed: int
    rank: int
    step: int
    fewer: bool
    loses_node: bool

    @classmethod
    def drawn(cls, seed: int) -> "Trial":
        dice = random.Random(seed)  # noqa: S311  not for cryptography
        rank, step = dice.randrange(4), dice.choice((5, 10, 15, 20))
        return cls(seed, rank, step, fewer=dice.random() < 0.5, loses_node=dice.random() < 0.4)


def run_trial(daemon: Service, cluster: Cluster, trial: Trial) -> str:
    """Run a training, disturb it, and return the sha256 of its weights."""
    job_id = daemon.submit(
        write_training(daemon, f"trial-{trial.seed}", 2, 2, policy="smaller" if trial.fewer else "fewer")
    )
    reaches_step(daemon, job_id, 1, trial.step)
    kill_rank(daemon, job_id, trial.rank)
    if trial.loses_node:
        reaches_step(daemon, job_id, 2, trial.step + 10)
        hosts = node_names(daemon.job(job_id)["host"])
        cluster.script("kill", hosts[-1])
    try:
        return weights(daemon, job_id)
    finally:
        cluster.mend()


def run_trials(cluster: Cluster, number: int, seed: int) -> Iterator[str]:
    """Run some trials, and yield a line for each whose weights differ."""
    with training_site(cluster) as daemon:
        expected = weights(daemon, daemon.submit(write_training(daemon, "alone", 1, 1)))
        for one in range(seed, seed + number):
            trial = Trial.drawn(one)
            began_s = time.monotonic()
            found = run_trial(daemon, cluster, trial)
            took_s = time.monotonic() - began_s
            sys.stderr.write(f"{trial}: {'equal' if found == expected else 'DIFFERENT'}, {took_s:.0f} s\n")
            if found != expected:
                yield f"{trial}: {found} and not {expected}"


def run_kills(cluster: Cluster, number: int, seed: int) -> Iterator[str]:
    """Kill the daemon or slurmctld so many times, and yield a line for each thing that is wrong."""
    dice = random.Random(seed)  # noqa: S311  not for cryptography
    with training_site(cluster, containers="none") as daemon:
        jobs: list[str] = []
        for count in range(number):
            jobs += _submit(daemon, f"j{count}", dice) if count % 2 == 0 else []
            threading.Event().wait(dice.choice((0.0, 0.1, 0.3, 0.7, 1.5, 3.0)))
            if dice.random() < 0.5:
                cluster.script("kill", "slurmctld")
                threading.Event().wait(dice.choice((0.0, 0.5, 2.0)))
                cluster.mend()
            else:
                daemon.kill()
                daemon.start()
        cluster.mend()
        for job_id in jobs:
            yield from _problems(daemon, job_id, _outcome(daemon, job_id))
        prefix = f"runner-{daemon.instance}-"
        until(lambda: prefix not in _in_slurm(cluster), "nothing is left in Slurm")


def _outcome(daemon: Service, job_id: str) -> str | None:
    """Return the end of a job; None if it is held."""
    outcome: str | None = daemon.ends(job_id, 900)["outcome"]
    return outcome


def _in_slurm(cluster: Cluster) -> str:
    return cluster.ask("squeue", "--noheader", "--states=PD,R", "--format=%j")


def _submit(daemon: Service, name: str, dice: random.Random) -> list[str]:
    command = ["sh", "-c", PROGRAM.format(seconds=dice.choice((0, 1, 3, 6)))]
    file = daemon.file(
        name,
        workload={"kind": "program", "command": command},
        resources={"cpus": 1, "memory": "64MiB"},
        policy=daemon.tireless(),
        retry={"backoff": "0s"},
    )
    return [daemon.submit(file)]


def _problems(daemon: Service, job_id: str, outcome: str | None) -> Iterator[str]:
    cache = daemon.paths(job_id).cache
    begun, ended = (
        Counter((cache / name).read_text().split()) if (cache / name).exists() else Counter()
        for name in ("begun", "ended")
    )
    if outcome != "succeeded":
        yield f"job {job_id}: {outcome}: {daemon.told(job_id)}"
    yield from (f"job {job_id}: attempt {each} ran {n} times" for each, n in begun.items() if n > 1)
    last = str(daemon.job(job_id)["attempts"][-1]["number"])
    if outcome == "succeeded" and not ended[last]:
        yield f"job {job_id}: attempt {last} has succeeded and never ended"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("trials", "kills"))
    parser.add_argument("--number", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    run = run_trials if asked.what == "trials" else run_kills
    with own_cluster() as cluster:
        wrong = list(run(cluster, asked.number, asked.seed))
    sys.stdout.write("".join(f"{line}\n" for line in wrong) or f"{asked.number} {asked.what}: all is well\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
