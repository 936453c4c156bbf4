"""The usage history of a machine without past jobs; a test overrides what it needs."""

from collections.abc import Iterable, Mapping
from datetime import datetime

from runner.core.ports.store import SimilarBy, SwitchRecord, UsageHour, UsageRecord


class NoHistory:
    """Satisfies ``runner.core.ports.store.UsageHistory``."""

    def since(self, at: datetime) -> Iterable[UsageRecord]:
        del at
        return ()

    def hours_since(self, at: datetime) -> Iterable[UsageHour]:
        del at
        return ()

    def unsummed(self) -> Iterable[UsageRecord]:
        return ()

    def lasted_s(self, owner: str, alike: SimilarBy, which: str) -> tuple[float, ...]:
        del owner, alike, which
        return ()

    def switches_since(self, at: datetime) -> tuple[SwitchRecord, ...]:
        del at
        return ()

    def starts_s(self) -> Mapping[str, tuple[int, float]]:
        return {}

    def add_start(self, job_id: str, attempt: int, start_s: float) -> None:
        """Keep nothing."""

    def held_device_s(self, jobs: int, cpu_weight: float) -> tuple[float, ...]:
        del jobs, cpu_weight
        return ()
