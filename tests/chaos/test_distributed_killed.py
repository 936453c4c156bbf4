"""Trainings of several processes, killed at random and resumed on another number of them: the same bits."""

import os
import random
import sys
from signal import SIGKILL

import pytest

from jobs.contract import ExitCode
from tests.integration.process.jobs.gangs import STEPS, Fate, training, weights
from tests.unit.jobs.conftest import JobDir, corpus, job  # noqa: F401  found by name

WORLDS = (1, 2, 4)
TRIALS = int(os.environ.get("JOBS_TRIALS", "1"))
SEED = int(os.environ.get("TEST_SEED", "1"))


@pytest.mark.slow
def test_random_trials_end_with_the_weights_of_an_undisturbed_training(job: JobDir) -> None:  # noqa: F811
    with training(job, 1, lineage=100) as gang:
        assert gang.end() == ExitCode.FINISHED, gang.output
    expected = weights(job, 100)
    for trial in range(SEED, SEED + TRIALS):
        dice = random.Random(trial)  # noqa: S311  (not for cryptography)
        world, step = dice.choice(WORLDS[1:]), dice.choice(range(2, STEPS))
        rank, after = dice.randrange(world), dice.choice(WORLDS)
        about = f"seed {trial}: rank {rank} of {world} is killed at step {step}, then {after} processes"
        sys.stdout.write(f"{about}\n")
        with training(job, world, lineage=1 + trial - SEED, fate=Fate(step, SIGKILL, rank)) as gang:
            assert gang.end() == 128 + SIGKILL, f"{about}: {gang.output}"
        with training(job, after, lineage=1 + trial - SEED) as gang:
            assert gang.end() == ExitCode.FINISHED, f"{about}: {gang.output}"
        assert weights(job, 1 + trial - SEED) == expected, about
