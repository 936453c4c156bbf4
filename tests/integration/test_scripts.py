"""Scripts of the world, as people write them, in real containers: killed in the middle, they end as if they
had not been.

Each directory of ``examples/scripts`` is one, with its requirements and its job file.  None of them imports
anything of the runner.  More of them are in ``tests/wheels``, where they are held, too: these end within
seconds, on a fast machine before a request to hold them comes.
"""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from images.store import ImageStore
from tests.fakes.daemon.ports import fetch, forwarding
from tests.fakes.daemon.service import Service, service, until
from tests.fakes.workloads.scripts import (
    LONGEST_S,
    SCRIPTS,
    Script,
    assert_equal_weights,
    run_disturbed,
    run_whole,
)

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

ALL: Final = (
    Script("c", r"^step 20/", None, "out/final.bin"),
    Script("loader", r"^epoch 4/", None),
    Script("sdist", r"^step 30 ", None, "final.pt"),
)
TRACKED: Final = Script("tracked", r"^step 20 ", None)


@pytest.fixture(scope="module")
def daemon(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    del engine
    ImageStore().ensure("cpu", tmp_path_factory.mktemp("build") / "log.txt")
    with service(executor="docker") as made:
        yield made.start()


@pytest.mark.parametrize("script", ALL, ids=lambda script: script.name)
def test_a_script_that_is_killed_ends_with_the_weights_of_one_that_is_not(
    daemon: Service, script: Script
) -> None:
    assert_equal_weights(daemon, script, run_whole(daemon, script), run_disturbed(daemon, script))


def test_trackers_have_every_step_of_a_script_that_was_killed(daemon: Service) -> None:
    home = daemon.state / "jobs" / run_disturbed(daemon, TRACKED) / "homes" / "1"
    losses = logged_losses(home)
    assert list(losses) == list(range(120))
    assert [step for step, values in losses.items() if len(set(values)) > 1] == []  # of both attempts
    assert len(list((home / "tensorboard").iterdir())) == 2  # one file for each attempt
    assert sum(map(records, (home / "tensorboard").iterdir())) >= 120


def test_tensorboard_in_a_job_without_network_is_shown_by_forward(daemon: Service) -> None:
    """It comes from the requirements of the script, and runs beside it in its container."""
    show = "tensorboard --logdir $HOME/tensorboard --port 6006 --load_fast=false"
    train = "python train.py --steps 20 && echo trained && exec sleep 1000"
    directory = SCRIPTS / TRACKED.name
    file = daemon.file(
        "board",
        workload={"kind": "program", "command": ["sh", "-c", f"{show} & {train}"], "code": str(directory)},
        image={"requirements": str(directory / "requirements.txt")},
        network="none",
        resources={"cpus": 1, "memory": "4GiB"},
    )
    job = daemon.submit(file, end="cancelled")
    daemon.reaches(job, "running", LONGEST_S)
    until(lambda: "trained" in daemon.log(job), "it has trained", LONGEST_S, more=daemon.log_tail)
    with forwarding(daemon, job, "0:6006") as (_, port):
        points = "/data/plugin/scalars/scalars?run=.&tag=loss"
        found = until(lambda: _scalars(port, points), "TensorBoard shows the losses", LONGEST_S)
    assert [step for _, step, _ in found] == list(range(20))
    daemon.runner("cancel", job)
    daemon.ends(job)


def _scalars(port: int, path: str) -> list[tuple[float, int, float]]:
    """Return the points that TensorBoard answers with; none while it starts or reads."""
    try:
        found: list[tuple[float, int, float]] = json.loads(fetch(port, path))
    except (OSError, ValueError):
        return []
    return found if len(found) == 20 else []


def logged_losses(home: Path) -> dict[int, list[float]]:
    """Return the losses of the only run that MLflow knows, by step; an attempt may repeat some steps."""
    [path] = (home / "mlruns").glob("*/*/metrics/loss")
    found: dict[int, list[float]] = {}
    for _, value, step in sorted(map(str.split, path.read_text().splitlines()), key=lambda row: int(row[2])):
        found.setdefault(int(step), []).append(float(value))
    return found


def records(path: Path) -> int:
    """Return the number of events in a file of TensorBoard: length, checksum, content, checksum."""
    content, at, count = path.read_bytes(), 0, 0
    while at + 12 <= len(content):
        (length,) = struct.unpack_from("<Q", content, at)
        at, count = at + 16 + length, count + 1
    return count
