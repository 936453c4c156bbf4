"""The walks of architecture.md, as a real job takes them: the calls of one run, traced."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.fakes.daemon.service import Service, service, until
from tests.fakes.gpu.hosts import compile_nvml, h100s
from tests.fakes.patience import patience

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")

ROOT: Final = Path(__file__).parents[4]
PAGE: Final = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
LAYERS: Final = ("cli", "client", "server", "services", "control", "agent", "adapters", "files", "core")
"""The highest first."""

MOST_STATIONS: Final = 9
READING: Final = "The way of a reading of a GPU to an allocation"
BEFORE_A_JOB: Final = 4
"""Stations of that walk that a reading passes without a job."""

JOB: Final[dict[str, Any]] = {
    "workload": {"kind": "program", "command": ["sh", "-c", "exit 3"]},
    "accelerator": "cuda",
    "resources": {"cpus": 1, "memory": "256MiB", "gpus": 1},
    "retry": {"backoff": "0s", "max_attempts": 2},
}


@dataclass(frozen=True)
class Station:
    function: str
    called_by: str  # a layer, or "thread"

    @property
    def layer(self) -> str:
        return self.function.split(".")[1]


@dataclass(frozen=True)
class Call:
    function: str
    callers: tuple[str, ...]  # of the runner, the nearest first

    @property
    def called_by(self) -> str:
        """The layer of the nearest caller; ``base`` runs what others give it, so it is none."""
        layers = (caller.split(".")[1] for caller in self.callers)
        return next((layer for layer in layers if layer != "base"), "thread")


def walks() -> dict[str, list[Station]]:
    """Return the walks of the page by their titles."""
    part = PAGE.partition("## Three walks")[2].partition("\n## ")[0]
    sections = (section.partition("\n") for section in part.split("\n### ")[1:])
    row = re.compile(r"^\| \d+ \| `([\w.]+)` \| (\w+) \|", re.MULTILINE)
    return {title: [Station(*found) for found in row.findall(text)] for title, _, text in sections}


WALKS: Final = walks()


@contextmanager
def traced_daemon(made: Service, environment: dict[str, str]) -> Iterator[None]:
    log = made.state / "daemon.log"
    made.state.mkdir()
    arguments = ["serve", "--state-dir", str(made.state)]
    with log.open("w") as output, traced(arguments, environment, output) as daemon:
        until(made._answers, "the daemon answers", more=made.log_tail)
        yield
        daemon.kill()


def traced(arguments: list[str], environment: dict[str, str], output: Any) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "tests.fakes.walk_trace", *arguments]
    return subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT)


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> list[Call]:
    """Return all calls of stations, in order, of a job with a GPU that fails once and is tried again."""
    place = tmp_path_factory.mktemp("walks")
    library, said = compile_nvml(place / "driver"), place / "host"
    h100s(1).write(said)
    functions = {station.function for stations in WALKS.values() for station in stations}
    with service(executor="process", daemon_user="root") as made:
        made.env.update(
            LD_LIBRARY_PATH=str(library),
            RUNNER_FAKE_NVML=str(said),
            TRACED_FUNCTIONS="\n".join(sorted(functions)),
            TRACED_CALLS=str(place / "calls"),
        )
        file = made.root / "job.yaml"
        file.write_text(json.dumps(JOB))
        with traced_daemon(made, made.environ):
            began = WALKS[READING][:BEFORE_A_JOB]
            until(
                lambda: followed(read_calls(place / "calls"), began), "a device was read and its status known"
            )
            with traced(["submit", str(file)], made.environ, subprocess.PIPE) as command:
                printed, _ = command.communicate(timeout=patience())
            assert command.returncode == 0, (printed, made.log_tail())
            ended = made.ends("1")
            assert (ended["outcome"], len(ended["attempts"])) == ("failed", 2)
    return read_calls(place / "calls")


def read_calls(file: Path) -> list[Call]:
    """Return all calls that were traced, in order."""
    *lines, _unfinished = file.read_text().split("\n")
    found = sorted(map(json.loads, lines), key=lambda call: call["at"])
    return [Call(each["function"], tuple(each["callers"])) for each in found]


def followed(calls: Sequence[Call], stations: Sequence[Station]) -> list[Call] | None:
    """Return the calls of the stations in their order and by their callers, None if they were not made so.

    A station may be called by others in between, such as the scheduler by a loop that has nothing to place.
    """
    left, found = iter(calls), []
    for station in stations:
        wanted = (station.function, station.called_by)
        call = next((call for call in left if (call.function, call.called_by) == wanted), None)
        if call is None:
            return None
        found.append(call)
    return found


def submission(calls: Sequence[Call]) -> Sequence[Call]:
    """Return the calls since the job was submitted."""
    return calls[next(i for i, call in enumerate(calls) if call.function == "runner.cli.submit.submit") :]


def second_launch(calls: Sequence[Call]) -> Sequence[Call]:
    """Return the calls between the first launch and the second one."""
    launches = [i for i, call in enumerate(calls) if call.function.endswith(".ProcessExecutor.launch")]
    return calls[launches[0] + 1 : launches[1] + 1]


def first_launch(calls: Sequence[Call]) -> Sequence[Call]:
    """Return the calls from the start of the daemon to the first launch."""
    return calls[
        : next(i for i, call in enumerate(calls) if call.function.endswith(".ProcessExecutor.launch"))
    ]


WHEN: Final = {
    "A job file's way to a container": submission,
    "An exit's way to a decision and the next launch": second_launch,
    READING: first_launch,
}


def test_the_page_has_three_walks_of_at_most_nine_stations() -> None:
    assert WALKS.keys() == WHEN.keys()
    assert all(3 < len(stations) <= MOST_STATIONS for stations in WALKS.values())


@pytest.mark.parametrize("walk", WALKS)
def test_a_walk_is_what_a_real_run_calls_and_never_climbs(walk: str, calls: list[Call]) -> None:
    stations = WALKS[walk]
    made = WHEN[walk](calls)
    assert followed(made, stations), f"{walk}: {[(call.called_by, call.function) for call in made]}"
    for station in stations:
        if station.called_by != "thread":
            assert LAYERS.index(station.called_by) <= LAYERS.index(station.layer), f"{station} climbs"


@pytest.mark.parametrize("walk", WALKS)
def test_calls_in_another_order_or_too_few_are_no_walk(walk: str) -> None:
    stations = WALKS[walk]
    made = [Call(each.function, (f"runner.{each.called_by}.x",)) for each in stations]
    between = Call("runner.control.loop.ControlLoop.run_once", ())
    assert followed([each for call in made for each in (between, call)], stations) == made
    assert followed([*made[1:], made[0]], stations) is None
    assert followed([made[1], made[0], *made[2:]], stations) is None
    assert followed(made[:-1], stations) is None
    assert followed([*made[:-1], Call(made[-1].function, ("runner.services.x",))], stations) is None
