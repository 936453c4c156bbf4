"""A clock that goes where it is pushed."""

from datetime import UTC, datetime, timedelta


class FakeClock:
    """Satisfies ``runner.core.ports.clock.Clock``."""

    def __init__(self) -> None:
        self._now = datetime(2030, 1, 1, tzinfo=UTC)
        self._monotonic = 0.0

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    def forward(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)
        self._monotonic += seconds

    def jump(self, seconds: float) -> None:
        """Change the time of day alone, as an operator or a time server does."""
        self._now += timedelta(seconds=seconds)
