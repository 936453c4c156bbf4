"""Preempted jobs, when something goes wrong: what it costs, whom, and what they are told.

A door before the engine tells the moments of a switch apart to the request, as in ``test_daemon_killed``.
"""

import os
import signal
import subprocess
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.chaos.test_daemon_killed import Moment
from tests.fakes.daemon.service import Service, assert_consecutive, service, until
from tests.fakes.engine.engine_proxy import EngineProxy
from tests.fakes.patience import patience

pytestmark = pytest.mark.engine

MIB: Final = 1024**2
QUEUE: Final = {
    "order": "attained",
    "cpu_weight": 1.0,
    "preemption": {"grace": "1s"},
    "switching": {"budget": 1.0, "levels": ["1s", "1h"]},
}
"""A job may be displaced once it has held the machine for as long as its start took, a second at least."""


@pytest.fixture
def shared(counter: str, proxy: EngineProxy) -> Iterator[Service]:
    """A daemon with room for one job at a time, behind a door to the engine."""
    url, settings = f"unix://{proxy.path}", {"cpus": 1, "watch_every_s": 0.2, "queue": QUEUE}
    with service(executor="docker", engine=url, allowed_images={"counter": counter}, **settings) as made:
        yield made.start()


def running_long(daemon: Service, grace: str = "30m", **environment: str) -> str:
    """Submit a job that stays at its tenth step, and return its id once it may be displaced.

    A daemon that was killed may be away for longer than a short grace: the next one would kill the job.
    """
    stays = {"STAY_AT": "10", **environment}
    job_id = daemon.submit(daemon.counting("long", 30, environment=stays, stop_grace=grace))
    daemon.runs(job_id, "step 10")
    return job_id


def short(daemon: Service, steps: int = 3, **fields: Any) -> str:
    """Submit a job that others wait for; on a slow machine it would soon have held as much as they."""
    return daemon.submit(daemon.counting("short", steps, queue={"preemptible": False}, **fields))


def causes(daemon: Service, job_id: str) -> list[str]:
    return [str(attempt["cause"]) for attempt in daemon.job(job_id)["attempts"]]


SWITCH: Final = [
    Moment("recorded and not told", "before", "/kill?signal=15"),
    Moment("told to be preempted", "after", "/kill?signal=15"),
    Moment("end recorded, container still there", "before", "DELETE "),
    Moment("end recorded, container removed", "after", "DELETE "),
    Moment("the other placed, and no container yet", "before", "/containers/create"),
    Moment("the other's container created", "after", "/containers/create"),
    Moment("the other's container started", "after", "/start"),
]


@pytest.mark.parametrize("moment", SWITCH, ids=lambda moment: moment.id)
def test_a_daemon_killed_at_any_moment_of_a_switch_loses_nobody_and_runs_nobody_twice(
    moment: Moment, shared: Service, proxy: EngineProxy
) -> None:
    long = running_long(shared)
    caught = moment.trap(proxy)
    other = short(shared)
    assert caught(patience()), shared.told(long)
    shared.kill()
    shared.start()
    assert shared.ends(other)["outcome"] == "succeeded"
    assert shared.ends(long)["outcome"] == "succeeded"
    assert causes(shared, long) == ["stopped", "completed"]
    assert causes(shared, other) == ["completed"]
    assert shared.told(long).count("preempted for job") >= 1
    for attempt in (1, 2):
        assert_consecutive(shared.log(long, attempt))
    assert shared.job(long)["attempts"][1]["resumed_from"] == 10
    shared.assert_whole()


RELAUNCH: Final = [
    Moment("the victim placed again, and no container yet", "before", "/containers/create"),
    Moment("the victim's container created again", "after", "/containers/create"),
    Moment("the victim's container started again", "after", "/start"),
]


@pytest.mark.parametrize("moment", RELAUNCH, ids=lambda moment: moment.id)
def test_a_daemon_killed_around_the_relaunch_of_the_victim_goes_on_with_it(
    moment: Moment, shared: Service, proxy: EngineProxy
) -> None:
    long = running_long(shared, STAY_RESUMED_AT="20")  # nothing but this test lets it end
    other = short(shared, 12, environment={"STAY_AT": "10"})
    shared.runs(other, "step 10")
    shared.reaches(long, "queued")
    caught = moment.trap(proxy)
    shared.runner("kill", "--signal", "USR1", other)
    assert caught(patience()), shared.told(long)
    shared.kill()
    shared.start()
    assert shared.ends(other)["outcome"] == "succeeded"
    newest = len(shared.reaches(long, "running")["attempts"])
    shared.runs(long, "step 20", newest)
    shared.runner("kill", "--signal", "USR1", long)
    ended = shared.ends(long)
    assert ended["outcome"] == "succeeded"
    assert causes(shared, long) == ["stopped"] * (newest - 1) + ["completed"], shared.told(long)
    assert ended["attempts"][1]["resumed_from"] == 10
    for attempt in range(1, newest + 1):
        assert_consecutive(shared.log(long, attempt))
    shared.assert_whole()


def test_a_job_that_says_it_saves_and_does_not_is_killed_charged_told_and_not_believed_again(
    shared: Service,
) -> None:
    long = running_long(shared, "2s", ON_TERM="ignore", STAY_RESUMED_AT="20")
    first = short(shared)
    assert shared.ends(first)["outcome"] == "succeeded"
    told = shared.told(long)
    assert "still alive after 2s of grace; sending SIGKILL" in told
    assert "from now on it counts as a job that cannot save when asked" in told
    [decision] = shared.client.get(f"/v1/jobs/{long}/decisions", {})["decisions"]
    assert (decision["facts"]["killed_by"], decision["verdict"]["charged"]) == ("preemption", True)
    shared.prints(long, "step 20", 2)
    shared.kill()  # the next daemon knows it as well
    shared.start()
    assert shared.state_of(long) == "running"
    shared.runner("kill", "--signal", "USR1", long)
    assert shared.ends(long)["outcome"] == "succeeded"
    shared.assert_whole()


def test_a_victim_that_dies_while_it_saves_goes_on_from_the_checkpoint_before(shared: Service) -> None:
    long = running_long(shared)
    shared.freeze(long)
    other = short(shared)
    shared.reaches(long, "stopping")
    os.kill(shared.program_pid(long), signal.SIGKILL)
    assert shared.ends(other)["outcome"] == "succeeded"
    assert shared.ends(long)["outcome"] == "succeeded"
    killed, completed = shared.job(long)["attempts"]
    assert killed["exit_code"] == 128 + signal.SIGKILL
    assert (completed["resumed_from"], completed["cause"]) == (10, "completed")
    [decision] = [
        each
        for each in shared.client.get(f"/v1/jobs/{long}/decisions", {})["decisions"]
        if each["attempt"] == 1
    ]
    assert decision["verdict"]["charged"] is False  # it was asked to go, and had no time to ignore it
    uses = {use["who"]: use for use in shared.answer("usage", "--by", "job", "--json")["uses"]}
    victim, winner = uses[f"{long} long"], uses[f"{other} short"]
    assert (victim["gave_way"], victim["preferred"], winner["gave_way"], winner["preferred"]) == (1, 0, 0, 1)
    assert victim["gave_way_cost_s"] > 0
    shared.assert_whole()


def test_a_job_goes_on_untold_if_the_one_that_it_was_to_give_way_to_is_cancelled(
    counter: str, proxy: EngineProxy
) -> None:
    settings = {"cpus": 2, "watch_every_s": 0.2, "queue": QUEUE, "launches_at_once": 1}
    engine, images = f"unix://{proxy.path}", {"counter": counter}
    with service(executor="docker", engine=engine, allowed_images=images, **settings) as daemon:
        daemon.start()
        long = running_long(daemon)
        quick = daemon.submit(daemon.counting("quick", 12, environment={"STAY_AT": "10"}))
        daemon.runs(quick, "step 10")
        caught = proxy.stop_before("DELETE ")
        daemon.runner("kill", "--signal", "USR1", quick)
        assert caught.wait(patience())
        # the only thread that talks to the engine removes a container now: nobody can be told anything
        resources = {"cpus": 2, "memory": "256MiB"}
        other = daemon.submit(daemon.counting("other", 3, resources=resources), end="cancelled")
        daemon.reaches(long, "stopping")
        daemon.runner("cancel", other)
        proxy.shut()
        proxy.resume()
        daemon.reaches(long, "running")
        fact = f"goes on, it was not told: job {other}, for which it was to be preempted, has ended"
        assert fact in daemon.told(long)
        daemon.runner("kill", "--signal", "USR1", long)
        assert daemon.ends(long)["outcome"] == "succeeded"
        assert causes(daemon, long) == ["completed"]
        assert_consecutive(daemon.log(long))
        daemon.assert_whole()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a file system")
def test_a_job_without_room_for_a_checkpoint_is_not_told_to_give_way_and_the_reason_is_seen(
    counter: str,
) -> None:
    settings = {"cpus": 1, "watch_every_s": 0.2, "queue": QUEUE}
    with service(executor="docker", allowed_images={"counter": counter}, **settings) as daemon:
        jobs = daemon.state / "jobs"
        jobs.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m,mode=755", "tmpfs", str(jobs)], check=True)
        daemon.start()
        long = running_long(daemon)
        more = daemon.paths(long).lineage_dir / "step-00000010" / "more"
        more.write_bytes(bytes(4 * MIB))
        os.chown(more, more.parent.stat().st_uid, -1)
        with (daemon.paths(long).cache / "filler").open("wb") as filler:
            found = os.statvfs(jobs)
            os.posix_fallocate(filler.fileno(), 0, found.f_bavail * found.f_frsize - 2 * MIB)
        other = short(daemon)
        fact = f"it was not told: it could not save for job {other}: its disk has "
        until(lambda: fact in daemon.told(long), "the switch is cancelled", more=lambda: daemon.told(long))
        assert daemon.state_of(other) == "queued"
        daemon.runner("kill", "--signal", "USR1", long)
        assert daemon.ends(long)["outcome"] == "succeeded"
        assert causes(daemon, long) == ["completed"]
        assert daemon.ends(other)["outcome"] == "succeeded"
        daemon.assert_whole()
