"""The limits of the service levels, learned from the jobs that this machine has finished.

They hold where the settings name none.  They are looked up at the start, when the settings are read again,
and now and then while the queue is planned: they follow the jobs of months, not of a day.
"""

from dataclasses import dataclass, replace
from math import inf

import structlog

from runner.control.context import SiteConfig
from runner.core.ports.store import UsageHistory
from runner.core.scheduler.attained import LATEST_JOBS, LEARNS_EVERY_S, learned_levels
from runner.core.scheduler.config import SchedulerConfig, SchedulingOrder

log = structlog.get_logger()


@dataclass(slots=True)
class ServiceLevels:
    """Puts the learned limits in force; to be used in the exclusive section."""

    site: SiteConfig
    past: UsageHistory
    _rules: SchedulerConfig | None = None  # that were made with them
    _next_s: float = -inf  # by the monotonic clock

    def refresh(self, now_s: float) -> None:
        """Look the limits up if that is due: it is time, or the settings were read again."""
        rules = self.site.rules
        is_wanted = self.site.learns_levels and rules.order is SchedulingOrder.ATTAINED
        if not is_wanted or (rules is self._rules and now_s < self._next_s):
            return
        found = learned_levels(self.past.held_device_s(LATEST_JOBS, rules.cpu_weight))
        if found is not None and found != rules.switching.levels_device_s:
            log.info("queue.levels_learned", hours=[round(each / 3600, 2) for each in found])
            self.site.rules = replace(rules, switching=replace(rules.switching, levels_device_s=found))
        self._rules, self._next_s = self.site.rules, now_s + LEARNS_EVERY_S
