"""Root opens, renames, makes and links nothing by a path below a directory of a user's, from end to end.

``strace`` follows every process of a daemon of root.  What a process does after it has become a user is that
user's; everything else is root's, and each path that it names must lie in directories of root alone.
"""

import os
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from tests.fakes.daemon.service import Service, service, until
from tests.fakes.host.users import with_uid
from tests.fakes.patience import patience

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root has users beside itself")

BOB: Final = 4321
ANN: Final = 4322
STRACE: Final = shutil.which("strace")
TRACED: Final = "%file,clone,clone3,fork,vfork,setresuid,setreuid,setuid"
_LINE: Final = re.compile(r"(\d+) +(?:<\.\.\. )?(\w+)(.*)")
_CHILD: Final = re.compile(r" = (\d+)$")
_PATH: Final = re.compile(r'"(/[^"]*)"')
_KERNEL: Final = ("/proc", "/sys", "/dev")

TRAIN: Final = """\
import json, os, pathlib
for step in (1, 2, 3):
    place = pathlib.Path(f"out/checkpoint-{step}")
    place.mkdir(parents=True)
    (place / "model.bin").write_bytes(b"weights %d" % step)
pathlib.Path("state.bin").write_bytes(b"x" * 100)
attempt = pathlib.Path(os.environ["RUNNER_ATTEMPT_DIR"])
with (attempt / "metrics.jsonl").open("a") as file:
    for step in range(50):
        file.write(json.dumps({"time": 1.0 + step, "step": step, "loss": 1 / (step + 1)}) + "\\n")
print("step 3 of 3", flush=True)
"""


@contextmanager
def followed(pid: int, trace: Path) -> Iterator[None]:
    """Follow a process and all that it starts, from when each of its threads is attached."""
    assert STRACE is not None, "strace is missing; scripts/test-tools installs it"
    command = [STRACE, "-f", "-s", "4096", "-o", str(trace), "-e", f"trace={TRACED}", "-p", str(pid)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        until(partial(all_traced, pid, process.pid), "all threads are followed")
        try:
            yield
        finally:
            process.terminate()
            process.wait(patience())


def all_traced(pid: int, tracer: int) -> bool:
    threads = Path(f"/proc/{pid}/task").glob("*/status")
    return all(f"TracerPid:\t{tracer}\n" in each.read_text() for each in threads)


def lines_of_root(trace: Path) -> Iterator[tuple[str, str]]:
    """Yield the system call and the rest of each line of a process that is root's at that time."""
    lines = [match.groups() for match in map(_LINE.match, trace.read_text().splitlines()) if match]
    changed: dict[str, int] = {}
    born: dict[str, tuple[str, int]] = {}
    first: dict[str, int] = {}
    for number, (pid, call, rest) in enumerate(lines):
        first.setdefault(pid, number)
        if call.startswith("set") and rest.endswith(" = 0") and not re.search(r"\((?:0|-1)[,)]", rest):
            changed.setdefault(pid, number)
        elif call in {"clone", "clone3", "fork", "vfork"} and (child := _CHILD.search(rest)):
            born[child[1]] = pid, number

    def is_root(pid: str, at: int) -> bool:
        while changed.get(pid, at) >= at:
            if pid not in born:
                return True
            parent, number = born[pid]
            pid, at = parent, min(first.get(pid, number), number)
        return False

    for number, (pid, call, rest) in enumerate(lines):
        if is_root(pid, number):
            yield call, rest


def below_a_user(path: str) -> bool:
    """Return True if a directory above a path belongs to a user."""
    for parent in Path(path).parents:
        with suppress(OSError):
            if parent.lstat().st_uid in {BOB, ANN}:
                return True
    return False


def violations(trace: Path) -> dict[str, set[str]]:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for call, rest in lines_of_root(trace):
        paths = _PATH.findall(rest)
        if call == "chdir":  # what is relative afterwards lies there
            paths = [f"{path}/x" for path in paths]
        for path in paths[:1] if call == "execve" else paths:
            if not path.startswith(_KERNEL) and below_a_user(path):
                found[path].add(call)
    return dict(found)


@pytest.fixture(params=["root", "games"], ids=["one-part", "two-parts"])
def daemon(request: pytest.FixtureRequest) -> Iterator[Service]:
    with service(executor="process", unknown_uids="accept", daemon_user=request.param) as made:
        yield made.start()


def asked(uid: int, work: object) -> object:
    code, answer = with_uid(uid, work)  # type: ignore[arg-type]
    assert code == 0, answer
    return answer


def run_all(daemon: Service, uid: int, home: Path) -> None:
    """Run a job with code, checkpoints and numbers, look at all of it, and restart it from a checkpoint."""
    home.mkdir()
    (home / "train.py").write_text(TRAIN)
    for each in (home, home / "train.py"):
        os.chown(each, uid, uid)
    workload = {"kind": "program", "command": ["python3", "train.py"], "code": str(home)}
    file = daemon.file(
        f"of-{uid}",
        workload=workload,
        checkpoint={"files": "out/checkpoint-*"},
        resources={"cpus": 1, "memory": "64MiB"},
    )
    placed = home / "job.yaml"
    placed.write_bytes(file.read_bytes())
    os.chown(placed, uid, uid)
    answer = asked(uid, partial(daemon.client.submit, str(placed), placed.read_bytes(), None))
    assert isinstance(answer, dict)
    job = str(answer["job"]["id"])
    assert daemon.ends(job)["outcome"] == "succeeded", daemon.told(job)
    curves = asked(uid, partial(daemon.client.get, f"/v1/jobs/{job}/curves"))
    assert isinstance(curves, dict)
    assert curves["curves"]["loss"]
    daemon.runner("cp", f"{job}:out", str(daemon.root / f"copy-{uid}"))
    asked(uid, partial(daemon.client.job, job))
    daemon.runner("show", job)
    daemon.runner("logs", job)


def test_root_names_no_path_below_a_directory_of_a_user(daemon: Service, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    with followed(daemon.daemon_pid(), trace):
        for uid in (BOB, ANN):
            run_all(daemon, uid, daemon.root / f"home-{uid}")
    assert any("execve" in call for call, _ in lines_of_root(trace))
    assert violations(trace) == {}
