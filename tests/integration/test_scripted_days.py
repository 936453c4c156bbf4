"""Days with ten users on stand-in hosts, through the real daemon with real processes, in accelerated time.

After every event: no device is lent twice and none leaks, quotas hold, every wait is explained, nothing
starts that would run on in a maintenance, and nobody who has waited past the bound of the class is
passed over.  Each kind of host shows a device in each of its states: what brings one about lasts until
the daemon has been seen to see it.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from runner.core.ports.devices import Device
from runner.core.scheduler.backfill import StartJob, plan
from runner.core.scheduler.config import Quota, Quotas, SchedulerConfig
from runner.core.scheduler.snapshot import DeviceState, Maintenance, Snapshot
from tests.fakes.days import invariants as day_rules
from tests.fakes.days.invariants import Holding
from tests.fakes.days.machine import Machine, counted
from tests.fakes.days.script import KINDS, Kind, seen
from tests.fakes.host.directories import HOUR_S, NOW_S, gpus, host, running, waiting

SEED = int(os.environ.get("RUNNER_DAY_SEED", "1"))

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")

MISTAKES = ("thread.failed", "work.failed", "Traceback")
"""Words in the log of a daemon that has made a mistake."""


@pytest.fixture
def place() -> Iterator[Path]:
    root = Path(tempfile.mkdtemp(prefix="runner-day-"))
    root.chmod(0o755)  # others run in it
    yield root
    shutil.rmtree(root)


LONG_FORM = os.environ.get("RUNNER_DAYS") == "all"
"""For ``make soak``: the cards of that day are in the mixed one, too."""


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if LONG_FORM or kind.name != "h100"], ids=lambda kind: kind.name
)
def test_a_day_with_ten_users_breaks_no_rule(place: Path, kind: Kind) -> None:
    machine = Machine(place, kind, SEED)
    machine.live()
    log, counts = (place / "daemon.log").read_text(), counted(place)
    print(f"seed {SEED}, {kind.name}: {machine.hours():.1f} h, {json.dumps(counts, sort_keys=True)}")  # noqa: T201
    broken = place / "broken"
    assert not machine.broken, machine.broken[:9]
    assert not broken.exists(), broken.read_text()[:4000]
    assert not [line for line in log.splitlines() if any(word in line for word in MISTAKES)], log[-4000:]
    assert (place / "over").exists(), log[-4000:]
    assert machine.killed == 2
    assert machine.most >= 4, "the day was too quiet to tell anything"
    assert counts["starts"] >= 20
    assert counts["overdue"] > 0, "nobody was overdue: nothing was shown about that"
    assert counts["closed"] > 0, "maintenance kept nobody from starting: nothing was shown about that"
    assert {state for state in DeviceState if seen(state) in counts} == set(DeviceState)


def test_the_rules_of_the_days_can_be_broken() -> None:
    """Each of them fails on a plan, or a holding, that breaks it."""
    whole = Device("GPU-a", "nvidia", "H100")
    first, second = (Holding(job_id, "ada", "lab", ("GPU-a",)) for job_id in "12")
    with pytest.raises(AssertionError, match="lent to jobs"):
        day_rules.lent_once([first, second], [whole])
    parts = [replace(each, device_bytes=9) for each in (first, second)]
    with pytest.raises(AssertionError, match="bytes lent"):
        day_rules.lent_once(parts, [replace(whole, kind="shared", memory_bytes=10)])
    with pytest.raises(AssertionError, match="group lab: 2 devices of 1"):
        day_rules.within_quotas([first, second], Quotas(groups={"lab": Quota(devices=1)}))
    with pytest.raises(AssertionError, match="sweep s: 2 jobs"):
        day_rules.within_quotas([replace(each, sweep=("s", 1)) for each in (first, second)], Quotas())


def test_the_rule_about_overdue_jobs_can_be_broken() -> None:
    late = waiting("late", gpus(2, linked=True), age_s=1e6)
    early = waiting("early", gpus(1), owner="eve", hours=9)
    site = Snapshot(NOW_S, (host(2),), (late, early), (running("r", ["h-0"], hours=1),))
    good = plan(site)
    assert not good.starts
    greedy = replace(good, starts=(StartJob("early", "h", ("h-1",)),))
    with pytest.raises(AssertionError, match="overdue job late: 28800"):
        day_rules.nobody_is_passed_over(site, greedy)
    with pytest.raises(AssertionError, match="gets h-0 too"):
        day_rules.only_what_is_free_is_lent(site, replace(good, starts=(StartJob("early", "h", ("h-0",)),)))
    idle = replace(site, running=())
    with pytest.raises(AssertionError, match="could start"):
        day_rules.nobody_is_passed_over(idle, greedy)


def test_the_rule_about_maintenance_can_be_broken() -> None:
    """By what runs on in it, by what begins in it and by what nobody knows the length of; not beside it."""
    jobs = waiting("long", gpus(1), hours=2.5), waiting("endless", gpus(1), hours=None)
    fan = Maintenance(NOW_S + 2 * HOUR_S, NOW_S + 3 * HOUR_S, "new fan", devices=frozenset({"h-1"}))
    site = Snapshot(
        NOW_S, (host(2),), jobs, maintenance=(fan,), config=SchedulerConfig(default_duration_s=2.5 * HOUR_S)
    )
    nothing = replace(plan(site), starts=())
    for job in jobs:
        one = replace(nothing, starts=(StartJob(job.job_id, "h", ("h-1",)),))
        beside = replace(nothing, starts=(StartJob(job.job_id, "h", ("h-0",)),))
        with pytest.raises(AssertionError, match=f"job {job.job_id} starts 7200 s before new fan"):
            day_rules.maintenance_is_kept(site, one)
        assert day_rules.maintenance_is_kept(site, beside) == 0
        for whole in (frozenset({"h"}), frozenset[str]()):
            everything = replace(site, maintenance=(replace(fan, hosts=whole, devices=frozenset()),))
            with pytest.raises(AssertionError, match=f"job {job.job_id} starts 7200 s before"):
                day_rules.maintenance_is_kept(everything, beside)
        for moment, kept in ((fan.begins_s - HOUR_S, 0), (fan.begins_s, 1)):
            later = replace(site, now_s=moment)
            with pytest.raises(AssertionError, match=f"job {job.job_id} starts"):
                day_rules.maintenance_is_kept(later, one)
            assert day_rules.maintenance_is_kept(later, beside) == kept
        over = replace(site, now_s=fan.ends_s)
        assert day_rules.maintenance_is_kept(over, one) == 0
