"""Trainings that go on until they are cancelled: none of their steps can be missed."""

from typing import Any

from jobs.contract import Manifest, checkpoint_name, checkpoints, verify
from tests.fakes.daemon.service import Service, until


def endless(daemon: Service, name: str, *, every: int = 50, **fields: Any) -> str:
    """Submit a training that ends when it is cancelled, and return its id."""
    checkpoint = {"every_steps": every, "keep": 1000}
    return daemon.submit(daemon.training(name, 10**6, checkpoint=checkpoint, **fields), end="cancelled")


def saves(daemon: Service, job_id: str, attempt: int) -> Manifest:
    """Return a checkpoint of an attempt or a later one, once there is one."""

    def look() -> Manifest | None:
        newest = next((path for _, path in checkpoints(daemon.paths(job_id).lineage_dir)), None)
        found = None if newest is None else verify(newest)
        return found if found is not None and found.attempt >= attempt else None

    return until(look, f"attempt {attempt} of job {job_id} saves", more=daemon.log_tail)


def saves_at(daemon: Service, job_id: str, step: int) -> Manifest:
    """Return the checkpoint of a step, once it is there."""
    place = daemon.paths(job_id).lineage_dir / checkpoint_name(step)
    until(place.exists, f"job {job_id} saves step {step}", 240, more=daemon.log_tail)
    return verify(place)
