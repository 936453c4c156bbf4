"""The day that every queue plays."""

from pathlib import Path

import pytest

from bench.support import arrivals
from bench.support.arrivals import LONG, MEDIUM, SHORT, SPAN_S, STEPS, End, day, play, slowdowns
from runner.files.job.load import parse_job


def test_a_day_begins_with_a_long_training_for_each_device_and_is_always_the_same() -> None:
    made = day(40, 4)
    assert made == day(40, 4)
    assert [each.kind for each in made[:4]] == [LONG] * 4
    kinds = [each.kind for each in made[4:]]
    assert set(kinds) == {SHORT, MEDIUM}
    assert kinds.count(SHORT) > 2 * kinds.count(MEDIUM)
    assert [each.at_s for each in made] == sorted(each.at_s for each in made)
    assert made[-1].at_s < 4 * SPAN_S
    assert len({each.name for each in made}) == len({(each.seed, each.kind) for each in made}) == 40


def test_a_shorter_day_has_shorter_trainings() -> None:
    assert {each.kind: each.steps for each in day(12, 2, 0.5)} == {kind: n // 2 for kind, n in STEPS.items()}


def test_a_training_is_a_job_file_that_the_runner_reads() -> None:
    training = day(12, 2)[0]
    job = parse_job(training.job_file().encode(), Path("/day/long0.yaml"))
    assert (job.name, job.seed, job.resources.cpus) == (training.name, training.seed, 1)


def test_each_training_is_submitted_at_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    submitted: dict[str, float] = {}

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    monkeypatch.setattr(arrivals, "time", type("Clock", (), {"monotonic": lambda: now_s, "sleep": sleep}))
    made = day(12, 2)
    play(made, lambda training: submitted.update({training.name: now_s}))
    assert list(submitted) == [each.name for each in made]
    assert list(submitted.values()) == pytest.approx([100 + each.at_s for each in made])


def test_a_slowdown_is_by_the_time_that_its_kind_takes_alone() -> None:
    made = day(12, 2)
    ends = {each.name: End(1000.0, 1030.0, "0", 1) for each in made}
    found = slowdowns(made, ends, {LONG: 30.0, MEDIUM: 10.0, SHORT: 2.0})
    assert {each.kind: value for each, value in zip(made, found, strict=True)} == {
        LONG: 1,
        MEDIUM: 3,
        SHORT: 15,
    }
