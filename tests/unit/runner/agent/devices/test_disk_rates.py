"""Rates of running attempts, from two readings of the kernel's counters."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pytest

from runner.agent.devices.disk_rates import DiskRateSampler
from runner.base.errors import Unavailable
from runner.core.ports.disk import DiskCounters, DiskRates
from runner.core.ports.executor import Alive, Created, Key, Observation

ONE, TWO = Key("i", "1", 1), Key("i", "2", 1)


@dataclass
class Kernel:
    """Counters that a test sets, and attempts that an engine knows."""

    counted: dict[Key, DiskCounters] = field(default_factory=dict)
    seen: tuple[Observation, ...] = (Alive(ONE, pid=7), Alive(TWO, pid=8), Created(Key("i", "3", 1)))
    observed: int = 0
    answers: bool = True

    def counters(self, attempts: Iterable[Alive]) -> Mapping[Key, DiskCounters]:
        return {each.key: self.counted[each.key] for each in attempts if each.key in self.counted}

    def observe(self) -> tuple[Observation, ...]:
        self.observed += 1
        if not self.answers:
            raise Unavailable("the engine does not answer")
        return self.seen


@pytest.fixture
def kernel() -> Kernel:
    return Kernel({ONE: DiskCounters(1000, 0), TWO: DiskCounters(0, 50)})


@pytest.fixture
def sampler(kernel: Kernel) -> DiskRateSampler:
    return DiskRateSampler(kernel, kernel.observe)


def test_one_reading_is_no_rate(sampler: DiskRateSampler) -> None:
    sampler.sample({ONE}, 10.0)
    assert sampler.current == {}
    assert sampler.facts(ONE) == {}


def test_a_rate_is_the_difference_of_two_readings(sampler: DiskRateSampler, kernel: Kernel) -> None:
    sampler.sample({ONE, TWO}, 10.0)
    kernel.counted = {ONE: DiskCounters(6000, 500), TWO: DiskCounters(0, 50)}
    sampler.sample({ONE, TWO}, 15.0)
    assert sampler.current == {
        ONE: DiskRates(1000.0, 100.0, DiskCounters(6000, 500)),
        TWO: DiskRates(0.0, 0.0, DiskCounters(0, 50)),
    }
    assert sampler.facts(ONE) == {"disk.read_rate": 1000.0, "disk.write_rate": 100.0}
    assert kernel.observed == 1


def test_a_rate_is_averaged_over_some_seconds_only(sampler: DiskRateSampler, kernel: Kernel) -> None:
    for second in range(0, 61, 5):
        kernel.counted[ONE] = DiskCounters(max(0, second - 30) * 10, 0)
        sampler.sample({ONE}, float(second))
        if second == 30:
            assert sampler.current[ONE].read_per_s == 0
    assert sampler.current[ONE].read_per_s == 10


def test_who_no_longer_runs_is_forgotten(sampler: DiskRateSampler) -> None:
    for now in (1.0, 2.0):
        sampler.sample({ONE, TWO}, now)
    sampler.sample({TWO}, 3.0)
    assert set(sampler.current) == {TWO}
    assert set(sampler._alive) == {TWO}


def test_who_is_not_seen_yet_is_looked_for_again(sampler: DiskRateSampler, kernel: Kernel) -> None:
    kernel.seen = ()
    sampler.sample({ONE}, 1.0)
    kernel.seen = (Alive(ONE, pid=7),)
    for now in (2.0, 3.0, 4.0):
        sampler.sample({ONE}, now)
    assert kernel.observed == 2
    assert ONE in sampler.current


def test_an_engine_that_does_not_answer_is_asked_again(sampler: DiskRateSampler, kernel: Kernel) -> None:
    kernel.answers = False
    sampler.sample({ONE}, 1.0)
    assert sampler.current == {}
    kernel.answers = True
    for now in (2.0, 3.0):
        sampler.sample({ONE}, now)
    assert ONE in sampler.current


def test_attempts_on_other_hosts_are_left_out(sampler: DiskRateSampler, kernel: Kernel) -> None:
    kernel.seen = (Alive(ONE, pid=7, host="node7"),)
    for now in (1.0, 2.0):
        sampler.sample({ONE}, now)
    assert sampler.current == {}


def test_counters_that_go_back_are_no_negative_rate(sampler: DiskRateSampler, kernel: Kernel) -> None:
    """A process that was not reaped takes its bytes with it."""
    sampler.sample({ONE}, 1.0)
    kernel.counted[ONE] = DiskCounters(10, 0)
    sampler.sample({ONE}, 2.0)
    assert sampler.current[ONE].read_per_s == 0


def test_two_readings_at_once_are_no_rate(sampler: DiskRateSampler) -> None:
    sampler.sample({ONE}, 1.0)
    sampler.sample({ONE}, 1.0)
    assert sampler.current == {}
