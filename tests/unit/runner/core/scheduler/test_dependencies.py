import pytest

from runner.core.job.states import Outcome
from runner.core.scheduler.dependencies import (
    CircularDependency,
    Named,
    Readiness,
    check_cycles,
    check_dependencies,
    check_dependency,
    resolve,
)
from runner.core.scheduler.snapshot import Dependency, DependencyCondition, EndedJob

KNOWN = [
    Named("1", "prep", "ada"),
    Named("2", "prep", "ada"),
    Named("3", "prep", "bob"),
    Named("4", "1", "ada"),
]


@pytest.mark.parametrize(
    ("reference", "owner", "job"),
    [
        ("prep", "ada", "2"),
        ("prep", "bob", "3"),
        ("1", "ada", "1"),
        ("prep", "eve", None),
        ("9", "ada", None),
    ],
)
def test_a_name_means_the_owners_newest_job_and_an_id_goes_before_names(
    reference: str, owner: str, job: str | None
) -> None:
    assert resolve(reference, owner, KNOWN) == job


def test_a_circle_is_refused_with_its_path() -> None:
    with pytest.raises(CircularDependency, match="b waits for c waits for d waits for b"):
        check_cycles({"a": ["b"], "b": ["c"], "c": ["d"], "d": ["b"]})


def test_a_job_cannot_wait_for_itself() -> None:
    with pytest.raises(CircularDependency, match="a waits for a"):
        check_cycles({"a": ["a"]})


def circle(edges: dict[str, list[str]]) -> str:
    """Return the circle that is refused; "" when there is none."""
    try:
        check_cycles(edges)
    except CircularDependency as refused:
        return str(refused)
    return ""


def test_several_ways_to_the_same_job_are_no_circle() -> None:
    assert not circle({"a": ["b", "c", "b"], "b": ["d"], "c": ["d"]})


def test_a_chain_of_any_length_is_followed_to_its_end() -> None:
    chain = {str(i): [str(i + 1)] for i in range(20_000)}
    assert not circle(chain)
    assert "19999 waits for 20000 waits for 19999" in circle({**chain, "20000": ["19999"]})


@pytest.mark.parametrize(
    ("condition", "outcome", "known"),
    [
        (DependencyCondition.OK, Outcome.SUCCEEDED, Readiness.READY),
        (DependencyCondition.OK, Outcome.CANCELLED, Readiness.NEVER),
        (DependencyCondition.FAILED, Outcome.FAILED, Readiness.READY),
        (DependencyCondition.FAILED, Outcome.CANCELLED, Readiness.READY),
        (DependencyCondition.FAILED, Outcome.SUCCEEDED, Readiness.NEVER),
        (DependencyCondition.ANY, Outcome.CANCELLED, Readiness.READY),
    ],
)
def test_an_end_means_what_was_asked_for(
    condition: DependencyCondition, outcome: Outcome, known: Readiness
) -> None:
    assert check_dependency(Dependency("1", condition), {"1": EndedJob(outcome, 0.0)}) is known


def test_one_impossible_dependency_decides_and_an_open_one_keeps_waiting() -> None:
    ended = {"1": EndedJob(Outcome.FAILED, 0.0), "2": EndedJob(Outcome.SUCCEEDED, 0.0)}
    assert check_dependencies((Dependency("1"), Dependency("3")), ended) is Readiness.NEVER
    assert check_dependencies((Dependency("2"), Dependency("3")), ended) is Readiness.PENDING
    assert check_dependencies((Dependency("2"),), ended) is Readiness.READY
    assert check_dependencies((), ended) is Readiness.READY
