"""The daemon of all users under a real systemd, with cgroup v2 and AppArmor, in one part and in two."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.fakes.daemon.service import until
from tests.fakes.doctor_page import check
from tests.kernel.machine import (
    IMAGE,
    RUNNER,
    SOCKET,
    TRAINER,
    follows,
    here,
    journal,
    own,
    ran,
    systemd_daemon,
    user,
)

PROFILE = Path("/etc/apparmor.d/runner-job")


@pytest.fixture(scope="module", params=["one part", "two parts"], autouse=True)
def parts(request: pytest.FixtureRequest) -> Iterator[str]:
    here()
    PROFILE.write_text(ran(RUNNER, "serve", "--apparmor-profile"))
    ran("apparmor_parser", "--replace", str(PROFILE))
    with ExitStack() as stack:
        stack.enter_context(user("alice", "--create-home"))
        if request.param == "two parts":
            stack.enter_context(user("runner", "--system"))
        stack.enter_context(systemd_daemon(allowed_images={"plain": IMAGE}, apparmor="runner-job"))
        yield request.param


@pytest.fixture
def code() -> Path:
    """The code of a trainer in the home of its user, closed to all others."""
    home = Path("/home/alice")
    home.chmod(0o700)
    place = home / "code"
    place.mkdir(exist_ok=True)
    (place / "train.py").write_text(TRAINER)
    own(home, "alice")
    return place


def submitted(code: Path, name: str, *command: str) -> str:
    options = ["--detach", "--name", name, "--image", "plain", "--cpus", "0.5", "--memory", "128M"]
    return ran(RUNNER, "run", *options, "--", *command, user="alice", where=code).split()[0]


def shown(job: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(ran(RUNNER, "show", "--json", job, user="alice"))
    return found


def ended(job: str) -> str:
    until(lambda: shown(job).get("outcome"), f"{job} ends", more=journal)
    return str(shown(job)["outcome"])


def test_each_part_has_the_rights_that_the_manual_says(parts: str) -> None:
    pids = ran("systemctl", "show", "--property=MainPID", "--value", "runner").split()
    pids += Path(f"/proc/{pids[0]}/task/{pids[0]}/children").read_text().split()
    users = {ran("stat", "--format=%U", f"/proc/{pid}").strip() for pid in pids}
    assert users == ({"root"} if parts == "one part" else {"root", "runner"})
    assert (SOCKET / "runner.sock").is_socket()


def test_doctor_says_on_this_machine_what_the_page_says() -> None:
    check("Debian 13 under a second kernel", ran(RUNNER, "doctor", "--json"))


def test_a_cancelled_job_saves_under_the_profile(code: Path) -> None:
    job = submitted(code, "stopped", "python3", "train.py")
    assert "runner-job (enforce)" in follows("alice", job, "ready")
    ran(RUNNER, "cancel", job, user="alice")
    assert ended(job) == "cancelled"
    assert follows("alice", job, "saved").endswith("saved\n")


def test_a_job_lives_through_a_restart_of_its_daemon(code: Path) -> None:
    job = submitted(code, "lives", "python3", "train.py")
    follows("alice", job, "ready")
    ran("systemctl", "restart", "runner")
    ran(RUNNER, "cancel", job, user="alice")
    assert ended(job) == "cancelled"
    assert follows("alice", job, "saved").count("ready") == 1


def test_too_much_memory_is_told(code: Path) -> None:
    job = submitted(code, "greedy", "python3", "-c", "x = bytearray(1 << 30)")
    assert ended(job) == "failed"
    assert "host_oom" in ran(RUNNER, "show", "--json", job, user="alice")
