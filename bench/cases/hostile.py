"""Effect of four users who load the daemon on purpose on another one, beside the quiet daemon.

One floods it with requests, one lets it check the worst texts that its limits allow, one streams through
sixteen sessions, and one has thousands of waiting jobs and looks at all of them.  The daemon is root's, for
all users.  Everybody has a uid and a session of their own, as after a login: the kernel shares processors
between sessions, if it does so there.

The control are the same loads at another daemon of the machine: what is slow then waits for a processor.

The loads are under way for longer than a user may ask in advance (``REQUESTS_BURST_S``): no user can keep up
the rate of the first seconds.
"""

import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import count
from statistics import median
from typing import Final

from bench.support.daemon import running_daemon
from bench.support.result import Aim, CannotMeasure, Line, Result, Series
from bench.support.scratch import Effort, Scratch
from bench.support.slices import Slices, slices
from runner.base.errors import RunnerError
from runner.client.autostart import Endpoint
from runner.client.client import Client
from runner.client.sessions import open_session

BENCH: Final = "hostile"
AIM: Final = 3.0
ROUNDS: Final = 3
FIRST_UID: Final = 61_000
FIRST_VICTIM: Final = FIRST_UID + 9
"""The user of the first measurement; each has its own, since a list is as long as its user has jobs."""

SETTINGS: Final = "unknown_uids: accept\nsystem_wide: true\n"
SESSIONS: Final = 16
FLOODERS: Final = 8
WEIGHT: Final = 400
"""``CPUWeight`` of the daemon's unit."""

MATRIX: Final = 250
"""Jobs of one submission, whose answer a client awaits for 30 s."""

LATER: Final = "2099-01-01T00:00:00+00:00"
ASKED: Final = ("list", "cancel", "a job of no work")

QUIET: Final = "quiet"
HERE: Final = "four users with hostile loads"
ELSEWHERE: Final = "the same loads at another daemon"
"""The control: nothing is shared with these loads but the processors."""

_FORK: Final = multiprocessing.get_context("fork")


def measure(scratch: Scratch) -> Iterator[Line]:
    """Yield the times of another user's commands under load, beside those of the quiet daemon.

    Raises:
        CannotMeasure: only root can be several users, each with a control group.
    """
    if os.geteuid() != 0:
        raise CannotMeasure("only root can be several users")
    with slices() as groups, ExitStack() as daemons:
        here, elsewhere = (_daemon(daemons, groups, scratch, name) for name in ("shared", "other"))
        times: dict[str, list[dict[str, float]]] = {QUIET: [], ELSEWHERE: [], HERE: []}
        victims = count(FIRST_VICTIM)
        for _ in range(ROUNDS):
            for name, loaded in ((QUIET, None), (ELSEWHERE, elsewhere), (HERE, here)):
                with ExitStack() as stack:
                    for number, load in enumerate((flood, check, stream, wait)):
                        if loaded is not None:
                            work = partial(load, loaded, scratch.effort)
                            stack.enter_context(_as_user(groups, FIRST_UID + number, work))
                    time.sleep(scratch.effort.settled_s)
                    times[name].append(_victim(groups, next(victims), here, scratch.effort.asked))
    for asked in ASKED:
        quiet, control, ours = (
            Series(f"{asked}, {name}", "ms", tuple(each[asked] for each in found))
            for name, found in times.items()
        )
        yield Result(BENCH, ours, quiet, Aim(AIM, "ratio"))
        yield Result(BENCH, control, quiet)


def _daemon(daemons: ExitStack, groups: Slices, scratch: Scratch, name: str) -> Endpoint:
    with groups.entered(f"services/{name}", WEIGHT):
        daemon = daemons.enter_context(running_daemon(scratch.directory(name), "process", SETTINGS, 64))
    return Endpoint(str(daemon.client.endpoint.socket), None)


@contextmanager
def _as_user(groups: Slices, uid: int, load: Callable[[Callable[[], object]], None]) -> Iterator[None]:
    """Keep a load running in a process of a user; it is under way before the block begins."""
    begun = _FORK.Event()

    def run() -> None:
        _become(groups, uid)
        load(begun.set)

    process = _FORK.Process(target=run, daemon=True)
    process.start()
    try:
        while not begun.wait(1.0):
            if not process.is_alive():
                raise CannotMeasure(f"the load of uid {uid} did not begin")
        yield
    finally:
        if process.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        process.join()


def _become(groups: Slices, uid: int) -> None:
    groups.enter(f"logins/{uid}")
    os.setsid()
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def _victim(groups: Slices, uid: int, here: Endpoint, times: int) -> dict[str, float]:
    """Return the median time of each command in milliseconds, asked by a user of its own."""
    ours, theirs = _FORK.Pipe()

    def run() -> None:
        _become(groups, uid)
        theirs.send(_ask(Client(here), times))

    process = _FORK.Process(target=run, daemon=True)
    process.start()
    theirs.close()
    try:
        found: dict[str, float] = ours.recv()
    except EOFError as error:
        raise CannotMeasure("the user's own requests failed") from error
    finally:
        process.join()
    return found


def _ask(client: Client, times: int) -> dict[str, float]:
    took: dict[str, list[float]] = {name: [] for name in ASKED}
    for _ in range(times):
        with _timed(took["list"]):
            client.jobs(mine=True)
        with _timed(took["a job of no work"]):
            job = _submit(client, "/bin/true")
            while not client.wait(job, 5.0)[0]:
                continue
        job = _submit(client, "/bin/sleep 1000")
        client.wait_for_start(job, 60.0)
        with _timed(took["cancel"]):
            client.act(job, "cancel", {})
            while not client.wait(job, 5.0)[0]:
                continue
    return {name: 1000 * median(values) for name, values in took.items()}


@contextmanager
def _timed(values: list[float]) -> Iterator[None]:
    began = time.perf_counter()
    yield
    values.append(time.perf_counter() - began)


def _submit(client: Client, command: str, more: str = "") -> str:
    text = (
        f"name: small\nworkload:\n  kind: program\n  command: {json.dumps(command.split())}\n"
        f"resources: {{cpus: 1, memory: 64MiB}}\n{more}"
    )
    return str(client.submit("/job.yaml", text.encode(), None)["job"]["id"])


def flood(here: Endpoint, _effort: Effort, begun: Callable[[], object]) -> None:
    """Ask for everything, and never wait for the time that the daemon names."""
    begun()
    _together(FLOODERS, lambda: Client(here)._ask_once("GET", "/v1/jobs?all=1", None, 60.0))  # noqa: SLF001


def check(here: Endpoint, _effort: Effort, begun: Callable[[], object]) -> None:
    """Have texts checked that are as deep, as wide and as blank as they may be."""
    texts = (b"a: " + b"[" * 500_000, b"x: {" + b"a: {" * 100_000, b"name: small\n" + b" " * 1_000_000)
    begun()

    def ask() -> None:
        for text in texts:
            with suppress(RunnerError):
                Client(here).submit("/job.yaml", text, None, dry_run=True)

    _together(4, ask)


def stream(here: Endpoint, _effort: Effort, begun: Callable[[], object]) -> None:
    """Read what commands write without end."""
    client = Client(here)
    job = _submit(client, "/bin/sleep 1000")
    client.wait_for_start(job, 60.0)
    sessions = [open_session(client, job, "exec", {"argv": ("yes",)}) for _ in range(SESSIONS)]
    begun()

    def read(number: int) -> None:
        for _ in sessions[number].receive():
            continue

    for number in range(1, SESSIONS):
        threading.Thread(target=_repeat, args=(partial(read, number),), daemon=True).start()
    _repeat(partial(read, 0))


def wait(here: Endpoint, effort: Effort, begun: Callable[[], object]) -> None:
    """Have thousands of jobs that wait, and look at them."""
    client = Client(here)
    already = len(client.jobs(mine=True, ended=False))
    while already < effort.hostile_waiting:
        more = min(effort.hostile_waiting - already, MATRIX)
        seeds = ", ".join(map(str, range(more)))
        _submit(
            client,
            "/bin/true",
            f"queue: {{not_before: '{LATER}'}}\nmatrix: {{values: {{seed: [{seeds}]}}}}\n",
        )
        already += more
    begun()
    _together(2, lambda: client.jobs(mine=True, ended=False))


def _together(count: int, work: Callable[[], object]) -> None:
    for _ in range(count - 1):
        threading.Thread(target=_repeat, args=(work,), daemon=True).start()
    _repeat(work)


def _repeat(work: Callable[[], object]) -> None:
    while True:
        with suppress(RunnerError, EOFError):
            work()
