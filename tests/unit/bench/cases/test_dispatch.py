"""Dispatching is measured as the whole life of every job."""

import shutil
from pathlib import Path

from bench.cases import dispatch
from bench.support import history
from bench.support.result import Result
from bench.support.scratch import QUICK, open_scratch
from runner.adapters.sqlite.store import SqliteStore
from runner.core.job.states import Finished, Outcome, Queued, Running
from runner.core.ports.executor import Alive, Gone, Key, LaunchRequest, Limits
from runner.core.ports.users import Owner
from tests.fakes.engine.executor import FakeExecutor


def request(name: str) -> LaunchRequest:
    return LaunchRequest(
        key=Key("bench", name, 1),
        job_name=name,
        owner=Owner(1000, 1000, "somebody"),
        image="none",
        argv=("true",),
        run_dir=Path("/state/jobs/1"),
        log=Path("/state/jobs/1/attempts/1/log.txt"),
        limits=Limits(1.0, 1024**3),
    )


def test_programs_have_ended_when_they_are_launched_but_for_the_one_that_blocks() -> None:
    world, woken = dispatch.InstantWorld(), list[str]()
    executor = FakeExecutor("bench", world)
    executor.watch(lambda: woken.append("look"))
    executor.launch(request("blocker"))
    executor.launch(request("job-1"))
    assert executor.observe() == (Alive(request("blocker").key), Gone(request("job-1").key, 0))
    world.release()
    executor.remove(request("job-1").key)
    assert executor.observe() == (Gone(request("blocker").key, 0),)
    assert woken == ["look"] * 3


def test_nothing_begins_before_it_is_let_go_and_then_every_job_succeeds(tmp_path: Path) -> None:
    history.build_store(tmp_path / "store.db", 2)
    with dispatch.log_to_file(tmp_path), dispatch.running_loop(tmp_path) as here:
        here.submit("blocker", float(dispatch.SLOTS))
        here.await_state(Running, 1)
        for number in range(3):
            here.submit(f"job-{number}", 1.0)
        here.await_state(Queued, 3)
        here.world.release()
        here.await_end()
    store = SqliteStore(tmp_path / "store.db")
    states = [row.job.state for number in range(3, 7) if (row := store.get(str(number)))]
    assert [state.outcome for state in states if isinstance(state, Finished)] == [Outcome.SUCCEEDED] * 4
    kinds = [event.kind for event, _ in store.events(0, "4", 20)]
    assert kinds == ["submitted", "image_ready", "placed", "launched", "exited"]
    assert "job.transition" in (tmp_path / "daemon.log").read_text()
    shutil.rmtree(tmp_path / "jobs")


def test_a_quick_measurement_has_both_lines() -> None:
    with open_scratch(QUICK) as scratch:
        rate, cost = dispatch.measure(scratch)
    assert isinstance(rate, Result)
    assert isinstance(cost, Result)
    assert rate.met is not None
    assert cost.theirs is not None
    assert (rate.ours.unit, cost.ours.unit) == ("jobs/s", "ms")
