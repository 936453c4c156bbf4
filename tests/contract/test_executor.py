"""Promises of every executor, played on the fake, on processes and on containers."""

import json
import os
import pwd
import select
import socket
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from signal import SIGINT, SIGKILL, SIGTERM, SIGUSR1
from typing import Any

import pytest

from runner.adapters.slurm.executor import SlurmExecutor
from runner.base.errors import Refused, Unavailable
from runner.core.ports.executor import Alive, Gone, Key, LaunchRefused, LaunchRequest
from runner.core.ports.users import Owner
from tests.contract.worlds import (
    OWNER,
    Place,
    begun,
    docker_place,
    end,
    eventually,
    fake_place,
    printed,
    process_place,
    seen,
    slurm_place,
)
from tests.fakes.engine.executor import FOREVER, Program
from tests.fakes.patience import patience

DOCKER = pytest.param("docker", marks=pytest.mark.engine)
SLURM_CRUN = pytest.param("slurm-crun", marks=pytest.mark.engine)
EXIT_7 = ("/bin/sh", "-c", "exit 7")
SLEEP = ("/bin/sh", "-c", "echo ready; exec sleep 1000")
SAVES_ON_TERM = ("/bin/sh", "-c", "trap 'echo saved; exit 75' TERM; echo ready; while :; do sleep 0.02; done")


@pytest.fixture(scope="module", params=["fake", "process", DOCKER, "slurm", SLURM_CRUN])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    yield from _place(request)


@pytest.fixture(scope="module", params=["process", DOCKER, "slurm", SLURM_CRUN])
def real(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Yield the places in which programs really run."""
    yield from _place(request)


@pytest.fixture
def job(request: pytest.FixtureRequest) -> str:
    """A job id of the test's own: one world serves all tests."""
    return f"j{zlib.crc32(request.node.nodeid.encode())}"


def _place(request: pytest.FixtureRequest) -> Iterator[Place]:
    match request.param:
        case "fake":
            chosen = fake_place()
        case "process":
            chosen = process_place()
        case "slurm":
            chosen = slurm_place(request.getfixturevalue("slurm_conf"))
        case "slurm-crun":
            conf, image = request.getfixturevalue("slurm_conf"), request.getfixturevalue("base_image")
            chosen = slurm_place(conf, request.getfixturevalue("engine"), image)
        case _:
            chosen = docker_place(request.getfixturevalue("engine"), request.getfixturevalue("base_image"))
    with chosen as place:
        yield place


# --- One start -------------------------------------------------------------------------------------------


def test_launching_twice_starts_once(place: Place, job: str) -> None:
    request = place.request("/bin/sh", "-c", "echo one start", job=job, like=Program(0))
    place.executor().launch(request)
    place.executor().launch(request)  # the daemon was killed before it could record the first
    end(place.executor(), request.key)
    place.executor().launch(request)
    assert end(place.executor(), request.key).exit_code == 0
    if place.fake:
        assert [r.key for r in place.fake.launches].count(request.key) == 1
    else:
        assert printed(request) == "one start\n"


def test_many_launches_at_once_start_once(place: Place, job: str) -> None:
    request = place.request("/bin/sh", "-c", "echo one start", job=job, like=Program(0))
    executor = place.executor()

    def insist(_: int) -> bool:
        """Launch as the daemon does: an answer that says nothing is asked for again."""
        with suppress(Unavailable):
            executor.launch(request)
            return True
        return False

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda number: eventually(lambda: insist(number)), range(8)))
    assert end(executor, request.key).exit_code == 0
    assert not place.real or printed(request) == "one start\n"


# --- The end ----------------------------------------------------------------------------------------------


def test_the_programs_exit_code_comes_back(place: Place, job: str) -> None:
    request = place.request(*EXIT_7, job=job, like=Program(7))
    executor = place.executor()
    executor.launch(request)
    gone = end(executor, request.key)
    assert (gone.exit_code, gone.oom_seen, gone.error) == (7, False, "")


def test_a_new_executor_adopts_what_runs_and_sees_its_end(place: Place, job: str) -> None:
    request = place.request(*SAVES_ON_TERM, job=job, like=Program(on_signal={SIGTERM: 75}))
    place.executor().launch(request)
    adopter = place.executor()
    assert isinstance(seen(adopter, request.key), Alive)
    if place.real:
        begun(request)
    adopter.signal(request.key, SIGTERM)
    assert end(place.executor(), request.key).exit_code == 75


def test_a_program_that_ignores_a_signal_runs_on_until_sigkill(place: Place, job: str) -> None:
    argv = ("/bin/sh", "-c", "trap 'echo heard' TERM; echo ready; while :; do sleep 0.02; done")
    request = place.request(*argv, job=job, like=Program(on_signal={SIGTERM: None}))
    executor = place.executor()
    executor.launch(request)
    if place.real:
        begun(request)
    executor.signal(request.key, SIGTERM)
    if place.real:
        begun(request, "heard\n")
    assert isinstance(seen(executor, request.key), Alive)
    executor.signal(request.key, SIGKILL)
    assert end(executor, request.key).exit_code == 128 + SIGKILL


def test_a_program_without_a_handler_ends_by_the_signal(place: Place, job: str) -> None:
    request = place.request(*SLEEP, job=job, like=FOREVER)
    executor = place.executor()
    executor.launch(request)
    executor.signal(request.key, SIGTERM)  # however early
    assert end(executor, request.key).exit_code == 128 + SIGTERM


def test_a_signal_to_what_has_ended_or_never_was_is_no_error(place: Place, job: str) -> None:
    request = place.request(*EXIT_7, job=job, like=Program(7))
    executor = place.executor()
    executor.launch(request)
    end(executor, request.key)
    executor.signal(request.key, SIGTERM)
    executor.signal(Key(place.instance, "never", 1), SIGKILL)
    assert end(executor, request.key).exit_code == 7


# --- What is there ------------------------------------------------------------------------------------


def test_attempts_of_one_job_are_told_apart(place: Place, job: str) -> None:
    executor = place.executor()
    first = place.request(*EXIT_7, job=job, attempt=1, like=Program(7))
    second = place.request("/bin/sh", "-c", "exit 8", job=job, attempt=2, like=Program(8))
    for request in (first, second):
        executor.launch(request)
    assert [end(executor, request.key).exit_code for request in (first, second)] == [7, 8]


def test_another_daemons_attempts_are_not_ours(place: Place, job: str) -> None:
    theirs = place.elsewhere(place.request(*EXIT_7, job=job, like=Program(7)), f"{place.instance}x")
    place.make(theirs.key.instance).launch(theirs)
    end(place.make(theirs.key.instance), theirs.key)
    assert all(observation.key.instance == place.instance for observation in place.executor().observe())


def test_an_ended_attempt_stays_until_it_is_removed_and_may_be_removed_twice(place: Place, job: str) -> None:
    request = place.request(*EXIT_7, job=job, like=Program(7))
    executor = place.executor()
    executor.launch(request)
    end(executor, request.key)
    assert isinstance(seen(executor, request.key), Gone)
    executor.remove(request.key)
    executor.remove(request.key)
    assert eventually(lambda: seen(executor, request.key) is None)


def test_what_runs_is_not_removed(place: Place, job: str) -> None:
    request = place.request(*SLEEP, job=job, like=FOREVER)
    executor = place.executor()
    executor.launch(request)
    with pytest.raises(Unavailable, match="signal it first"):
        executor.remove(request.key)
    assert isinstance(seen(executor, request.key), Alive)
    executor.signal(request.key, SIGKILL)


def test_a_watch_wakes_when_an_attempt_ends_and_can_be_stopped(place: Place, job: str) -> None:
    request = place.request(*SAVES_ON_TERM, job=job, like=Program(on_signal={SIGTERM: 75}))
    executor = place.executor()
    woken = threading.Event()
    stop = executor.watch(woken.set)
    try:
        executor.launch(request)
        if place.real:
            begun(request)
        executor.signal(request.key, SIGTERM)

        def ended() -> bool:
            assert woken.wait(patience())
            woken.clear()
            return isinstance(seen(executor, request.key), Gone)

        eventually(ended)
    finally:
        stop()
    assert not any(
        thread.name in {"engine-events", "process-ends", "slurm-files"} for thread in threading.enumerate()
    )


# --- Rules --------------------------------------------------------------------------------------------


def test_a_plan_is_json_and_starts_nothing(place: Place, job: str) -> None:
    request = place.request(*EXIT_7, job=job)
    plan = place.executor().plan(request)
    assert json.loads(json.dumps(plan)) == plan
    assert "exit 7" in json.dumps(plan)
    assert seen(place.executor(), request.key) is None


@pytest.mark.parametrize("owner", [Owner(0, 0, "root"), Owner(OWNER.uid, 0, "wheel")])
def test_root_runs_nothing(place: Place, job: str, owner: Owner) -> None:
    request = replace(place.request(*EXIT_7, job=job), owner=owner)
    with pytest.raises(Refused, match="root"):
        place.executor().launch(request)
    assert seen(place.executor(), request.key) is None


def test_a_job_cannot_set_what_the_loader_reads(place: Place, job: str) -> None:
    request = replace(place.request(*EXIT_7, job=job), environment={"LD_PRELOAD": "/evil.so"})
    with pytest.raises(Refused, match="LD_PRELOAD"):
        place.executor().launch(request)


# --- Where programs really run ------------------------------------------------------------------------


def test_a_log_of_many_fast_lines_is_complete_and_in_order(real: Place, job: str) -> None:
    program = (
        "import sys\nfor i in range(20000): print(i, file=sys.stderr if i % 2 else sys.stdout, flush=True)"
    )
    request = real.request("python3", "-c", program, job=job)
    executor = real.executor()
    executor.launch(request)
    assert end(executor, request.key).exit_code == 0
    assert printed(request).split() == [str(i) for i in range(20000)]


def test_the_environment_and_the_directory_are_what_was_said(real: Place, job: str) -> None:
    values = {"PLAIN": "1", "HOSTILE": "a b\n'\"$HOME`id`;echo", "EMPTY": "", "PATHLIKE": "/x=y:/z"}
    program = (
        "import json, os; print(json.dumps([dict(os.environ), os.getcwd(), os.getuid(), os.getgroups()]))"
    )
    request = replace(real.request("python3", "-c", program, job=job), environment=values)
    executor = real.executor()
    executor.launch(request)
    assert end(executor, request.key).exit_code == 0
    environment, directory, uid, groups = json.loads(printed(request))
    root = str(real.job_dir or request.run_dir)
    assert {name: environment[name] for name in values} == values
    assert (directory, uid, environment["HOME"]) == (root, real.owner.uid, f"{root}/home")
    assert groups in ([], [real.owner.gid])
    assert (environment["USER"], environment["PYTHONHASHSEED"]) == ("ada", "0")
    assert not {"SUDO_USER", "SSH_AUTH_SOCK", "VIRTUAL_ENV"} & environment.keys()


def test_arguments_arrive_as_they_were_given(real: Place, job: str) -> None:
    words = ["", "two words", "quo'te\"s", "new\nline", "; echo gotcha", "$(id)", "-rf", "--", "*", "é"]
    program = "import sys; sys.stdout.buffer.write('|'.join(sys.argv[1:]).encode('utf-8', 'surrogateescape'))"
    request = real.request("python3", "-c", program, *words, job=job)
    executor = real.executor()
    executor.launch(request)
    end(executor, request.key)
    assert printed(request) == "|".join(words)


@pytest.mark.parametrize("signal", [SIGINT, SIGUSR1, SIGTERM])
def test_every_signal_reaches_the_program(real: Place, job: str, signal: int) -> None:
    program = (
        "import signal, sys\n"
        f"signal.signal({int(signal)}, lambda number, _: sys.exit(number + 30))\n"
        "print('ready', flush=True)\n"
        "while True: signal.pause()"
    )
    request = real.request("python3", "-c", program, job=job)
    executor = real.executor()
    executor.launch(request)
    begun(request)
    executor.signal(request.key, signal)
    assert end(executor, request.key).exit_code == signal + 30


def test_a_plain_python_program_can_be_interrupted(real: Place, job: str) -> None:
    request = real.request(
        "python3", "-c", "print('ready', flush=True); import time; time.sleep(1000)", job=job
    )
    executor = real.executor()
    executor.launch(request)
    begun(request)
    executor.signal(request.key, SIGINT)
    assert end(executor, request.key).exit_code == 128 + SIGINT
    assert "KeyboardInterrupt" in printed(request)


@contextmanager
def pipe_of(request: LaunchRequest) -> Iterator[int]:
    """Make ``home/pipe``, whose end comes when the last process that holds it open has ended."""
    pipe = request.run_dir / "home" / "pipe"
    os.mkfifo(pipe)
    pipe.chmod(0o666)
    with os.fdopen(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)) as reader:
        yield reader.fileno()


def heard(pipe: int) -> bytes:
    """Return what comes next through a pipe; nothing at its end."""
    assert select.select([pipe], [], [], patience())[0], "somebody still holds it open"
    return os.read(pipe, 100)


def test_what_a_program_leaves_behind_ends_with_it(real: Place, job: str) -> None:
    request = real.request("/bin/sh", "-c", "exec 3>home/pipe; echo begun >&3; sleep 1000 & exit 3", job=job)
    executor = real.executor()
    with pipe_of(request) as pipe:
        executor.launch(request)
        assert end(executor, request.key).exit_code == 3
        assert [heard(pipe), heard(pipe)] == [b"begun\n", b""]


def test_sigkill_reaches_all_processes_of_an_attempt(real: Place, job: str) -> None:
    script = "exec 3>home/pipe; sleep 1000 & echo begun >&3; sleep 1000; echo never"
    request = real.request("/bin/sh", "-c", script, job=job)
    executor = real.executor()
    with pipe_of(request) as pipe:
        executor.launch(request)
        assert heard(pipe) == b"begun\n"
        executor.signal(request.key, SIGKILL)
        assert end(executor, request.key).exit_code == 128 + SIGKILL
        assert heard(pipe) == b""


def test_a_program_that_is_not_there_is_a_clear_end(real: Place, job: str) -> None:
    request = real.request("/no/such/program", job=job)
    executor = real.executor()
    executor.launch(request)
    assert end(executor, request.key).exit_code == 127
    assert "/no/such/program" in printed(request)


def test_a_log_that_cannot_be_written_is_an_end_with_its_reason(real: Place, job: str) -> None:
    request = real.request("/bin/sh", "-c", "echo lost", job=job)
    request.log.mkdir()
    executor = real.executor()
    executor.launch(request)
    gone = end(executor, request.key)
    assert gone.exit_code == 2
    assert "log.txt" in gone.error


def test_nobody_waits_for_input(real: Place, job: str) -> None:
    request = real.request("/bin/sh", "-c", "cat; echo end of input", job=job)
    executor = real.executor()
    executor.launch(request)
    end(executor, request.key)
    assert printed(request) == "end of input\n"


def test_a_run_directory_that_is_not_there_is_refused(real: Place, job: str) -> None:
    request = real.request(*EXIT_7, job=job)
    nowhere = real.root / "nowhere"
    request = replace(request, run_dir=nowhere, log=nowhere / "log.txt")
    with pytest.raises(LaunchRefused, match="nowhere"):
        real.executor().launch(request)
    assert not nowhere.exists()
    assert seen(real.executor(), request.key) is None


def test_the_end_has_a_time(real: Place, job: str) -> None:
    request = real.request(*EXIT_7, job=job)
    executor = real.executor()
    executor.launch(request)
    at = end(executor, request.key).at
    assert at is not None
    assert abs(at.timestamp() - request.log.stat().st_mtime) < 60


def told(real: Place, job: str, program: str, groups: tuple[int, ...] = ()) -> list[Any]:
    """Return what a program of Python has printed as JSON."""
    on_host = ("on the host",) if real.job_dir is None else ()
    request = replace(real.request("python3", "-c", program, *on_host, job=job), groups=groups)
    executor = real.executor()
    executor.launch(request)
    assert end(executor, request.key).exit_code == 0
    answer: list[Any] = json.loads(printed(request))
    return answer


def test_the_variables_name_the_account_of_the_job(real: Place, job: str) -> None:
    values = "getpass.getuser(), os.environ['LOGNAME'], os.path.basename(os.environ['HOME'])"
    program = f"import getpass, json, os; print(json.dumps([{values}]))"
    assert told(real, job, program) == ["ada", "ada", "home"]


def test_in_a_container_the_own_name_and_the_account_resolve_without_a_network_else_as_on_the_host(
    real: Place, job: str
) -> None:
    program = (
        "import json, os, pwd, socket, sys\n"
        "name = socket.gethostname()\n"
        "entry = [each for each in pwd.getpwall() if each.pw_uid == os.getuid()][:1]\n"
        "print(json.dumps([name, [(each.pw_name, each.pw_dir == os.environ['HOME'],"
        " os.path.expanduser('~' + each.pw_name) == each.pw_dir) for each in entry],"
        " None if len(sys.argv) > 1 else socket.gethostbyname(name)]))"
    )
    name, account, address = told(real, job, program)
    if real.job_dir is None:
        owner = [each for each in pwd.getpwall() if each.pw_uid == real.owner.uid][:1]
        assert account == [[each.pw_name, False, True] for each in owner]
        assert name == socket.gethostname()
    else:
        assert (account, address) == ([["ada", True, True]], "127.0.0.1")


def test_the_groups_are_those_of_the_request_or_of_who_runs_it_where_nobody_can_give_groups(
    real: Place, job: str
) -> None:
    asked = {54321, 54322}
    groups = set(told(real, job, "import os; print(sorted(os.getgroups()))", tuple(asked)))
    if isinstance(real.executor(), SlurmExecutor):  # Slurm looks its user up
        name = pwd.getpwuid(real.owner.uid).pw_name
        assert groups == set(os.getgrouplist(name, real.owner.gid))
    elif real.job_dir is None and os.geteuid() != 0:
        assert groups == set(os.getgroups())
    else:
        assert asked <= groups
        assert groups - asked <= {real.owner.gid}


def test_a_secret_becomes_a_variable_inside_and_files_have_the_umask(real: Place, job: str) -> None:
    root = str(real.job_dir) if real.job_dir else None
    program = "import os; open('home/made', 'w').close(); print(repr(os.environ['HF_TOKEN']))"
    request = real.request("python3", "-c", program, job=job)
    root = root or str(request.run_dir)
    told = {"RUNNER_SECRET_ENV": "HF_TOKEN", "RUNNER_SECRETS_DIR": f"{root}/home", "RUNNER_UMASK": "002"}
    request = replace(request, environment=told)
    (request.run_dir / "home" / "HF_TOKEN").write_text("se cr$et`'\"\n")
    executor = real.executor()
    assert "se cr" not in json.dumps(executor.plan(request))
    executor.launch(request)
    assert end(executor, request.key).exit_code == 0
    assert printed(request) == repr("se cr$et`'\"") + "\n"
    assert (request.run_dir / "home" / "made").stat().st_mode & 0o777 == 0o664
    assert request.log.stat().st_mode & 0o777 == 0o600
