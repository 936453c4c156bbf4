"""Scripts of the world, as people write them, in real containers: killed in the middle, they end as if they
had not been.

Each directory of ``examples/scripts`` is one, with its requirements and its job file.  None of them imports
anything of the runner.
"""

import json
import re
import shutil
import signal
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
import torch

from images.store import ImageStore
from tests.fakes.daemon.ports import fetch, forwarding
from tests.fakes.daemon.service import Service, service, until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

SCRIPTS: Final = Path(__file__).parents[2] / "examples" / "scripts"


LONGEST_S: Final = 300.0
"""For packages, an image and a training, on a machine with much else to do; usually it takes seconds."""


@dataclass(frozen=True, slots=True)
class Script:
    """A script, and when to kill it."""

    name: str
    kill_at: str
    """What it has printed when it is killed; by then it has a checkpoint."""
    final: str = "out/final.pt"
    """Its weights, below the directory that it runs in."""


LOADER: Final = Script("loader", r"^epoch 4/")
PLAIN: Final = Script("plain", r"^.*step 30 ")
HUGGING_FACE: Final = Script("huggingface", r"\D12/40 ", "out/final/model.safetensors")
LIGHTNING: Final = Script("lightning", r"^epoch 3 is over")
IN_C: Final = Script("c", r"^step 20/", "out/final.bin")
SDIST: Final = Script("sdist", r"^step 30 ", "final.pt")
TRACKED: Final = Script("tracked", r"^step 20 ")


@pytest.fixture(scope="module")
def daemon(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    del engine
    ImageStore().ensure("cpu", tmp_path_factory.mktemp("build") / "log.txt")
    with service(executor="docker") as made:
        yield made.start()


def submit(daemon: Service, script: Script, name: str) -> str:
    """Submit the job file of a script as it stands there."""
    path = made(daemon, script) / "job.yaml"
    answer = daemon.client.submit(str(path), path.read_bytes(), name)
    return str(answer["job"]["id"])


def made(daemon: Service, script: Script) -> Path:
    """Return the directory of a script; one in C is compiled in a copy."""
    directory = SCRIPTS / script.name
    if not (directory / "Makefile").exists():
        return directory
    copy = daemon.root / script.name
    if not copy.exists():
        shutil.copytree(directory, copy)
        subprocess.run(["make", "--silent", "LDFLAGS=-static"], cwd=copy, check=True)
    return copy


def killed_in_the_middle(daemon: Service, script: Script) -> tuple[str, str]:
    """Run a script untouched, and again with a kill in the middle; return the ids of both jobs."""
    whole = submit(daemon, script, f"{script.name}-whole")
    ended = daemon.ends(whole, LONGEST_S)
    assert ended["outcome"] == "succeeded", daemon.log(whole)[-2000:]
    killed = submit(daemon, script, f"{script.name}-killed")
    pattern = re.compile(script.kill_at, re.MULTILINE)
    until(lambda: pattern.search(daemon.log(killed)), "it is in the middle", LONGEST_S, more=daemon.log_tail)
    daemon.signal_container(killed, signal.SIGKILL)
    ended = daemon.ends(killed, LONGEST_S)
    assert ended["outcome"] == "succeeded", daemon.log(killed, 2)[-2000:]
    assert len(ended["attempts"]) == 2, daemon.told(killed)
    return whole, killed


def place(daemon: Service, job_id: str) -> Path:
    """Return the directory that a script has run in."""
    return daemon.state / "jobs" / job_id / "work" / "1"


def assert_equal_weights(daemon: Service, script: Script, jobs: tuple[str, str]) -> None:
    whole, killed = (place(daemon, job_id) / script.final for job_id in jobs)
    if not script.final.endswith(".pt"):
        assert whole.read_bytes() == killed.read_bytes()
        return
    there, here = torch.load(whole), torch.load(killed)
    assert there.keys() == here.keys()
    assert all(torch.equal(there[name], here[name]) for name in there)


@pytest.mark.parametrize(
    "script", [IN_C, LOADER, PLAIN, SDIST, HUGGING_FACE, LIGHTNING], ids=lambda script: script.name
)
def test_a_script_that_is_killed_ends_with_the_weights_of_one_that_is_not(
    daemon: Service, script: Script
) -> None:
    jobs = killed_in_the_middle(daemon, script)
    assert_equal_weights(daemon, script, jobs)


def test_trackers_have_every_step_of_a_script_that_was_killed(daemon: Service) -> None:
    whole, killed = jobs = killed_in_the_middle(daemon, TRACKED)
    assert_equal_weights(daemon, TRACKED, jobs)
    homes = [daemon.state / "jobs" / job_id / "homes" / "1" for job_id in (whole, killed)]
    there, here = (mlflow_losses(home) for home in homes)
    assert list(here) == list(range(120))
    assert here == there
    assert len(list((homes[1] / "tensorboard").iterdir())) == 2  # one file for each attempt
    assert sum(map(records, (homes[1] / "tensorboard").iterdir())) >= 120


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


def mlflow_losses(home: Path) -> dict[int, float]:
    """Return the losses of the only run that MLflow knows, by step."""
    [path] = (home / "mlruns").glob("*/*/metrics/loss")
    rows = [line.split() for line in path.read_text().splitlines()]
    return {int(step): float(value) for _, value, step in sorted(rows, key=lambda row: int(row[2]))}


def records(path: Path) -> int:
    """Return the number of events in a file of TensorBoard: length, checksum, content, checksum."""
    content, at, count = path.read_bytes(), 0, 0
    while at + 12 <= len(content):
        (length,) = struct.unpack_from("<Q", content, at)
        at, count = at + 16 + length, count + 1
    return count
