"""The real daemon and its queue on a host where nothing happens unless a test says so."""

import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.adapters.sqlite.accounting import SqliteAccounting
from runner.adapters.sqlite.schedules import SqliteSchedules
from runner.agent.interface import ProgressProbe, QueueTerms
from runner.base.errors import Refused, Unavailable
from runner.control.context import SiteConfig
from runner.control.messages import Probed
from runner.control.scheduler import REPLAN_S, Explanation
from runner.control.switching import STAYS_S
from runner.core.job.attempt import Start, StartFrom
from runner.core.job.events import (
    CancelRequested,
    Event,
    HoldRequested,
    PreemptRequested,
    RestartRequested,
    RevisionApplied,
)
from runner.core.job.model import Job
from runner.core.job.revision_text import RevisionText
from runner.core.job.states import Allocated, Finished, Held, Preparing, Queued, Running, Starting, Stopping
from runner.core.policy.model import Ceilings, Verb
from runner.core.ports.schedules import ScheduleRow
from runner.core.ports.store import JobRow, RecordedTransition
from runner.core.ports.users import Owner
from runner.core.scheduler.backfill import Plan, plan
from runner.core.scheduler.config import (
    PreemptionConfig,
    Quota,
    Quotas,
    SchedulerConfig,
    SchedulingOrder,
    SwitchingConfig,
)
from runner.core.scheduler.displacement import switch_cost_s
from runner.core.scheduler.fairshare import FairShare, billed_devices
from runner.core.scheduler.pending import NEVER_STARTS
from runner.core.scheduler.priority import EligibleJobs, eligible_since_s
from runner.core.scheduler.snapshot import (
    GIB,
    RESTART_S,
    Dependency,
    DependencyCondition,
    JobArray,
    Maintenance,
    ResourceRequest,
    Snapshot,
)
from tests.fakes.daemon.attempts import steady
from tests.fakes.engine.executor import Program
from tests.fakes.host.disk import examples
from tests.fakes.host.machine import ANN, Host
from tests.fakes.patience import patience

BOB = Owner(1002, 1002, "bob")
EVE = Owner(1003, 1003, "eve")
DAN = Owner(1004, 1004, "dan")
SAVES = Program(on_signal={15: 75})
HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class Wish:
    """Submission of a test."""

    gpus: int = 1
    owner: Owner = ANN
    limit: timedelta | None = None
    name: str = "job"
    terms: QueueTerms = field(default_factory=QueueTerms)
    priority: int = 50


def hand_in(host: Host, wish: Wish, *, settle: bool = True) -> str:
    """Submit a job, with its image found already."""
    now, job_id = host.clock.now(), host.store.next_id()
    vendor = "nvidia" if wish.gpus else None
    host.attempt_service.needs_of[job_id] = ResourceRequest(0.5, GIB, wish.gpus, vendor)
    host.attempt_service.terms_of[job_id] = wish.terms
    host.context.programs["train", job_id] = SAVES
    job = Job(job_id, Preparing(now), time_limit=wish.limit)
    row = JobRow(job, wish.name, wish.owner, now, wish.priority, RevisionText.of("{}"))
    host.daemon.submit((row,), ("submitted",))
    if settle:
        host.settle()
    return job_id


@pytest.fixture
def site(request: pytest.FixtureRequest) -> Iterator[Host]:
    """A host with two GPUs and rules of its own."""
    rules: SiteConfig = getattr(request, "param", SiteConfig())
    with _host(rules) as host:
        yield host


class _host:  # noqa: N801  (used like a function)
    def __init__(self, site: SiteConfig) -> None:
        memory = Path("/dev/shm")  # an fsync each would be most of the time
        self.directory = TemporaryDirectory(dir=memory if memory.is_dir() else None)
        self.site = site

    def __enter__(self) -> Host:
        return Host(Path(self.directory.__enter__()), site=self.site)

    def __exit__(self, *_: object) -> None:
        self.directory.cleanup()


def devices_of(host: Host, job_id: str) -> tuple[str, ...]:
    state = host.row(job_id).job.state
    return state.allocation.devices if isinstance(state, Allocated) else ()


# --- order, quotas, time limits ---------------------------------------------------------------------------


def test_whoever_has_used_less_goes_first(site: Host) -> None:
    first = hand_in(site, Wish(gpus=2, limit=9 * HOUR))
    site.wait(3600)
    anns, bobs = hand_in(site, Wish(gpus=2)), hand_in(site, Wish(gpus=2, owner=BOB))
    site.context.end(site.key(first), 0)
    site.settle()
    assert (site.state(anns), site.state(bobs)) == ("queued", "running")
    assert site.daemon.why(anns).startswith("waits for 2 NVIDIA GPUs: 0 free, 2 allocated")


@pytest.mark.parametrize(
    "site", [SiteConfig(SchedulerConfig(quotas=Quotas({"ann": Quota(devices=1)})))], indirect=True
)
def test_a_quota_keeps_its_owner_waiting_and_nobody_else(site: Host) -> None:
    one, two = hand_in(site, Wish(limit=HOUR)), hand_in(site, Wish())
    assert (site.state(one), site.state(two)) == ("running", "queued")
    assert site.daemon.why(two) == (
        "waits for the limit of user ann: 1 of 1 devices in use or reserved; starts about 01:00"
    )
    assert site.state(hand_in(site, Wish(owner=BOB))) == "running"


def test_a_short_job_goes_first_where_that_delays_nobody(site: Host) -> None:
    hand_in(site, Wish(limit=4 * HOUR))
    big, long = hand_in(site, Wish(gpus=2, limit=HOUR)), hand_in(site, Wish(limit=8 * HOUR))
    short, endless = hand_in(site, Wish(limit=2 * HOUR)), hand_in(site, Wish())
    states = [site.state(job_id) for job_id in (big, long, short, endless)]
    assert states == ["queued", "queued", "running", "queued"]
    assert site.daemon.why(big).endswith("starts about 04:00")
    assert "reserved for job" not in site.daemon.why(big)


def test_how_long_a_job_takes_is_learned_from_the_last_ones_of_its_name(site: Host) -> None:
    first = hand_in(site, Wish(name="nightly"))
    site.wait(3000)
    site.context.end(site.key(first), 0)
    site.settle()
    hand_in(site, Wish(limit=4 * HOUR))
    big, known = hand_in(site, Wish(gpus=2)), hand_in(site, Wish(name="nightly"))
    strange = hand_in(site, Wish(name="nightly", owner=BOB))
    assert [site.state(job_id) for job_id in (big, known, strange)] == ["queued", "running", "queued"]
    [learned] = [job.ends_s for job in site.daemon.snapshot().running if job.job_id == known]
    now_s = site.clock.now().timestamp()
    assert learned is not None
    assert 3000 < learned - now_s < 4000


def test_how_long_a_job_of_a_matrix_or_a_schedule_takes_is_learned_from_the_others(site: Host) -> None:
    first = hand_in(site, Wish(name="big-1", terms=QueueTerms(sweep=JobArray("1"))))
    site.wait(3000)
    site.context.end(site.key(first), 0)
    site.settle()
    past = SqliteAccounting(site.store)
    assert past.lasted_s("ann", "matrix", first) == pytest.approx((3000,), abs=60)
    assert past.lasted_s("bob", "matrix", first) == past.lasted_s("ann", "schedule", "1") == ()
    [once], [half] = past.held_device_s(10, 0.0), past.held_device_s(10, 0.5)
    assert once == pytest.approx(3000, abs=60)
    assert half > once
    assert past.held_device_s(0, 0.5) == ()
    books, at = SqliteSchedules(site.store), site.clock.now()
    made = books.add(ScheduleRow(0, "nightly", 1001, 1001, "ann", "/n.yaml", "", {}, at, at), None)
    books.record_firing(made, at, at, "due", "")
    books.settle(books.due()[0], "submitted", "", first)
    assert past.lasted_s("ann", "schedule", str(made.id)) == past.lasted_s("ann", "matrix", first)
    hand_in(site, Wish(name="other", limit=9 * HOUR))
    last = hand_in(site, Wish(name="big-2", terms=QueueTerms(sweep=JobArray("1"))))
    [ends_s] = [job.ends_s for job in site.daemon.snapshot().running if job.job_id == last]
    assert ends_s is not None
    assert 3000 < ends_s - site.clock.now().timestamp() < 4000


def test_a_job_of_a_sweep_waits_while_enough_of_it_run(site: Host) -> None:
    sweep = QueueTerms(sweep=JobArray("1", max_parallel=1, name="grid"))
    one, two = hand_in(site, Wish(terms=sweep)), hand_in(site, Wish(terms=sweep))
    assert (site.state(one), site.state(two)) == ("running", "queued")
    assert "the limit of matrix grid (1): 1 of 1 jobs in use or reserved" in site.daemon.why(two)


def test_a_job_that_waits_for_the_image_of_another_one_of_its_matrix_says_so(site: Host) -> None:
    sweep = QueueTerms(sweep=JobArray("s1"))
    hand_in(site, Wish(gpus=2))
    one, two = hand_in(site, Wish(terms=sweep)), hand_in(site, Wish(terms=sweep))
    _ask(site, "cancel", site.row(one))
    _ask(site, "restart", site.row(one))
    site.daemon.run_once(0)
    assert (site.state(one), site.state(two)) == ("preparing", "queued")
    assert site.daemon.why(two) == f"waits for job {one} of its matrix, which has no image yet"
    site.settle()
    assert "GPU" in site.daemon.why(two)


# --- dependencies and times -------------------------------------------------------------------------------


def test_a_job_waits_for_another_one_and_starts_when_that_has_succeeded(site: Host) -> None:
    first = hand_in(site, Wish())
    second = hand_in(site, Wish(terms=QueueTerms(after=(Dependency(first),))))
    assert site.daemon.why(second) == f"waits for job {first} to succeed"
    site.boot()
    site.settle()
    assert site.daemon.why(second) == f"waits for job {first} to succeed"
    site.context.end(site.key(first), 0)
    site.settle()
    assert site.state(second) == "running"


def test_a_dependency_that_ended_before_the_daemon_began_is_known(site: Host) -> None:
    first = hand_in(site, Wish())
    busy = hand_in(site, Wish())
    site.context.end(site.key(first), 0)
    site.settle()
    second = hand_in(site, Wish(gpus=2, terms=QueueTerms(after=(Dependency(first),))))
    site.boot()
    site.settle()
    assert site.daemon.snapshot().ended.keys() == {first}
    site.context.end(site.key(busy), 0)
    site.settle()
    assert site.state(second) == "running"


def test_a_dependency_that_cannot_come_true_is_said_and_can_still_be_mended(site: Host) -> None:
    first = hand_in(site, Wish())
    second = hand_in(site, Wish(terms=QueueTerms(after=(Dependency(first),))))
    site.daemon.apply_event(site.row(first), CancelRequested(site.clock.now(), "ann"))
    site.settle()
    assert site.daemon.why(second) == f"never starts: job {first} cancelled, but it had to succeed"
    site.daemon.apply_event(site.row(first), RestartRequested(site.clock.now(), "ann", Start()))
    site.settle()
    assert site.daemon.why(second) == f"waits for job {first} to succeed"
    site.context.end(site.key(first, 2), 0)
    site.settle()
    assert site.state(second) == "running"


@pytest.mark.parametrize("limit_s", [0.0, 3600.0])
def test_a_job_that_waits_for_what_cannot_come_is_cancelled_after_a_while(site: Host, limit_s: float) -> None:
    first = hand_in(site, Wish())
    second = hand_in(site, Wish(terms=QueueTerms(after=(Dependency(first),), unmet_limit_s=limit_s)))
    third = hand_in(site, Wish(terms=QueueTerms(after=(Dependency(second),), unmet_limit_s=limit_s)))
    site.daemon.apply_event(site.row(first), CancelRequested(site.clock.now(), "ann"))
    site.settle()
    if limit_s:
        assert site.daemon.why(second).endswith("it is cancelled at 01:00 (queue.on_unmet)")
        site.boot()
        site.wait(limit_s - 10)
        assert site.state(second) == "queued"
        site.wait(20)
        assert (site.state(second), site.state(third)) == ("finished", "queued")
        site.wait(limit_s)
    state = site.row(second).job.state
    assert isinstance(state, Finished)
    assert state.why == f"cancelled by queue.on_unmet: job {first} cancelled, but it had to succeed"
    assert site.state(third) == "finished"
    assert site.daemon.snapshot().ended == {}


def test_of_a_matrix_one_failure_is_enough_for_who_waits_for_that(site: Host) -> None:
    matrix = [hand_in(site, Wish(gpus=0)) for _ in range(2)]
    group = Dependency(matrix[0], DependencyCondition.FAILED, tuple(matrix))
    each = tuple(Dependency(job_id, DependencyCondition.ANY) for job_id in matrix)
    waits = hand_in(site, Wish(gpus=0, terms=QueueTerms(after=(*each, group), unmet_limit_s=0.0)))
    site.daemon.apply_event(site.row(matrix[1]), CancelRequested(site.clock.now(), "ann"))
    site.settle()
    assert site.daemon.why(waits) == f"waits for job {matrix[0]} to end"
    site.context.end(site.key(matrix[0]), 0)
    site.settle()
    assert site.state(waits) == "running"


def test_after_so_many_failures_the_jobs_of_a_matrix_that_wait_are_cancelled(site: Host) -> None:
    array = JobArray("1", max_parallel=2, max_failures=2, count=6)
    jobs = [hand_in(site, Wish(gpus=0, terms=QueueTerms(sweep=array))) for _ in range(6)]
    for number in (0, 1):
        site.attempt_service.policies[jobs[number]] = replace(steady(), ceilings=Ceilings(attempts=1))
        site.context.end(site.key(jobs[number]), 1)
        site.settle()
        if number == 0:
            assert [site.state(job_id) for job_id in jobs[3:]] == ["queued"] * 3
            site.boot()
    assert [site.state(job_id) for job_id in jobs] == ["finished"] * 2 + ["running"] + ["finished"] * 3
    state = site.row(jobs[5]).job.state
    assert isinstance(state, Finished)
    assert state.why == "cancelled by matrix.max_failures: 2 of its jobs failed"


def test_what_has_run_or_is_started_again_stays_whatever_has_failed_of_its_matrix(site: Host) -> None:
    array = JobArray("1", max_parallel=2, max_failures=1, count=4)
    fails, ran, *others = [hand_in(site, Wish(gpus=0, terms=QueueTerms(sweep=array))) for _ in range(4)]
    site.wait(3600)
    site.attempt_service.policies[fails] = replace(steady(), ceilings=Ceilings(attempts=1))
    for job_id in (ran, fails):  # the one waits for its next attempt
        site.context.end(site.key(job_id), 1)
    site.settle()
    assert [site.state(job_id) for job_id in (fails, ran, *others)] == ["finished", "queued"] + [
        "finished"
    ] * 2
    again = RestartRequested(site.clock.now(), "ann", Start())
    site.daemon.apply_event(site.row(others[0]), again)
    site.settle()
    site.boot()
    site.settle()
    assert site.state(others[0]) != "finished"
    assert site.state(ran) != "finished"


def test_who_is_not_waited_for_any_more_is_forgotten(site: Host) -> None:
    first = hand_in(site, Wish())
    wants = QueueTerms(after=(Dependency(first, DependencyCondition.FAILED),))
    second, third = hand_in(site, Wish(terms=wants)), hand_in(site, Wish(terms=wants))
    site.context.end(site.key(first), 0)
    site.settle()
    for job_id in (second, third):
        assert site.daemon.snapshot().ended.keys() == {first}
        site.daemon.apply_event(site.row(job_id), CancelRequested(site.clock.now(), "ann"))
    assert site.daemon.snapshot().ended == {}


def test_a_time_before_which_a_job_must_not_start_is_kept(site: Host) -> None:
    begins = site.clock.now() + timedelta(minutes=90)
    job_id = hand_in(site, Wish(terms=QueueTerms(not_before=begins)))
    assert site.daemon.why(job_id) == "not before 01:30 UTC"
    site.wait(89 * 60)
    assert site.state(job_id) == "queued"
    site.wait(60)
    assert site.state(job_id) == "running"


def test_a_backoff_keeps_its_length_when_the_time_of_day_is_set(site: Host) -> None:
    job_id = hand_in(site, Wish(limit=HOUR))
    site.context.end(site.key(job_id), 137)
    site.settle()
    site.clock.jump(-3600)
    site.wait(1)
    assert (site.state(job_id), site.daemon.why(job_id)) == ("queued", "backoff, 4s left")
    site.wait(4)
    assert site.state(job_id) == "running"
    [seen] = site.daemon.snapshot().running
    site.clock.jump(7200)
    [then] = site.daemon.snapshot().running
    assert seen.ends_s is not None
    assert (then.started_s, then.ends_s) == (seen.started_s + 7200, seen.ends_s + 7200)


def test_nobody_grows_old_because_the_time_of_day_is_set(site: Host) -> None:
    busy = hand_in(site, Wish(gpus=2, owner=EVE, limit=HOUR))
    normal = hand_in(site, Wish(gpus=2))
    site.wait(600)
    site.clock.jump(4 * 86400)
    urgent = hand_in(site, Wish(gpus=2, owner=BOB, terms=URGENT))
    ages = {
        each.job_id: site.daemon.snapshot().now_s - each.submitted_s
        for each in site.daemon.snapshot().pending
    }
    assert ages == {normal: pytest.approx(600, abs=9), urgent: pytest.approx(0, abs=9)}
    site.context.end(site.key(busy), 0)
    site.settle()
    assert (site.state(normal), site.state(urgent)) == ("queued", "running")


def test_who_came_first_stays_first_when_the_time_of_day_is_set_back(site: Host) -> None:
    busy = hand_in(site, Wish(gpus=2, limit=HOUR))
    first = hand_in(site, Wish(gpus=2))
    site.clock.jump(-4000)
    second = hand_in(site, Wish(gpus=2))
    site.context.end(site.key(busy), 0)
    site.settle()
    assert (site.state(first), site.state(second)) == ("running", "queued")


def test_jobs_that_come_together_after_the_time_of_day_was_set_are_of_one_age(site: Host) -> None:
    hand_in(site, Wish(gpus=2))
    site.clock.jump(86400)
    now = site.clock.now()
    rows = [JobRow(Job(str(i), Preparing(now)), "job", ANN, now, 50, RevisionText.of("{}")) for i in (7, 8)]
    site.daemon.submit(rows, ["a", "b"])
    ages = {each.submitted_s for each in site.daemon.snapshot().pending if each.job_id in {"7", "8"}}
    assert ages == {now.timestamp()}


def test_what_a_job_waited_for_is_as_long_ago_as_it_was_when_the_time_of_day_is_set(site: Host) -> None:
    first = hand_in(site, Wish(gpus=2))
    waits = QueueTerms(after=(Dependency(first),))
    second, third = hand_in(site, Wish(gpus=2, terms=waits)), hand_in(site, Wish(terms=waits))
    site.wait(3600)
    site.context.end(site.key(first), 0)
    site.settle()
    assert site.state(third) == "queued"
    [ended] = site.daemon.snapshot().ended.values()
    site.clock.jump(86400)
    picture = site.daemon.snapshot()
    assert picture.ended[first].at_s == ended.at_s + 86400
    assert {eligible_since_s(each, picture) for each in picture.pending} == {ended.at_s + 86400}
    site.daemon.apply_event(site.row(third), CancelRequested(site.clock.now(), "ann"))
    assert site.state(second) == "running"
    assert site.daemon.snapshot().ended == {}


AT = datetime(2030, 1, 1, 1, tzinfo=UTC).timestamp()
SERVICE = SiteConfig(maintenance=(Maintenance(AT, AT + 3600, "new driver", devices=frozenset({"GPU-0"})),))


@pytest.mark.parametrize("site", [SERVICE], indirect=True)
def test_nothing_runs_into_a_maintenance(site: Host) -> None:
    endless, short = hand_in(site, Wish()), hand_in(site, Wish(limit=HOUR / 2, name="short"))
    other = hand_in(site, Wish())
    assert devices_of(site, endless) == ("GPU-b",)
    assert devices_of(site, short) == ("GPU-a",)
    assert site.state(other) == "queued"
    site.context.end(site.key(short), 0)
    site.settle()
    assert "reserved for new driver at 01:00" in site.daemon.why(other)
    site.wait(2 * 3600)
    assert devices_of(site, other) == ("GPU-a",)


# --- preemption -------------------------------------------------------------------------------------------

QUICK = SchedulerConfig(preemption=PreemptionConfig(min_runtime_s=0.0))
IDLE, URGENT = QueueTerms(priority_class="idle"), QueueTerms(priority_class="urgent")


@pytest.mark.parametrize("site", [SiteConfig(QUICK)], indirect=True)
@pytest.mark.parametrize(("limit", "spared_s"), [(4 * HOUR, 4 * 3600 - 100), (None, 0)])  # of unknown end
def test_a_preempted_job_goes_back_to_its_place_and_is_charged_for_nothing(
    site: Host, limit: timedelta | None, spared_s: float
) -> None:
    idle = hand_in(site, Wish(gpus=2, terms=IDLE, limit=limit))
    site.wait(100)
    site.attempt_service.steps[idle] = 40
    urgent = hand_in(site, Wish(gpus=2, owner=BOB, limit=HOUR, terms=URGENT))
    assert (site.state(idle), site.state(urgent)) == ("queued", "running")
    job = site.row(idle).job
    assert (job.history.charged, job.preempted, job.attempts, job.history.wanted) == (0, 1, 1, True)
    assert isinstance(job.state, Queued)
    assert (job.state.why, job.state.not_before) == (f"preempted for job {urgent}", job.state.since)
    [kept] = site.store.decisions(idle)
    facts = json.loads(kept.body)["facts"]
    assert (facts["killed_by"], facts["queue.switches"]) == ("preemption", 1)
    assert facts["queue.attained_s"] == pytest.approx(200, abs=2)  # two devices for 100 s
    assert facts["queue.switch_cost_s"] == RESTART_S
    told = [event.text for event, _ in site.store.events(0, idle, 99)]
    assert any(text.startswith(f"preempted for job {urgent} of class urgent, which would") for text in told)
    site.context.end(site.key(urgent), 0)
    site.wait(1)
    assert site.state(idle) == "running"
    assert site.row(idle).submitted_at < site.row(urgent).submitted_at
    now = site.clock.now()
    spans = SqliteAccounting(site.store).between(now - HOUR, now + HOUR)
    [switch] = [span.switch for span in spans if span.switch is not None]
    assert (switch.job, switch.user) == (f"{urgent} job", BOB.name)
    assert switch.spared_s == pytest.approx(spared_s, abs=100)
    assert switch.cost_s >= 0


@pytest.mark.parametrize("site", [SiteConfig(QUICK)], indirect=True)
def test_a_job_that_leaves_already_is_not_asked_again(site: Host) -> None:
    idle = hand_in(site, Wish(gpus=2, terms=IDLE))
    site.context.running[site.key(idle)] = Program(on_signal={15: None})
    urgent = hand_in(site, Wish(gpus=2, owner=BOB, terms=URGENT))
    state = site.row(idle).job.state
    assert isinstance(state, Stopping)
    assert (state.reason, state.by) == ("preemption", urgent)
    site.wait(REPLAN_S + 1)
    assert len([kind for kind in kinds(site, idle) if kind == "preempt_requested"]) == 1
    site.wait(30)
    assert (site.state(idle), site.state(urgent)) == ("queued", "running")


@pytest.mark.parametrize("site", [SiteConfig(QUICK)], indirect=True)
def test_a_job_that_does_not_save_as_it_says_is_charged_and_told_and_not_believed_again(site: Host) -> None:
    idle = hand_in(site, Wish(gpus=2, terms=IDLE))
    site.context.running[site.key(idle)] = Program(on_signal={15: None})
    hand_in(site, Wish(gpus=2, owner=BOB, terms=URGENT, limit=HOUR))
    site.wait(31)  # of 30s of grace
    job = site.row(idle).job
    assert isinstance(job.state, Queued)
    assert (job.preempted, job.history.charged) == (1, 1)
    said = "was killed after 30s of grace; from now on it counts as a job that cannot save when asked"
    assert said in job.state.why
    assert site.daemon.scheduler.jobs.switching.unsaving == {idle}
    site.boot()  # the next daemon knows of it
    assert site.daemon.scheduler.jobs.switching.unsaving == {idle}


@pytest.mark.parametrize("site", [SiteConfig(QUICK)], indirect=True)
def test_what_switching_has_cost_is_not_forgotten_by_the_next_daemon(site: Host) -> None:
    """Neither what the machine has spent of its budget, nor what owners have had in each service level."""
    idle = hand_in(site, Wish(gpus=2, terms=IDLE))
    site.context.running[site.key(idle)] = Program(on_signal={15: None})
    hand_in(site, Wish(gpus=2, owner=BOB, terms=URGENT))
    site.wait(31)  # of 30s of grace
    assert isinstance(site.row(idle).job.state, Queued)
    site.wait(3600)

    def known() -> tuple[float, dict[tuple[str, str], tuple[float, ...]]]:
        jobs, rules = site.daemon.scheduler.jobs, site.daemon.context.site.rules
        spent = jobs.switching.spent_device_s(site.clock.monotonic(), rules.half_life_s)
        levels = jobs._levels().read(site.clock.monotonic(), rules.switching.levels_device_s)
        return spent, dict(levels)

    before = known()
    site.boot()
    after = known()
    assert before[0] > 2 * 30
    assert after[0] == pytest.approx(before[0], rel=0.05)
    assert set(after[1]) == set(before[1])
    for owner, had in before[1].items():
        assert after[1][owner] == pytest.approx(had, rel=0.01, abs=5)


@pytest.mark.parametrize("site", [SiteConfig(QUICK)], indirect=True)
def test_a_job_goes_on_that_was_not_told_yet_when_the_other_was_cancelled(site: Host) -> None:
    idle = hand_in(site, Wish(gpus=2, terms=IDLE))
    urgent = hand_in(site, Wish(gpus=2, owner=BOB, terms=URGENT), settle=False)
    site.daemon.run_once(0)
    while site.build_queue.step():
        site.daemon.run_once(0)
    assert site.state(idle) == "stopping"  # recorded, and its command waits for a thread
    site.daemon.apply_event(site.row(urgent), CancelRequested(site.clock.now(), "bob"))
    site.settle()
    assert (site.state(idle), site.state(urgent)) == ("running", "finished")
    assert kinds(site, idle)[-2:] == ["preempt_requested", "switch_called_off"]
    assert site.context.signals == []
    job = site.row(idle).job
    assert (job.attempts, job.preempted) == (1, 0)
    assert site.daemon.scheduler.jobs.switching.told == {}


@pytest.mark.parametrize("site", [SiteConfig(QUICK)], indirect=True)
def test_a_job_that_is_cancelled_before_its_switch_is_called_off_is_told_to_save(site: Host) -> None:
    idle = hand_in(site, Wish(gpus=2, terms=IDLE))
    urgent = hand_in(site, Wish(gpus=2, owner=BOB, terms=URGENT), settle=False)
    site.daemon.run_once(0)
    while site.build_queue.step():
        site.daemon.run_once(0)
    assert site.state(idle) == "stopping"  # recorded, and its command waits for a thread
    for job_id in (urgent, idle):
        site.daemon.apply_event(site.row(job_id), CancelRequested(site.clock.now(), "ann"))
    site.settle()
    assert site.context.signals == [(site.key(idle), 15)]
    assert site.state(idle) == "finished"


@pytest.mark.parametrize("site", [SiteConfig(QUICK)], indirect=True)
def test_a_job_that_has_no_room_to_save_stays_for_a_while(site: Host) -> None:
    idle = hand_in(site, Wish(gpus=2, terms=IDLE))
    site.attempt_service.full_disks[idle] = "its disk has 0.0 MiB left"
    urgent = hand_in(site, Wish(gpus=2, owner=BOB, terms=URGENT))
    assert (site.state(idle), site.state(urgent)) == ("running", "queued")
    site.wait(REPLAN_S + 1)
    assert kinds(site, idle).count("switch_called_off") == 1
    told = [event.text for event, _ in site.store.events(0, idle, 99)]
    fact = f"it could not save for job {urgent}: its disk has 0.0 MiB left"
    assert told[-1] == f"attempt 1 goes on, it was not told: {fact}"
    del site.attempt_service.full_disks[idle]
    site.wait(STAYS_S)
    assert (site.state(idle), site.state(urgent)) == ("queued", "running")


@pytest.mark.parametrize("site", [SiteConfig(QUICK)], indirect=True)
@pytest.mark.parametrize("jump_s", [-86400, 86400])
def test_a_switch_keeps_its_length_when_the_time_of_day_is_set(site: Host, jump_s: float) -> None:
    idle = hand_in(site, Wish(gpus=2, terms=IDLE))
    site.context.running[site.key(idle)] = Program(on_signal={15: None})
    urgent = hand_in(site, Wish(gpus=2, owner=BOB, terms=URGENT))
    site.clock.jump(jump_s)
    site.wait(29)  # of 30s of grace
    assert (site.state(idle), site.state(urgent)) == ("stopping", "queued")
    site.wait(2)
    assert (site.state(idle), site.state(urgent)) == ("queued", "running")
    switching = site.daemon.scheduler.jobs.switching
    assert switching.saves_s[idle] == 31
    assert switching.unsaving == {idle}


@pytest.mark.parametrize("site", [SiteConfig(QUICK)], indirect=True)
@pytest.mark.parametrize("jump_s", [-86400, 86400])
def test_a_job_without_room_to_save_stays_as_long_when_the_time_of_day_is_set(
    site: Host, jump_s: float
) -> None:
    idle = hand_in(site, Wish(gpus=2, terms=IDLE))
    site.attempt_service.full_disks[idle] = "its disk has 0.0 MiB left"
    hand_in(site, Wish(gpus=2, owner=BOB, terms=URGENT))
    began_s = site.clock.now().timestamp() - site.clock.monotonic()
    site.clock.jump(jump_s)
    site.wait(1)
    [view] = site.daemon.snapshot().running
    assert view.stays_until_s - began_s == pytest.approx(jump_s + STAYS_S)


@pytest.mark.parametrize("site", [SiteConfig(QUICK)], indirect=True)
def test_a_wait_of_a_job_that_runs_again_is_as_long_as_it_was_when_the_time_of_day_is_set(
    site: Host,
) -> None:
    idle = hand_in(site, Wish(gpus=2, terms=IDLE))
    site.wait(100)
    urgent = hand_in(site, Wish(gpus=2, owner=BOB, terms=URGENT, limit=HOUR))
    site.wait(50)
    site.context.end(site.key(urgent), 0)
    site.wait(1)
    assert site.state(idle) == "running"
    site.clock.jump(30 * 86400)
    [view] = site.daemon.snapshot().running
    assert view.queued_s is not None
    assert view.started_s - view.queued_s == pytest.approx(51)


@pytest.mark.parametrize("site", [SiteConfig(QUICK)], indirect=True)
def test_a_job_whose_disk_is_full_when_it_saves_goes_on_from_before_and_says_so(site: Host) -> None:
    idle = hand_in(site, Wish(gpus=2, terms=IDLE))
    site.wait(100)
    site.attempt_service.steps[idle] = 40
    site.context.running[site.key(idle)] = Program(on_signal={15: 1})
    site.attempt_service.facts[idle] = {"cause": "disk_full", "root": "disk_full"}
    urgent = hand_in(site, Wish(gpus=2, owner=BOB, limit=HOUR, terms=URGENT))
    assert (site.state(idle), site.state(urgent)) == ("queued", "running")
    job = site.row(idle).job
    assert isinstance(job.state, Queued)
    assert (job.preempted, job.history.charged) == (1, 0)
    fact = (
        f"preempted for job {urgent}; its disk was full when it was to save, so it goes on from before that"
    )
    assert job.state.why == fact
    assert site.daemon.scheduler.jobs.switching.unsaving == set()
    site.context.end(site.key(urgent), 0)
    site.wait(1)
    state = site.row(idle).job.state
    assert isinstance(state, Running)
    assert state.attempt.began == 40


@pytest.mark.parametrize("site", [SiteConfig(QUICK)], indirect=True)
@pytest.mark.parametrize(("saved", "begin"), [(40, "step 40"), (None, "the beginning")])
def test_a_job_that_fails_when_it_is_to_save_says_so_and_where_it_goes_on(
    site: Host, saved: int | None, begin: str
) -> None:
    idle = hand_in(site, Wish(gpus=2, terms=IDLE))
    site.wait(100)
    if saved is not None:
        site.attempt_service.steps[idle] = saved
    site.context.running[site.key(idle)] = Program(on_signal={15: 1})
    found = {} if saved is None else {"checkpoint.step": saved}
    site.attempt_service.facts[idle] = {"cause": "host_oom", **found}
    urgent = hand_in(site, Wish(gpus=2, owner=BOB, limit=HOUR, terms=URGENT))
    job = site.row(idle).job
    assert isinstance(job.state, Queued)
    assert job.state.why == (
        f"preempted for job {urgent}; it failed when it was to save (host_oom), which is not charged, and "
        f"goes on from {begin}"
    )
    assert (job.preempted, job.history.charged) == (1, 0)
    told = [event.text for event, _ in site.store.events(0, idle, 99)]
    assert any(text.endswith(job.state.why) for text in told)  # and not with "in 0 s"


@pytest.mark.parametrize("site", [SiteConfig(QUICK)], indirect=True)
def test_a_program_that_reports_that_it_saves_when_asked_is_as_cheap_to_stop_as_any(site: Host) -> None:
    program = replace(IDLE, saves_when_asked=False)
    quiet, reports = hand_in(site, Wish(terms=program)), hand_in(site, Wish(terms=program))
    site.wait(5000)
    site.attempt_service.probes[reports] = ProgressProbe(saves_when_asked=True)
    site.daemon.watchdog.probe_all()
    site.daemon.run_once(0)
    assert {each.job_id for each in site.daemon.snapshot().running if each.saves_when_asked} == {reports}
    site.clock.jump(60)  # all is worked out anew
    assert {each.job_id for each in site.daemon.snapshot().running if each.saves_when_asked} == {reports}
    urgent = hand_in(site, Wish(owner=BOB, limit=HOUR, terms=URGENT))
    assert (site.state(quiet), site.state(reports)) == ("running", "queued")
    site.context.end(site.key(urgent), 0)
    site.wait(1)
    assert site.state(reports) == "running"  # whether the next attempt saves, it has to say again
    assert not any(each.saves_when_asked for each in site.daemon.snapshot().running)


def kinds(host: Host, job_id: str) -> list[str]:
    return [event.kind for event, _ in host.store.events(0, job_id, 999)]


@pytest.mark.parametrize("site", [SiteConfig(QUICK)], indirect=True)
def test_a_job_that_loses_what_it_has_not_saved_is_dearer(site: Host) -> None:
    unsaved = replace(IDLE, saves_when_asked=False)
    first = hand_in(site, Wish(terms=unsaved))
    second = hand_in(site, Wish(terms=IDLE))
    site.wait(5000)
    hand_in(site, Wish(owner=BOB, limit=HOUR, terms=URGENT))
    assert (site.state(first), site.state(second)) == ("running", "queued")


@pytest.mark.parametrize("site", [SiteConfig(QUICK)], indirect=True)
def test_a_job_that_has_just_saved_loses_little(site: Host) -> None:
    unsaved = replace(IDLE, saves_when_asked=False)
    first, second = hand_in(site, Wish(terms=unsaved)), hand_in(site, Wish(terms=unsaved))
    site.wait(5000)
    for job_id, age_s in ((first, 30.0), (second, 900.0), ("99", 1.0)):
        site.daemon.scheduler.jobs.record_probe(
            Probed(job_id, 1, site.clock.now(), {"checkpoint.age_s": age_s})
        )
    site.daemon.scheduler.jobs.record_probe(Probed(second, 1, site.clock.now(), {}))
    hand_in(site, Wish(owner=BOB, limit=HOUR, terms=URGENT))
    assert (site.state(first), site.state(second)) == ("queued", "running")


@pytest.mark.parametrize("site", [SiteConfig(QUICK)], indirect=True)
def test_a_job_is_as_dear_to_stop_as_its_starts_have_taken(site: Host) -> None:
    slow, quick = hand_in(site, Wish(terms=IDLE)), hand_in(site, Wish(terms=IDLE))
    site.wait(5000)
    for job_id, start_s in ((slow, 300.0), (quick, 5.0)):
        site.daemon.scheduler.jobs.record_probe(Probed(job_id, 1, site.clock.now(), {}, start_s=start_s))
        site.daemon.scheduler.jobs.record_probe(Probed(job_id, 1, site.clock.now(), {}))
    urgent = hand_in(site, Wish(owner=BOB, limit=HOUR, terms=URGENT))
    assert (site.state(slow), site.state(quick)) == ("running", "queued")
    site.context.end(site.key(urgent), 0)
    site.wait(1)
    costs = {each.job_id: each.restart_s for each in site.daemon.snapshot().running}
    assert costs == {slow: 300.0, quick: 5.0}  # the next attempt of a job costs what its last one did
    site.clock.jump(86400)
    assert {each.restart_s for each in site.daemon.snapshot().running} == {300.0, 5.0}
    site.boot()
    assert {each.job_id: each.restart_s for each in site.daemon.snapshot().running} == costs


def test_an_old_report_of_a_job_is_no_slow_job(site: Host) -> None:
    job_id = hand_in(site, Wish())
    began_s = site.clock.now().timestamp()

    def probe(step: int, age_s: float) -> None:
        site.daemon.scheduler.jobs.record_probe(
            Probed(
                job_id,
                1,
                site.clock.now(),
                {"progress.step": step, "progress.total": 110, "heartbeat.age_s": age_s},
            )
        )

    probe(10, 0.0)
    site.clock.forward(10)
    for waited_s in (0.0, 2.0):  # 20 steps in 6 s, so the other 80 take 24 s from then on
        site.clock.forward(waited_s)
        probe(30, 4.0 + waited_s)
        [running] = site.daemon.snapshot().running
        assert running.ends_s == pytest.approx(began_s + 30, abs=1)


def test_the_reported_end_of_a_job_stays_where_it_is_when_its_owner_ends_another(site: Host) -> None:
    other, job_id = hand_in(site, Wish()), hand_in(site, Wish())
    for step in (10, 60):
        facts = {"progress.step": step, "progress.total": 110}
        site.daemon.scheduler.jobs.record_probe(Probed(job_id, 1, site.clock.now(), facts))
        site.clock.forward(100)
    ends = {each.job_id: each.ends_s for each in site.daemon.snapshot().running}
    site.context.end(site.key(other), 0)
    site.settle()
    site.daemon.scheduler.jobs.update(site.daemon.scheduler.jobs.tracked_jobs[job_id])
    assert {each.job_id: each.ends_s for each in site.daemon.snapshot().running}[job_id] == ends[job_id]


def test_the_reported_end_of_a_job_stays_where_it_is_when_its_preemption_is_called_off(site: Host) -> None:
    job_id = hand_in(site, Wish())
    _report(site, job_id, step_s=10.0)
    site.clock.jump(0.3)  # less than counts as set
    site.daemon.apply_event(site.row(job_id), PreemptRequested(site.clock.now(), "99", "of job 99"))
    site.settle()
    assert "switch_called_off" in kinds(site, job_id)
    [running] = site.daemon.snapshot().running
    assert running.ends_s == pytest.approx(site.clock.now().timestamp() + 1000, abs=1)


def test_the_reported_end_and_rate_of_a_job_stay_when_the_time_of_day_is_set(site: Host) -> None:
    job_id = hand_in(site, Wish())
    _report(site, job_id, step_s=10.0)
    site.clock.jump(86400)
    [running] = site.daemon.snapshot().running
    assert running.ends_s == pytest.approx(site.clock.now().timestamp() + 1000, abs=1)
    site.clock.jump(86400)
    site.clock.forward(10)
    facts = {"progress.step": 901, "progress.total": 1000}
    site.daemon.scheduler.jobs.record_probe(Probed(job_id, 1, site.clock.now(), facts))
    [running] = site.daemon.snapshot().running
    assert running.ends_s == pytest.approx(site.clock.now().timestamp() + 990, abs=1)


@pytest.mark.parametrize(
    ("saved", "start", "left"),
    [
        (900, Start(), 100),
        (500, Start(), 500),
        (None, Start(), 1000),
        (900, Start(StartFrom.STEP, 200), 800),
        (900, Start(StartFrom.SCRATCH), 1000),
    ],
)
def test_a_restarted_job_needs_the_steps_from_where_it_begins(
    site: Host, saved: int | None, start: Start, left: int
) -> None:
    job_id = hand_in(site, Wish())
    site.attempt_service.steps[job_id] = saved
    _report(site, job_id, step_s=10.0)
    site.daemon.apply_event(site.row(job_id), RestartRequested(site.clock.now(), "ann", start))
    site.settle()
    assert site.row(job_id).job.attempts == 2
    [running] = site.daemon.snapshot().running
    assert running.ends_s == pytest.approx(running.started_s + 10.0 * left, abs=1)


def test_a_job_with_more_steps_by_a_new_revision_is_not_taken_for_a_short_one(site: Host) -> None:
    job_id = hand_in(site, Wish())
    site.attempt_service.steps[job_id] = 900
    _report(site, job_id, step_s=10.0)
    job, half = site.row(job_id).job, timedelta(seconds=30)
    more = '{"job": {"steps": 100000}}'
    site.daemon.apply_event(
        site.row(job_id),
        RevisionApplied(site.clock.now(), "ann", 2, more, Verb.RESUME, "why", job.history, half, None, 9),
    )
    site.settle()
    assert site.row(job_id).job.attempts == 2
    assert [each.ends_s for each in site.daemon.snapshot().running] == [None]


def test_a_late_report_of_an_earlier_attempt_tells_nothing_of_the_present_one(site: Host) -> None:
    job_id = hand_in(site, Wish())
    _report(site, job_id, step_s=10.0)
    site.daemon.apply_event(
        site.row(job_id), RestartRequested(site.clock.now(), "ann", Start(StartFrom.SCRATCH))
    )
    site.settle()
    before = site.daemon.snapshot().running
    facts = {"progress.step": 901, "progress.total": 1000}
    site.daemon.scheduler.jobs.record_probe(Probed(job_id, 1, site.clock.now(), facts))
    assert (site.row(job_id).job.attempts, site.daemon.snapshot().running) == (2, before)


def test_the_end_of_a_job_that_has_waited_follows_from_its_new_start(site: Host) -> None:
    job_id = hand_in(site, Wish())
    site.attempt_service.steps[job_id] = 900
    _report(site, job_id, step_s=10.0)
    site.context.end(site.key(job_id), 1)
    site.settle()
    busy = [hand_in(site, Wish(owner=BOB)) for _ in range(2)]
    site.wait(20_000)
    assert site.state(job_id) == "queued"
    site.context.end(site.key(busy[0]), 0)
    site.settle()
    running = {each.job_id: each for each in site.daemon.snapshot().running}[job_id]
    assert running.ends_s == pytest.approx(site.clock.now().timestamp() + 1000, abs=1)


def _report(site: Host, job_id: str, step_s: float) -> None:
    """Let a job report 900 of its 1000 steps."""
    for step in (0, 900):
        site.clock.forward(step_s * step)
        facts = {"progress.step": step, "progress.total": 1000}
        site.daemon.scheduler.jobs.record_probe(Probed(job_id, 1, site.clock.now(), facts))


# --- what is remembered -----------------------------------------------------------------------------------


def test_what_attempts_held_is_written_down_with_their_events(site: Host) -> None:
    began = site.clock.now()
    job_id = hand_in(site, Wish(terms=QueueTerms(team="vision")))
    site.wait(600)
    [open_] = SqliteAccounting(site.store).since(began)
    assert (open_.job_id, open_.attempt, open_.owner, open_.team, open_.ended_at) == (
        job_id,
        1,
        "ann",
        "vision",
        None,
    )
    assert (open_.gpus, open_.cpus, open_.devices) == (1, 0.5, ("GPU-a",))
    site.context.end(site.key(job_id), 0)
    site.settle()
    [ended] = SqliteAccounting(site.store).since(began)
    assert (ended.placed_at, ended.ended_at) == (began, site.clock.now())
    assert list(SqliteAccounting(site.store).since(site.clock.now())) == []


def test_an_attempt_whose_image_was_missing_held_nothing_worth_mentioning(site: Host) -> None:
    site.context.images_gone.add("img-job")
    job_id = site.submit()
    site.build_queue.step()
    site.daemon.run_once(0)
    site.work_queue.step()
    site.daemon.run_once(0)
    assert site.state(job_id) == "preparing"
    site.context.images_gone.clear()
    site.wait(60)
    [only] = SqliteAccounting(site.store).since(datetime(2020, 1, 1, tzinfo=UTC))
    assert (only.attempt, only.ended_at) == (1, None)


def test_what_admits_jobs_knows_how_many_wait_and_not_which(site: Host) -> None:
    for number, owner in enumerate((ANN, BOB, EVE, ANN, ANN, BOB)):
        hand_in(site, Wish(gpus=2, owner=owner, name=f"j{number}"))
    hand_in(site, Wish(terms=QueueTerms(after=(Dependency("2"),))))
    hand_in(site, Wish(terms=QueueTerms(not_before=site.clock.now() + HOUR)))
    site.settle()
    for _ in range(2):
        known, counted = site.daemon.admission_snapshot(), site.daemon.snapshot()
        assert known.pending == ()
        assert known.queue_lengths == counted.queue_lengths
        assert sum(known.queue_lengths.values()) == len(counted.pending) == 7
        site.boot()
        site.settle()


def test_a_daemon_that_begins_again_sees_the_same_queue_and_decides_the_same(site: Host) -> None:
    for number, owner in enumerate((ANN, BOB, EVE, ANN, BOB, EVE, ANN)):
        hand_in(site, Wish(gpus=number % 2 + 1, owner=owner, limit=HOUR * (number + 1), name=f"j{number}"))
        site.wait(700 * number)
    hand_in(site, Wish(terms=QueueTerms(after=(Dependency("1"),))))
    hand_in(site, Wish(terms=QueueTerms(not_before=site.clock.now() + HOUR)))
    before = site.daemon.snapshot()
    site.boot()
    site.settle()
    after = site.daemon.snapshot()
    assert sorted(before.pending, key=str) == sorted(after.pending, key=str)
    assert sorted(before.running, key=str) == sorted(after.running, key=str)
    assert (before.ended, before.hosts) == (after.ended, after.hosts)
    assert before.user_usage == pytest.approx(after.user_usage)
    assert before.group_usage == pytest.approx(after.group_usage)
    for picture in (before, after):
        freed = replace(picture, running=())
        assert plan(freed).starts == plan(replace(before, running=())).starts


# --- when it is thought about -----------------------------------------------------------------------------


def plans(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the times at which a plan is made from now on."""
    made: list[float] = []

    def counted(picture: Snapshot) -> Plan:
        made.append(picture.now_s)
        return plan(picture)

    monkeypatch.setattr("runner.control.scheduler.plan", counted)
    return made


def test_no_plan_is_made_while_nothing_happens(site: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    hand_in(site, Wish(gpus=2))
    hand_in(site, Wish())
    made = plans(monkeypatch)
    for _ in range(20):
        site.clock.forward(REPLAN_S / 10)
        site.daemon.run_once(0)
    assert len(made) == 2
    assert 0 < site.daemon.scheduler.next_plan_in_s(site.clock.monotonic()) <= REPLAN_S


def test_an_empty_queue_is_not_planned(site: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    hand_in(site, Wish(gpus=2))
    made = plans(monkeypatch)
    site.wait(100 * REPLAN_S)
    assert made == []


def test_a_device_that_changes_is_noticed_at_the_next_iteration(site: Host) -> None:
    site.inventory.bad = {"GPU-a": "lost", "GPU-b": "lost"}
    job_id = hand_in(site, Wish())
    assert site.state(job_id) == "queued"
    site.inventory.bad.pop("GPU-b")
    site.daemon.run_once(0)
    assert devices_of(site, job_id) == ("GPU-b",)


def test_a_plan_that_cannot_be_recorded_is_named_and_tried_again_with_the_same_numbers(
    site: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_all = site.store.record_all

    def full(changes: Sequence[RecordedTransition]) -> None:
        if any(change.event.kind == "placed" for change in changes):
            raise Unavailable("store.db: the disk is full")
        record_all(changes)

    job_id = site.submit()
    site.attempt_service.there[job_id] = (3, 2)  # the store is an older backup
    site.build_queue.step()
    monkeypatch.setattr(site.store, "record_all", full)
    site.settle()
    assert (site.state(job_id), site.daemon.why(job_id)) == ("queued", "store.db: the disk is full")
    monkeypatch.undo()
    site.daemon.run_once(0)
    assert site.state(job_id) == "queued"
    site.wait(3)
    assert (site.state(job_id), site.daemon.why(job_id)) == ("running", "")
    assert site.row(job_id).job.attempts == 4


# --- whatever happens -------------------------------------------------------------------------------------

WISHES = st.builds(
    Wish,
    gpus=st.integers(0, 2),
    owner=st.sampled_from([ANN, BOB, EVE]),
    limit=st.sampled_from([None, HOUR, 5 * HOUR]),
    terms=st.builds(
        QueueTerms,
        team=st.sampled_from(["", "vision"]),
        priority_class=st.sampled_from(["idle", "normal", "urgent", "gone"]),
        after=st.sampled_from([(), (Dependency("1"),), (Dependency("2", DependencyCondition.ANY),)]),
        sweep=st.sampled_from([None, JobArray("s", 1)]),
    ),
)
ACTIONS = st.one_of(
    st.tuples(st.just("submit"), WISHES),
    st.tuples(st.just("submit"), WISHES),
    st.tuples(st.just("end"), st.sampled_from([0, 1, 75, 137])),
    st.tuples(st.just("cancel"), st.integers(1, 6)),
    st.tuples(st.just("hold"), st.integers(1, 6)),
    st.tuples(st.just("restart"), st.integers(1, 6)),
    st.tuples(st.just("forward"), st.sampled_from([1, 40, 900, 7200])),
    st.tuples(st.just("jump"), st.sampled_from([-5000, 5000])),
    st.tuples(st.just("sick"), st.sampled_from([(), ("GPU-a",), ("GPU-a", "GPU-b")])),
    st.tuples(st.just("lane"), st.integers(0, 3)),
    st.tuples(st.just("deaf"), st.none()),
    st.tuples(st.just("crash"), st.none()),
)
CROWD = st.builds(  # jobs that nothing but the order keeps waiting
    Wish,
    gpus=st.sampled_from([1, 1, 2]),
    owner=st.sampled_from([EVE, EVE, DAN]),
    terms=st.builds(QueueTerms, priority_class=st.sampled_from(["normal", "normal", "idle"])),
)
CROWDED = st.one_of(
    st.tuples(st.just("submit"), CROWD),
    st.tuples(st.just("submit"), CROWD),
    st.tuples(st.just("forward"), st.sampled_from([300, 700, 7200])),
    ACTIONS,
)
CAPS = Quotas({"ann": Quota(devices=1), "bob": Quota(jobs=1)}, {"vision": Quota(devices=1)})


def apply(host: Host, action: str, value: object) -> None:
    """Let one thing happen."""
    match action, value:
        case "submit", Wish() as wish:
            hand_in(host, wish)
        case "end", int(code) if host.context.running:
            host.context.end(min(host.context.running, key=str), code)
        case (("cancel" | "hold" | "restart"), int(number)) if row := host.store.get(str(number)):
            _ask(host, action, row)
        case "forward", int(seconds):
            host.clock.forward(seconds)
        case "jump", int(seconds):
            host.clock.jump(seconds)
        case "sick", tuple(uuids):
            host.inventory.bad = dict.fromkeys(uuids, "lost")
        case "deaf", _ if host.context.running:  # it does not save although it says so
            host.context.running[min(host.context.running, key=str)] = Program(on_signal={15: None})
        case "lane", int(choice):
            host.work_queue.step(choice)
        case "crash", _:
            host.boot()
        case _:
            pass  # nothing there to happen to
    host.daemon.run_once(0)


def _ask(host: Host, action: str, row: JobRow) -> None:
    now = host.clock.now()
    events: dict[str, Event] = {
        "cancel": CancelRequested(now, "ann"),
        "hold": HoldRequested(now, "ann"),
        "restart": RestartRequested(now, "ann", Start()),
    }
    entry = host.daemon.tracked_jobs.get(row.job.id)
    try:
        host.daemon.apply_event(entry.row if entry else row, events[action])
    except Refused:
        assert not isinstance(row.job.state, Running)


def assert_kept(host: Host) -> None:
    """Nothing is lent twice or leaked, no quota exceeded, and every wait is explained."""
    rows = [entry.row for entry in host.daemon.tracked_jobs.values()]
    lent = {row.job.id: row.job.state for row in rows if isinstance(row.job.state, Allocated)}
    held = [uuid for state in lent.values() for uuid in state.allocation.devices]
    assert len(held) == len(set(held))
    needs, terms = host.attempt_service.needs_of, host.attempt_service.terms_of
    assert all(len(state.allocation.devices) == needs[job_id].gpus for job_id, state in lent.items())
    assert sum(terms[job_id].sweep is not None for job_id in lent) <= 1  # all of one array, one at a time
    by_owner = {
        owner: [r for r in rows if r.owner.name == owner and r.job.id in lent] for owner in ("ann", "bob")
    }
    assert sum(len(lent[row.job.id].allocation.devices) for row in by_owner["ann"]) <= 1
    assert len(by_owner["bob"]) <= 1
    jobs = host.daemon.scheduler.jobs
    assert jobs.running.keys() == lent.keys()
    assert jobs.pending.keys() == {row.job.id for row in rows if isinstance(row.job.state, Queued)}
    for row in rows:
        assert not isinstance(row.job.state, Queued) or host.daemon.why(row.job.id), row
    known = SqliteAccounting(host.store).since(host.clock.now())
    open_ = {(each.job_id, each.attempt) for each in known if each.ended_at is None}
    assert open_ == {(job_id, state.attempt.number) for job_id, state in lent.items()}


BUDGET, LEVEL_S = 0.1, 600.0
ORDERS = {
    order: SchedulerConfig(
        order=order,
        quotas=CAPS,
        preemption=PreemptionConfig(min_runtime_s=0.0),
        switching=SwitchingConfig((LEVEL_S, 4 * LEVEL_S), BUDGET),
        half_life_s=1800.0,  # of usage: some have soon had their shares
    )
    for order in (SchedulingOrder.FAIR, SchedulingOrder.ATTAINED)
}


@dataclass
class Turns:
    """For how long each job has held devices, by the clock that nobody sets; it looks at every plan."""

    host: Host
    placed_s: dict[tuple[str, int], float] = field(default_factory=dict)  # by job and attempt
    left_s: dict[tuple[str, int], float] = field(default_factory=dict)

    def follow(self) -> None:
        """Note which attempts hold devices now."""
        now_s, rows = self.host.clock.monotonic(), self.host.daemon.tracked_jobs.values()
        states = {entry.row.job.id: entry.row.job.state for entry in rows}
        held = {(job, state.attempt.number) for job, state in states.items() if isinstance(state, Allocated)}
        for key in held:
            self.placed_s.setdefault(key, now_s)
        for key in self.placed_s.keys() - held:
            self.left_s.setdefault(key, now_s)

    def held_s(self, job_id: str) -> float:
        now_s = self.host.clock.monotonic()
        return sum(
            self.left_s.get(key, now_s) - begin for key, begin in self.placed_s.items() if key[0] == job_id
        )

    def plan(self, picture: Snapshot) -> Plan:
        """Make a plan, and check budget, quantum, shares and classes of the preempted jobs in it."""
        self.follow()
        decided = plan(picture)
        running, pending = (
            {job.job_id: job for job in picture.running},
            {job.job_id: job for job in picture.pending},
        )
        told = [each for each in decided.preemptions if " of class " not in each.why]
        assert len({each.job_id for each in decided.preemptions}) == len(decided.preemptions)
        assert not told or picture.config.order is SchedulingOrder.ATTAINED
        shares, spent_device_s = FairShare.of(picture), 0.0
        for each in told:
            victim, job = running[each.job_id], pending[each.for_job]
            cost_s = switch_cost_s(victim, picture.now_s)
            spent_device_s += cost_s * billed_devices(victim.request, picture.config)
            assert victim.saves_when_asked
            assert cost_s >= RESTART_S
            row = self.host.daemon.tracked_jobs[each.job_id].row
            assert isinstance(row.job.state, Running | Starting)  # the engine may be away for a quantum
            age_s = self.host.clock.monotonic() - self.placed_s[each.job_id, row.job.state.attempt.number]
            assert age_s * BUDGET >= cost_s - 1e-3
            assert (row.job.preempted + 1) * RESTART_S <= BUDGET * self.held_s(each.job_id) + 1e-3
            ranks = [picture.config.priority_class(of.priority_class).rank for of in (victim, job)]
            assert ranks[0] <= ranks[1]
            standing = EligibleJobs(picture, shares, lambda _: True).standing(job)
            assert victim.owner == job.owner or not shares.has_had_share(job.owner, job.group, standing)
        assert spent_device_s <= max(picture.switching_left_device_s, 0.0)
        return decided


@pytest.mark.parametrize("order", ORDERS)
@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.too_slow])
@given(actions=st.lists(ACTIONS, max_size=40) | st.lists(CROWDED, min_size=6, max_size=40))
def test_whatever_happens_no_device_is_lent_twice_and_every_wait_is_explained(
    order: SchedulingOrder, actions: list[tuple[str, object]]
) -> None:
    with _host(SiteConfig(ORDERS[order])) as host, pytest.MonkeyPatch.context() as patch:
        turns = Turns(host)
        patch.setattr("runner.control.scheduler.plan", turns.plan)
        for action, value in actions:
            apply(host, action, value)
            turns.follow()
            assert_kept(host)
        host.inventory.bad = {}
        for _ in range(6):
            host.wait(30)
            turns.follow()
            assert_kept(host)
        alive = {key.job_id for key in host.context.running}
        assert alive == {
            entry.row.job.id
            for entry in host.daemon.tracked_jobs.values()
            if isinstance(entry.row.job.state, Running | Stopping)
        }
        assert not any(
            isinstance(e.row.job.state, Finished | Held) and e.why for e in host.daemon.tracked_jobs.values()
        )
        _assert_nobody_starves(host, turns)


def _assert_nobody_starves(host: Host, turns: Turns) -> None:
    """Let attempts end, and see that every job gets its turn that can and waits for no other."""
    for _ in range(2 * len(host.daemon.tracked_jobs)):
        for key in sorted(host.context.running, key=str):
            host.context.end(key, 0)
        host.settle()
        turns.follow()
        host.wait(900)
        turns.follow()
        assert_kept(host)
    waiting = [
        (entry.row.job.id, why)
        for entry in host.daemon.tracked_jobs.values()
        if isinstance(entry.row.job.state, Queued)
        and not host.attempt_service.terms(entry.row).after
        and not (why := host.daemon.why(entry.row.job.id)).startswith((NEVER_STARTS, "backoff"))
    ]
    assert waiting == []


def test_a_reason_that_no_longer_holds_is_not_said(site: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    record_all = site.store.record_all
    first = hand_in(site, Wish(gpus=2, limit=HOUR))
    second = hand_in(site, Wish(gpus=2, limit=HOUR))

    def full(changes: Sequence[RecordedTransition]) -> None:
        if any(change.event.kind == "placed" for change in changes):
            raise Unavailable("store.db: the disk is full")
        record_all(changes)

    monkeypatch.setattr(site.store, "record_all", full)
    site.context.end(site.key(first), 0)
    site.settle()
    assert site.daemon.why(second) == "store.db: the disk is full"
    monkeypatch.undo()
    urgent = hand_in(site, Wish(gpus=2, owner=BOB, limit=HOUR, terms=URGENT))
    assert (site.state(urgent), site.state(second)) == ("running", "queued")
    assert site.daemon.why(second).startswith("waits for 2 NVIDIA GPUs: 0 free, 2 allocated")


def test_jobs_whose_image_is_still_made_count_when_others_are_admitted(site: Host) -> None:
    job_id = site.submit()
    assert [job.job_id for job in site.daemon.snapshot().pending] == [job_id]
    assert site.daemon.scheduler.snapshot(site.daemon.context.moment()).pending == ()
    site.settle()
    assert site.daemon.snapshot().pending == ()


def test_jobs_that_belong_together_are_taken_all_or_none(site: Host) -> None:
    now = site.clock.now()
    rows = [
        JobRow(Job(job_id, Preparing(now)), f"j{job_id}", ANN, now, 50, RevisionText.of("{}"))
        for job_id in ("1", "2", "1")
    ]
    with pytest.raises(Refused):
        site.daemon.submit(rows, ["a", "b", "c"])
    assert (site.store.unfinished(), site.daemon.tracked_jobs) == ((), {})
    site.daemon.submit(rows[:2], ["a", "b"], "token")
    site.settle()
    assert [site.state(job_id) for job_id in "12"] == ["running", "running"]
    known = site.store.submitted_as("token")
    assert known is not None
    assert known.job.id == "1"


def test_what_time_brings_about_elsewhere_comes_before_the_queue_is_asked(site: Host) -> None:
    seen: list[tuple[datetime, str]] = []
    job_id = site.submit()
    site.daemon.run_once(0)
    site.build_queue.step()
    site.daemon.iteration_hooks.append(lambda now: seen.append((now.at, site.state(job_id))))
    site.daemon.wake()
    site.daemon.run_once(0)
    assert seen == [(site.clock.now(), "queued")]
    assert site.state(job_id) == "starting"


def test_reasons_of_a_newer_plan_are_not_worked_out_while_those_of_another_are() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def reason(_: str) -> None:
        begun.set()
        assert go_on.wait(patience())

    made = cast("Plan", SimpleNamespace(pending_reasons=SimpleNamespace(get=reason)))
    explanation = Explanation(made)
    reader = threading.Thread(target=explanation.reason, args=("1",))
    reader.start()
    assert begun.wait(patience())
    assert not explanation.is_outdated()
    go_on.set()
    reader.join()
    assert explanation.is_outdated()  # it took next to no processor time, so the next plan may follow
