"""Executor of a daemon that starts, above all while no engine answers."""

from typing import Literal

import pytest

from runner.base.errors import Unavailable, UsageError
from runner.server.executor_choice import (
    BEGUN_AS_PROCESSES,
    EngineEvidence,
    ExecutorChoice,
    choose_executor,
)

IN_CONTAINERS = ExecutorChoice("docker")


def answers() -> None:
    """An engine that is there."""


def fails(error: Exception) -> None:
    raise Unavailable("the container engine does not answer (why); it is tried again") from error


def refuses() -> None:
    fails(ConnectionRefusedError())


def is_missing() -> None:
    fails(FileNotFoundError())


def is_forbidden() -> None:
    fails(PermissionError())


@pytest.mark.parametrize("setting", ["docker", "process"])
def test_the_settings_decide_without_asking(setting: Literal["docker", "process"]) -> None:
    evidence = EngineEvidence("process", used=True)
    assert choose_executor(setting, evidence, is_missing) == ExecutorChoice(setting)


@pytest.mark.parametrize(
    "evidence",
    [EngineEvidence(unfinished="docker"), EngineEvidence(used=True), EngineEvidence(named=True)],
    ids=["unfinished jobs", "earlier jobs", "an address"],
)
def test_an_engine_that_is_known_is_waited_for_while_it_is_down(evidence: EngineEvidence) -> None:
    assert choose_executor("auto", evidence, is_missing) == IN_CONTAINERS


def test_an_engine_whose_socket_is_there_is_waited_for() -> None:
    assert choose_executor("auto", EngineEvidence(), refuses) == IN_CONTAINERS


@pytest.mark.parametrize("ask", [is_missing, is_forbidden])
def test_processes_are_for_hosts_where_no_engine_ever_was(ask: object) -> None:
    choice = choose_executor("auto", EngineEvidence(), ask)  # type: ignore[arg-type]
    assert choice == ExecutorChoice("process", "the container engine does not answer (why)")


def test_an_engine_that_answers_is_taken() -> None:
    assert choose_executor("auto", EngineEvidence(), answers) == IN_CONTAINERS


def test_attempts_that_run_as_processes_are_not_abandoned_for_an_engine() -> None:
    choice = choose_executor("auto", EngineEvidence(unfinished="process"), answers)
    assert choice == ExecutorChoice("process", BEGUN_AS_PROCESSES)


# --- an engine in which no job can run

REFUSED = "Podman is not supported: why; what to do"


def never() -> None:
    pytest.fail("an engine that was refused is not asked")


@pytest.mark.parametrize("named", [True, False])
def test_beside_an_engine_without_support_jobs_run_as_processes_and_the_reason_is_kept(named: bool) -> None:  # noqa: FBT001
    evidence = EngineEvidence(named=named, refusal=REFUSED)
    assert choose_executor("auto", evidence, never) == ExecutorChoice("process", REFUSED)


@pytest.mark.parametrize(
    ("setting", "evidence"),
    [
        ("docker", EngineEvidence(refusal=REFUSED)),
        ("auto", EngineEvidence(unfinished="docker", refusal=REFUSED)),
        ("auto", EngineEvidence(used=True, refusal=REFUSED)),
    ],
)
def test_jobs_of_containers_are_never_begun_in_an_engine_without_support_nor_as_processes(
    setting: Literal["auto", "docker"], evidence: EngineEvidence
) -> None:
    with pytest.raises(UsageError, match=f"^{REFUSED}$"):
        choose_executor(setting, evidence, never)


@pytest.mark.parametrize("setting", ["process", "slurm"])
def test_an_engine_that_is_not_used_refuses_nothing(setting: Literal["process", "slurm"]) -> None:
    assert choose_executor(setting, EngineEvidence(refusal=REFUSED), never) == ExecutorChoice(setting)
