"""Each switch has a test that is named for it, and a no-op is what the code that acts reads."""

from typing import Any

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


def test_an_item_that_names_a_switch_names_the_test_that_fails_without_it() -> None:
    """Every item of the ledgers is held to it by ``sources.problems``."""
    about: dict[str, Any] = {
        "id": "A1",
        "item": "masks",
        "answer": "built",
        "where": ["gpu_job_runner/attach.py"],
    }
    about["note"] = "attention: cached_mask, and memory_log"
    neutral = "tests/unit/jobs/workloads/test_causal_lm.py::test_every_way_gives_the_same_loss_and_gradient"
    lacking = sources.Item.model_validate(about | {"test": [neutral]})
    assert sources.switches_of(lacking) == ["attention", "memory_log"]
    assert [line.partition(",")[0] for line in sources.problems(lacking)] == [
        "names the switch attention",
        "names the switch memory_log",
    ]
    proven = sources.Item.model_validate(about | {"test": [TESTS["attention"], TESTS["memory_log"]]})
    assert list(sources.problems(proven)) == []
