import math
import random
from dataclasses import replace

import pytest

from runner.base.errors import UsageError
from runner.core.scheduler.config import SchedulingOrder
from runner.core.scheduler.simulator import Arrival, Site
from runner.core.scheduler.simulator_report import WorseOff
from runner.core.scheduler.snapshot import ResourceRequest
from runner.services.simulation.run import (
    DAY_S,
    ORACLE,
    VARIANTS,
    SchedulerVariant,
    SyntheticTrace,
    as_json,
    compare,
    parse_hosts,
    refuse_unplayable,
    synthetic,
)

SMALL = SyntheticTrace(jobs=300, devices=16, days=3.0)
SITE = Site(parse_hosts("2x8"), min_interval_s=60.0)


@pytest.mark.parametrize("written", ["2x8", "2 X 8", "2\N{MULTIPLICATION SIGN}8", "2*8"])
def test_hosts_have_a_short_form(written: str) -> None:
    found = parse_hosts(written)
    assert [len(host.devices) for host in found] == [8, 8]
    assert len({device.uuid for host in found for device in host.devices}) == 16


@pytest.mark.parametrize("written", ["", "8", "0x8", "2x0", "two", "9999x9999", "-1x2"])
def test_what_describes_no_hosts_is_refused(written: str) -> None:
    with pytest.raises(UsageError, match="is not a number of hosts and devices; write 4x8"):
        parse_hosts(written)


def test_the_same_seed_makes_the_same_trace() -> None:
    assert synthetic(5, SMALL) == synthetic(5, SMALL) != synthetic(6, SMALL)


def test_a_made_up_trace_is_as_it_was_asked_for() -> None:
    recipe = SyntheticTrace(jobs=3000)
    made = synthetic(1, recipe)
    assert len(made) == 3000
    assert len({job.owner for job in made}) == 20
    work_s = sum(job.request.gpus * job.duration_s for job in made)
    assert work_s / (recipe.devices * 14 * DAY_S) == pytest.approx(0.85, rel=0.01)
    assert 13 * DAY_S < made[-1].submitted_s < 14.2 * DAY_S
    assert all(job.time_limit_s is not None and job.time_limit_s >= job.duration_s for job in made)
    assert {job.request.gpus for job in made} == {1, 2, 4, 8}
    assert {job.request.gpus for job in synthetic(1, replace(recipe, largest=2))} == {1, 2}


def test_orders_are_compared_on_the_same_jobs() -> None:
    trace = synthetic(1, SMALL)
    found = {each.variant: each.report for each in compare(VARIANTS, trace, SITE)}
    assert {report.jobs for report in found.values()} == {300}
    fair, fifo = found[SchedulerVariant(SchedulingOrder.FAIR)], found[SchedulerVariant(SchedulingOrder.FIFO)]
    assert fair.mean_wait_s < fifo.mean_wait_s
    strict = found[SchedulerVariant(SchedulingOrder.FIFO, backfill=False)]
    assert fifo.mean_wait_s < strict.mean_wait_s


def test_a_report_can_be_read_by_machines() -> None:
    (played,) = compare([SchedulerVariant(SchedulingOrder.SJF)], synthetic(1, replace(SMALL, jobs=20)), SITE)
    found = as_json(played.variant, played.report)
    assert (len(played.jobs), found["worse_than_fifo"]) == (20, None)
    assert found["slowdown_by_gpus"].keys() == {each.arrival.request.gpus for each in played.jobs}
    assert (found["order"], found["backfill"], found["jobs"]) == ("sjf", True, 20)
    assert found["users"]["user00"]["jobs"] >= 1


def test_jobs_that_no_host_could_hold_are_refused_before_anything_is_played() -> None:
    trace = synthetic(1, replace(SMALL, jobs=20))
    big = [replace(trace[0], job_id=str(i), request=replace(trace[0].request, gpus=9)) for i in range(2)]
    with pytest.raises(
        UsageError, match=r"job 0: asks for 9 GPUs, .* \(and 1 more jobs\); simulate larger hosts"
    ):
        next(compare(VARIANTS, [*trace, *big], SITE))
    with pytest.raises(UsageError, match="which no host has; simulate"):
        refuse_unplayable([*trace, big[0]], SITE)


def test_fairness_and_waiting_are_better_than_first_come_first_served_over_two_weeks() -> None:
    """At equal utilisation; jobs of one class, so that classes do not blur what fair share does."""
    site = Site(parse_hosts("2x8"), min_interval_s=120.0)
    made = synthetic(2, SyntheticTrace(jobs=700, devices=16, load=0.9))
    trace = [replace(job, priority_class="normal") for job in made]
    orders = (SchedulerVariant(SchedulingOrder.FAIR), SchedulerVariant(SchedulingOrder.FIFO))
    fair, fifo = (each.report for each in compare(orders, trace, site))
    assert fair.utilisation == pytest.approx(fifo.utilisation, rel=0.01)
    assert fair.mean_wait_s < fifo.mean_wait_s
    assert fair.fairness > fifo.fairness


def test_with_attained_service_short_jobs_do_not_wait_for_long_ones() -> None:
    """Jobs of unknown duration on a busy machine; the oracle shows how much there is to gain."""
    dice = random.Random(1)  # noqa: S311 - no secret
    lasts_s = [min(math.exp(dice.gauss(math.log(600), 2.0)), 4 * DAY_S) for _ in range(300)]
    span_s = sum(lasts_s) / (4 * 0.8)
    trace = [
        Arrival(
            str(number),
            "ada",
            ResourceRequest(1.0, 0, 1),
            dice.uniform(0, span_s),
            each,
            save_s=10.0,
            restart_s=20.0,
        )
        for number, each in enumerate(lasts_s)
    ]
    orders = (SchedulingOrder.FIFO, SchedulingOrder.ATTAINED, SchedulingOrder.SRPT)
    site = Site(parse_hosts("1x4"), min_interval_s=10.0)
    found = {each.variant.name: each for each in compare(map(SchedulerVariant, orders), trace, site)}
    reports = {name: each.report for name, each in found.items()}
    fifo, attained, oracle = (reports[name] for name in ("fifo", "attained", ORACLE))
    assert attained.mean_slowdown < fifo.mean_slowdown / 20
    assert attained.mean_slowdown < 1.5 * oracle.mean_slowdown
    assert 0.0 < attained.switching < 0.03
    assert attained.largest_completion_s < 1.3 * fifo.largest_completion_s
    assert fifo.switching == 0.0
    assert fifo.worse_than_fifo == WorseOff(0, 0.0, 0.0)
    ends_s = {each.arrival.job_id: each.ended_s for each in found["fifo"].jobs}
    later_s = [each.ended_s - ends_s[each.arrival.job_id] for each in found["attained"].jobs]
    worse = [each for each in later_s if each > 0]
    assert attained.worse_than_fifo is not None
    assert (attained.worse_than_fifo.jobs, attained.worse_than_fifo.most_s) == (len(worse), max(worse))
    assert 0 < attained.worse_than_fifo.mean_s < max(worse)
