"""The daemon with what its systemd unit leaves it: a smaller set of capabilities, and no new privileges."""

import os
import re
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from shutil import which

import pytest

from runner.cli.daemon import unit
from tests.fakes.daemon.service import RUNNER, Service, service, until
from tests.fakes.host.users import capabilities, with_uid
from tests.fakes.patience import patience

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root has capabilities to lose"),
]
BOB = 4321


def kept_capabilities() -> list[str]:
    """Return the capabilities that the unit file keeps, as setpriv calls them."""
    lines = re.findall(r"^CapabilityBoundingSet=(.*)$", unit("/opt/runner/bin/python3"), re.MULTILINE)
    return [name.removeprefix("CAP_").lower() for line in lines for name in line.split()]


@pytest.fixture(params=["root", "games"])
def confined(request: pytest.FixtureRequest, counter: str) -> Iterator[Service]:
    """A daemon in one process, and one in two parts."""
    bounds = ",".join(["-all", *(f"+{name}" for name in kept_capabilities())])
    user = str(request.param)
    with service(executor="docker", allowed_images={"counter": counter}, daemon_user=user) as made:
        made.state.mkdir()
        command = ["setpriv", "--no-new-privs", f"--bounding-set={bounds}", f"--inh-caps={bounds}", "--"]
        with (made.state / "daemon.log").open("wb") as log:
            serve = [*command, *RUNNER, "serve", "--state-dir", str(made.state)]
            child = subprocess.Popen(serve, env=made.environ, stdout=log, stderr=log)
            until(lambda: made.socket.exists() and made._answers(), "it answers", more=made.log_tail)
            yield made
            child.terminate()
            try:
                child.wait(patience())
            except subprocess.TimeoutExpired:  # its stop is what test_split is about, not this file
                child.kill()
                child.wait()


def test_a_daemon_with_the_capabilities_of_its_unit_runs_jobs_of_others(confined: Service) -> None:
    status = Path(f"/proc/{confined.daemon_pid()}/status").read_text()
    assert "NoNewPrivs:\t1" in status
    bounds = int(re.findall(r"^CapEff:\t(\w+)$", status, re.MULTILINE)[0], 16)
    assert not bounds & (1 << 19 | 1 << 34)  # CAP_SYS_PTRACE, CAP_SYSLOG
    if confined.settings["daemon_user"] != "root":
        assert set(capabilities(confined.told_pid()).values()) == {0}
    data, secret = confined.root / "data", confined.root / "token"
    data.mkdir(mode=0o700)
    (data / "a.txt").write_text("seen\n")
    secret.write_text("hush")
    secret.chmod(0o600)
    for path in (data, data / "a.txt", secret):
        os.chown(path, BOB, BOB)
    mounts = [{"source": "./data", "target": "/data/x"}]
    file = confined.counting("confined", 2, mounts=mounts, secrets={"token": "./token"})
    code, answer = with_uid(BOB, partial(confined.client.submit, str(file), file.read_bytes(), None))
    assert code == 0, answer
    assert isinstance(answer, dict)
    job_id = str(answer["job"]["id"])
    confined.jobs[job_id] = "succeeded"
    assert confined.ends(job_id)["outcome"] == "succeeded", confined.told(job_id)
    assert "seen /data/x/a.txt" in confined.log(job_id)


@pytest.mark.skipif(which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_understands_the_unit_file(tmp_path: Path) -> None:
    file = tmp_path / "runner.service"
    file.write_text(unit("/bin/sh"))
    said = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(file)], check=False, capture_output=True, text=True
    )
    assert "Unknown" not in said.stderr
    assert f"{file}:" not in said.stderr
