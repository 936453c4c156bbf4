"""The loop over a fake world: every interleaving of work, looks, crashes and outages."""

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.base.errors import Refused
from runner.core.job.attempt import Start, StartFrom
from runner.core.job.events import CancelRequested, ReleaseRequested, RestartRequested
from runner.core.job.states import Finished, Held, Outcome, Preparing, Queued, Running, Starting, Stopping
from runner.core.ports.executor import Alive, ImageUnfit, LaunchRefused, OptionsUnfit
from runner.core.ports.store import JobRow
from runner.core.scheduler.snapshot import ResourceRequest
from tests.fakes.engine.executor import Program
from tests.fakes.host.disk import examples
from tests.fakes.host.machine import Host, fresh_host

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_job_runs_and_its_container_is_removed(host: Host) -> None:
    job_id = host.submit()
    host.settle()
    assert host.state(job_id) == "running"
    host.context.end(host.key(job_id), 0)
    host.settle()
    assert host.row(job_id).job.state == Finished(host.clock.now(), Outcome.SUCCEEDED, "completed")
    assert host.executor.observe() == ()
    assert host.attempt_service.retired == [job_id]


def test_an_attempt_that_dies_is_followed_by_another_after_the_backoff(host: Host) -> None:
    job_id = host.submit()
    host.settle()
    host.attempt_service.steps[job_id] = 40
    host.context.end(host.key(job_id), 137)
    host.settle()
    assert host.state(job_id) == "queued"
    assert host.daemon.why(job_id) == "backoff, 5s left"
    host.wait(5)
    assert host.state(job_id) == "running"
    assert [a.cause for a in host.store.attempts(job_id)] == ["killed", None]


@pytest.mark.parametrize(
    "moment", ["submitted", "building", "placed", "launched", "running", "ended", "recorded"]
)
def test_a_daemon_killed_at_any_moment_loses_and_doubles_nothing(host: Host, moment: str) -> None:
    job_id = host.submit()
    steps: dict[str, list[Callable[[], object]]] = {
        "submitted": [],
        "building": [host.build_queue.step],
        "placed": [host.build_queue.step, lambda: host.daemon.run_once(0)],
        "launched": [host.build_queue.step, lambda: host.daemon.run_once(0), host.work_queue.step],
        "running": [host.settle],
        "ended": [host.settle, lambda: host.context.end(host.key(job_id), 137)],
        "recorded": [
            host.settle,
            lambda: host.context.end(host.key(job_id), 137),
            host.daemon.observer.observe,
            lambda: host.daemon.run_once(0),
            host.work_queue.step,
            lambda: host.daemon.run_once(0),
        ],
    }
    for step in steps[moment]:
        step()
    host.boot()
    host.settle()
    host.wait(5)
    assert host.state(job_id) == "running"
    assert len({request.key for request in host.context.launches}) == len(host.context.launches)
    assert [type(seen) for seen in host.executor.observe()] == [Alive]


def test_an_engine_that_is_down_is_waited_for_and_blames_nobody(host: Host) -> None:
    host.context.down = True
    host.attempt_service.engine_down = True
    job_id = host.submit()
    host.settle()
    assert host.state(job_id) == "preparing"
    assert host.daemon.why(job_id) == "the engine does not answer"
    host.wait(3)
    assert host.daemon.why(job_id) == "the engine does not answer (2 tries in 3s)"
    host.attempt_service.engine_down = False
    host.wait(3)
    assert host.state(job_id) == "starting"
    host.context.down = False
    host.wait(3)
    assert host.state(job_id) == "running"
    host.context.down = True
    host.wait(600)
    assert host.state(job_id) == "running"
    assert host.row(job_id).job.history.charged == 0


def test_an_attempt_that_vanished_is_resumed_only_after_two_looks(host: Host) -> None:
    job_id = host.submit()
    host.settle()
    host.clock.forward(1)
    del host.context.attempts[host.key(job_id)]
    host.daemon.observer.observe()
    host.daemon.run_once(0)
    assert not host.work_queue.waiting
    host.settle()
    assert host.store.attempts(job_id)[0].cause == "vanished"
    host.wait(5)
    assert host.state(job_id) == "running"


def test_cancelling_terminates_and_after_the_grace_kills(host: Host) -> None:
    host.context.programs["train", "1"] = Program(on_signal={15: None})
    job_id = host.submit()
    host.settle()
    host.daemon.apply_event(host.row(job_id), CancelRequested(host.clock.now(), "ann"))
    host.settle()
    assert host.state(job_id) == "stopping"
    host.wait(31)
    assert [number for _, number in host.context.signals] == [15, 9]
    assert host.row(job_id).job.state == Finished(host.clock.now(), Outcome.CANCELLED, "cancelled by ann")


def test_cancelling_while_the_image_is_built_is_at_once(host: Host) -> None:
    job_id = host.submit()
    host.daemon.apply_event(host.row(job_id), CancelRequested(host.clock.now(), "ann"))
    assert host.state(job_id) == "finished"
    host.settle()
    assert host.context.launches == []


def test_a_failed_build_ends_the_job_with_its_words(host: Host) -> None:
    host.attempt_service.build_error = "no space left"
    job_id = host.submit()
    host.settle()
    assert host.row(job_id).job.state == Finished(host.clock.now(), Outcome.FAILED, "no space left")


def test_devices_are_held_from_starting_on_and_never_shared(host: Host) -> None:
    for job_id in "123":
        host.attempt_service.needs_of[job_id] = ResourceRequest(0.5, 1024, 1, "nvidia")
        host.submit(f"job{job_id}")
    host.settle()
    assert [host.state(job_id) for job_id in "123"] == ["running", "running", "queued"]
    assert (
        host.daemon.why("3")
        == "waits for 1 NVIDIA GPU: 0 free, 2 allocated; no estimate: job 1 has no time limit"
    )
    host.context.end(host.key("1"), 0)
    host.settle()
    assert host.state("3") == "running"
    lent = [request.devices[0].uuid for request in host.context.launches]
    assert lent == ["GPU-a", "GPU-b", "GPU-a"]


def test_an_image_that_is_gone_is_prepared_again(host: Host) -> None:
    host.context.images_gone.add("img-job")
    job_id = host.submit()
    host.daemon.run_once(0)
    host.build_queue.step()
    host.daemon.run_once(0)
    host.work_queue.step()
    host.daemon.run_once(0)
    assert host.state(job_id) == "preparing"
    host.context.images_gone.clear()
    host.settle()
    assert (host.state(job_id), host.attempt_service.build_queue) == ("running", 2)
    assert [a.number for a in host.store.attempts(job_id)] == [1]


def test_an_image_that_stays_gone_is_prepared_again_ever_later_and_charges_nothing(host: Host) -> None:
    host.context.images_gone.add("img-job")
    job_id = host.submit()
    host.settle()
    for waited in (2, 4, 8, 16):
        assert host.state(job_id) == "preparing"
        assert host.daemon.why(job_id).endswith(f"it is prepared again after {waited}s")
        host.wait(waited)
    job = host.row(job_id).job
    assert (job.attempts, job.history.charged) == (0, 0)
    host.context.images_gone.clear()
    host.wait(60)
    assert host.state(job_id) == "running"
    assert [a.number for a in host.store.attempts(job_id)] == [1]


def test_a_lineage_that_an_earlier_attempt_keeps_locked_delays_the_launch_and_charges_nothing(
    host: Host,
) -> None:
    job_id = host.submit()
    host.attempt_service.locked.add((job_id, 1))
    host.settle()
    for _ in range(5):
        assert (host.state(job_id), host.context.launches) == ("starting", [])
        assert host.daemon.why(job_id).startswith("lineage 1 is locked by a process of an earlier attempt")
        host.wait(2)
    host.attempt_service.locked.clear()
    host.wait(2)
    assert (host.state(job_id), host.row(job_id).job.attempts) == ("running", 1)
    assert not host.daemon.why(job_id)


def test_an_attempt_that_was_launched_may_lock_its_lineage_before_that_is_recorded(host: Host) -> None:
    host.context.lose_answers = True  # it starts, and nobody says so
    job_id = host.submit()
    host.settle()
    assert host.state(job_id) == "starting"
    host.attempt_service.locked.add((job_id, 1))
    host.context.lose_answers = False
    host.wait(2)
    assert (host.state(job_id), len(host.context.launches)) == ("running", 1)


class NativePanic(BaseException):
    """Exception of a library that is written in another language."""


@pytest.mark.parametrize("mistake", [RuntimeError("oops"), NativePanic("oops")])
def test_a_launch_that_raises_whatever_it_may_is_tried_again_and_charges_nothing(
    host: Host, mistake: BaseException
) -> None:
    host.attempt_service.launch_mistake = mistake
    job_id = host.submit()
    with ThreadPoolExecutor(1) as thread:  # not the main thread, which anything may end
        thread.submit(host.settle).result()
    assert (host.state(job_id), host.row(job_id).job.history.charged) == ("starting", 0)
    assert "oops (tried again after 2s)" in host.daemon.why(job_id)
    host.attempt_service.launch_mistake = None
    host.wait(2)
    assert (host.state(job_id), host.row(job_id).job.attempts) == ("running", 1)


def test_restarting_from_scratch_keeps_the_old_lineage(host: Host) -> None:
    job_id = host.submit()
    host.settle()
    host.daemon.apply_event(
        host.row(job_id), RestartRequested(host.clock.now(), "ann", Start(StartFrom.SCRATCH))
    )
    host.settle()
    assert [(a.number, a.lineage) for a in host.store.attempts(job_id)] == [(1, 1), (2, 2)]


def test_restarts_that_a_person_asks_for_are_no_storm(host: Host) -> None:
    job_id = host.submit()
    host.settle()
    for number in range(1, 7):
        host.daemon.apply_event(host.row(job_id), RestartRequested(host.clock.now(), "ann", Start()))
        host.context.end(host.key(job_id, number), 75)
        host.wait(1)
        assert (host.state(job_id), host.row(job_id).job.attempts) == ("running", number + 1)
    host.context.end(host.key(job_id, 7), 137)
    host.settle()
    host.wait(6)
    assert (host.state(job_id), host.row(job_id).job.attempts) == ("running", 8)


def test_what_makes_no_sense_is_refused(host: Host) -> None:
    job_id = host.submit()
    host.settle()
    host.context.end(host.key(job_id), 0)
    host.settle()
    with pytest.raises(Refused, match="so it cannot be cancelled; runner restart begins another"):
        host.daemon.apply_event(host.row(job_id), CancelRequested(host.clock.now(), "ann"))
    with pytest.raises(Refused, match="nothing to send a signal to"):
        host.daemon.signal(host.row(job_id), 10)


def test_a_container_of_ours_that_nobody_knows_is_left_alone(host: Host) -> None:
    stranger = host.key("99")
    host.context.attempts[stranger] = Alive(stranger)
    host.settle()
    assert host.executor.observe() == (Alive(stranger),)
    assert host.context.signals == []


ACTIONS = st.one_of(
    st.tuples(st.just("submit"), st.just(0)),
    st.tuples(st.just("build"), st.integers(0, 3)),
    st.tuples(st.just("lane"), st.integers(0, 3)),
    st.tuples(st.just("turn"), st.just(0)),
    st.tuples(st.just("look"), st.just(0)),
    st.tuples(st.just("end"), st.sampled_from([0, 1, 75, 137])),
    st.tuples(st.just("cancel"), st.integers(1, 3)),
    st.tuples(st.just("restart"), st.integers(1, 3)),
    st.tuples(st.just("forward"), st.sampled_from([1, 6, 40])),
    st.tuples(st.just("outage"), st.booleans().map(int)),
    st.tuples(st.just("silence"), st.booleans().map(int)),
    st.tuples(st.just("crash"), st.just(0)),
    *[st.tuples(st.just("settle"), st.just(0))] * 3,  # else hardly an attempt would run, or end
)


def apply(host: Host, action: str, value: int) -> None:
    """Let one thing happen to a host."""
    match action:
        case "submit" if host.store.count_states().get("running", 0) < 4:
            host.submit()
        case "settle":
            host.settle()
        case "build":
            host.build_queue.step(value)
        case "lane":
            host.work_queue.step(value)
        case "turn":
            host.daemon.run_once(0)
        case "look":
            host.daemon.observer.observe()
        case "end" if host.context.running:
            host.context.end(min(host.context.running, key=str), value)
        case "cancel" | "restart" if (row := host.store.get(str(value))) is not None:
            ask(
                host,
                action,
                host.daemon.tracked_jobs[row.job.id].row if row.job.id in host.daemon.tracked_jobs else row,
            )
        case "forward":
            host.clock.forward(value)
        case "outage":
            host.context.down = bool(value)
        case "silence":
            host.context.lose_answers = bool(value)
        case "crash":
            host.boot()
        case _:
            pass  # nothing there to happen to


def ask(host: Host, action: str, row: JobRow) -> None:
    now = host.clock.now()
    event = CancelRequested(now, "ann") if action == "cancel" else RestartRequested(now, "ann", Start())
    try:
        host.daemon.apply_event(row, event)
    except Refused:
        assert isinstance(row.job.state, Finished | Stopping | Preparing | Queued)


@settings(max_examples=examples(50), suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(ACTIONS, min_size=10, max_size=70))
def test_whatever_happens_nothing_is_lost_leaked_or_run_twice(actions: list[tuple[str, int]]) -> None:
    with fresh_host() as host:
        first = host.submit()
        for action, value in actions:
            apply(host, action, value)
            lent = [
                u
                for e in host.daemon.tracked_jobs.values()
                for u in getattr(e.row.job.state, "allocation", _NONE).devices
            ]
            assert len(lent) == len(set(lent))
        host.context.down = host.context.lose_answers = False
        if not any(action == "crash" for action, _ in actions):
            host.boot()
        for _ in range(8):
            host.wait(400)
        assert_whole(host)
        assert host.store.get(first) is not None
        finish_all(host)
        assert host.executor.observe() == ()
        assert_whole(host)


class _None:
    devices: tuple[str, ...] = ()


_NONE = _None()


def assert_whole(host: Host) -> None:
    """No attempt began twice, and what the engine has is what the store says is alive."""
    keys = [request.key for request in host.context.launches]
    assert len(keys) == len(set(keys))
    alive = {seen.key for seen in host.executor.observe()}
    rows = host.store.unfinished()
    known = {
        host.key(r.job.id, r.job.attempts)
        for r in rows
        if isinstance(r.job.state, Running | Starting | Stopping)
    }
    assert alive == known
    assert all(isinstance(r.job.state, Running | Queued | Held) for r in rows)


def finish_all(host: Host) -> None:
    for row in host.store.unfinished():
        entry = host.daemon.tracked_jobs[row.job.id]
        host.daemon.apply_event(entry.row, CancelRequested(host.clock.now(), "ann"))
    host.settle()
    host.wait(40)
    assert host.store.unfinished() == ()


def test_a_policy_that_says_hold_keeps_everything_until_a_release(host: Host) -> None:
    job_id = host.submit()
    host.settle()
    host.attempt_service.facts[job_id] = {"cause": "disk_full"}
    host.context.end(host.key(job_id), 1)
    host.settle()
    assert host.state(job_id) == "held"
    host.daemon.apply_event(host.row(job_id), ReleaseRequested(host.clock.now(), "ann"))
    host.settle()
    assert host.state(job_id) == "running"
    assert host.row(job_id).job.history.charged == 0


def test_a_decision_is_recorded_with_its_event_and_left_beside_the_attempt(host: Host) -> None:
    job_id = host.submit()
    host.settle()
    host.context.end(host.key(job_id), 137)
    host.settle()
    [kept] = host.store.decisions(job_id)
    assert host.attempt_service.kept == [kept]
    assert (kept.attempt, kept.moment) == (1, "exit")


def test_a_remedy_keeps_a_job_away_from_the_device_that_it_lost(host: Host) -> None:
    job_id = "1"
    host.attempt_service.needs_of[job_id] = ResourceRequest(0.5, 1024, 1, "nvidia")
    host.submit()
    host.settle()
    host.attempt_service.facts[job_id] = {"device.lost": True}
    host.context.end(host.key(job_id), 1)
    host.settle()
    host.wait(5)
    state = host.row(job_id).job.state
    assert isinstance(state, Running)
    assert (state.allocation.devices, state.attempt.turned.avoid) == (("GPU-b",), ("GPU-a",))


def test_a_refused_launch_is_judged_by_the_policy_too(host: Host) -> None:
    host.context.refusals = ["no such device"] * 10
    job_id = host.submit()
    for _ in range(8):
        host.settle()
        host.wait(600)
    state = host.row(job_id).job.state
    assert isinstance(state, Finished)
    assert state.why.startswith("no progress: 3 attempts ended alike without a newer checkpoint; ")
    assert state.why.endswith("the last: launch failed: no such device")
    assert len(host.store.decisions(job_id)) == len(host.store.attempts(job_id)) == 3


def test_a_driver_that_broke_at_night_costs_no_job_an_attempt_and_all_go_on_after_its_repair(
    host: Host,
) -> None:
    host.context.host_fault = "nvml error: driver/library version mismatch"
    jobs = [host.submit() for _ in range(6)]
    host.attempt_service.needs_of |= dict.fromkeys(jobs, ResourceRequest(0.5, 1024, 1, "nvidia"))
    host.settle()
    assert [host.state(job) for job in jobs] == ["queued"] * 6
    assert set(host.inventory.bad.values()) == {"nvml error: driver/library version mismatch"}
    assert {host.row(job).job.history.charged for job in jobs} == {0}
    assert [len(host.store.attempts(job)) for job in jobs] == [0] * 6
    host.context.host_fault = ""
    host.inventory.bad.clear()  # as the inventory does after a while
    for _ in jobs:
        host.wait(1)
        for job in jobs:
            if host.state(job) == "running":
                host.context.end(host.key(job), 0)
        host.settle()
    assert [host.state(job) for job in jobs] == ["finished"] * 6
    assert [len(host.store.attempts(job)) for job in jobs] == [1] * 6


def test_a_launch_that_fails_alike_for_two_jobs_is_the_fault_of_the_host(host: Host) -> None:
    host.context.refusals = ["failed to create shim: no space left on device"] * 3
    jobs = [host.submit() for _ in range(3)]
    host.settle()
    assert [host.row(job).job.history.charged for job in jobs] == [1, 0, 0]
    assert "failed to create shim" in host.daemon.why(jobs[1]) or host.state(jobs[1]) == "queued"
    host.wait(120)
    assert [host.state(job) for job in jobs] == ["running"] * 3


def test_a_host_that_starts_nothing_at_all_costs_no_job_an_attempt_and_is_asked_ever_later(
    host: Host,
) -> None:
    host.context.host_fault = "AppArmor enabled on system but the runner-job profile could not be loaded"
    jobs = [host.submit() for _ in range(3)]
    host.settle()
    assert [host.state(job) for job in jobs] == ["queued"] * 3
    assert {host.row(job).job.history.charged for job in jobs} == {0}
    states = [state for job in jobs if isinstance(state := host.row(job).job.state, Queued)]
    assert [state.why for state in states] == [host.context.host_fault] * 3
    assert all(state.not_before is not None for state in states)
    tried = len(host.store.events(0, jobs[0], 100))
    host.settle()
    assert len(host.store.events(0, jobs[0], 100)) == tried  # not again at once, in a circle
    host.context.host_fault = ""
    host.wait(600)
    assert [host.state(job) for job in jobs] == ["running"] * 3


@pytest.mark.parametrize("kind", [ImageUnfit, OptionsUnfit])
def test_an_image_or_option_that_is_wrong_fails_all_of_its_jobs_and_is_no_fault_of_the_host(
    host: Host, kind: type[LaunchRefused]
) -> None:
    host.context.refusal = kind
    host.context.refusals = ["Cannot mkdir: /job is not a directory"] * 9
    jobs = [host.submit() for _ in range(3)]
    for _ in range(3):
        host.settle()
        host.wait(600)
    assert [host.state(job) for job in jobs] == ["finished"] * 3


def test_a_launch_that_fails_for_one_job_alone_is_its_own(host: Host) -> None:
    host.context.refusals = ["no such mount"] * 2
    job = host.submit()
    host.settle()
    host.wait(5)
    assert host.row(job).job.history.charged == 2
