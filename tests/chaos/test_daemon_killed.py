"""kill -9 of a real daemon around every command of a job's life: nothing lost, nothing doubled.

A door before the engine tells the moments apart to the request: *before* means recorded and
never done, *after* means done and never recorded.  The next daemon is mostly one that is forked;
where a command brings it back, the test says so.
"""

import json
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from tests.fakes.daemon.service import Service, assert_consecutive, service
from tests.fakes.engine.engine_proxy import EngineProxy
from tests.fakes.patience import patience

pytestmark = pytest.mark.engine


@dataclass(frozen=True)
class Moment:
    """Request of the daemon to catch, and the command of a person that brings it about."""

    name: str
    where: Literal["before", "after"]
    request: str
    ask: tuple[str, ...] = ()  # a command about the job, given once it counts
    outcome: str = "succeeded"
    attempts: int = 1

    @property
    def id(self) -> str:
        return self.name.replace(" ", "-").replace(",", "").replace("'", "")

    def trap(self, proxy: EngineProxy) -> Callable[[float], bool]:
        stop = proxy.stop_before if self.where == "before" else proxy.stop_after
        return stop(self.request).wait


@pytest.fixture(scope="module")
def shared_proxy(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProxy]:
    made = EngineProxy(tmp_path_factory.mktemp("door") / "engine.sock", Path(engine.removeprefix("unix://")))
    yield made
    made.close()


@pytest.fixture(scope="module")
def shared(counter: str, shared_proxy: EngineProxy) -> Iterator[Service]:
    """One state directory for all moments: a daemon that is killed is followed by another, and so is that."""
    url = f"unix://{shared_proxy.path}"
    with service(executor="docker", engine=url, allowed_images={"counter": counter}) as made:
        yield made.start()


MOMENTS = [
    Moment("placed, and no container yet", "before", "/containers/create"),
    Moment("container created", "after", "/containers/create"),
    Moment("container created and compared", "before", "/start"),
    Moment("container started", "after", "/start"),
    Moment("stop requested", "before", "/kill?signal=15", ("cancel",), "cancelled"),
    Moment("asked to stop", "after", "/kill?signal=15", ("cancel",), "cancelled"),
    Moment("restart requested", "before", "/kill?signal=15", ("restart",), "succeeded", 2),
    Moment("asked to stop for a restart", "after", "/kill?signal=15", ("restart",), "succeeded", 2),
    Moment("end recorded, container still there", "before", "DELETE "),
    Moment("end recorded, container removed", "after", "DELETE "),
]


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.id)
def test_a_daemon_killed_around_any_command_loses_and_doubles_nothing(
    moment: Moment, shared: Service, shared_proxy: EngineProxy
) -> None:
    caught = moment.trap(shared_proxy)
    stays = {"STAY_AT": "10"} if moment.ask else {}
    job_id = shared.submit(shared.counting(moment.id, 20, environment=stays), end=moment.outcome)
    if moment.ask:
        shared.prints(job_id, "step 3")
        shared.runner(*moment.ask, job_id)
    assert caught(patience())
    shared.kill()
    shared.start()
    assert moment.id in shared.runner("list", "--all")
    assert shared.ends(job_id)["attempt"] == moment.attempts
    for attempt in range(1, moment.attempts + 1):
        assert_consecutive(shared.log(job_id, attempt))
    shared.assert_whole()


APPLIED = [
    Moment("change recorded, attempt not asked to stop", "before", "/kill?signal=15"),
    Moment("attempt asked to stop for the change", "after", "/kill?signal=15"),
    Moment("old container ended and still there", "before", "DELETE "),
    Moment("next attempt placed, and no container yet", "before", "/containers/create"),
    Moment("next attempt's container created", "after", "/containers/create"),
]


@pytest.mark.parametrize("moment", APPLIED, ids=lambda moment: moment.id)
def test_a_daemon_killed_in_the_middle_of_a_change_has_made_it_once_and_whole(
    moment: Moment, shared: Service, shared_proxy: EngineProxy
) -> None:
    job_id = shared.submit(shared.counting(moment.id, 20, environment={"STAY_AT": "10"}))
    shared.runs(job_id, "step 10")
    hotter = {"kind": "causal_lm", "data": "stdlib", "steps": 20, "learning_rate": 0.002}
    changed = shared.counting(moment.id, workload=hotter, allow=["changed_training"])
    caught = moment.trap(shared_proxy)
    with shared.typing("apply", str(changed)):
        assert caught(patience())
        shared.kill()
        shared.runner("list")
    ended = shared.ends(job_id)
    assert [attempt["cause"] for attempt in ended["attempts"]] == ["stopped", "completed"]
    assert ended["result"]["resumed_from"] in {5, 10}
    revisions = [line.split()[0] for line in shared.runner("revisions", job_id).splitlines()]
    assert revisions == ["1", "2"]
    spec = json.loads(shared.paths(job_id, 2).spec.read_bytes())
    assert (spec["revision"], spec["workload"]["learning_rate"]) == (2, 0.002)
    assert_consecutive(shared.log(job_id, 2))
    shared.assert_whole()


def test_a_daemon_killed_while_the_image_is_prepared_prepares_it_again(
    behind_proxy: Service, proxy: EngineProxy, trainer_image: str
) -> None:
    caught = proxy.stop_after("/images/")
    job_id = behind_proxy.submit(behind_proxy.training("train", 4))
    assert caught.wait(patience())
    assert behind_proxy.state_of(job_id) == "preparing"
    behind_proxy.kill()
    behind_proxy.start()
    assert behind_proxy.ends(job_id)["attempt"] == 1
    assert behind_proxy.job(job_id)["result"]["step"] == 4
    del trainer_image
    behind_proxy.assert_whole()


def test_a_running_attempt_goes_on_without_its_daemon_and_is_found_again(daemon: Service) -> None:
    job_id = daemon.submit(daemon.counting("count", 45, environment={"STAY_AT": "40"}))
    daemon.runs(job_id, "step 3")
    [before] = daemon.containers(job_id)
    daemon.kill()
    daemon.prints(job_id, "step 40")  # it goes on counting without a daemon
    assert "running" in daemon.runner("list")
    [after] = daemon.containers(job_id)
    assert (after["Id"], after["State"]["StartedAt"]) == (before["Id"], before["State"]["StartedAt"])
    daemon.runner("kill", "--signal", "USR1", job_id)
    assert daemon.ends(job_id)["attempt"] == 1
    assert_consecutive(daemon.log(job_id))
    assert daemon.runner("logs", job_id) == daemon.log(job_id)
    daemon.assert_whole()


def test_whoever_follows_a_job_sees_every_line_once_and_its_end_whatever_happens_to_the_daemon(
    daemon: Service,
) -> None:
    job_id = daemon.submit(daemon.counting("count", 50, environment={"STAY_AT": "40"}))
    with daemon.typing("logs", "-f", job_id) as follows, daemon.typing("wait", job_id) as waits:
        for step in (10, 40):
            daemon.prints(job_id, f"step {step}")
            daemon.kill()
            daemon.client.version()  # both commands have brought it back, and it answers
        daemon.runner("kill", "--signal", "USR1", job_id)
        seen, noted = follows.communicate(timeout=patience())
        end, complaints = waits.communicate(timeout=patience())
    assert (follows.returncode, waits.returncode) == (0, 0), (noted, complaints)
    assert seen == daemon.log(job_id)
    assert "count: succeeded" in end
    assert daemon.ends(job_id)["attempt"] == 1
    assert_consecutive(daemon.log(job_id))
    daemon.assert_whole()


def test_a_job_cancelled_while_its_launch_hangs_never_starts(
    behind_proxy: Service, proxy: EngineProxy
) -> None:
    caught = proxy.stop_before("/containers/create")
    job_id = behind_proxy.submit(behind_proxy.counting("count", 30), end="cancelled")
    assert caught.wait(patience())
    behind_proxy.runner("cancel", job_id)
    assert behind_proxy.state_of(job_id) == "stopping"
    behind_proxy.kill()
    behind_proxy.start()
    assert behind_proxy.ends(job_id)["outcome"] == "cancelled"
    assert behind_proxy.log(job_id) == ""
    behind_proxy.assert_whole()


def test_an_attempt_whose_container_somebody_removed_is_followed_by_another(daemon: Service) -> None:
    job_id = daemon.submit(daemon.counting("count", 20, environment={"STAY_AT": "12"}))
    daemon.prints(job_id, "step 12")
    daemon.remove_container(job_id)
    ended = daemon.ends(job_id)
    assert [a["cause"] for a in ended["attempts"]] == ["vanished", "completed"]
    assert ended["attempts"][1]["resumed_from"] == 10
    daemon.assert_whole()


def test_an_end_that_no_daemon_saw_is_found_by_the_next_one(daemon: Service) -> None:
    fine = daemon.submit(daemon.counting("fine", 12))
    dies = daemon.submit(daemon.counting("dies", 12, environment={"STAY_AT": "8"}))
    daemon.prints(fine, "step 3")
    daemon.runs(dies, "step 8")
    daemon.kill()
    daemon.signal_container(dies, 9)
    daemon.prints(fine, "end")
    daemon.start()
    assert daemon.ends(fine)["attempt"] == 1
    ended = daemon.ends(dies)
    assert [(a["cause"], a["exit_code"]) for a in ended["attempts"]] == [("killed", 137), ("completed", 0)]
    assert ended["result"]["resumed_from"] == 5
    daemon.assert_whole()


def test_a_daemon_killed_again_and_again_brings_every_job_to_its_end(daemon: Service) -> None:
    seed = int.from_bytes(os.urandom(4))
    print(f"kill points drawn with seed {seed}")  # noqa: T201 - pytest shows it when the test fails
    draw = random.Random(seed)  # noqa: S311 - kill points, no secrets
    steady = daemon.submit(daemon.counting("steady", 120))
    daemon.submit(
        daemon.counting("dying", 120, environment={"CRASH_AT": "9"}, retry={"no_progress": 3}),
        end="failed",
    )
    daemon.submit(daemon.counting("later", 20))
    for step in sorted(draw.sample(range(1, 100), 5)):
        daemon.prints(steady, f"step {step}")
        daemon.kill()
        daemon.start()
    assert daemon.ends(steady)["attempt"] == 1
    assert_consecutive(daemon.log(steady))
    daemon.assert_whole()
