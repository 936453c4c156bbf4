"""The promise for chained jobs: one that begins with another's weights, killed, ends with equal bits."""

import json
import os
import random
import signal
from functools import partial
from pathlib import Path
from typing import Any

from jobs.contract import RunPaths, checkpoints, verify
from tests.chaos.test_bitwise_processes import ARMS, spec, torture
from tests.fakes.daemon.preloaded import ENVIRONMENT, TRAINER, Forked, parent_with
from tests.fakes.daemon.service import until
from tests.fakes.patience import patience


def trained(root: Path, asked: dict[str, Any]) -> Path:
    """Train a job to its end, and return the directory of its finished weights."""
    paths = RunPaths(root, 1, 1)
    paths.attempt_dir.mkdir(parents=True)
    paths.lineage_dir.mkdir(parents=True)
    paths.spec.write_text(json.dumps({**asked, "attempt": 1}))
    assert begun(paths).wait(patience()) == 0, paths.log.read_text()
    return paths.final_dir


def begun(paths: RunPaths) -> Forked:
    """Start the trainer with a specification that is there."""
    numbers = ("--attempt", str(paths.attempt), "--lineage", str(paths.lineage))
    argv = ("-m", "jobs", "--root", str(paths.root), *numbers)
    return parent_with(TRAINER).start(*argv, environ=ENVIRONMENT, log=paths.log)


def test_a_network_that_begins_where_another_ended_is_killed_and_ends_with_the_same_bits(
    tmp_path: Path,
) -> None:
    seed = int.from_bytes(os.urandom(4))
    print(f"kill points drawn with seed {seed}")  # noqa: T201 - pytest shows it when the test fails
    before = spec("imu_stream joints", tmp_path / "made up")
    final = trained(tmp_path / "first", before)
    after = spec("imu_stream velocity", tmp_path / "made up")
    after["workload"]["init_from"] = "job/1/final"
    after["init_weights"] = str(final)
    kills = {"timed_kills": 2, "line_kills": 2, "stopped_jobs": 1}
    report = torture(tmp_path / "jobs", {"spec": after, "arms": ARMS, "seed": seed, **kills})
    assert report["reference"]["weights"]
    for end in report["ends"]:
        assert end == report["reference"]
    alone = spec("imu_stream velocity", tmp_path / "made up")
    other = verify(trained(tmp_path / "others", alone))
    assert other.state_sha256 not in {
        None,
        verify(tmp_path / "jobs/reference-0/lineages/1/final").state_sha256,
    }


MODULES = ("joints", "poser", "foot_contact", "velocity")


def attempt(root: Path, number: int, asked: dict[str, Any]) -> tuple[Forked, RunPaths]:
    """Start an attempt of a job, as the leader of a process group."""
    paths = RunPaths(root, number, 1)
    paths.attempt_dir.mkdir(parents=True)
    paths.lineage_dir.mkdir(parents=True, exist_ok=True)
    paths.spec.write_text(json.dumps({**asked, "attempt": number}))
    return begun(paths), paths


def killed_in_between(root: Path, asked: dict[str, Any], kill_at: int) -> RunPaths:
    """Kill a job once it has saved such a step; let another attempt finish, and return its paths.

    On a busy machine a job can end before it is killed: another one takes its place.
    """
    for place in (root / str(number) for number in range(20)):
        process, paths = attempt(place, 1, asked)
        until(partial(has_saved, paths, kill_at), f"{place}: step {kill_at} is saved")
        os.killpg(process.pid, signal.SIGKILL)  # not waited for yet, so its id is still its own
        if process.wait(patience()) == -signal.SIGKILL:
            again, paths = attempt(place, 2, asked)
            assert again.wait(patience()) == 0, paths.log.read_text()
            assert json.loads(paths.result.read_text())["resumed_from"] >= kill_at
            return paths
    raise AssertionError(f"{root}: every job ended before it was killed")


def has_saved(paths: RunPaths, step: int) -> bool:
    return any(saved >= step for saved, _ in checkpoints(paths.lineage_dir))


def chain(root: Path, data: Path, kills: dict[str, int]) -> list[str | None]:
    """Train four networks in turn, each with the weights of the one before; return all their hashes."""
    before, hashes = None, []
    for number, module in enumerate(MODULES, 1):
        asked = spec(f"imu_stream {module}", data)
        asked["workload"] |= {"bidirectional": True, "steps": 120}
        asked["checkpoint"] = {"every_steps": 20, "keep": 2}
        if before is not None:
            asked["workload"]["init_from"] = f"job/{number - 1}/final"
            asked["init_weights"] = str(before)
        if module in kills:
            paths = killed_in_between(root / module, asked, kills[module])
        else:
            process, paths = attempt(root / module, 1, asked)
            assert process.wait(patience()) == 0, paths.log.read_text()
        before = paths.final_dir
        hashes.append(verify(before).state_sha256)
    return hashes


def test_a_chain_of_four_networks_killed_twice_in_between_ends_with_the_same_bits(tmp_path: Path) -> None:
    seed = int.from_bytes(os.urandom(4))
    print(f"kill points drawn with seed {seed}")  # noqa: T201 - pytest shows it when the test fails
    draw = random.Random(seed)  # noqa: S311 - kill points, no secrets
    kills = {module: draw.randrange(20, 60, 20) for module in sorted(draw.sample(MODULES, 2))}
    undisturbed = chain(tmp_path / "undisturbed", tmp_path / "made up", {})
    assert None not in undisturbed
    assert len(set(undisturbed)) == len(MODULES)
    assert chain(tmp_path / "killed", tmp_path / "made up", kills) == undisturbed
