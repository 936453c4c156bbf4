"""Conventions of all executors for the launch of an attempt: name, environment, first shell command.

Each executor builds its launch from these functions, so a program finds the same log, working directory,
environment and signals in a container and as a plain process.  The functions are pure; the executors act.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Final

from jobs.contract import RunPaths
from runner.base.errors import Refused
from runner.core.ports.executor import Key, LaunchRequest
from runner.files.field_checks import HOOK_VARIABLES

_SECRETS: Final = """\
for runner_name in ${RUNNER_SECRET_ENV-}; do
  runner_value=$(cat "$RUNNER_SECRETS_DIR/$runner_name") || exit 126
  command export "$runner_name=$runner_value"
done; umask "${RUNNER_UMASK:-077}"
"""
"""Part of a shell script: the variables whose values are in the files of secrets, and the umask.

The values are in no request to an engine, in no record and in no argument.
"""

_IMAGE: Final = """\
for runner_name in ${RUNNER_IMAGE_ENV-}; do
  eval ": \\"\\${$runner_name:=\\$RUNNER_IMAGE_$runner_name}\\"; export $runner_name
  unset RUNNER_IMAGE_$runner_name"
done; unset ${RUNNER_IMAGE_UNSET-} RUNNER_IMAGE_ENV RUNNER_IMAGE_UNSET
"""
"""Part of a shell script: the program gets what its image sets and the request has set aside.

A value of the job stands before that of the image.  What no program gets is unset.
"""

ENTRY: Final = f'umask 077; exec >>"$2" 2>&1; cd "$1" || exit 126; shift 2; {_SECRETS}exec "$@"'
"""A shell script that opens the log, changes to the working directory and is replaced by the program.

Arguments: the working directory, the log, the program and its arguments.  The program appends to the log
itself, so the log is complete even if the daemon or the container engine dies.
"""

SIGNALS: Final = Path(__file__).with_name("signals.sh").read_text()
"""Shell functions that bring a signal to the program of an attempt."""

_FUNCTIONS: Final = re.sub(r"(?m)^ *#.*\n|^\n", "", SIGNALS)

SUPERVISED_ENTRY: Final = (
    _FUNCTIONS
    + """\
umask 077; read -r runner_host </proc/sys/kernel/hostname; runner_claim=${2%/*}/.started-$runner_host
if [ -e "$runner_claim" ]; then
  echo "the container was started again: an attempt starts once" >&2; exit 125
fi
true 2>/dev/null >"$runner_claim"
exec 3>&2 >>"$2" 2>&1; cd "$1" || exit 126; shift 2
@SECRETS@@IMAGE@env --default-signal=INT,QUIT true 2>/dev/null || exec "$@" 3>&-
runner_main=; listen
env --default-signal=INT,QUIT /bin/sh -c 'exec "$@"' runner "$@" 3>&- &
runner_main=$!
exec 2>/dev/null
bring '' $runner_main
while wait $runner_main; status=$?; kill -0 $runner_main; do :; done
wait $runner_main; last=$?; [ $last -eq 127 ] || status=$last
[ "$status$runner_stopping" != 0yes ] || status=75
[ -n "$runner_stopping" ] || find_left 1 $$
[ -z "${left-}" ] || keep_left "${runner_claim%/*}/@LEFT@" "$left"
killed=
for file in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control; do
  [ ! -r $file ] || while read -r event count; do
    [ "$event" != oom_kill ] || [ "$count" -eq 0 ] || killed=$count
  done <$file
done
[ -z "$killed" ] || { echo "oom_kill $killed" >&3; sleep 0.4 || sleep 1; }
exit $status
""".replace("@SECRETS@", _SECRETS)
    .replace("@IMAGE@", _IMAGE)
    .replace("@LEFT@", RunPaths.LEFT)
)
"""``ENTRY`` for a container: the shell stays as the parent of the program.

It runs the program once: a file beside the log, named after the host as each of several nodes has its own,
says that the attempt was started before.  So ``docker restart`` ends the attempt, and no second program
writes beside its successor.

It brings every signal that the container's init sends it to the program (``SIGNALS``).  When the program
has ended and the kernel has killed a process of the container for memory, it waits for a moment, in which
the daemon reads the count of the cgroup (``runner.adapters.docker.memory_kills``) before that is removed
with the container.  It also writes ``oom_kill COUNT`` to the container's own output, for people: a
program can write that, too.  The names of the processes that the program has left running, which end with
the container, it writes into a file beside the log.  Its exit status is that of the program, but 75 for 0
after SIGTERM, whoever sent that.  A shell starts background processes with SIGINT and SIGQUIT ignored.
Where ``env`` cannot reset them (coreutils before 8.31, busybox), the program replaces the shell: it alone
gets the signals, and nothing waits for the daemon to read the count, or tells what is left running.
"""

INSIDE: Final = f'{_SECRETS}{_IMAGE}cd "$1" || exit 126; shift; exec "$@"'
"""A shell script that a command inside of a running attempt begins with; its output goes to whoever asked."""

FORBIDDEN_VARIABLES: Final = re.compile(
    rf"LD_.*|{HOOK_VARIABLES}|DOCKER_.*|(AMD|ROCR|HIP|CUDA)_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL"
)
"""Environment variables that a job must not set.

They control the dynamic loader, the injection of devices, or the container engine.  Some of them are read
by programs that still run as root.
"""

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def attempt_name(key: Key) -> str:
    """Return the name of an attempt: unique on the host, and valid for a container and for a directory.

    Raises:
        Refused: the instance or the job id has characters that a name must not have.
    """
    if not (_NAME.fullmatch(key.instance) and _NAME.fullmatch(key.job_id)):
        raise Refused(
            f"{key.job_id!r} of {key.instance!r}: not a name; use letters, digits, '_', '.' and '-'"
        )
    return f"runner-{key.instance}-{key.job_id}-{key.attempt}"


def check_request(request: LaunchRequest) -> None:
    """Check the rules that hold in every executor.

    Raises:
        Refused: the attempt would run as root, or its environment has a forbidden or malformed variable.
    """
    owner = request.owner
    if owner.uid == 0 or owner.gid == 0:
        raise Refused(f"{request.key.job_id}: would be {owner.uid}:{owner.gid}; jobs never run as root")
    for name, value in request.environment.items():
        if not _VARIABLE.fullmatch(name) or "\0" in value:
            raise Refused(f"{request.key.job_id}: environment: {name!r} is not a variable")
        if FORBIDDEN_VARIABLES.fullmatch(name):
            raise Refused(f"{request.key.job_id}: environment: {name} may not be set by a job; remove it")


def entry_script(directory: PurePath, log: PurePath, argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command that runs ``argv`` in ``directory`` and appends its output to ``log``."""
    return ("/bin/sh", "-c", ENTRY, "runner", str(directory), str(log), *argv)


def supervised_entry_script(directory: PurePath, log: PurePath) -> tuple[str, ...]:
    """Return the command that does this in a container; the engine appends ``argv`` to it."""
    return ("/bin/sh", "-c", SUPERVISED_ENTRY, "runner", str(directory), str(log))


def directory_of(entrypoint: Sequence[str]) -> str:
    """Return the directory in which ``supervised_entry_script`` starts the program, else ``/``."""
    return entrypoint[4] if list(entrypoint[1:3]) == ["-c", SUPERVISED_ENTRY] else "/"


def inside_script(directory: str, argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command that runs ``argv`` beside the program of an attempt, as the attempt runs its own."""
    return ("/bin/sh", "-c", INSIDE, "runner", directory, *argv)


def attempt_environment(request: LaunchRequest, directory: PurePath, scratch: PurePath) -> Mapping[str, str]:
    """Return the environment of an attempt; variables of the job override the defaults.

    Args:
        request: The attempt.
        directory: The run directory, as the program sees it.
        scratch: The directory for caches of compilers, as the program sees it.
    """
    return {
        "HOME": str(directory / "home"),
        "XDG_CACHE_HOME": str(directory / "cache"),  # all lineages share it; each has a home of its own
        "USER": request.owner.name,
        "LOGNAME": request.owner.name,
        "TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor"),
        "TRITON_CACHE_DIR": str(scratch / "triton"),
        "PYTHONUNBUFFERED": "1",
        "PYTHONHASHSEED": "0",
        **request.environment,
    }
