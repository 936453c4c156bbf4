"""A process as the kernel sees it."""

import errno
import os

import pytest

from runner.adapters.host.process_status import groups_of, open_process


@pytest.mark.parametrize("number", [errno.ESRCH, errno.EINVAL])
def test_a_process_that_is_just_being_removed_is_gone(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def fail(_pid: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pidfd_open", fail)
    with pytest.raises(ProcessLookupError):
        open_process(7)


def test_what_is_wrong_with_this_process_is_no_end_of_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_pid: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "pidfd_open", fail)
    with pytest.raises(OSError, match="Too many open files"):
        open_process(7)


def test_the_groups_of_a_process_are_those_that_it_has_as_its_user() -> None:
    assert groups_of(os.getpid(), os.geteuid()) == tuple(os.getgroups())
    assert groups_of(os.getpid(), os.geteuid() + 1) == ()  # it has not given up the daemon's rights yet
    assert groups_of(2**22 + 1, os.geteuid()) == ()
