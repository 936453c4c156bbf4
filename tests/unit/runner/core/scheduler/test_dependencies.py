import pytest

from runner.core.job.states import Outcome
from runner.core.scheduler.dependencies import (
    CircularDependency,
    Readiness,
    Unmet,
    check_cycles,
    check_dependencies,
    check_dependency,
    find_unmet,
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


MATRIX = Dependency("1", DependencyCondition.FAILED, ("1", "2", "3"))


@pytest.mark.parametrize(
    ("outcomes", "known"),
    [
        ((Outcome.FAILED, Outcome.SUCCEEDED), Readiness.PENDING),
        ((Outcome.SUCCEEDED, Outcome.CANCELLED, Outcome.SUCCEEDED), Readiness.READY),
        ((Outcome.SUCCEEDED, Outcome.SUCCEEDED, Outcome.SUCCEEDED), Readiness.NEVER),
    ],
)
def test_of_a_matrix_one_job_must_have_failed_once_all_have_ended(
    outcomes: tuple[Outcome, ...], known: Readiness
) -> None:
    ended = {str(number): EndedJob(outcome, 9.0 + number) for number, outcome in enumerate(outcomes, start=1)}
    assert check_dependency(MATRIX, ended) is known
    unmet = Unmet("jobs 1 to 3 succeeded, but one had to fail", 12.0)
    assert find_unmet((MATRIX,), ended) == (unmet if known is Readiness.NEVER else None)


def test_what_cannot_be_met_is_told_with_the_time_since_when() -> None:
    ended = {"1": EndedJob(Outcome.SUCCEEDED, 5.0), "2": EndedJob(Outcome.CANCELLED, 7.0)}
    found = find_unmet((Dependency("1"), Dependency("2")), ended)
    assert found == Unmet("job 2 cancelled, but it had to succeed", 7.0)
    assert find_unmet((), ended) is None


def test_one_impossible_dependency_decides_and_an_open_one_keeps_waiting() -> None:
    ended = {"1": EndedJob(Outcome.FAILED, 0.0), "2": EndedJob(Outcome.SUCCEEDED, 0.0)}
    assert check_dependencies((Dependency("1"), Dependency("3")), ended) is Readiness.NEVER
    assert check_dependencies((Dependency("2"), Dependency("3")), ended) is Readiness.PENDING
    assert check_dependencies((Dependency("2"),), ended) is Readiness.READY
    assert check_dependencies((), ended) is Readiness.READY
