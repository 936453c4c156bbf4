"""``runner shell``, ``runner exec -it`` and ``runner attach``, typed at a real terminal."""

import os
import signal
from collections.abc import Iterator

import pytest

from runner.base.errors import Refused, UsageError
from tests.fakes.daemon.service import Service, service, until
from tests.fakes.daemon.terminals import LEAVE, code_of, show_two, typing
from tests.fakes.patience import patience


@pytest.fixture(scope="module")
def daemon() -> Iterator[Service]:
    with service(executor="process") as made:
        yield made.start()


@pytest.fixture(scope="module")
def job(daemon: Service) -> Iterator[str]:
    file = daemon.file(
        "sleeper", workload={"kind": "program", "command": ["sleep", "1000"]}, resources={"memory": "1GiB"}
    )
    job_id = daemon.submit(file, end="cancelled")
    daemon.reaches(job_id, "running")
    yield job_id
    daemon.runner("cancel", job_id)
    daemon.ends(job_id)
    until(lambda: not list(daemon.paths(job_id).terminals.iterdir()), "no terminal outlives its job")


def test_a_shell_can_be_left_and_survives_the_daemon(daemon: Service) -> None:
    assert show_two(daemon, "1") == 7


def test_a_terminal_goes_on_while_its_daemon_is_killed(daemon: Service, job: str) -> None:
    with typing(daemon, "exec", "-it", job, "--", "/bin/sh") as screen:
        screen.expect(r"\$ ")
        daemon.kill()
        screen.expect("the daemon has stopped; the program goes on")
        screen.sendline("echo ty''ped meanwhile")
        screen.expect("typed meanwhile")
        screen.sendline("exit 3")
        assert code_of(screen) == 3


def test_the_newest_terminal_is_attached_to_unless_another_is_named(daemon: Service, job: str) -> None:
    names = []
    for number in (1, 2):
        with typing(daemon, "exec", "-it", job, "--", "/bin/sh") as screen:
            screen.expect(r"\$ ")
            screen.sendline(f"echo num''ber {number}")
            screen.expect(f"number {number}")
            screen.send(LEAVE)
            screen.expect("left; runner attach [0-9]+ (sh-[0-9a-f]{4}) goes back")
            names.append(screen.match.group(1))
            assert code_of(screen) == 0
    for name, number in ((None, 2), (names[0], 1)):
        with typing(daemon, "attach", job, *([name] if name else [])) as screen:
            screen.expect(f"number {number}")
            screen.sendline("exit")
            assert code_of(screen) == 0


def test_a_terminal_whose_job_ends_says_how(daemon: Service) -> None:
    file = daemon.file(
        "brief", workload={"kind": "program", "command": ["sleep", "1000"]}, resources={"memory": "1GiB"}
    )
    job_id = daemon.submit(file, end="cancelled")
    daemon.reaches(job_id, "running")
    with typing(daemon, "exec", "-it", job_id, "--", "/bin/sh", "-c", "trap '' HUP TERM; cat") as screen:
        screen.sendline("here")
        screen.expect("here")
        daemon.runner("cancel", job_id)
        screen.expect("job brief ended [(]cancelled by root[)]; the terminal ended with it")
        assert code_of(screen) == 128 + signal.SIGKILL


def test_a_terminal_that_goes_away_leaves_its_program(daemon: Service, job: str) -> None:
    with typing(daemon, "exec", "-it", job, "--", "/bin/sh") as screen:
        screen.expect(r"\$ ")
        screen.sendline("echo he''re")
        screen.expect("here")
        screen.kill(signal.SIGHUP)
        screen.wait()
    with typing(daemon, "attach", job) as screen:
        screen.expect("here")
        screen.sendline("exit 4")
        assert code_of(screen) == 4


def test_two_people_share_a_terminal(daemon: Service, job: str) -> None:
    with typing(daemon, "exec", "-it", job, "--", "/bin/sh") as one:
        one.expect(r"\$ ")
        with typing(daemon, "attach", job) as two:
            two.expect(r"\$ ")
            one.sendline("echo bo''th")
            two.expect("both")
            two.sendline("exit 5")
            assert (code_of(one), code_of(two)) == (5, 5)


def test_a_screenful_of_output_arrives_complete(daemon: Service, job: str) -> None:
    with typing(daemon, "exec", "-it", job, "--", "/bin/sh", "-c", "seq 200000; exit 6") as screen:
        screen.expect("199999\r\n200000\r\n")
        assert code_of(screen) == 6


def test_a_command_that_is_not_there_says_so(daemon: Service, job: str) -> None:
    with typing(daemon, "exec", "-it", job, "no-such-command") as screen:
        screen.expect("no-such-command: ")
        assert code_of(screen) == 127


def test_without_a_terminal_t_is_refused(daemon: Service, job: str) -> None:
    for command in (("exec", "-t", job, "true"), ("attach", job), ("shell",)):
        assert "are not a terminal" in daemon.runner(*command, code=UsageError.exit_code)


def test_a_job_without_a_terminal_says_how_to_make_one(daemon: Service, job: str) -> None:
    until(lambda: not list(daemon.paths(job).terminals.iterdir()), "earlier tests have left none")
    with typing(daemon, "attach", job) as screen:
        screen.expect("has no terminal; runner exec -it makes one")
        assert code_of(screen) == Refused.exit_code


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_no_socket_of_another_user_is_connected_to(daemon: Service, job: str) -> None:
    place = daemon.paths(job).terminals
    place.mkdir(exist_ok=True)
    os.chown(place, 65532, 65532)
    (place / "decoy").unlink(missing_ok=True)
    os.link(daemon.socket, place / "decoy")  # as root's own socket would be
    try:
        with typing(daemon, "attach", job, "decoy") as screen:
            screen.expect("uid [0-9]+ is at the other end")
            assert code_of(screen) == Refused.exit_code
    finally:
        (place / "decoy").unlink()


def test_a_quiet_terminal_is_warned_on_its_screen_and_then_ended() -> None:
    with service(executor="process", watch_every_s=0.5) as daemon:
        daemon.start()
        soon_s = patience(0.6)  # a screen is there before, however slow the machine is
        (daemon.root / "impatient.yaml").write_text(f"""\
policy: 1
name: impatient
extends: default

on_watch:
  - name: quiet
    when: {{terminal.idle_s: {{gt: {soon_s}}}}}
    do: advise
    why: nobody types
  - name: over
    when: {{terminal.idle_s: {{gt: {2 * soon_s}}}}}
    do: stop
""")
        file = daemon.file(
            "quiet",
            workload={"kind": "program", "command": ["/bin/sh"], "terminal": True},
            resources={"memory": "1GiB"},
            policy="impatient.yaml",
            retry={"max_attempts": 1},
        )
        job_id = daemon.submit(file, end="failed")
        daemon.reaches(job_id, "running")
        with typing(daemon, "attach", job_id) as screen:
            screen.expect(r"\$ ")
            screen.expect(r"\[runner: .*nobody types.*\]")
            assert code_of(screen) != 0
        assert daemon.ends(job_id)["outcome"] == "failed"
        assert "nobody types" in daemon.told(job_id)
