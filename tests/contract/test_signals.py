"""A request to stop comes to the program once, past whatever has started it, and leaves nothing running."""

from collections.abc import Iterator
from signal import SIGKILL, SIGTERM, SIGUSR1

import pytest

from jobs.contract import RunPaths
from runner.core.ports.executor import Executor, LaunchRequest
from tests.contract.test_executor import DOCKER, SLURM_CRUN, _place, heard, job, pipe_of
from tests.contract.worlds import Place, begun, end, printed

__all__ = ["job"]

TRAINER = """\
# As trainers of libraries do: the first SIGTERM asks for a checkpoint, a second one to leave at once.
import os, signal, sys, time
count = 0
def hear(number, frame):
    global count
    count += 1
    os.write(1, b"heard %d" % count + bytes([10]))  # print may be what is interrupted
    if count > 1:
        os._exit(1)
signal.signal(signal.SIGTERM, hear)
loader = os.fork()
if not loader:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    while True:
        time.sleep(100)
print("ready", flush=True)
while not count:
    time.sleep(0.02)
time.sleep(1.2)  # it saves, for longer than the runner takes to look again
print("saved", "with its loader" if os.waitpid(loader, os.WNOHANG) == (0, 0) else "alone", flush=True)
os.kill(loader, signal.SIGKILL)
sys.exit(75)
"""

CALL = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, 'home/train.py']))"

POLL = """\
import subprocess, sys, time
program = subprocess.Popen([sys.executable, "home/train.py"])
while program.poll() is None:
    time.sleep(0.2)
sys.exit(program.returncode)
"""

THREADS = """\
import subprocess, sys
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor() as threads:
    codes = list(threads.map(subprocess.call, [[sys.executable, "home/train.py"]]))
sys.exit(codes[0])
"""

READ = """\
import subprocess, sys
program = subprocess.Popen(["python3", "home/train.py"], stdout=subprocess.PIPE, text=True)
for line in program.stdout:
    print(line, end="", flush=True)
sys.exit(program.wait())
"""

READ_BOTH = """\
import selectors, subprocess, sys
both = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
program = subprocess.Popen(["python3", "home/train.py"], **both)
waiting = selectors.DefaultSelector()
for pipe in (program.stdout, program.stderr):
    waiting.register(pipe, selectors.EVENT_READ)
while waiting.get_map():
    for key, _ in waiting.select():
        text = key.fileobj.read1()
        print(text.decode(), end="", flush=True)
        if not text:
            waiting.unregister(key.fileobj)
sys.exit(program.wait())
"""

PARALLEL = """\
# As GNU parallel does at the first SIGTERM: it starts no more, and waits for what runs.
printf parallel >/proc/$$/comm
trap 'stopped=1' TERM
"$@" & P=$!
wait $P
S=$?
[ -z "$stopped" ] || { wait $P; S=$?; }
exit $S
"""

LATE = """\
# Its end takes a while by the clock, whatever the speed of the machine, and less than AFTERWARDS.
trap 'echo trapped' TERM
"$@"
S=$? END=$((SECONDS + 2))
until [ $SECONDS -ge $END ]; do :; done
exit $S
"""

PROGRAM = "python3 home/train.py"

WRAPPED = {
    "itself": ["python3", "home/train.py"],
    "env": ["env", "A=1", "python3", "home/train.py"],
    "script": ["bash", "home/train.sh"],
    "sh": ["sh", "-c", f"{PROGRAM}; exit $?"],
    "pipe": ["bash", "-o", "pipefail", "-c", f"{PROGRAM} | tee home/copy"],
    "subshell": ["sh", "-c", f"(cd . && {PROGRAM}); exit $?"],
    "timeout": ["timeout", "1000", "python3", "home/train.py"],
    "launcher": ["python3", "-c", CALL],
    "poller": ["python3", "-c", POLL],
    "threads": ["python3", "-c", THREADS],
    "reader": ["python3", "-c", READ],
    "reader of both": ["python3", "-c", READ_BOTH],
    "parallel": ["bash", "-c", PARALLEL, "parallel", "python3", "home/train.py"],
    "session": ["sh", "-c", f"setsid {PROGRAM}; exit $?"],
    "clean-up": ["bash", "-c", f"trap 'echo cleaned up' EXIT; {PROGRAM}; exit $?"],
    "handler": ["bash", "-c", f"trap 'echo trapped' TERM; {PROGRAM}; exit $?"],
    "late": ["bash", "-c", LATE, "late", "python3", "home/train.py"],
    "forwarder": ["bash", "-c", f"trap 'kill $P' TERM; {PROGRAM} & P=$!; wait $P; wait $P"],
    "nested": ["sh", "-c", "bash home/train.sh; exit $?"],
}


@pytest.fixture(scope="module", params=["process", DOCKER, "slurm", SLURM_CRUN])
def real(request: pytest.FixtureRequest) -> Iterator[Place]:
    yield from _place(request)


def launched(real: Place, executor: Executor, argv: list[str], job: str) -> LaunchRequest:
    """Start a trainer through other programs, and wait until it listens."""
    request = real.request(*argv, job=job)
    for name, text in {"train.py": TRAINER, "train.sh": f"{PROGRAM}\nexit $?\n"}.items():
        (request.run_dir / "home" / name).write_text(text)
    executor.launch(request)
    begun(request)
    return request


@pytest.mark.parametrize("how", WRAPPED)
def test_a_request_to_stop_comes_to_the_trainer_once(real: Place, job: str, how: str) -> None:
    executor = real.executor()
    request = launched(real, executor, WRAPPED[how], job)
    executor.signal(request.key, SIGTERM)
    begun(request, "heard 1\n")
    real.executor().signal(request.key, SIGTERM)  # the daemon was killed, and gives its command again
    assert end(executor, request.key).exit_code == 75
    lines = [line for line in printed(request).splitlines() if line != "cleaned up"]
    assert lines == ["ready", "heard 1", "saved with its loader"]


def test_what_follows_the_trainer_in_a_script_is_asked_to_stop_as_well(real: Place, job: str) -> None:
    executor = real.executor()
    request = launched(real, executor, ["sh", "-c", f"{PROGRAM}; {PROGRAM}; sleep 1000"], job)
    executor.signal(request.key, SIGTERM)
    assert end(executor, request.key).exit_code == 128 + SIGTERM
    lines = printed(request).splitlines()
    assert lines[:3] == ["ready", "heard 1", "saved with its loader"]
    # the second one is asked as soon as it listens, which is before it says so
    assert sorted(lines[3:]) == ["heard 1", "ready", "saved with its loader"]


def test_a_signal_for_the_program_does_not_end_the_shell_around_it(real: Place, job: str) -> None:
    program = (
        "import os, signal; signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b'heard' + bytes([10]))); "
        "print('ready', flush=True); signal.pause()"
    )
    request = real.request("bash", "-c", f'python3 -c "{program}"; exit 3', job=job)
    executor = real.executor()
    executor.launch(request)
    begun(request)
    executor.signal(request.key, SIGUSR1)
    assert end(executor, request.key).exit_code == 3
    assert printed(request) == "ready\nheard\n"


def test_exit_0_is_an_answer_to_sigterm_whoever_sends_it(real: Place, job: str) -> None:
    program = (
        "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); "
        "print('ready', flush=True); signal.pause()"
    )
    request = real.request("python3", "-c", program, job=job)
    executor = real.executor()
    executor.launch(request)
    begun(request)
    executor.signal(request.key, SIGTERM)
    assert end(executor, request.key).exit_code == 75


def test_a_program_without_a_handler_ends_with_all_that_it_has_started(real: Place, job: str) -> None:
    script = "exec 3>home/pipe; echo begun >&3; sleep 1000 | cat; echo never"
    request = real.request("sh", "-c", script, job=job)
    executor = real.executor()
    with pipe_of(request) as pipe:
        executor.launch(request)
        assert heard(pipe) == b"begun\n"
        executor.signal(request.key, SIGTERM)
        assert end(executor, request.key).exit_code == 128 + SIGTERM
        assert heard(pipe) == b""
    assert "never" not in printed(request)


def test_a_program_that_reads_from_a_worker_that_it_has_forked_is_told_itself(real: Place, job: str) -> None:
    program = """\
import os, signal
reading, writing = os.pipe()
if not os.fork():
    signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"heard by a loader" + bytes([10])))
    print("ready", flush=True)
    while True:
        signal.pause()
os.read(reading, 1)
"""
    request = real.request("python3", "-c", program, job=job)
    executor = real.executor()
    executor.launch(request)
    begun(request)
    executor.signal(request.key, SIGTERM)
    assert end(executor, request.key).exit_code == 128 + SIGTERM


FORKING = """\
import ctypes, os, signal, time
ctypes.CDLL(None).prctl(15, b"sh")
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # as shells do while they fork
child = os.fork()
if child:
    print("ready", flush=True)
    os.waitpid(child, 0)
while not child and signal.SIGTERM not in signal.sigpending():
    time.sleep(0.02)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
print("goes on", flush=True)
"""


def test_a_shell_that_is_just_forking_ends_with_what_it_starts(real: Place, job: str) -> None:
    request = real.request("python3", "-c", FORKING, job=job)
    executor = real.executor()
    executor.launch(request)
    begun(request)
    executor.signal(request.key, SIGTERM)
    assert end(executor, request.key).exit_code == 128 + SIGTERM
    assert printed(request) == "ready\n"


@pytest.mark.parametrize("signal", [SIGTERM, SIGKILL])
def test_a_session_of_its_own_is_no_way_out(real: Place, job: str, signal: int) -> None:
    inner = "trap '' TERM; echo begun >&3; while :; do sleep 1; done"
    script = f'exec 3>home/pipe; (setsid sh -c "{inner}" & exit 0); exec sleep 1000 3>&-'
    request = real.request("sh", "-c", script, job=job)
    executor = real.executor()
    with pipe_of(request) as pipe:
        executor.launch(request)
        assert heard(pipe) == b"begun\n"
        executor.signal(request.key, signal)
        assert end(executor, request.key).exit_code == 128 + signal
        assert heard(pipe) == b""


def test_what_a_program_leaves_running_ends_with_it_and_is_named(real: Place, job: str) -> None:
    background = "(echo begun >&3; sleep 1000; :) &"
    script = f"exec 3>home/pipe; {background} until [ -e home/seen ]; do sleep 0.1; done; exit 3"
    request = real.request("sh", "-c", script, job=job)
    executor = real.executor()
    with pipe_of(request) as pipe:
        executor.launch(request)
        assert heard(pipe) == b"begun\n"
        (request.run_dir / "home" / "seen").touch()
        assert end(executor, request.key).exit_code == 3
        assert heard(pipe) == b""
    if executor.in_container or not executor.queues:  # Slurm ends what is left of plain processes itself
        left = request.log.with_name(RunPaths.LEFT).read_text().split()
        assert left[0] in {"sh", "bash"}
        assert set(left[1:]) <= {"sleep"}


def test_a_request_at_once_after_the_start_is_not_lost(real: Place, job: str) -> None:
    executor = real.executor()
    requests = [real.request("sleep", "1000", job=f"{job}-{n}") for n in range(5)]
    for request in requests:
        executor.launch(request)
        executor.signal(request.key, SIGTERM)
    assert [end(executor, request.key).exit_code for request in requests] == [128 + SIGTERM] * 5
