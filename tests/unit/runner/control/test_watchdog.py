"""Results of looking after running attempts, at a host where time passes only when a test says so."""

import json
from dataclasses import replace
from datetime import timedelta
from queue import Queue
from threading import Event

import pytest

from runner.agent.interface import ProgressProbe
from runner.base.errors import Unavailable
from runner.base.fair_executor import FairExecutor
from runner.control.messages import Probed
from runner.core.job.attempt import Attempt
from runner.core.job.states import Running, Stopping, StopReason
from runner.core.policy.conditions import ALWAYS
from runner.core.policy.facts import FactValue
from runner.core.policy.heartbeat import FLOOR_S, MAX_PROBE_GAP_S, ProgressReport
from runner.core.policy.model import Ceilings, Rule, Verb
from runner.core.ports.executor import Alive
from runner.core.ports.store import EventRow, JobRow
from runner.core.scheduler.snapshot import RESTART_S, ResourceRequest
from tests.fakes.daemon.attempts import steady
from tests.fakes.host.machine import Host
from tests.fakes.patience import patience

LOOK_S = 5.0


class Site:
    """One running job, and looks at it."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.inventory = host.inventory
        self.job = host.submit()
        host.settle()
        self.step = 0

    def says(self, phase: str = "train", step: int | None = None, **facts: FactValue) -> None:
        """Let the attempt report."""
        self.step = self.step if step is None else step
        sign = ProgressReport(phase, self.step, written=self.host.clock.monotonic())
        self.host.attempt_service.probes[self.job] = ProgressProbe(sign, {"phase": phase, **facts}, "spec")

    def look(self, times: int = 1) -> None:
        for _ in range(times):
            self.host.clock.forward(LOOK_S)
            self.host.daemon.watchdog.probe_all()
            self.host.daemon.run_once(0)

    def works(self, steps: int = 10) -> None:
        """Take so many steps, each looked at."""
        for _ in range(steps):
            self.says(step=self.step + 1)
            self.look()

    def hangs(self, seconds: float) -> None:
        self.look(int(seconds / LOOK_S) + 1)

    @property
    def state(self) -> str:
        return self.host.state(self.job)

    def events(self, kind: str) -> list[EventRow]:
        return [event for event, _ in self.host.store.events(0, self.job, 500) if event.kind == kind]


@pytest.fixture
def site(host: Host) -> Site:
    return Site(host)


# --- Hangs


def test_an_attempt_that_falls_silent_is_stopped_by_the_rule(site: Site) -> None:
    site.works()
    site.hangs(FLOOR_S)
    state = site.host.row(site.job).job.state
    assert isinstance(state, Stopping)
    assert (state.reason, state.by) == (StopReason.WATCH, "stalled")


def test_what_was_decided_is_kept_with_every_fact(site: Site) -> None:
    site.works()
    site.hangs(FLOOR_S)
    [decision] = site.host.store.decisions(site.job, 1)
    body = json.loads(decision.body)
    assert (body["moment"], body["verdict"]["do"], body["verdict"]["rule"]) == ("watch", "stop", "stalled")
    assert body["facts"]["heartbeat.age_over_limit"] is True
    assert body["facts"]["heartbeat.limit_s"] == FLOOR_S


def test_silence_below_the_limit_disturbs_nobody(site: Site) -> None:
    site.works()
    site.hangs(FLOOR_S - 3 * LOOK_S)
    assert site.state == "running"


@pytest.mark.parametrize("phase", ["init", "compile", "eval", "save", "drain"])
def test_no_length_of_what_nobody_can_time_is_a_hang(site: Site, phase: str) -> None:
    site.works()
    site.says(phase)
    site.hangs(20 * FLOOR_S)
    assert site.state == "running"


UNLEARNED = {"init": 1000.0, "compile": 2000.0, "train": 3000.0, "eval": 4000.0}


@pytest.fixture
def limited(host: Host) -> Site:
    """A site whose operator limits silence by phase."""
    host.silence_limits_s = UNLEARNED
    host.boot()
    return Site(host)


@pytest.mark.parametrize("phase", UNLEARNED)
def test_silence_where_no_limit_is_learned_is_a_hang_beyond_the_operators_limit(
    limited: Site, phase: str
) -> None:
    if phase == "eval":
        limited.works()
    limited.says(phase, step=limited.step or 1)
    limited.hangs(UNLEARNED[phase] - 3 * LOOK_S)
    assert limited.state == "running"
    limited.hangs(4 * LOOK_S)
    state = limited.host.row(limited.job).job.state
    assert isinstance(state, Stopping)
    assert (state.reason, state.by) == (StopReason.WATCH, "stalled")


def test_a_built_in_workload_that_never_reports_is_a_hang_beyond_the_operators_limit(limited: Site) -> None:
    limited.host.attempt_service.probes[limited.job] = ProgressProbe(reports_expected=True)
    limited.hangs(UNLEARNED["init"] - 3 * LOOK_S)
    assert limited.state == "running"
    limited.hangs(4 * LOOK_S)
    assert isinstance(limited.host.row(limited.job).job.state, Stopping)


def test_a_late_first_report_ends_the_silence_and_teaches_nothing(limited: Site) -> None:
    limited.host.attempt_service.probes[limited.job] = ProgressProbe(reports_expected=True)
    limited.hangs(UNLEARNED["init"] - 3 * LOOK_S)
    limited.says(step=0)
    limited.hangs(UNLEARNED["train"] - 3 * LOOK_S)
    assert limited.state == "running"


def test_a_phase_without_a_limit_of_the_operator_has_none(limited: Site) -> None:
    limited.works()
    limited.says("save")
    limited.hangs(20 * FLOOR_S)
    assert limited.state == "running"


def test_an_attempt_that_has_not_taken_five_steps_is_not_known_well_enough(site: Site) -> None:
    site.works(4)
    site.hangs(10 * FLOOR_S)
    assert site.state == "running"


def test_the_queue_hears_how_long_a_start_took(site: Site) -> None:
    running = site.host.daemon.scheduler.jobs.running
    assert running[site.job].restart_s == RESTART_S
    site.says("init", step=0)
    site.look(5)
    assert running[site.job].restart_s == RESTART_S
    site.works(3)
    assert running[site.job].restart_s == pytest.approx(6 * LOOK_S, abs=1)


def test_an_attempt_that_reports_nothing_is_left_alone(site: Site) -> None:
    site.look(1000)
    assert (site.state, site.events("condemned")) == ("running", [])


def test_a_daemon_that_begins_to_look_does_not_hold_the_past_against_anybody(site: Site) -> None:
    site.works()
    site.hangs(FLOOR_S / 2)
    site.host.boot()
    site.hangs(FLOOR_S)
    assert site.state == "running"


def test_after_a_hang_the_policy_is_asked_who_ended_it(site: Site) -> None:
    site.works()
    site.hangs(FLOOR_S)
    site.host.settle()
    site.host.context.end(site.host.key(site.job), 137)
    site.host.settle()
    last = json.loads(site.host.store.decisions(site.job, 1)[-1].body)
    assert (last["facts"]["killed_by"], last["verdict"]["rule"]) == ("watch/stalled", "hung")


# --- Advice


def test_advice_is_given_once_for_a_rule_and_an_attempt(site: Site) -> None:
    site.inventory.known = {"device.lost": True}
    running = site.host.row(site.job).job.state
    assert isinstance(running, Running)
    site.works(3)
    assert site.events("advised") == []  # it has no device
    site.host.attempt_service.probes[site.job] = ProgressProbe(None, {"device.lost": True})
    site.look(5)
    [said] = site.events("advised")
    assert said.text.startswith("attempt 1: ")
    site.host.settle(1)
    assert [text for _, _, text in site.host.attempt_service.shown] == [said.text.removeprefix("attempt 1: ")]
    assert (site.state, len(site.host.store.decisions(site.job))) == ("running", 1)


def test_the_next_daemon_does_not_repeat_it(site: Site) -> None:
    site.host.attempt_service.probes[site.job] = ProgressProbe(None, {"device.lost": True})
    site.look()
    site.host.boot()
    site.look(3)
    assert len(site.events("advised")) == 1


def test_a_rule_that_only_logs_says_so_and_stops_nothing(host: Host) -> None:
    policy = steady()
    quiet = tuple(
        replace(rule, do=Verb.ADVISE) if rule.name == "stalled" else rule for rule in policy.on_watch
    )
    site = Site(host)
    host.attempt_service.policies[site.job] = replace(policy, on_watch=quiet)
    site.works()
    site.hangs(2 * FLOOR_S)
    assert (site.state, len(site.events("advised"))) == ("running", 1)


# --- What else may come of it


def test_the_ceiling_on_running_time_is_a_time_limit(host: Host) -> None:
    site = Site(host)
    policy = replace(steady(), ceilings=Ceilings(wall=timedelta(seconds=60)))
    host.attempt_service.policies[site.job] = policy
    site.look(13)
    state = host.row(site.job).job.state
    assert isinstance(state, Stopping)
    assert state.reason is StopReason.TIME_LIMIT


def test_facts_about_devices_are_those_of_the_attempt(host: Host) -> None:
    site = Site(host)
    site.inventory.known = {"device.util": 3.0, "device.lost": False}
    seen: list[Probed] = []
    host.daemon.watchdog.report = seen.append
    with_device = host.submit("with a device")
    host.attempt_service.needs_of[with_device] = ResourceRequest(1.0, 1024**3, gpus=1, vendor="nvidia")
    host.settle()
    host.daemon.watchdog.probe_all()
    known = {each.job_id: each.facts.get("device.util") for each in seen}
    assert known == {site.job: None, with_device: 3.0}


def test_at_the_end_the_policy_is_told_how_the_devices_are(host: Host) -> None:
    site = Site(host)
    site.inventory.known = {"device.util": 3.0, "device.lost": True, "device.xid": (79,)}
    job = host.submit("with a device")
    host.attempt_service.needs_of[job] = ResourceRequest(1.0, 1024**3, gpus=1, vendor="nvidia")
    host.settle()
    host.context.end(host.key(job), 1)
    host.settle()
    end = json.loads(host.store.decisions(job, 1)[-1].body)
    assert (end["facts"]["device.lost"], end["facts"]["device.xid"]) == (True, [79])
    assert "device.util" not in end["facts"]
    assert (end["verdict"]["rule"], end["verdict"]["with"]) == ("device-lost", {"device": "other"})


def test_a_device_that_must_not_be_lent_is_no_other_device(host: Host) -> None:
    site = Site(host)
    site.inventory.known, site.inventory.bad = {"device.lost": True}, {}
    job = host.submit("with a device")
    host.attempt_service.needs_of[job] = ResourceRequest(1.0, 1024**3, gpus=1, vendor="nvidia")
    host.settle()
    site.inventory.bad = {"GPU-a": "lost", "GPU-b": "its driver asks for gpu_reset"}
    host.context.end(host.key(job), 1)
    host.settle()
    end = json.loads(host.store.decisions(job, 1)[-1].body)
    assert (end["facts"]["device.others"], host.state(job)) == (0, "held")


def test_what_is_left_of_the_time_limit_is_known(host: Host) -> None:
    site = Site(host)
    row = host.row(site.job)
    state = row.job.state
    assert isinstance(state, Running)
    deadline = host.clock.now() + timedelta(seconds=90)
    entry = host.daemon.tracked_jobs[site.job]
    entry.row = replace(row, job=replace(row.job, state=replace(state, deadline=deadline)))
    seen: list[Probed] = []
    host.daemon.watchdog.report = seen.append
    host.daemon.watchdog.probe_all()
    assert seen[0].facts["deadline.slack_s"] == 90


def test_nobodys_attempts_wait_for_the_files_of_another_owner(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = Site(host).job
    other = host.submit("other")
    host.settle()
    entry = host.daemon.tracked_jobs[other]
    entry.row = replace(entry.row, owner=replace(entry.row.owner, name="bob"))
    watchdog, probe, go = host.daemon.watchdog, host.attempt_service.probe, Event()
    watchdog.work, seen = FairExecutor("test", threads_per_user=1), Queue[str]()
    watchdog.report = lambda probed: seen.put(probed.job_id)

    def wait_for_worker(row: JobRow, attempt: Attempt) -> ProgressProbe:
        assert row.job.id != stuck or go.wait(patience())
        return probe(row, attempt)

    monkeypatch.setattr(host.attempt_service, "probe", wait_for_worker)
    watchdog.probe_all()
    watchdog.probe_all()
    assert seen.get(timeout=patience()) == other
    go.set()
    while seen.get(timeout=patience()) != stuck:
        pass  # the second look at the other one


def test_an_attempt_that_cannot_be_looked_at_does_not_hide_the_others(host: Host) -> None:
    site = Site(host)
    other = host.submit("other")
    host.settle()
    seen: list[Probed] = []
    host.daemon.watchdog.report = seen.append
    for mistake in (Unavailable("no disk"), ValueError("a bug")):
        host.attempt_service.probes[site.job] = mistake
        host.daemon.watchdog.probe_all()
    assert [each.job_id for each in seen] == [other, other]
    assert site.state == "running"


def test_late_news_about_an_attempt_that_has_ended_is_nothing(site: Site) -> None:
    site.works()
    row = site.host.row(site.job)
    facts: dict[str, FactValue] = {"phase": "train", "heartbeat.age_over_limit": True}
    site.host.daemon.inbox.put(Probed(site.job, 0, site.host.clock.now(), facts))
    site.host.daemon.inbox.put(Probed("999", 1, site.host.clock.now(), facts))
    site.host.daemon.run_once(0)
    assert site.host.row(site.job) == row


def test_what_cannot_be_recorded_is_found_again_at_the_next_look(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.host.attempt_service.probes[site.job] = ProgressProbe(None, {"device.lost": True})

    def full(*_: object) -> None:
        raise Unavailable("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(type(site.host.store), "decided", full)
        site.look()
    assert site.events("advised") == []
    site.look()
    assert len(site.events("advised")) == 1


def test_the_heartbeat_of_an_attempt_is_forgotten_with_it(site: Site) -> None:
    site.works()
    assert site.host.daemon.watchdog._heartbeats
    site.host.context.end(site.host.key(site.job), 0)
    site.host.settle()
    site.look()
    assert site.host.daemon.watchdog._heartbeats == {}


def test_a_rule_without_a_condition_never_ends_what_runs(host: Host) -> None:
    site = Site(host)
    host.attempt_service.policies[site.job] = replace(steady(), on_watch=(Rule("all", Verb.STOP, ALWAYS),))
    site.works()
    assert site.state == "running"


def test_an_attempt_whose_processes_are_suspended_is_not_silent(site: Site) -> None:
    site.works()
    key = site.host.key(site.job)
    site.host.context.attempts[key] = Alive(key, suspended=True)
    site.host.settle()
    site.hangs(10 * FLOOR_S)
    assert site.state == "running"
    site.host.context.attempts[key] = Alive(key)
    site.host.settle()
    site.hangs(FLOOR_S - MAX_PROBE_GAP_S - 4 * LOOK_S)
    assert site.state == "running"
    site.hangs(MAX_PROBE_GAP_S + 6 * LOOK_S)
    assert site.state == "stopping"
