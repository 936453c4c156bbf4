"""Root opens, renames, makes and links nothing by a path below a directory of a user's, from end to end.

``strace`` follows every process of a daemon of root.  What a process does after it has become a user is that
user's; everything else is root's, and each path that it names must lie in directories of root alone.
"""

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from images.store import ImageStore
from tests.fakes.daemon.service import Service, service, until
from tests.fakes.engine.wheel_folder import make_wheel
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
    place.mkdir(parents=True, exist_ok=True)
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
    return all(_is_traced(each, tracer) for each in Path(f"/proc/{pid}/task").glob("*/status"))


def _is_traced(status: Path, tracer: int) -> bool:
    try:
        return f"TracerPid:\t{tracer}\n" in status.read_text()
    except (FileNotFoundError, ProcessLookupError):  # a thread that has just ended
        return True


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


PARTS: Final = pytest.mark.parametrize("user", ["root", "games"], ids=["one-part", "two-parts"])
RESOURCES: Final = {"cpus": 1, "memory": "1GiB"}
OWN: Final = "http://127.0.0.1:9/"
"""The address that people may name for notifications; nobody listens there."""

NOTIFY: Final = [{"on": "finished", "own": [OWN]}]
DOCKERFILE: Final = "FROM ${BASE}\nCOPY train.py /opt/train.py\n"


def asked(uid: int, work: object) -> dict[str, Any]:
    code, answer = with_uid(uid, work)  # type: ignore[arg-type]
    assert code == 0, answer
    assert isinstance(answer, dict)
    return answer


def write_home(home: Path, uid: int, files: Mapping[str, str]) -> None:
    """Make a directory of a user with files."""
    home.mkdir()
    for name, text in files.items():
        (home / name).write_text(text)
    for each in (home, *home.iterdir()):
        os.chown(each, uid, uid)


def run_all(daemon: Service, uid: int, **fields: object) -> None:
    """Run a job with code, checkpoints and numbers, look at all of it, and restart it from a checkpoint."""
    home = daemon.root / f"home-{uid}"
    command = {"kind": "program", "command": ["python3", "train.py"], "code": str(home)}
    known = {"checkpoint": {"files": "out/checkpoint-*"}, "resources": RESOURCES, **fields}
    files = {"train.py": TRAIN, "requirements.txt": "bar\n", "Dockerfile": DOCKERFILE}
    write_home(
        home, uid, {**files, "job.yaml": json.dumps({"name": f"of-{uid}", "workload": command, **known})}
    )
    placed = home / "job.yaml"
    job = str(asked(uid, partial(daemon.client.submit, str(placed), placed.read_bytes(), None))["job"]["id"])
    ends_well(daemon, job)
    assert asked(uid, partial(daemon.client.get, f"/v1/jobs/{job}/curves"))["curves"]["loss"]
    daemon.runner("cp", f"{job}:out", str(daemon.root / f"copy-{uid}"))
    asked(uid, partial(daemon.client.job, job))
    for command_of_reading in ("show", "logs"):
        daemon.runner(command_of_reading, job)
    asked(uid, partial(daemon.client.act, job, "restart", {"from": 2}))
    assert ends_well(daemon, job)["attempt"] == 2
    run_several(daemon, uid, {"name": f"several-{uid}", "workload": command, **known})
    removed = asked(uid, partial(daemon.client.post, "/v1/prune", {"jobs": [job]}))["removed"]
    assert [each["job"] for each in removed] == [job]


def run_several(daemon: Service, uid: int, known: Mapping[str, object]) -> None:
    """Run a sweep that tells its owner of each end, and look at what the daemon says of its candidates."""
    sweep = {"parameters": {"environment.RATE": ["1", "2"]}, "metric": "loss"}
    text = json.dumps({**known, "labels": {"notify": f"{OWN}{uid}"}, "sweep": sweep}).encode()
    place = str(daemon.root / f"home-{uid}" / "several.yaml")
    jobs = [str(each["id"]) for each in asked(uid, partial(daemon.client.submit, place, text, None))["jobs"]]
    assert len(jobs) == 2
    for job in jobs:
        ends_well(daemon, job)
        daemon.runner("why", job)
    until(
        lambda: daemon.daemon_log().count("notify.dropped") >= 2,
        "its owner would have been told",
        more=daemon.log_tail,
    )
    daemon.runner("sweep", "show", jobs[0])
    asked(uid, partial(daemon.client.post, "/v1/prune", {"mine": True, "dry_run": True}))


def ends_well(daemon: Service, job: str) -> dict[str, Any]:
    found = daemon.ends(job)
    assert found["outcome"] == "succeeded", f"{daemon.told(job)}\n{daemon.log(job)}\n{daemon.log_tail()}"
    return found


def assert_nothing_named(daemon: Service, trace: Path, run: Callable[[], None]) -> None:
    with followed(daemon.daemon_pid(), trace):
        run()
    assert any("execve" in call for call, _ in lines_of_root(trace))
    assert violations(trace) == {}


@PARTS
def test_root_names_no_path_below_a_directory_of_a_user(user: str, tmp_path: Path) -> None:
    with service(executor="process", daemon_user=user, notify=NOTIFY) as daemon:
        daemon.start()

        def run() -> None:
            for uid in (BOB, ANN):
                run_all(daemon, uid)

        assert_nothing_named(daemon, tmp_path / "trace", run)


@pytest.mark.engine
@PARTS
def test_root_names_none_for_containers_packages_and_a_dockerfile(user: str, tmp_path: Path) -> None:
    ImageStore().ensure("cpu", tmp_path / "build.txt")
    with tempfile.TemporaryDirectory(prefix="wheels") as wheels:
        Path(wheels).chmod(0o755)
        make_wheel(Path(wheels), "bar", "1.0")
        packages = {"find_links": [wheels], "no_index": True, "dockerfiles": True}
        with service(executor="docker", daemon_user=user, packages=packages, notify=NOTIFY) as daemon:
            daemon.start()
            image = {"dockerfile": "Dockerfile", "requirements": "requirements.txt"}
            assert_nothing_named(daemon, tmp_path / "trace", partial(run_all, daemon, BOB, image=image))
