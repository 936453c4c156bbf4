"""Each switch has a test that is named for it, and a no-op is what the code that acts reads."""

import pytest

from jobs.contract import SWITCHES, Profile
from scripts.docs import sources
from scripts.mutate_switches import TESTS, mutated, plain_value


def test_every_switch_has_a_test_that_exists() -> None:
    assert set(TESTS) == set(SWITCHES)
    assert [each for test in TESTS.values() for each in sources.problems_of_test(test)] == []


@pytest.mark.parametrize(
    ("module", "value"),
    [
        ("jobs.training.step", 1),
        ("jobs.workloads.causal_lm", 1),
        ("jobs.training.switches", 7),
        ("tests.unit.jobs", 7),
    ],
)
def test_only_the_code_that_acts_reads_the_plain_value(module: str, value: int) -> None:
    read = mutated(Profile.__getattribute__, "host_checks_every")
    scope = {"__name__": module, "read": read, "profile": Profile(host_checks_every=7)}
    exec("found = read(profile, 'host_checks_every'); other = read(profile, 'name')", scope)  # noqa: S102
    assert (scope["found"], scope["other"]) == (value, "compat")


def test_the_plain_value_of_a_switch_is_that_of_a_profile_without_it() -> None:
    assert plain_value("graph_cache") == "off"
    assert plain_value("micro_batch") is None
