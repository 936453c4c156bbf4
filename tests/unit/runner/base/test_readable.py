"""One format of durations and of sizes, for reasons, tables and pages."""

from datetime import timedelta

import pytest

from runner.base.readable import readable_duration, readable_size


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (-3, "0s"),
        (0, "0s"),
        (0.26, "0.3s"),
        (5, "5s"),
        (9.97, "10s"),
        (59.6, "1m"),
        (187, "3m07s"),
        (7199.8, "2h"),
        (7500, "2h05m"),
        (86400 * 2.5, "2d12h"),
    ],
)
def test_a_duration_has_at_most_two_units(seconds: float, said: str) -> None:
    assert readable_duration(seconds) == readable_duration(timedelta(seconds=seconds)) == said


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (64 << 20, "64 MiB"),
        (3 << 29, "1.5 GiB"),
        (80 << 30, "80 GiB"),
        (5 << 50, "5120 TiB"),
    ],
)
def test_a_size_has_a_binary_unit(size: int, said: str) -> None:
    assert readable_size(size) == said
