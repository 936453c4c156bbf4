"""Choice between containers and plain processes, where the settings leave it open.

Plain processes are a smaller wall between jobs and have no image, so they take the place of containers only
on a host without an engine.  An engine that is down is waited for: its jobs would fail as processes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from runner.base.errors import Unavailable, UsageError

BEGUN_AS_PROCESSES: Final = "unfinished jobs of this state directory were begun as processes"


@dataclass(frozen=True, slots=True)
class ExecutorChoice:
    """Executor of attempts, and why it is not containers if the settings do not say so."""

    kind: str
    engine_problem: str | None = None


@dataclass(frozen=True, slots=True)
class EngineEvidence:
    """Evidence of an engine before it is asked."""

    unfinished: str | None = None
    """The executor that unfinished jobs were begun with; None: there are none."""
    used: bool = False
    """Attempts of this store have run in containers."""
    named: bool = False
    """The settings or ``DOCKER_HOST`` give its address."""
    refusal: str | None = None
    """It answers, and no job can run in it for this reason."""


def choose_executor(
    setting: str,
    evidence: EngineEvidence,
    ask: Callable[[], object],
) -> ExecutorChoice:
    """Return the executor of a daemon that starts; ``ask`` raises ``Unavailable`` if no engine answers.

    Raises:
        UsageError: jobs are to run, or have run, in an engine in which they cannot.
    """
    if setting == "docker" and evidence.refusal:
        raise UsageError(evidence.refusal)
    if setting != "auto":
        return ExecutorChoice(setting)
    if evidence.unfinished == "process":
        return ExecutorChoice("process", BEGUN_AS_PROCESSES)
    if evidence.unfinished not in {None, "docker"}:  # its attempts are there, whatever else is here
        return ExecutorChoice(str(evidence.unfinished))
    if evidence.refusal:
        if evidence.unfinished or evidence.used:  # in containers, which plain processes must not replace
            raise UsageError(evidence.refusal)
        return ExecutorChoice("process", evidence.refusal)
    if evidence.unfinished or evidence.used or evidence.named:
        return ExecutorChoice("docker")
    try:
        ask()
    except Unavailable as error:
        if isinstance(error.__cause__, FileNotFoundError | PermissionError):  # none here, or not for us
            return ExecutorChoice("process", str(error).removesuffix("; it is tried again"))
    return ExecutorChoice("docker")
