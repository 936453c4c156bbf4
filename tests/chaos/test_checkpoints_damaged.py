"""Checkpoints that are torn, bit-flipped, or cannot be written: the one before is used, and it is said."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import pytest

from jobs.contract import CheckpointInvalid, checkpoints, verify
from tests.fakes.daemon.service import Service, service, until

pytestmark = pytest.mark.engine


@dataclass
class Scene:
    """Two jobs that were killed with their daemon, and whose checkpoints were damaged meanwhile."""

    daemon: Service
    newest_flipped: str
    none_valid: str
    flipped_step: int


@pytest.fixture(scope="module")
def scene(counter: str, trainer_image: str) -> Iterator[Scene]:
    del trainer_image
    with service(executor="docker", allowed_images={"counter": counter}) as daemon:
        daemon.start()
        larger = {"batch_size": 8, "context": 64, "width": 64}
        one, all_of_them = (
            daemon.submit(daemon.training(name, 120, workload=larger)) for name in ("one", "all-of-them")
        )
        for job_id in (one, all_of_them):
            daemon.prints(job_id, "checkpoint of step 15 saved")
            daemon.freeze(job_id)
        daemon.kill()
        for job_id in (one, all_of_them):
            daemon.signal_container(job_id, 9)
            until(lambda job_id=job_id: not daemon.alive(job_id), "the container is dead")  # type: ignore[misc]
        flipped = flip_newest(daemon, one)
        damage_all(daemon, all_of_them)
        daemon.runner("list")
        yield Scene(daemon, one, all_of_them, flipped)
        daemon.assert_whole()


def flip_newest(daemon: Service, job_id: str) -> int:
    """Change one bit in the newest checkpoint, as a bad disk does, and return its step."""
    step, path = next(checkpoints(daemon.paths(job_id).lineage_dir))
    content = bytearray((path / "state.pt").read_bytes())
    content[len(content) // 2] ^= 1
    (path / "state.pt").write_bytes(content)
    return step


def damage_all(daemon: Service, job_id: str) -> None:
    """Tear every checkpoint, each in its own way."""
    [*found] = checkpoints(daemon.paths(job_id).lineage_dir)
    assert len(found) in {3, 4}  # one more if it was frozen between a save and the removal of the oldest
    for (_, path), damage in zip(found, cycle((_cut, _without_manifest, _empty)), strict=False):
        damage(path)
        with pytest.raises(CheckpointInvalid):
            verify(path)


def _cut(path: Path) -> None:
    os.truncate(path / "state.pt", 1000)


def _without_manifest(path: Path) -> None:
    (path / "manifest.json").unlink()


def _empty(path: Path) -> None:
    (path / "manifest.json").write_bytes(b"")


def test_a_flipped_bit_in_the_newest_checkpoint_falls_back_to_the_one_before_and_says_so(
    scene: Scene,
) -> None:
    ended = scene.daemon.ends(scene.newest_flipped)
    assert ended["outcome"] == "succeeded"
    assert ended["result"]["resumed_from"] == scene.flipped_step - 5
    told = scene.daemon.told(scene.newest_flipped)
    assert f"resume from step {scene.flipped_step - 5}: " in told
    assert "; 1 invalid checkpoint skipped" in told
    name = f"step-{scene.flipped_step:08d}"
    said = [
        line for line in scene.daemon.log(scene.newest_flipped, 2).splitlines() if line.startswith("warning:")
    ]
    assert said == [f"warning: {name} was not used: state.pt: content differs from its sha256"]


def test_when_no_checkpoint_is_valid_the_job_is_held_and_can_begin_again(scene: Scene) -> None:
    daemon, job_id = scene.daemon, scene.none_valid
    held = daemon.ends(job_id)
    assert held["state"] == "held"
    assert held["why"].startswith("checkpoints exist and none is valid: step-")
    assert "no manifest: the save did not finish" in held["why"]
    assert "held" in daemon.runner("wait", job_id, code=12)
    assert "with no valid checkpoint to begin from" in daemon.runner("restart", job_id)
    again = daemon.ends(job_id)  # the program looks for itself, and says the same
    assert (again["state"], again["attempts"][-1]["exit_code"]) == ("held", 99)
    daemon.runner("restart", job_id, "--from", "scratch")
    ended = daemon.ends(job_id)
    assert [(a["number"], a["lineage"]) for a in ended["attempts"]] == [(1, 1), (2, 1), (3, 2)]
    assert (ended["outcome"], ended["result"]["resumed_from"]) == ("succeeded", None)


@pytest.fixture
def small_disk(counter: str) -> Iterator[Service]:
    """A daemon whose jobs lie on a file system of a few MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    with service(executor="docker", allowed_images={"counter": counter}) as daemon:
        where = daemon.state / "jobs"
        where.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m,mode=755", "tmpfs", where], check=True)
        try:
            yield daemon.start()
        finally:
            daemon.close()
            subprocess.run(["umount", "-l", where], check=True)


def test_a_full_disk_skips_a_checkpoint_keeps_the_older_ones_and_loses_nothing(
    small_disk: Service, trainer_image: str
) -> None:
    del trainer_image
    larger = {"batch_size": 8, "context": 64, "width": 64}
    job_id = small_disk.submit(small_disk.training("train", 150, workload=larger))
    small_disk.prints(job_id, "checkpoint of step 5 saved")
    small_disk.freeze(job_id)
    filler = fill(small_disk.state / "jobs", leaving=100 * 1024)
    small_disk.thaw(job_id)
    until(lambda: "checkpoint skipped" in small_disk.log(job_id), "the trainer says that the disk is full")
    step, newest = next(checkpoints(small_disk.paths(job_id).lineage_dir))
    assert verify(newest).step == step
    assert "Training goes on; the newest is step" in small_disk.log(job_id)  # seen before or while writing
    filler.unlink()
    ended = small_disk.ends(job_id)
    assert (ended["outcome"], ended["attempt"], ended["result"]["step"]) == ("succeeded", 1, 150)
    assert ended["attempts"][0]["checkpoint_step"] == 150
    small_disk.assert_whole()


def fill(directory: Path, leaving: int) -> Path:
    """Return a file that takes all space but ``leaving`` bytes.

    Others write meanwhile, so what was free a moment ago may be less now: then it looks again.
    """
    filler = directory / "filler"
    with filler.open("wb") as file:
        for _ in range(100):
            status = os.statvfs(directory)
            wanted = status.f_bavail * status.f_frsize - leaving
            if wanted <= 0:
                break
            with suppress(OSError):
                os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, wanted)
    return filler
