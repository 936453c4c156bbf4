"""Message at the end of a session."""

import pytest

from runner.client.sessions import ended_line


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("cancelled", "job train ended (cancelled by ann); the command ended with it"),
        (
            "queued",
            "the attempt of job train ended (cancelled by ann); the command ended with it; the job is queued",
        ),
    ],
)
def test_the_end_of_a_job_is_told_with_its_reason(state: str, said: str) -> None:
    ended = {"name": "train", "job": "7", "cause": "killed", "verdict": "cancelled by ann", "state": state}
    assert ended_line({"exit": 137, "ended": ended}, "the command") == said
    assert ended_line({"exit": 137}, "the command") is None
