"""Train, kill, resume, and compare: what this project promises, on this machine, in a few minutes.

Two jobs of one job file, side by side.  One is left alone.  The other's container is killed
with SIGKILL half-way; the runner resumes it by itself.  At the end the sha256 of the weights
of both must be equal, bit for bit.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
JOB = "examples/demo.yaml"
RUNNER = str(Path(sys.executable).with_name("runner"))
STATE = Path(os.environ.get("RUNNER_STATE_DIR") or ROOT / ".make" / "demo")
PATIENCE_S = 1200


def runner(*arguments: str, show: bool = True) -> str:
    """Run a command as a user would, and return its output."""
    if show:
        print(f"$ runner {' '.join(arguments)}", flush=True)
    done = subprocess.run([RUNNER, *arguments], check=False, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    if show and done.stdout:
        print(done.stdout, end="", flush=True)
    if done.returncode:
        sys.exit(f"demo: runner {' '.join(arguments)} ended with exit code {done.returncode}")
    return done.stdout


def job(reference: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(runner("show", reference, "--json", show=False))
    return found


def wait_for_half(reference: str) -> dict[str, Any]:
    """Return the job once it has a checkpoint and has done half of its steps."""
    deadline = time.monotonic() + PATIENCE_S
    told = ""
    while time.monotonic() < deadline:
        found = job(reference)
        progress = found.get("progress") or {}
        line = _line(found, progress)
        if line != told:
            print(f"  {line}", flush=True)
            told = line
        if found["state"] in {"finished", "held"}:
            sys.exit(f"demo: job {reference} ended before it could be killed: {found['why']}")
        if progress.get("checkpoint_step") and progress["step"] * 2 >= progress["total_steps"]:
            return found
        time.sleep(0.5)
    sys.exit(f"demo: no progress in {PATIENCE_S} s; runner logs {reference}")


def _line(found: dict[str, Any], progress: dict[str, Any]) -> str:
    if not progress.get("total_steps"):
        return f"{found['state']}: {found['why'] or progress.get('phase', '')}"
    return f"step {progress['step'] - progress['step'] % 50} of {progress['total_steps']}"


def kill_the_container(found: dict[str, Any], executor: str) -> None:
    """Send SIGKILL to the job: with ``docker kill``, or with ``runner kill`` for a plain process."""
    if executor != "docker":
        print("$ runner kill --signal KILL killed")
        runner("kill", "--signal", "KILL", found["id"], show=False)
        return
    import docker

    client = docker.DockerClient(
        os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock", version="auto"
    )
    labels = [f"runner.job={found['id']}", f"runner.attempt={found['attempt']}"]
    [container] = client.containers.list(filters={"label": [*labels, f"runner.instance={instance()}"]})
    pid = container.attrs["State"]["Pid"]
    print(
        f"$ docker kill --signal KILL {container.name}        # its first process is pid {pid} on this host"
    )
    container.kill(signal=signal.SIGKILL)


def instance() -> str:
    return str(json.loads(runner("version", "--json", show=False))["daemon"]["instance"])


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
    os.environ["RUNNER_STATE_DIR"] = str(STATE)
    began = time.monotonic()
    runner("validate", JOB)
    runner("list", show=False)  # starts the daemon
    executor = json.loads(runner("version", "--json", show=False))["daemon"]["executor"]
    if executor == "process":
        print("no container engine answers: these jobs are plain processes", flush=True)
        check_reach()
    runner("submit", JOB, "--name", "killed")
    runner("submit", JOB, "--name", "untouched")
    print(
        f"executor: {executor}; the first job builds the image, the second waits for the same build",
        flush=True,
    )
    kill_the_container(wait_for_half("killed"), executor)
    runner("wait", "killed", "untouched")
    print()
    for name in ("killed", "untouched"):
        print(f"$ runner show {name}", flush=True)
        subprocess.run([RUNNER, "show", name], check=True, cwd=ROOT)  # a table, where this is a terminal
        print(flush=True)
    hashes = {name: job(name)["result"]["weights_sha256"] for name in ("killed", "untouched")}
    for name, value in hashes.items():
        print(f"{name:>10}: {value}")
    same = len(set(hashes.values())) == 1
    verdict = "equal, bit for bit" if same else "DIFFERENT: this is a bug, please report it"
    attempts = len(job("killed")["attempts"])
    print(f"{verdict}; the killed job took {attempts} attempts; all in {time.monotonic() - began:.0f} s")
    state, program = (os.path.relpath(each) for each in (STATE, RUNNER))
    print(f"look at both in a browser: RUNNER_STATE_DIR={state} {program} dash", flush=True)
    runner("stop", show=False)
    return 0 if same and attempts > 1 else 1


if __name__ == "__main__":
    sys.exit(main())
