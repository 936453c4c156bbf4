"""Choice of what is looked at for jobs on this machine: containers, or plain processes."""

from pathlib import Path

import pytest

from runner.adapters.docker import engine
from runner.core.doctor import EngineFacts, Verdict, examine
from runner.files.settings.model import Settings
from runner.server.doctor import collect

NONE = EngineFacts("the container engine does not answer", absent=True)
DOWN = EngineFacts("the container engine does not answer")


@pytest.mark.parametrize(
    ("facts", "chosen", "verdict"),
    [
        (NONE, ("auto", ""), Verdict.ABSENT),  # the daemon runs plain processes there
        (NONE, ("auto", "unix:///run/docker.sock"), Verdict.PROBLEM),
        (NONE, ("docker", ""), Verdict.PROBLEM),
        (DOWN, ("auto", ""), Verdict.PROBLEM),
        (NONE, ("process", ""), Verdict.ABSENT),
    ],
)
def test_an_engine_that_no_job_would_use_is_no_problem(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    facts: EngineFacts,
    chosen: tuple[str, str],
    verdict: Verdict,
) -> None:
    executor, address = chosen
    monkeypatch.setattr(engine, "describe_engine", lambda _: facts)
    monkeypatch.setenv("DOCKER_HOST", address)
    machine = collect(tmp_path, Settings(executor=executor))
    [finding] = [each for each in examine(machine) if each.subject == "container engine"]
    assert finding.verdict is verdict


def test_a_socket_that_is_not_there_is_told_from_an_engine_that_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    down = tmp_path / "down.sock"
    down.touch()
    absent = [engine.describe_engine(f"unix://{path}").absent for path in (tmp_path / "none.sock", down)]
    assert absent == [True, False]
