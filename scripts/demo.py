"""Train, kill, resume, and compare: what this project promises, on this machine, in a few minutes.

Two jobs of one job file, side by side.  One is left alone.  The other's container is killed
with SIGKILL half-way; the runner resumes it by itself.  At the end the sha256 of the weights
of both must be equal, bit for bit.
"""

import os
import signal
import subprocess
import sys
import time
from typing import Any

from scripts.demo_daemon import ROOT, RUNNER, Daemon, Json, compare, place

JOB = "examples/demo.yaml"


def kill_the_container(daemon: Daemon, found: Json, about: Json) -> None:
    """Send SIGKILL to the job: with ``docker kill``, or with ``runner kill`` for a plain process."""
    if about["executor"] != "docker":
        print("$ runner kill --signal KILL killed")
        daemon.runner("kill", "--signal", "KILL", found["id"], show=False)
        return
    import docker

    client = docker.DockerClient(
        os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock", version="auto"
    )
    labels = [f"runner.job={found['id']}", f"runner.attempt={found['attempt']}"]
    [container] = client.containers.list(filters={"label": [*labels, f"runner.instance={about['instance']}"]})
    pid = container.attrs["State"]["Pid"]
    print(
        f"$ docker kill --signal KILL {container.name}        # its first process is pid {pid} on this host"
    )
    container.kill(signal=signal.SIGKILL)


def check_reach() -> None:
    """Without an engine root's jobs are plain processes of another uid, which must reach this Python."""
    if os.geteuid() != 0:
        return
    drop: dict[str, Any] = {"user": 65532, "group": 65532, "extra_groups": []}
    try:
        subprocess.run([sys.executable, "-c", "import jobs.contract"], check=True, cwd="/", **drop)
    except (OSError, subprocess.CalledProcessError):
        sys.exit(
            "demo: root's jobs run as uid 65532, which cannot reach this Python or this checkout; "
            "install a container engine (scripts/engine), or run the demo as another user"
        )


def main() -> int:
    daemon = Daemon(place("demo"))
    began = time.monotonic()
    daemon.runner("validate", JOB)
    daemon.runner("list", show=False)  # starts the daemon
    about = daemon.about()
    if about["executor"] == "process":
        print("no container engine answers: these jobs are plain processes", flush=True)
        check_reach()
    daemon.runner("submit", JOB, "--name", "killed")
    daemon.runner("submit", JOB, "--name", "untouched")
    print(
        f"executor: {about['executor']}; the first job builds the image, the second waits for the same build",
        flush=True,
    )
    kill_the_container(daemon, daemon.half_way("killed"), about)
    daemon.runner("wait", "killed", "untouched")
    print()
    for name in ("killed", "untouched"):
        print(f"$ runner show {name}", flush=True)  # a table, where this is a terminal
        subprocess.run([RUNNER, "show", name], check=True, cwd=ROOT, env=daemon.environment)
        print(flush=True)
    same = compare({name: daemon.weights(name) for name in ("killed", "untouched")})
    attempts = len(daemon.job("killed")["attempts"])
    print(f"the killed job took {attempts} attempts; all in {time.monotonic() - began:.0f} s")
    state, program = (os.path.relpath(each) for each in (daemon.state, RUNNER))
    print(f"look at both in a browser: RUNNER_STATE_DIR={state} {program} dash", flush=True)
    daemon.runner("stop", show=False)
    return 0 if same and attempts > 1 else 1


if __name__ == "__main__":
    sys.exit(main())
