"""Numbers that mean "no change" to the kernel are nobody's ids."""

import resource

import pytest

from runner.base.identity import MAX_ID, become, check_ids, limit
from runner.core.ports.users import Owner, User

NONE = [-1, 2**32 - 1, 2**32, -(2**31)]


@pytest.mark.parametrize("number", NONE)
def test_numbers_that_are_no_ids_are_refused(number: int) -> None:
    for uid, gid, groups in ((number, 5, ()), (5, number, ()), (5, 5, (5, number))):
        with pytest.raises(ValueError, match="is not the id of a user or group"):
            check_ids(uid, gid, groups)
        with pytest.raises(ValueError, match="is not the id of a user or group"):
            become(uid, gid, groups)
        with pytest.raises(ValueError, match="is not the id of a user or group"):
            User(uid, gid, groups, "somebody")


@pytest.mark.parametrize("number", NONE)
def test_nobody_owns_a_job_whose_files_would_stay_roots(number: int) -> None:
    for uid, gid in ((number, 5), (5, number)):
        with pytest.raises(ValueError, match="is not the id of a user or group"):
            Owner(uid, gid, "somebody")


def test_the_ids_of_people_are_ids() -> None:
    check_ids(0, 0)
    check_ids(MAX_ID, MAX_ID, (MAX_ID,))


def test_a_number_that_means_no_limit_is_no_limit_of_a_worker() -> None:
    before = resource.getrlimit(resource.RLIMIT_CPU)
    for number in (resource.RLIM_INFINITY, -2):
        with pytest.raises(ValueError, match="is no limit"):
            limit(resource.RLIMIT_CPU, number)
    assert resource.getrlimit(resource.RLIMIT_CPU) == before
