"""Disk space of run directories."""

from runner.core.ports.disk_use import DiskUse


def test_what_two_directories_take_adds_up() -> None:
    assert DiskUse(1, 2) + DiskUse(10, 20) == DiskUse(11, 22)
