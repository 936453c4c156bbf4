"""Runs ``uv`` with the rights of another user, within limits, until it ends or is cancelled."""

import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from shutil import disk_usage
from threading import Event, Thread
from typing import Final

from images.cancellation import CancellationToken, deadline
from images.errors import BuildFailed, HostFault
from images.packages.scratch import Scratch
from images.packages.values import Account, Indexes, Limits

SYSTEM_CERTIFICATES: Final = Path("/etc/ssl/certs/ca-certificates.crt")
"""The certificates that this host trusts, as Debian and others keep them."""

_PASSED: Final = (
    *("http_proxy", "https_proxy", "no_proxy", "all_proxy"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "LANG"),
)
"""Variables of the daemon that ``uv`` gets: how this host reaches the network."""

MAX_OUTPUT: Final = 256 * 1024
"""Bytes of the output that are kept, from its end."""


MAX_LINE: Final = 16 * 1024
"""Bytes of one line; a longer one is taken in parts."""

MAX_SAID_BYTES: Final = 4 * 1024**2
"""Of the whole output; what says more is ended."""

MIN_COUNTED_BYTES: Final = 256
"""Of one read, which takes its time whatever it brings."""

END_S: Final = 5.0
"""Until a program that has closed its output, or was killed, has ended: a tracer may keep it from that."""

MAX_FILE_BYTES: Final = 16 * 1024**3
"""Of one file that a program writes: wheels, and what is in them."""

KEPT_FREE_BYTES: Final = 1024**3
"""Of the disk, or a twentieth if that is less: a package of some kilobytes may hold any amount of zeros."""

LOOK_S: Final = 0.2
"""Between two looks at the disk."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a program."""

    exit_code: int
    output: str


def find_uv() -> str:
    """Return the path of the ``uv`` that is installed beside this package.

    Raises:
        BuildFailed: there is none.
    """
    from uv import find_uv_bin  # noqa: PLC0415  only a job with packages needs it

    try:
        return str(find_uv_bin())
    except FileNotFoundError as error:
        raise BuildFailed(f"uv: is not installed beside the runner: {error}") from error


def find_python(account: Account | None) -> str:
    """Return an interpreter that an account can start; ``uv`` asks it for the layout of an environment.

    Raises:
        BuildFailed: there is none.
    """
    if account is None:
        return sys.executable
    for path in (Path(sys.executable).resolve(), Path("/usr/bin/python3")):
        if path.is_file() and all(each.stat().st_mode & 0o001 for each in (path, *path.parents)):
            return str(path)
    raise BuildFailed("no python3 that every user may start; install the runner, or Python, outside of /root")


_ASKED: Final = "get_interpreter_info"
"""Mark of the code with which ``uv`` asks an interpreter for its layout."""

_ANSWERING: Final = """\
#!/bin/sh
case "$*" in *{asked}*) exec cat {answer};; esac
echo "nothing is executed here" >&2
exit 1
"""


def answering_python(work: Scratch, account: Account | None) -> Path:
    """Return a program that tells ``uv`` the layout of an interpreter and executes nothing.

    With it ``uv`` considers source distributions as always, and reads what they declare.  Where it would run
    code of one to know what it needs, it fails and names it.

    Raises:
        BuildFailed: there is no interpreter.
    """
    path = work.path / "python"
    told = _layout_of(find_python(account))
    for name in ("sys_executable", "sys_base_executable"):
        told = re.sub(rf'("{name}":\s*)"[^"]*"', lambda found: found[1] + json.dumps(str(path)), told)
    answer = work.write("python.json", told)
    work.write("python", _ANSWERING.format(asked=_ASKED, answer=shlex.quote(str(answer))))
    path.chmod(path.stat().st_mode | 0o110)
    return path


@cache
def _layout_of(python: str) -> str:
    """Return the answer of an interpreter to ``uv``, which is asked before there is any package.

    Raises:
        BuildFailed: it does not answer.
    """
    with tempfile.TemporaryDirectory() as directory:
        answer, asked = Path(directory, "answer"), Path(directory, "python")
        asked.write_text(f'#!/bin/sh\n{shlex.quote(python)} "$@" >{answer}; cat {answer}\n')
        asked.chmod(0o700)
        options = ["--quiet", "--no-config", "--no-index", f"--cache-dir={directory}/cache"]
        argv = [find_uv(), "pip", "compile", *options, f"--python={asked}", "-"]
        environment = {"PATH": os.defpath, "HOME": directory}
        done = subprocess.run(argv, env=environment, input="", capture_output=True, text=True, check=False)
        if done.returncode != 0 or not answer.is_file():
            raise BuildFailed(f"{python}: does not say what it is: {done.stderr.strip()[-500:]}")
        return answer.read_text()


def uv_environment(home: Path, indexes: Indexes, work: Scratch) -> dict[str, str]:
    """Return the environment of ``uv``: nothing of the daemon's own but its way to the network.

    The credentials are copied for the account: the operator's file may be readable for this process alone.

    Raises:
        BuildFailed: the credentials cannot be read.
    """
    passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
    trust = {} if indexes.ca_file is None else {"SSL_CERT_FILE": str(indexes.ca_file)}
    if not trust and not {"SSL_CERT_FILE", "SSL_CERT_DIR"} & passed.keys() and SYSTEM_CERTIFICATES.exists():
        trust = {
            "SSL_CERT_FILE": str(SYSTEM_CERTIFICATES)
        }  # uv brings certificates of its own, and no proxy's
    secret = {} if indexes.netrc is None else {"NETRC": str(_copy_secret(indexes.netrc, work))}
    return {"PATH": os.defpath, **passed, **trust, **secret, "HOME": str(home), "TMPDIR": str(home)}


def _copy_secret(source: Path, work: Scratch) -> Path:
    try:
        return work.write("netrc", source.read_bytes())
    except OSError as error:
        raise BuildFailed(f"packages.credentials: {source}: {error.strerror}") from error


def index_arguments(indexes: Indexes) -> list[str]:
    """Return the options of ``uv`` for the indexes of the operator."""
    return [
        *([] if indexes.index_url is None else [f"--default-index={indexes.index_url}"]),
        *(f"--index={url}" for url in indexes.extra_index_urls),
        *(f"--find-links={place}" for place in indexes.find_links),
        *(["--no-index"] if indexes.offline else []),
    ]


def run(  # noqa: PLR0913, PLR0917  (one value per part of a start)
    argv: list[str],
    directory: Path,
    environment: Mapping[str, str],
    account: Account | None,
    limits: Limits,
    token: CancellationToken,
    tell: Callable[[str], None] | None = None,
) -> Outcome:
    """Run a program in a directory and return how it ended, with its output; ``tell`` gets each line of it.

    Other processes of its account may keep its output open, write into it, or trace it: they delay nothing.

    Raises:
        BuildFailed: it could not be started, took longer than its limit, said too much, or did not end.
        HostFault: the disk would be full.
        BuildCancelled: ``token`` was cancelled.
    """
    try:
        process = subprocess.Popen(
            [*_limited(limits), *_as(account), *argv],
            cwd=directory,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # of which no tracer can take it out, as out of a group
        )
    except OSError as error:
        raise BuildFailed(f"{argv[0]}: cannot be started: {error.strerror}") from error

    killed = Event()

    def kill() -> None:
        killed.set()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    assert process.stdout is not None, "a pipe"  # noqa: S101  for the type checker
    with (
        process.stdout as pipe,
        token.on_cancel(kill),
        deadline(limits.seconds, kill) as late,
        _keeping_free(directory, kill) as full,
    ):
        try:
            output = _read(_blocks(process, pipe.fileno(), killed), tell or (lambda _: None))
            _await_end(process)
        finally:
            if process.returncode is None:
                kill()
                _await_end(process)
    token.check()
    if full.is_set():
        raise nearly_full(directory.parent)
    if late.is_set():
        raise BuildFailed(f"took longer than {limits.seconds:g} s and was ended")
    if killed.is_set():
        most = f"{MAX_SAID_BYTES // 1024**2} MiB"
        raise BuildFailed(f"{argv[0]}: says more than {most}, or closes its output and runs on; it was ended")
    return Outcome(process.returncode, output)


def room(directory: Path) -> int:
    """Return the bytes that may be written to a disk; a part of it is left to everybody else."""
    disk = disk_usage(directory)
    return disk.free - min(KEPT_FREE_BYTES, disk.total // 20)


def nearly_full(directory: Path) -> HostFault:
    """Return the error that a disk has no room."""
    return HostFault(f"packages: the disk of {directory} is nearly full; the rest is kept for others")


@contextmanager
def _keeping_free(directory: Path, expire: Callable[[], None]) -> Iterator[Event]:
    """Call ``expire``, from another thread, before the disk is full; yield an event that is set then."""
    full, ended = Event(), Event()

    def watch() -> None:
        while not ended.is_set():
            if room(directory) < 0:
                full.set()
                expire()
                return
            ended.wait(LOOK_S)

    watcher = Thread(target=watch, name="disk of packages", daemon=True)
    watcher.start()
    try:
        yield full
    finally:
        ended.set()
        watcher.join()


def _blocks(process: subprocess.Popen[bytes], pipe: int, killed: Event) -> Iterator[bytes]:
    """Yield what a program says until it ends or is killed, and no more than it may."""
    waiting, left = select.poll(), MAX_SAID_BYTES
    waiting.register(pipe, select.POLLIN)
    while left > 0:
        over = killed.is_set() or process.poll() is not None  # what it has said is in the pipe by then
        if waiting.poll(0 if over else LOOK_S * 1000):
            block = os.read(pipe, MAX_LINE // 2)
            if not block:
                return
            left -= max(len(block), MIN_COUNTED_BYTES)
            yield block
        elif over:
            return


def _await_end(process: subprocess.Popen[bytes]) -> None:
    with suppress(subprocess.TimeoutExpired):  # the next start of any program reaps it
        process.wait(END_S)


def _read(blocks: Iterable[bytes], tell: Callable[[str], None]) -> str:
    """Return the end of what a program says, whose lines ``tell`` gets."""
    kept, rest = bytearray(), b""
    for block in blocks:
        kept += block
        del kept[:-MAX_OUTPUT]
        *lines, rest = (rest + block).split(b"\n")
        if len(rest) > MAX_LINE // 2:
            lines, rest = [*lines, rest], b""
        for line in lines:
            tell(line.decode(errors="replace"))
    if rest:
        tell(rest.decode(errors="replace"))
    return kept.decode(errors="replace")


def _limited(limits: Limits) -> list[str]:
    return [
        *["prlimit", f"--as={limits.memory_bytes}", f"--cpu={int(limits.seconds) + 1}", "--core=0"],
        *[f"--fsize={MAX_FILE_BYTES}", "--"],
    ]


def _as(account: Account | None) -> list[str]:
    if account is None:
        return ["setpriv", "--no-new-privs", "--"]
    groups = (
        [f"--groups={','.join(str(gid) for gid in account.groups)}"] if account.groups else ["--clear-groups"]
    )
    return [
        "setpriv",
        f"--reuid={account.uid}",
        f"--regid={account.gid}",
        *groups,
        "--no-new-privs",
        "--bounding-set=-all",
        "--inh-caps=-all",
        "--",
    ]
