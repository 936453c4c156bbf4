"""Amounts as reasons tell them."""

from runner.core.scheduler.words import size


def test_little_memory_is_told_in_the_unit_that_people_write() -> None:
    assert (size(64 << 20), size(0), size(3 << 29), size(80 << 30)) == (
        "64 MiB",
        "0 GiB",
        "1.5 GiB",
        "80 GiB",
    )
