"""Amounts as reasons tell them."""

from runner.core.scheduler.formatting import format_memory


def test_little_memory_is_told_in_the_unit_that_people_write() -> None:
    assert (format_memory(64 << 20), format_memory(0), format_memory(3 << 29), format_memory(80 << 30)) == (
        "64 MiB",
        "0 GiB",
        "1.5 GiB",
        "80 GiB",
    )
