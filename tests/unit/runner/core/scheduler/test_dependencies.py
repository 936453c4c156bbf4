import pytest

from runner.core.job.states import Outcome
from runner.core.scheduler.dependencies import (
    CircularDependency,
    Readiness,
    check_cycles,
    check_dependencies,
    check_dependency,
)
from runner.core.scheduler.snapshot import Dependency, DependencyCondition, EndedJob


def test_a_cycle_is_refused_with_its_path() -> None:
    with pytest.raises(CircularDependency, match="b waits for c waits for d waits for b"):
        check_cycles({"a": ["b"], "b": ["c"], "c": ["d"], "d": ["b"]})


def test_a_job_cannot_wait_for_itself() -> None:
    with pytest.raises(CircularDependency, match="a waits for a"):
        check_cycles({"a": ["a"]})


def cycle(edges: dict[str, list[str]]) -> str:
    """Return the message about a cycle; empty if there is none."""
    try:
        check_cycles(edges)
    except CircularDependency as refused:
        return str(refused)
    return ""


def test_several_ways_to_the_same_job_are_no_cycle() -> None:
    assert not cycle({"a": ["b", "c", "b"], "b": ["d"], "c": ["d"]})


def test_a_chain_of_any_length_is_followed_to_its_end() -> None:
    chain = {str(i): [str(i + 1)] for i in range(20_000)}
    assert not cycle(chain)
    assert "19999 waits for 20000 waits for 19999" in cycle({**chain, "20000": ["19999"]})


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
