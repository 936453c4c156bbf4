"""Limits of the service levels: learned, or from the settings."""

from dataclasses import dataclass, field

from runner.control.context import SiteConfig
from runner.control.service_levels import ServiceLevels
from runner.core.scheduler.attained import LEARNS_EVERY_S
from runner.core.scheduler.config import SchedulerConfig, SchedulingOrder, SwitchingConfig
from tests.fakes.daemon.history import NoHistory

RULES = SchedulerConfig(order=SchedulingOrder.ATTAINED)


@dataclass
class Past(NoHistory):
    """The usage history that a test makes up."""

    held: list[float] = field(default_factory=list)
    asked: int = 0

    def held_device_s(self, jobs: int, cpu_weight: float) -> tuple[float, ...]:
        del cpu_weight
        self.asked += 1
        return tuple(self.held[:jobs])


LEARNED = (7200.0, 6 * 7200.0, 48 * 7200.0)
"""The limits where all jobs held 7200 device-seconds."""


def test_the_history_decides_once_there_is_enough_and_is_looked_up_now_and_then() -> None:
    past, site = Past([60.0] * 50), SiteConfig(RULES, learns_levels=True)
    levels = ServiceLevels(site, past)
    levels.refresh(0.0)
    assert site.rules is RULES
    past.held = [7200.0] * 200
    levels.refresh(LEARNS_EVERY_S / 2)
    assert (past.asked, site.rules) == (1, RULES)
    levels.refresh(LEARNS_EVERY_S)
    assert site.rules.switching == SwitchingConfig(LEARNED)
    learned = site.rules
    levels.refresh(2 * LEARNS_EVERY_S)
    assert site.rules is learned


def test_after_the_settings_were_read_again_the_history_is_looked_up_at_once() -> None:
    past, site = Past([7200.0] * 200), SiteConfig(RULES, learns_levels=True)
    levels = ServiceLevels(site, past)
    levels.refresh(0.0)
    site.rules = SchedulerConfig(order=SchedulingOrder.ATTAINED, backfill=False)
    levels.refresh(1.0)
    assert (site.rules.backfill, site.rules.switching.levels_device_s) == (False, LEARNED)


def test_limits_of_the_settings_and_other_orders_leave_the_history_alone() -> None:
    past = Past([7200.0] * 200)
    for site in (SiteConfig(RULES), SiteConfig(SchedulerConfig(), learns_levels=True)):
        before = site.rules
        ServiceLevels(site, past).refresh(0.0)
        assert (site.rules, past.asked) == (before, 0)
