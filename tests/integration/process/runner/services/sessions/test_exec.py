"""``runner exec`` in a job that runs as plain processes, through a real daemon."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from runner.base.errors import Refused
from runner.client.http import ErrorResponse
from runner.client.sessions import finished, open_session
from tests.fakes.daemon.service import RUNNER, Service, service, until
from tests.fakes.patience import patience

ENTRY = (*RUNNER[:-1], "runner.cli.entry")
"""The program ``runner`` as it is installed, which runs the plain form of the command on its own."""

WALLS = """
grep -E '^(Uid|Gid|Groups|NoNewPrivs|Cap|Seccomp)' /proc/self/status
cat /proc/self/limits; umask; pwd; env | grep ^RUNNER_ | sort; cat /proc/self/cgroup; nice
"""


@pytest.fixture(scope="module")
def daemon() -> Iterator[Service]:
    with service(executor="process", sessions_per_user=3) as made:
        yield made.start()


@pytest.fixture(scope="module")
def job(daemon: Service) -> Iterator[str]:
    """A job that shows its walls and then sleeps."""
    file = daemon.file(
        "sleeper",
        workload={"kind": "program", "command": ["/bin/sh", "-c", f"{WALLS}echo ready; exec sleep 1000"]},
        resources={"cpus": 1, "memory": "1GiB"},
    )
    job_id = daemon.submit(file, end="cancelled")
    daemon.runs(job_id, "ready")
    yield job_id
    daemon.runner("cancel", job_id)
    daemon.ends(job_id)


def typed(daemon: Service, *arguments: str, input: bytes = b"") -> subprocess.CompletedProcess[bytes]:  # noqa: A002
    """Type a command with bytes for its standard input."""
    return subprocess.run(
        [*ENTRY, *arguments],
        input=input,
        capture_output=True,
        check=False,
        env=daemon.environ,
        timeout=patience(),
    )


def test_the_exit_code_is_that_of_the_command(daemon: Service, job: str) -> None:
    assert typed(daemon, "exec", job, "--", "/bin/sh", "-c", "exit 7").returncode == 7


def test_both_outputs_arrive_where_they_belong(daemon: Service, job: str) -> None:
    done = typed(daemon, "exec", job, "--", "/bin/sh", "-c", "echo out; echo err >&2")
    assert (done.stdout, done.stderr, done.returncode) == (b"out\n", b"err\n", 0)


def test_a_megabyte_goes_in_and_comes_back(daemon: Service, job: str) -> None:
    content = os.urandom(2**20)
    assert typed(daemon, "exec", "-i", job, "cat", input=content).stdout == content


def test_a_command_that_says_more_than_it_reads_does_not_stand_still(daemon: Service, job: str) -> None:
    """One thread of the client writes and reads: it waited for the command, which waited for it."""
    content = b"a line of 32 bytes and its end..\n" * 60_000
    done = typed(daemon, "exec", "-i", job, "awk", "{ print; print; print; print }", input=content)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == b"".join(line * 4 for line in content.splitlines(keepends=True))


def test_without_i_the_command_reads_nothing(daemon: Service, job: str) -> None:
    assert typed(daemon, "exec", job, "cat", input=b"unread").stdout == b""


def test_a_command_has_the_walls_of_its_job(daemon: Service, job: str) -> None:
    seen = typed(daemon, "exec", job, "--", "/bin/sh", "-c", WALLS).stdout.decode()
    assert seen == daemon.log(job).removesuffix("ready\n")
    assert "NoNewPrivs:\t1" in seen


def test_a_command_that_does_not_exist_ends_as_in_a_shell(daemon: Service, job: str) -> None:
    done = typed(daemon, "exec", job, "no-such-command")
    assert done.returncode in {126, 127}  # 126 where PATH has a directory that the job may not search
    assert b"no-such-command" in done.stderr


def test_a_signal_reaches_the_command(daemon: Service, job: str) -> None:
    script = "trap 'echo told; exit 5' INT; echo ready; while :; do sleep 0.02; done"
    with daemon.typing("exec", job, "--", "/bin/sh", "-c", script) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == "ready\n"
        command.send_signal(signal.SIGINT)
        assert command.stdout.readline() == "told\n"
        assert command.wait(patience()) == 5


def test_a_command_whose_client_is_gone_gets_a_hangup(daemon: Service, job: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    for parent in tmp_path.parents[:3]:
        parent.chmod(0o755)
    script = f"trap 'touch {tmp_path}/told; exit 0' HUP; echo ready; while :; do sleep 0.02; done"
    with daemon.typing("exec", job, "--", "/bin/sh", "-c", script) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == "ready\n"
    until((tmp_path / "told").exists, "the command is told")


def test_a_session_is_two_events_with_who_and_no_arguments(daemon: Service, job: str) -> None:
    def told() -> list[str]:
        return [each["text"] for each in daemon.events(job) if each["kind"].startswith("session_")]

    before = len(told())
    typed(daemon, "exec", job, "--", "/bin/sh", "-c", "exit 9 # secret")
    until(lambda: any(each.endswith("exit code 9") for each in told()[before:]), "its end is an event")
    texts = told()[before:]  # the session of another test may end among them
    assert len([each for each in texts if "exec of sh, begun by root" in each]) == 1
    assert len([each for each in texts if each.endswith("exit code 9")]) == 1
    assert "secret" not in "".join(texts)


def test_a_job_that_does_not_run_has_no_sessions(daemon: Service) -> None:
    file = daemon.file(
        "over", workload={"kind": "program", "command": ["true"]}, resources={"memory": "1GiB"}
    )
    job_id = daemon.submit(file)
    daemon.ends(job_id)
    done = typed(daemon, "exec", job_id, "true")
    assert done.returncode == Refused.exit_code
    assert done.stderr == f"over (job {job_id}): is finished; a session needs a running job\n".encode()


def test_a_session_dies_with_its_job(daemon: Service) -> None:
    file = daemon.file(
        "brief", workload={"kind": "program", "command": ["sleep", "1000"]}, resources={"memory": "1GiB"}
    )
    job_id = daemon.submit(file, end="cancelled")
    daemon.reaches(job_id, "running")
    with daemon.typing("exec", job_id, "--", "/bin/sh", "-c", "echo ready; exec sleep 1000") as command:
        assert command.stdout is not None
        assert command.stdout.readline() == "ready\n"
        daemon.runner("cancel", job_id)
        assert command.wait(patience()) in {128 + signal.SIGKILL, 128 + signal.SIGHUP}
        assert command.stderr is not None
        told = command.stderr.read()
    assert told == "job brief ended (cancelled by root); the command ended with it\n"


def test_a_command_is_not_started_before_its_begin_is_recorded(daemon: Service, job: str) -> None:
    seen = typed(daemon, "exec", job, "--", "/bin/sh", "-c", "date +%s%N; exec sleep 0")
    began_ns = int(seen.stdout)
    begun = [each for each in daemon.events(job) if each["kind"] == "session_begun"][-1]
    recorded = datetime.fromisoformat(begun["at"])
    assert recorded.timestamp() * 1e9 <= began_ns + 1e6  # times of events have milliseconds


def test_a_command_that_is_killed_alone_says_nothing_of_its_job(daemon: Service, job: str) -> None:
    done = typed(daemon, "exec", job, "--", "/bin/sh", "-c", "kill -KILL $$")
    assert (done.returncode, done.stderr) == (128 + signal.SIGKILL, b"")


def test_a_user_has_so_many_sessions_and_no_more(daemon: Service, job: str) -> None:
    sleep = {"argv": ["sleep", "1000"]}
    first = len(told(daemon, job, "session_begun"))
    # a session of another test counts until its end is recorded
    until(lambda: len(told(daemon, job, "session_ended")) == first, "no session of another test is left")
    sessions = [open_session(daemon.client, job, "exec", sleep) for _ in range(3)]
    try:
        until(lambda: len(told(daemon, job, "session_begun")) == first + 3, "three sessions have begun")
        done = typed(daemon, "exec", job, "true")
        assert done.returncode == Refused.exit_code
        assert b"has 3 sessions already (sessions_per_user); end some" in done.stderr
    finally:
        for session in sessions:
            session.close()
    until(lambda: typed(daemon, "exec", job, "true").returncode == 0, "another session may begin")


def told(daemon: Service, job: str, kind: str) -> list[str]:
    """Return the texts of a job's events of a kind."""
    return [each["text"] for each in daemon.events(job) if each["kind"] == kind]


@pytest.mark.parametrize(
    ("first", "fact"),
    [
        ({}, "argv: Field required"),
        ({"argv": []}, "argv: Tuple should have at least 1 item"),
        ({"argv": ["true"], "term": "x\ny"}, "term: String should match pattern"),
        ({"argv": ["true"], "more": 1}, "more: Extra inputs are not permitted"),
        ({"argv": ["echo", "a\0b"]}, "argv.1: String should match pattern"),
    ],
)
def test_a_malformed_session_is_refused_in_one_line(
    daemon: Service, job: str, first: dict[str, object], fact: str
) -> None:
    session = open_session(daemon.client, job, "exec", first)
    try:
        message = next(session.receive())
        with pytest.raises(ErrorResponse, match=fact):
            finished(message.json())
    finally:
        session.close()


def test_an_oversized_message_ends_the_session_alone(daemon: Service, job: str) -> None:
    session = open_session(daemon.client, job, "exec", {"argv": ["cat"], "input": True})
    try:
        with pytest.raises((OSError, EOFError)):  # noqa: PT012  (the daemon may leave after part of it)
            session.send(b"x" * (2**20 + 1))
            while True:
                list(session.receive())
    finally:
        session.close()
    assert typed(daemon, "exec", job, "true").returncode == 0


def test_sessions_are_in_the_audit_log(daemon: Service, job: str) -> None:
    typed(daemon, "exec", job, "true")
    lines = (daemon.state / "audit.log").read_text().splitlines()
    assert any(json.loads(line)["path"] == f"/v1/jobs/{job}/exec" for line in lines)


def said_to(uid: int, daemon: Service, job: str, verb: str, first: dict[str, object]) -> str:
    """Return what the daemon answers to a session of another user, asked by a child of this process."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            session = open_session(daemon.client, job, verb, first)
            os.write(writing, next(session.receive()).content)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        said = answer.read().decode()
    os.waitpid(child, 0)
    return said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize(
    ("verb", "first"),
    [
        ("exec", {"argv": ["true"]}),
        ("exec", {"argv": ["sh"], "terminal": {"rows": 24, "columns": 80}}),
        ("attach", {}),
        ("forward", {"port": 6006}),
        ("connect", {"relay": ".port-6006-00000000"}),
    ],
)
def test_the_jobs_of_others_are_closed(
    daemon: Service, job: str, verb: str, first: dict[str, object]
) -> None:
    answer = json.loads(said_to(4711, daemon, job, verb, first))
    assert answer["error"]["kind"] == "refused"
    assert answer["error"]["message"] == f"job {job}: belongs to root; only they and root may do that"
