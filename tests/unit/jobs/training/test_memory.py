"""Memory is said when the profile wants it, and given back only where there is a cache."""

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from jobs.contract import Profile, RunPaths
from jobs.training.memory import MIB, MemoryLog, keep_freed_memory, memory
from jobs.training.report import Reporter
from tests.unit.jobs.conftest import JobDir

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


class Card:
    """Fake of torch.cuda with a card of 100 MiB."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, peak: int) -> None:
        self.emptied = self.reset = 0
        self.total_memory = 100 * MIB
        fakes: dict[str, Any] = {
            "memory_allocated": lambda _: 10 * MIB,
            "memory_reserved": lambda _: 20 * MIB,
            "max_memory_reserved": lambda _: peak * MIB,
            "get_device_properties": lambda _: self,
            "empty_cache": self._empty,
            "reset_peak_memory_stats": self._reset,
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(torch.cuda, name, fake)

    def _empty(self) -> None:
        self.emptied += 1

    def _reset(self, _: torch.device) -> None:
        self.reset += 1


def lines(job: JobDir) -> list[dict[str, Any]]:
    return [line for line in job.metrics() if "memory_peak" in line]


def log(job: JobDir, device: torch.device, steps: int, **profile: object) -> None:
    """Let a log of 4 steps an epoch see so many steps."""
    paths: RunPaths = job.attempt()
    reporter = Reporter(paths)
    paths.metrics.touch()
    watched = MemoryLog(Profile.model_validate(profile), device, 4)
    for step in range(1, steps + 1):
        watched.stepped(step, reporter)


@pytest.mark.parametrize(
    ("profile", "steps"),
    [
        ({"memory_log": "off", "memory_log_every": 1}, []),
        ({"memory_log": "interval", "memory_log_every": 3}, [3, 6, 9]),
        ({"memory_log": "epoch", "memory_log_every": 1}, [4, 8]),
    ],
)
def test_memory_is_logged_at_an_interval_per_epoch_or_never(
    job: JobDir, profile: dict[str, object], steps: list[int]
) -> None:
    log(job, CPU, 9, **profile)
    assert [line["step"] for line in lines(job)] == steps


def test_a_cpu_tells_what_is_resident(job: JobDir, capfd: pytest.CaptureFixture[str]) -> None:
    log(job, CPU, 1, memory_log="interval", memory_log_every=1)
    (line,) = lines(job)
    assert line["memory_allocated"] == line["memory_reserved"] == line["memory_peak"] > 50 * MIB
    assert "step 1  memory allocated" in capfd.readouterr().out


def test_a_device_tells_what_is_allocated_reserved_and_was_the_most(
    job: JobDir, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    Card(monkeypatch, 30)
    log(job, GPU, 4, memory_log="epoch")
    (line,) = lines(job)
    told = {name: line[name] // MIB for name in line if name.startswith("memory_")}
    assert told == {"memory_allocated": 10, "memory_reserved": 20, "memory_peak": 30}
    assert "step 4  memory allocated" in capfd.readouterr().out


def test_a_training_logs_its_memory(job: JobDir) -> None:
    job.train(profile={"memory_log": "interval", "memory_log_every": 4})
    assert [line["step"] for line in lines(job)] == [4, 8]


def test_a_cleanup_does_nothing_on_a_cpu(job: JobDir, monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card(monkeypatch, 30)
    log(job, CPU, 6, memory_cleanup_every=2)
    assert card.emptied == 0


def test_cached_memory_of_a_device_is_given_back_at_its_interval(
    job: JobDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = Card(monkeypatch, 30)
    log(job, GPU, 6, memory_cleanup_every=2)
    assert (card.emptied, lines(job)) == (3, [])


def test_the_peak_of_a_device_is_forgotten_after_every_epoch(
    job: JobDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = Card(monkeypatch, 30)
    log(job, GPU, 8, memory_log="interval", memory_log_every=2)
    assert card.reset == 2
    assert memory(GPU).total == 100 * MIB


@pytest.mark.parametrize(("peak", "warnings"), [(90, 0), (91, 1)])
def test_a_device_that_is_nearly_full_is_warned_of_once(
    job: JobDir,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    peak: int,
    warnings: int,
) -> None:
    Card(monkeypatch, peak)
    log(job, GPU, 3, memory_log="interval", memory_log_every=1)
    assert capfd.readouterr().err.count("of the device's memory was in use") == warnings


def test_who_has_decided_for_himself_is_not_overruled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "0")
    assert not keep_freed_memory()


def test_another_c_library_has_no_such_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace())
    assert not keep_freed_memory()
