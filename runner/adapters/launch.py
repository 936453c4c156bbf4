"""What every executor says alike about an attempt: its name, its environment, its first line of shell.

Kept apart so that a job meets the same words in a container and as a plain process.
Everything here is pure; the executors act.
"""

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Final

from runner.base.errors import Refused
from runner.core.ports.executor import Key, LaunchRequest

ENTRY: Final = 'umask 077; exec >>"$2" 2>&1; cd "$1" || exit 126; shift 2; exec "$@"'
"""The attempt appends its own output to its log: complete whatever happens to daemon and engine."""

WATCHED_ENTRY: Final = """\
umask 077; exec 3>&2 >>"$2" 2>&1; cd "$1" || exit 126; shift 2
env --default-signal=INT,QUIT true 2>/dev/null || exec "$@" 3>&-
env --default-signal=INT,QUIT /bin/sh -c 'exec "$@"' runner "$@" 3>&- &
exec 2>/dev/null
n=0; while [ $((n += 1)) -lt 65 ]; do
  case $n in 4|5|6|7|8|9|11|17|19|31|32|33) ;; *) trap "kill -$n $!" $n ;; esac
done
while wait $!; status=$?; kill -0 $!; do :; done
wait $!; last=$?; [ $last -eq 127 ] || status=$last
for file in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control; do
  [ ! -r $file ] || while read -r name count; do
    [ "$name" != oom_kill ] || [ "$count" -eq 0 ] || echo "oom_kill $count" >&3
  done <$file
done
exit $status
"""
"""The same in a container, whose shell stays to read what the kernel counted before the group is gone.

It passes every signal on that an init passes to it, says ``oom_kill COUNT`` to the engine's log and
ends as the program ended.  Where ``env`` cannot undo that a shell's child ignores SIGINT (coreutils
before 8.31, busybox) the program takes the shell's place, and the engine's word is the only one.
"""

OOM_WORD: Final = re.compile(r"oom_kill [0-9]+")

FORBIDDEN_VARIABLES: Final = re.compile(
    r"LD_.*|NVIDIA_.*|DOCKER_.*|(AMD|ROCR|HIP|CUDA)_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL"
)
"""They steer loaders, device injection or the engine, and some are read before the job's uid is in force."""

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def attempt_name(key: Key) -> str:
    """Return the name of the attempt, unique in the world and valid for containers and directories."""
    if not (_NAME.fullmatch(key.instance) and _NAME.fullmatch(key.job_id)):
        raise Refused(
            f"{key.job_id!r} of {key.instance!r}: not a name; use letters, digits, '_', '.' and '-'"
        )
    return f"runner-{key.instance}-{key.job_id}-{key.attempt}"


def launch_script(request: LaunchRequest) -> None:
    """Check the rules that hold in every executor.

    Raises:
        Refused: it would be root, or its environment says what no job may say.
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
    """Return the command that opens ``log`` for appending, goes to ``directory`` and becomes ``argv``."""
    return ("/bin/sh", "-c", ENTRY, "runner", str(directory), str(log), *argv)


def supervised_entry_script(directory: PurePath, log: PurePath) -> tuple[str, ...]:
    """Return what does the same for the arguments that follow, and tells what the kernel counted."""
    return ("/bin/sh", "-c", WATCHED_ENTRY, "runner", str(directory), str(log))


def attempt_environment(request: LaunchRequest, home: PurePath, scratch: PurePath) -> Mapping[str, str]:
    """Return what an attempt finds in its environment; the job's own words win over the defaults."""
    return {
        "HOME": str(home),
        "USER": request.owner.name,  # PyTorch asks getpwuid, which an image cannot answer
        "LOGNAME": request.owner.name,
        "TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor"),
        "TRITON_CACHE_DIR": str(scratch / "triton"),
        "PYTHONUNBUFFERED": "1",
        "PYTHONHASHSEED": "0",
        **request.environment,
    }
