"""Time accounting: seconds by phase, and the throughput of the last steps."""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from jobs.contract import Phase

WINDOW = 32
"""Number of recent steps over which the throughput is averaged."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """The duration of one step, or of several steps if the CPU waited only for the last one."""

    items: int
    seconds: float
    parts: Mapping[str, float] = field(default_factory=dict)  # seconds; empty if not measured
    steps: int = 1  # number of steps that the figures cover

    @property
    def waited(self) -> float:
        """The seconds spent waiting for the batch."""
        return self.parts.get("data", 0.0)


class Throughput:
    """Items per second over the last steps, without the pauses between steps (evaluation, saves)."""

    def __init__(self) -> None:
        self.items = 0  # since the attempt began
        self._steps: deque[StepTime] = deque(maxlen=WINDOW)

    def add(self, step: StepTime) -> None:
        self.items += step.items
        self._steps.append(step)

    @property
    def items_per_s(self) -> float | None:
        """Return the recent rate; None before the first step."""
        seconds = self._seconds()
        return sum(step.items for step in self._steps) / seconds if seconds else None

    @property
    def data_wait(self) -> float | None:
        """Return the share of step time spent waiting for batches."""
        seconds = self._seconds()
        return min(1.0, sum(step.waited for step in self._steps) / seconds) if seconds else None

    @property
    def parts(self) -> dict[str, float]:
        """Return the share of step time that each part takes."""
        seconds = self._seconds()
        names = {name for step in self._steps for name in step.parts}
        spent = {name: sum(step.parts.get(name, 0.0) for step in self._steps) for name in sorted(names)}
        return {name: round(min(1.0, took / seconds), 4) for name, took in spent.items()} if seconds else {}

    def seconds_for(self, steps: int) -> float | None:
        """Return the estimated seconds for a number of steps at the current rate."""
        return self._seconds() / sum(each.steps for each in self._steps) * steps if self._steps else None

    def _seconds(self) -> float:
        return sum(step.seconds for step in self._steps)


class Phases:
    """The current phase and the seconds spent in each; of nested phases only the innermost is timed."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.current = Phase.INIT
        self.failed: Phase | None = None  # the innermost phase that the latest error left
        self._clock = clock
        self._since = clock()
        self._seconds: dict[Phase, float] = defaultdict(float)

    @contextmanager
    def within(self, phase: Phase) -> Iterator[None]:
        """Enter a phase for the duration of the context, then return to the previous one."""
        before, self.failed, completed = self.current, None, False
        self._enter(phase)
        try:
            yield
            completed = True
        finally:
            if not completed:
                self._left_by_an_error(phase)
            self._enter(before)

    def _left_by_an_error(self, phase: Phase) -> None:
        """Record the innermost phase that an error has left; the error also passes the outer ones."""
        self.failed = self.failed or phase

    def seconds(self) -> dict[str, float]:
        """Return the seconds by phase; the current phase is counted up to now."""
        self._enter(self.current)
        return {phase.value: round(spent, 3) for phase, spent in self._seconds.items()}

    def _enter(self, phase: Phase) -> None:
        now = self._clock()
        self._seconds[self.current] += now - self._since
        self.current, self._since = phase, now
